//! Products with many rows of activations (prompts).
//!
//! Activations are packed in tiles of 16 tokens, so that one vector holds four values of each; weights are unpacked a
//! panel of rows at a time. The inner kernel multiplies `ROWS` rows with one or two tiles: four weights of a row are
//! broadcast, and all sums stay in registers over a stretch of `k`.

use super::super::activations::{ActBlock, FINE_BITS};
use super::super::job::Job;
use super::super::layout::{GROUP_OF_LANE, SUPER, superblocks};
use super::Unpack;
use super::matvec::Padded;
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows of weights of the inner kernel.
const ROWS: usize = 6;
/// Tokens of a tile.
const TILE: usize = 16;
/// Tokens that are packed at a time; more are done in turns.
const TOKENS_MAX: usize = 256;
/// Tiles times superblocks that are packed at a time.
const TILE_BLOCKS: usize = 64;
/// Rows times superblocks of weights that are unpacked at a time.
const PANEL_BLOCKS: usize = 192;
/// Rows of a panel.
const PANEL_ROWS: usize = 48;

/// A superblock of 16 tokens: 32 values after 32 values, so that the kernel reads it from front to back.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct TileBlock {
    /// Four values of 16 tokens, by group of 16 and then by place in the group.
    q: [[[[i8; 4]; TILE]; 4]; 16],
    /// The second bytes in the same order, where activations have two.
    fine: [[[[i8; 4]; TILE]; 4]; 16],
    /// The scales of 32 values.
    scale: [[f32; TILE]; 8],
    /// What the accumulators start with (`i32`), or for formats with minimums scale times sum (`f32`), for each 16
    /// values. If weights share scales by 32, the even entries hold the sums for 32.
    sum: [[u32; TILE]; 16],
}

/// An unpacked superblock of a row of weights.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct PanelBlock {
    q: [u8; SUPER],
    scale: [f32; 16],
    min: [f32; 16],
}

#[repr(C, align(64))]
struct Scratch {
    tiles: [TileBlock; TILE_BLOCKS],
    panel: [PanelBlock; PANEL_BLOCKS],
    sums: [[f32; TOKENS_MAX]; PANEL_ROWS],
}

/// Bytes of scratch, aligned to 64, that [`matmul`] needs.
pub(in super::super) const SCRATCH_BYTES: usize = size_of::<Scratch>();

/// # Safety
/// The machine has the features of the level, `job` is checked, and `scratch` is `SCRATCH_BYTES` of memory aligned to
/// 64, initialised, and used by no one else.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
pub(in super::super) unsafe fn matmul<U: Unpack>(job: &Job, scratch: *mut u8) {
    // SAFETY: plain numbers, so any bytes are valid.
    let scratch = unsafe { &mut *scratch.cast::<Scratch>() };
    let blocks = superblocks(job.k);
    let mut token = 0;
    while token < job.tokens.len() {
        let tokens = token..(token + TOKENS_MAX).min(job.tokens.len());
        let tiles = tokens.len().div_ceil(TILE);
        let step = (TILE_BLOCKS / tiles).min(PANEL_BLOCKS / ROWS);
        let mut b = 0;
        while b < blocks {
            let stretch = b..(b + step).min(blocks);
            // SAFETY: passed on; a stretch of all tiles fits the scratch.
            unsafe {
                pack_tiles::<U>(job, &tokens, &stretch, &mut scratch.tiles);
                rows_by_panel::<U>(job, &tokens, &stretch, scratch);
            }
            b = stretch.end;
        }
        token = tokens.end;
    }
}

/// All rows of the job with the packed tokens, over a stretch of superblocks. The first stretch writes the results, the
/// others add to them.
///
/// # Safety
/// As for [`matmul`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn rows_by_panel<U: Unpack>(job: &Job, tokens: &Range<usize>, stretch: &Range<usize>, scratch: &mut Scratch) {
    let panel_rows = (PANEL_BLOCKS / stretch.len() / ROWS * ROWS).min(PANEL_ROWS);
    // The last superblock may be partial.
    let groups = (job.k.min(stretch.end * SUPER) - stretch.start * SUPER).div_ceil(32);
    let tiles = tokens.len().div_ceil(TILE);
    let fine = job.acts.rounding.is_fine();
    let mut row = job.rows.start;
    while row < job.rows.end {
        let rows = row..(row + panel_rows).min(job.rows.end);
        // SAFETY: the panel holds `panel_rows` rows of the stretch; tiles are packed.
        unsafe {
            unpack_panel::<U>(job, &rows, stretch, panel_rows, &mut scratch.panel);
            for first in (0..rows.len()).step_by(ROWS) {
                let panel = scratch.panel.as_ptr().add(first);
                let sums = scratch.sums[first].as_mut_ptr();
                let mut tile = 0;
                while tile < tiles {
                    let a = scratch.tiles.as_ptr().add(tile * stretch.len());
                    let out = sums.add(tile * TILE);
                    match (tile + 1 < tiles, fine) {
                        (true, true) => kernel::<U, 2, true>(a, stretch.len(), panel, panel_rows, groups, out),
                        (true, false) => kernel::<U, 2, false>(a, stretch.len(), panel, panel_rows, groups, out),
                        (false, true) => kernel::<U, 1, true>(a, stretch.len(), panel, panel_rows, groups, out),
                        (false, false) => kernel::<U, 1, false>(a, stretch.len(), panel, panel_rows, groups, out),
                    }
                    tile += 2;
                }
            }
            write_out(job, tokens, &rows, stretch.start > 0, &scratch.sums);
        }
        row = rows.end;
    }
}

/// # Safety
/// As for [`matmul`]; `panel` holds the rows and the stretch.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn unpack_panel<U: Unpack>(
    job: &Job,
    rows: &Range<usize>,
    stretch: &Range<usize>,
    panel_rows: usize,
    panel: &mut [PanelBlock],
) {
    for (r, row) in rows.clone().enumerate() {
        let bytes = job.weight_row(row);
        for (i, b) in stretch.clone().enumerate() {
            let out = &mut panel[i * panel_rows + r];
            let bytes = &bytes[b * U::BYTES..];
            // SAFETY: a whole superblock is in the row; a partial one is padded.
            unsafe {
                let w = if bytes.len() >= U::BYTES {
                    _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(job.row_bytes).cast());
                    U::unpack(bytes.as_ptr())
                } else {
                    U::unpack(Padded::new(bytes).0.as_ptr())
                };
                for (j, &q) in w.q.iter().enumerate() {
                    _mm512_store_si512(out.q.as_mut_ptr().add(64 * j).cast(), q);
                }
                _mm512_store_ps(out.scale.as_mut_ptr(), w.scale);
                if U::MINS {
                    _mm512_store_ps(out.min.as_mut_ptr(), w.min);
                }
            }
        }
    }
}

/// # Safety
/// As for [`matmul`]; `tiles` holds all tokens and the stretch.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn pack_tiles<U: Unpack>(job: &Job, tokens: &Range<usize>, stretch: &Range<usize>, tiles: &mut [TileBlock]) {
    let fine = job.acts.rounding.is_fine();
    for (tile, first) in tokens.clone().step_by(TILE).enumerate() {
        let count = (tokens.end - first).min(TILE);
        // A tile that is not full repeats its last token.
        let acts: [&[ActBlock]; TILE] = std::array::from_fn(|t| job.act_row(first + t.min(count - 1)));
        for (i, b) in stretch.clone().enumerate() {
            let out = &mut tiles[tile * stretch.len() + i];
            // SAFETY: every row has block `b`; all arrays are aligned to 64.
            unsafe { pack_block::<U>(std::array::from_fn(|t| &raw const acts[t][b]), fine, out) };
        }
    }
}

/// # Safety
/// All blocks are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn pack_block<U: Unpack>(acts: [*const ActBlock; TILE], fine: bool, out: &mut TileBlock) {
    // SAFETY: the arrays of a block are 64-byte aligned multiples of 64 bytes.
    let vectors = |offset: usize| unsafe {
        let mut x = [_mm512_setzero_si512(); TILE];
        for (x, act) in x.iter_mut().zip(acts) {
            *x = _mm512_load_si512(act.cast::<u8>().add(offset).cast());
        }
        transpose16(x)
    };
    // SAFETY: every row of `out` is 64 aligned bytes.
    let store = |at: *mut u8, x: __m512i| unsafe { _mm512_store_si512(at.cast(), x) };
    for j in 0..4 {
        for (lane, x) in vectors(64 * j).into_iter().enumerate() {
            store(out.q[GROUP_OF_LANE[lane]][j].as_mut_ptr().cast(), x);
        }
        if fine {
            for (lane, x) in vectors(std::mem::offset_of!(ActBlock, fine) + 64 * j).into_iter().enumerate() {
                store(out.fine[GROUP_OF_LANE[lane]][j].as_mut_ptr().cast(), x);
            }
        }
    }
    for (lane, x) in vectors(std::mem::offset_of!(ActBlock, scale)).into_iter().enumerate() {
        store(out.scale[GROUP_OF_LANE[lane] / 2].as_mut_ptr().cast(), x);
    }
    let sums = match U::SHIFT {
        Some(shift) => {
            let mut sums = vectors(std::mem::offset_of!(ActBlock, neg_sum));
            for sum in &mut sums {
                *sum = _mm512_sll_epi32(*sum, _mm_cvtsi32_si128(shift as i32));
            }
            sums
        }
        None => vectors(std::mem::offset_of!(ActBlock, scaled_sum)),
    };
    for (lane, &x) in sums.iter().enumerate() {
        let group = GROUP_OF_LANE[lane];
        let both = if U::BY_16 || group % 2 == 1 {
            x
        } else if U::SHIFT.is_some() {
            _mm512_add_epi32(x, sums[lane + 4])
        } else {
            _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(sums[lane + 4])))
        };
        store(out.sum[group].as_mut_ptr().cast(), both);
    }
}

/// Sixteen vectors of 16 dwords to the vectors of their first, second ... dwords.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose16(x: [__m512i; 16]) -> [__m512i; 16] {
    // Within each 128 bits: vectors 4i..4i+4 become the four columns of a 4×4 block in each quarter.
    let mut y = x;
    for i in 0..4 {
        let part = super::blocks::transpose([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]);
        y[4 * i..4 * i + 4].copy_from_slice(&part);
    }
    // Then quarters: result 4 * quarter + column takes that quarter of y[column], y[4 + column] ...
    let mut out = x;
    for column in 0..4 {
        let (a, b, c, d) = (y[column], y[4 + column], y[8 + column], y[12 + column]);
        let ab_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
        let ab_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
        let cd_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d);
        let cd_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d);
        out[column] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_even, cd_even);
        out[4 + column] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_odd, cd_odd);
        out[8 + column] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_even, cd_even);
        out[12 + column] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_odd, cd_odd);
    }
    out
}

/// `ROWS` rows times `V` tiles over `groups` times 32 values; `sums` has the tokens of a row side by side.
///
/// # Safety
/// `tiles` has `V` times `stride` blocks, `panel` rows of the same superblocks `panel_rows` apart, `sums` has `ROWS`
/// rows of [`TOKENS_MAX`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn kernel<U: Unpack, const V: usize, const FINE: bool>(
    tiles: *const TileBlock,
    stride: usize,
    panel: *const PanelBlock,
    panel_rows: usize,
    groups: usize,
    sums: *mut f32,
) {
    let mut total = [[_mm512_setzero_ps(); V]; ROWS];
    let four = std::hint::black_box(4);
    // SAFETY: see above; offsets stay inside the blocks.
    unsafe {
        for g in 0..groups {
            let block = panel.add(g / 8 * panel_rows);
            let tile: [*const TileBlock; V] = std::array::from_fn(|v| tiles.add(v * stride + g / 8));
            if U::BY_16 {
                part::<U, V, FINE, 1>(tile, block, g % 8, 0, four, &mut total);
                part::<U, V, FINE, 1>(tile, block, g % 8, 1, four, &mut total);
            } else {
                part::<U, V, FINE, 2>(tile, block, g % 8, 0, four, &mut total);
            }
        }
        for (r, total) in total.iter().enumerate() {
            for (v, &total) in total.iter().enumerate() {
                _mm512_storeu_ps(sums.add(r * TOKENS_MAX + v * TILE), total);
            }
        }
    }
}

/// Adds the products of 16 values to `$dots`: `$q` points at four vectors of each tile, the weights are those of a lane of
/// the panel. A macro, so that all sums stay in registers; `$four` is a 4 that the compiler does not see, as it would
/// otherwise unroll the loop, load far ahead and run out of registers.
macro_rules! multiply {
    ($q:expr, $panel:expr, $lane:expr, $four:expr, $dots:ident) => {{
        let q: [*const __m512i; V] = $q;
        let weights = $panel.cast::<i32>().add($lane);
        for j in 0..$four {
            let mut a = [_mm512_setzero_si512(); V];
            for v in 0..V {
                a[v] = _mm512_load_si512(q[v].add(j));
            }
            let weights = weights.add(16 * j);
            for r in 0..ROWS {
                let w = _mm512_set1_epi32(*weights.add(r * (size_of::<PanelBlock>() / 4)));
                for v in 0..V {
                    $dots[r][v] = _mm512_dpbusd_epi32($dots[r][v], w, a[v]);
                }
            }
        }
    }};
}

/// Part `u` of a group of 32 values: all of them (`HALVES` is 2, `u` 0), or the first or second 16.
///
/// # Safety
/// `panel` has `ROWS` blocks, each of `tile` one; `g` is below 8.
#[allow(clippy::needless_range_loop, reason = "several arrays share the indices")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn part<U: Unpack, const V: usize, const FINE: bool, const HALVES: usize>(
    tile: [*const TileBlock; V],
    panel: *const PanelBlock,
    g: usize,
    u: usize,
    four: usize,
    total: &mut [[__m512; V]; ROWS],
) {
    // The lane of the first 16 weights of the group; those of the others are four further.
    let lane = 8 * (g / 4) + g % 4 + 4 * u;
    // SAFETY: see above.
    unsafe {
        let sum = |v: usize| (&raw const (*tile[v]).sum[2 * g + u]).cast::<__m512i>();
        let start = |v: usize| if U::SHIFT.is_some() { _mm512_load_si512(sum(v)) } else { _mm512_setzero_si512() };
        let coarse = |half: usize| std::array::from_fn(|v| (&raw const (*tile[v]).q[2 * g + half]).cast());
        let fine = |half: usize| std::array::from_fn(|v| (&raw const (*tile[v]).fine[2 * g + half]).cast());
        let mut dots = [[_mm512_setzero_si512(); V]; ROWS];
        if !FINE {
            for v in 0..V {
                let start = start(v);
                for r in 0..ROWS {
                    dots[r][v] = start;
                }
            }
        }
        multiply!(coarse(u), panel, lane, four, dots);
        if HALVES == 2 {
            multiply!(coarse(1), panel, lane + 4, four, dots);
        }
        if FINE {
            for v in 0..V {
                let start = start(v);
                for r in 0..ROWS {
                    dots[r][v] = _mm512_add_epi32(_mm512_slli_epi32::<FINE_BITS>(dots[r][v]), start);
                }
            }
            multiply!(fine(u), panel, lane, four, dots);
            if HALVES == 2 {
                multiply!(fine(1), panel, lane + 4, four, dots);
            }
        }
        for r in 0..ROWS {
            let scale = _mm512_set1_ps((*panel.add(r)).scale[lane]);
            for v in 0..V {
                let a = _mm512_load_ps((&raw const (*tile[v]).scale[g]).cast());
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[r][v]), a);
                total[r][v] = _mm512_fmadd_ps(scaled, scale, total[r][v]);
            }
        }
        if U::MINS {
            for r in 0..ROWS {
                let min = _mm512_set1_ps((*panel.add(r)).min[lane]);
                for v in 0..V {
                    total[r][v] = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_load_si512(sum(v))), min, total[r][v]);
                }
            }
        }
    }
}

/// Results of a panel to their places: sums have tokens side by side, the output rows.
///
/// # Safety
/// As for [`matmul`]; `rows` starts at the first row of `sums`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn write_out(job: &Job, tokens: &Range<usize>, rows: &Range<usize>, add: bool, sums: &[[f32; TOKENS_MAX]; PANEL_ROWS]) {
    for first_row in (0..rows.len()).step_by(16) {
        let mask = ((1u32 << (rows.len() - first_row).min(16)) - 1) as __mmask16;
        for first in (0..tokens.len()).step_by(TILE) {
            // SAFETY: rows of sums past the last are not there, but others may stand in for them; stores are masked.
            unsafe {
                let mut x = [_mm512_setzero_si512(); 16];
                for (r, x) in x.iter_mut().enumerate() {
                    let row = (first_row + r).min(rows.len() - 1);
                    *x = _mm512_loadu_si512(sums[row].as_ptr().add(first).cast());
                }
                for (t, &x) in transpose16(x).iter().enumerate().take(tokens.len() - first) {
                    let out = job.out.at(tokens.start + first + t, rows.start + first_row);
                    let mut x = _mm512_castsi512_ps(x);
                    if add {
                        x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, out));
                    }
                    _mm512_mask_storeu_ps(out, mask, x);
                }
            }
        }
    }
}
