//! Small float products of attention, on blocks that fit into the inner caches.

use super::super::super::vector::{LANES, Lanes, for_each_level};

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

/// Cells whose keys stay in the first cache while all queries pass.
const CELLS: usize = 16;

/// Lanes of the dot products of `Q` queries with `C` keys.
#[inline(always)]
fn products<L: Lanes, const Q: usize, const C: usize>(q: &[f32], k: &[f32], dim: usize) -> [[L; C]; Q] {
    let mut sums = [[L::splat(0.0); C]; Q];
    for i in (0..dim).step_by(LANES) {
        let at = |x: &[f32], row: usize| x[row * dim + i..].first_chunk::<LANES>().map_or(L::splat(0.0), L::load);
        let keys: [L; C] = std::array::from_fn(|cell| at(k, cell));
        for (query, sums) in sums.iter_mut().enumerate() {
            let q = at(q, query);
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = q.mul_add(key, *sum);
            }
        }
    }
    sums
}

/// Every score is a dot product of its own, with the same bits however many there are.
#[inline(always)]
fn scores_body<L: Lanes>(q: &[f32], k: &[f32], dim: usize, scores: &mut [f32]) {
    let (queries, cells) = (q.len() / dim, k.len() / dim);
    for first in (0..cells).step_by(CELLS) {
        let end = (first + CELLS).min(cells);
        for query in (0..queries).step_by(2) {
            let (q, scores) = (&q[query * dim..], &mut scores[query * BLOCK..]);
            let mut cell = first;
            while cell < end {
                let k = &k[cell * dim..];
                if query + 1 < queries && cell + 4 <= end {
                    let [[a, b, c, d], [e, f, g, h]] = products::<L, 2, 4>(q, k, dim);
                    let sums = L::sums([a, b, c, d, e, f, g, h]);
                    scores[cell..cell + 4].copy_from_slice(&sums[..4]);
                    scores[BLOCK + cell..BLOCK + cell + 4].copy_from_slice(&sums[4..]);
                    cell += 4;
                } else if query + 1 == queries && cell + 8 <= end {
                    let [all] = products::<L, 1, 8>(q, k, dim);
                    scores[cell..cell + 8].copy_from_slice(&L::sums(all));
                    cell += 8;
                } else {
                    for other in query..queries.min(query + 2) {
                        let [[one]] = products::<L, 1, 1>(&q[(other - query) * dim..], k, dim);
                        scores[(other - query) * BLOCK + cell] = one.sum();
                    }
                    cell += 1;
                }
            }
        }
    }
}

#[inline(always)]
fn accumulate_body<L: Lanes>(weights: &[f32], count: usize, v: &[f32], dim: usize, sums: &mut [f32]) {
    gemm_body::<L>(weights, BLOCK, count, v, dim, sums);
}

for_each_level! {
    /// `scores[query][cell] = q[query] · k[cell]`, rows of scores `BLOCK` apart.
    pub fn scores = scores_body(q: &[f32], k: &[f32], dim: usize, scores: &mut [f32]);
    /// `sums[query] += weights[query][cell] * v[cell]` over `count` cells, rows of weights `BLOCK` apart.
    pub fn accumulate = accumulate_body(weights: &[f32], count: usize, v: &[f32], dim: usize, sums: &mut [f32]);
}

#[cfg(test)]
mod tests {
    use super::super::super::super::kernels::Simd;
    use super::super::super::super::vector::Level;
    use super::*;

    #[test]
    fn a_score_has_the_same_bits_in_every_block() {
        let value = |i: usize| ((i * 7919) % 1013) as f32 * 0.37 - 150.0;
        for simd in Simd::available() {
            let level = Level::new(Some(*simd));
            for (queries, cells, dim) in [(1, 64, 32), (2, 37, 48), (7, 33, 48), (13, 50, 256)] {
                let q: Vec<f32> = (0..queries * dim).map(value).collect();
                let k: Vec<f32> = (0..cells * dim).map(|i| value(i + 3)).collect();
                let mut together = vec![0.0; queries * BLOCK];
                scores(level, &q, &k, dim, &mut together);
                for (query, q) in q.chunks(dim).enumerate() {
                    for (cell, k) in k.chunks(dim).enumerate() {
                        let mut alone = [0.0; BLOCK];
                        scores(level, q, k, dim, &mut alone);
                        assert_eq!(together[query * BLOCK + cell], alone[0], "{simd} {query} {cell}");
                    }
                }
            }
        }
    }

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
                let mut sums = vec![1.0; queries * dim];
                accumulate(level, &found, cells, &k, dim, &mut sums);
                for query in 0..queries {
                    for cell in 0..cells {
                        let expected: f32 = (0..dim).map(|i| q[query * dim + i] * k[cell * dim + i]).sum();
                        assert_eq!(found[query * BLOCK + cell], expected);
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
