//! Small float products of attention, on blocks that fit into the inner caches.

use super::super::super::vector::{LANES, Lanes, dots, for_each_level};

/// Cells of a block.
pub const BLOCK: usize = 64;

/// Rows of the left matrix that are multiplied together: with 16 columns they fill the registers of every level.
const ROWS: usize = 6;

/// `c[R rows][16] += a[R rows][k] * b[k][16]`; rows of `a` and `c` are `a_stride` and `stride` apart, those of `b` too `stride`.
#[inline(always)]
fn tile<L: Lanes, const R: usize>(a: &[f32], a_stride: usize, k: usize, b: &[f32], c: &mut [f32], stride: usize) {
    let a: [&[f32]; R] = std::array::from_fn(|r| &a[r * a_stride..r * a_stride + k]);
    let mut sums = [L::splat(0.0); R];
    for (i, b) in b.chunks(stride).take(k).enumerate() {
        let Some(b) = b.first_chunk::<LANES>() else { break };
        let b = L::load(b);
        for r in 0..R {
            sums[r] = L::splat(a[r][i]).mul_add(b, sums[r]);
        }
    }
    for r in 0..R {
        if let Some(c) = c[r * stride..].first_chunk_mut::<LANES>() {
            L::load(c).add(sums[r]).store(c);
        }
    }
}

/// `c += a * b` for `a` of any number of rows with `k` columns in use, `c` of `width` columns, a multiple of 16.
#[inline(always)]
fn gemm_body<L: Lanes>(a: &[f32], a_stride: usize, k: usize, b: &[f32], width: usize, c: &mut [f32]) {
    let rows = a.len() / a_stride;
    for first in (0..rows).step_by(ROWS) {
        let a = &a[first * a_stride..];
        for column in (0..width).step_by(LANES) {
            let (b, c) = (&b[column..], &mut c[first * width + column..]);
            match rows - first {
                1 => tile::<L, 1>(a, a_stride, k, b, c, width),
                2 => tile::<L, 2>(a, a_stride, k, b, c, width),
                3 => tile::<L, 3>(a, a_stride, k, b, c, width),
                4 => tile::<L, 4>(a, a_stride, k, b, c, width),
                5 => tile::<L, 5>(a, a_stride, k, b, c, width),
                _ => tile::<L, ROWS>(a, a_stride, k, b, c, width),
            }
        }
    }
}

/// `scores[query][cell] = q[query] · k[cell]`, rows of scores `BLOCK` apart.
#[inline(always)]
fn scores_body<L: Lanes>(q: &[f32], k: &[f32], dim: usize, scores: &mut [f32]) {
    const GROUP: usize = 4;
    let queries = q.len() / dim;
    let whole = queries / GROUP * GROUP;
    for (cell, k) in k.chunks_exact(dim).enumerate() {
        for first in (0..whole).step_by(GROUP) {
            let dots = dots::<L, GROUP>(k, std::array::from_fn(|i| &q[(first + i) * dim..(first + i + 1) * dim]));
            for (i, dot) in dots.into_iter().enumerate() {
                scores[(first + i) * BLOCK + cell] = dot;
            }
        }
        for query in whole..queries {
            scores[query * BLOCK + cell] = dots::<L, 1>(k, [&q[query * dim..(query + 1) * dim]])[0];
        }
    }
}

#[inline(always)]
fn accumulate_body<L: Lanes>(weights: &[f32], count: usize, v: &[f32], dim: usize, sums: &mut [f32]) {
    gemm_body::<L>(weights, BLOCK, count, v, dim, sums);
}

for_each_level! {
    /// `c += a * b`: `a` has rows of `a_stride` with `k` columns in use, `b` is `k` rows of `width`, `c` has rows of `width`, a
    /// multiple of 16.
    pub fn gemm = gemm_body(a: &[f32], a_stride: usize, k: usize, b: &[f32], width: usize, c: &mut [f32]);
    /// `scores[query][cell] = q[query] · k[cell]`, rows of scores `BLOCK` apart.
    pub fn scores = scores_body(q: &[f32], k: &[f32], dim: usize, scores: &mut [f32]);
    /// `sums[query] += weights[query][cell] * v[cell]` over `count` cells, rows of weights `BLOCK` apart.
    pub fn accumulate = accumulate_body(weights: &[f32], count: usize, v: &[f32], dim: usize, sums: &mut [f32]);
}

/// Rows of `dim` as columns: `turned[i][row] = rows[row][i]`, `BLOCK` apart. Columns past the rows are not touched.
pub fn turn(rows: &[f32], dim: usize, turned: &mut [f32]) {
    for (row, values) in rows.chunks_exact(dim).enumerate() {
        for (value, turned) in values.iter().zip(turned.chunks_exact_mut(BLOCK)) {
            turned[row] = *value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::kernels::Simd;
    use super::super::super::super::vector::Level;
    use super::*;

    #[test]
    fn blocks_equal_plain_sums_at_all_levels() {
        let value = |i: usize| ((i * 7 + i / 13) % 23) as f32 - 11.0;
        for simd in Simd::available() {
            let level = Level::new(Some(*simd));
            for (queries, cells, dim) in [(1, 1, 16), (3, 64, 32), (7, 33, 48), (13, 50, 64), (48, 64, 256)] {
                let q: Vec<f32> = (0..queries * dim).map(value).collect();
                let k: Vec<f32> = (0..cells * dim).map(|i| value(i + 3)).collect();
                let mut found = vec![0.0; queries * BLOCK];
                scores(level, &q, &k, dim, &mut found);
                let mut turned = vec![0.0; dim * BLOCK];
                turn(&k, dim, &mut turned);
                let mut by_gemm = vec![0.0; queries * BLOCK];
                gemm(level, &q, dim, dim, &turned, BLOCK, &mut by_gemm);
                let mut sums = vec![1.0; queries * dim];
                accumulate(level, &found, cells, &k, dim, &mut sums);
                for query in 0..queries {
                    for cell in 0..cells {
                        let expected: f32 = (0..dim).map(|i| q[query * dim + i] * k[cell * dim + i]).sum();
                        assert_eq!(found[query * BLOCK + cell], expected);
                        assert_eq!(by_gemm[query * BLOCK + cell], expected);
                    }
                    for i in 0..dim {
                        let term = |cell: usize| f64::from(found[query * BLOCK + cell]) * f64::from(k[cell * dim + i]);
                        let expected = 1.0 + (0..cells).map(term).sum::<f64>();
                        let error = (f64::from(sums[query * dim + i]) - expected).abs();
                        assert!(error <= 1e-3 * expected.abs().max(1e4), "{error}");
                    }
                }
            }
        }
    }
}
