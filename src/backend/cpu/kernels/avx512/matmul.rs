//! Products with many rows of activations (prompts).
//!
//! Activations are packed in tiles of 16 tokens, so that one vector holds four values of each; weights are unpacked a
//! panel of rows at a time. The inner kernel multiplies `ROWS` rows with one or two tiles: four weights of a row are
//! broadcast, and sums stay in registers over the superblocks of a place (see [`super::order`]). Both sides are stored in
//! the order in which the kernel reads them.

use super::super::activations::{ActBlock, FINE_BITS};
use super::super::job::Job;
use super::super::layout::{GROUP_OF_LANE, SUPER, superblocks};
use super::Unpack;
use super::blocks::transpose;
use super::matvec::Padded;
use super::order::{Leaf, SLOT_OF_GROUP, STRETCH};
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows of weights of the inner kernel.
const ROWS: usize = 6;
/// Tokens of a tile.
const TILE: usize = 16;
/// Tokens that are packed at a time; more are done in turns.
const TOKENS_MAX: usize = 256;
/// Tiles times superblocks that are packed at a time: they stay in the second cache.
const TILE_BLOCKS: usize = 64;
/// Rows times superblocks of weights that are unpacked at a time.
const PANEL_BLOCKS: usize = 192;
/// Rows of a panel.
const PANEL_ROWS: usize = 48;
/// Groups of 32 in a superblock.
const SLOTS: usize = 8;

/// A group of 32 values of 16 tokens. In a tile: slot after slot, and in a slot superblock after superblock.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct TileCell {
    /// Four values of 16 tokens, by place in the group.
    q: [[[[i8; 4]; TILE]; 4]; 2],
    /// The second bytes in the same order, where activations have two.
    fine: [[[[i8; 4]; TILE]; 4]; 2],
    scale: [f32; TILE],
    /// What the accumulators start with (`i32`), or for formats with minimums scale times sum (`f32`), for each 16
    /// values. If weights share scales by 32, the first entry holds the sum for 32.
    sum: [[u32; TILE]; 2],
}

/// A group of 32 weights of the rows of the inner kernel. In these rows: slot after slot, and in a slot superblock after
/// superblock.
type PanelCell = [[u8; 32]; ROWS];

/// The scales or minimums of an unpacked superblock, in lanes, for the rows of the inner kernel.
type PanelScales = [[f32; 16]; ROWS];

#[repr(C, align(64))]
struct Scratch {
    tiles: [TileCell; TILE_BLOCKS * SLOTS],
    panel: [PanelCell; PANEL_BLOCKS * SLOTS / ROWS],
    scales: [PanelScales; PANEL_BLOCKS / ROWS],
    mins: [PanelScales; PANEL_BLOCKS / ROWS],
    sums: [[f32; TOKENS_MAX]; PANEL_ROWS],
    /// Sums of 2, 4 ... leaves that wait for their other half.
    waiting: [[[[f32; TILE]; 2]; ROWS]; 4],
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
    let tokens_max = (TILE_BLOCKS / blocks.min(STRETCH) * TILE).min(TOKENS_MAX);
    let mut token = 0;
    while token < job.tokens.len() {
        let tokens = token..(token + tokens_max).min(job.tokens.len());
        for first in (0..blocks).step_by(STRETCH) {
            let stretch = first..(first + STRETCH).min(blocks);
            // SAFETY: passed on; a stretch of all tiles fits the scratch.
            unsafe {
                pack_tiles::<U>(job, &tokens, &stretch, &mut scratch.tiles);
                rows_by_panel::<U>(job, &tokens, &stretch, scratch);
            }
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
    let blocks = stretch.len();
    let panel_rows = (PANEL_BLOCKS / blocks / ROWS * ROWS).min(PANEL_ROWS);
    // The last superblock may be partial.
    let groups = (job.k.min(stretch.end * SUPER) - stretch.start * SUPER).div_ceil(32);
    let tiles = tokens.len().div_ceil(TILE);
    let fine = job.acts.rounding.is_fine();
    let mut row = job.rows.start;
    while row < job.rows.end {
        let rows = row..(row + panel_rows).min(job.rows.end);
        // SAFETY: the panel holds `panel_rows` rows of the stretch; tiles are packed.
        unsafe {
            unpack_panel::<U>(job, &rows, stretch, scratch);
            for (six, first) in (0..rows.len()).step_by(ROWS).enumerate() {
                let right = Right {
                    q: scratch.panel.as_ptr().add(six * blocks * SLOTS),
                    scales: scratch.scales.as_ptr().add(six * blocks),
                    mins: scratch.mins.as_ptr().add(six * blocks),
                };
                let sums = scratch.sums[first].as_mut_ptr();
                let waiting = &mut scratch.waiting;
                for tile in (0..tiles).step_by(2) {
                    let a = scratch.tiles.as_ptr().add(tile * blocks * SLOTS);
                    let out = sums.add(tile * TILE);
                    match (tile + 1 < tiles, fine) {
                        (true, true) => kernel::<U, 2, true>(a, &right, blocks, groups, waiting, out),
                        (true, false) => kernel::<U, 2, false>(a, &right, blocks, groups, waiting, out),
                        (false, true) => kernel::<U, 1, true>(a, &right, blocks, groups, waiting, out),
                        (false, false) => kernel::<U, 1, false>(a, &right, blocks, groups, waiting, out),
                    }
                }
            }
            write_out(job, tokens, &rows, stretch.start > 0, &scratch.sums);
        }
        row = rows.end;
    }
}

/// # Safety
/// As for [`matmul`]; the panel holds the rows and the stretch.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn unpack_panel<U: Unpack>(job: &Job, rows: &Range<usize>, stretch: &Range<usize>, scratch: &mut Scratch) {
    let blocks = stretch.len();
    for (i, row) in rows.clone().enumerate() {
        let (six, r) = (i / ROWS, i % ROWS);
        let panel = &mut scratch.panel[six * blocks * SLOTS..][..blocks * SLOTS];
        for (b, block) in stretch.clone().enumerate() {
            let start = row * job.row_bytes + block * U::BYTES;
            let bytes = &job.weights[start..];
            // SAFETY: a superblock is in the weights, though its end may be the next row; what is not there is padded.
            unsafe {
                let w = if bytes.len() >= U::BYTES {
                    _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(job.row_bytes).cast());
                    U::unpack(bytes.as_ptr())
                } else {
                    U::unpack(Padded::new(bytes).0.as_ptr())
                };
                for (n, q) in transpose(w.q).into_iter().enumerate() {
                    for (group, q) in [(n, _mm512_castsi512_si256(q)), (n + 4, _mm512_extracti64x4_epi64::<1>(q))] {
                        let cell = &mut panel[SLOT_OF_GROUP[group] * blocks + b];
                        _mm256_storeu_si256(cell[r].as_mut_ptr().cast(), q);
                    }
                }
                _mm512_storeu_ps(scratch.scales[six * blocks + b][r].as_mut_ptr(), w.scale);
                if U::MINS {
                    _mm512_storeu_ps(scratch.mins[six * blocks + b][r].as_mut_ptr(), w.min);
                }
            }
        }
    }
}

/// # Safety
/// As for [`matmul`]; `tiles` holds all tokens and the stretch.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn pack_tiles<U: Unpack>(job: &Job, tokens: &Range<usize>, stretch: &Range<usize>, tiles: &mut [TileCell]) {
    let fine = job.acts.rounding.is_fine();
    let tiles = tiles.chunks_exact_mut(stretch.len() * SLOTS);
    for (out, first) in tiles.zip(tokens.clone().step_by(TILE)) {
        let count = (tokens.end - first).min(TILE);
        // A tile that is not full repeats its last token.
        let acts: [&[ActBlock]; TILE] = std::array::from_fn(|t| job.act_row(first + t.min(count - 1)));
        for (i, b) in stretch.clone().enumerate() {
            // SAFETY: every row has block `b`; the tile has a cell for every slot of it.
            unsafe { pack_block::<U>(std::array::from_fn(|t| &raw const acts[t][b]), fine, &mut out[i..], stretch.len()) };
        }
    }
}

/// Packs a superblock; its cells are those of `out` at multiples of `stride`.
///
/// # Safety
/// All blocks are readable.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn pack_block<U: Unpack>(acts: [*const ActBlock; TILE], fine: bool, out: &mut [TileCell], stride: usize) {
    // SAFETY: the arrays of a block are 64-byte aligned multiples of 64 bytes.
    let vectors = |offset: usize| unsafe {
        let mut x = [_mm512_setzero_si512(); TILE];
        for (x, act) in x.iter_mut().zip(acts) {
            *x = _mm512_load_si512(act.cast::<u8>().add(offset).cast());
        }
        transpose16(x)
    };
    // SAFETY: every array stored to is 64 aligned bytes.
    let store = |at: *mut u8, x: __m512i| unsafe { _mm512_store_si512(at.cast(), x) };
    // The cell of a lane's group, and which half of the cell the lane is.
    let place = |lane: usize| (SLOT_OF_GROUP[GROUP_OF_LANE[lane] / 2] * stride, GROUP_OF_LANE[lane] % 2);
    for j in 0..4 {
        for (lane, x) in vectors(64 * j).into_iter().enumerate() {
            let (cell, half) = place(lane);
            store(out[cell].q[half][j].as_mut_ptr().cast(), x);
        }
        if fine {
            for (lane, x) in vectors(std::mem::offset_of!(ActBlock, fine) + 64 * j).into_iter().enumerate() {
                let (cell, half) = place(lane);
                store(out[cell].fine[half][j].as_mut_ptr().cast(), x);
            }
        }
    }
    for (lane, x) in vectors(std::mem::offset_of!(ActBlock, scale)).into_iter().enumerate() {
        store(out[place(lane).0].scale.as_mut_ptr().cast(), x);
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
        let (cell, half) = place(lane);
        let both = if U::BY_16 || half == 1 {
            x
        } else if U::SHIFT.is_some() {
            _mm512_add_epi32(x, sums[lane + 4])
        } else {
            _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(sums[lane + 4])))
        };
        store(out[cell].sum[half].as_mut_ptr().cast(), both);
    }
}

/// Sixteen vectors of 16 dwords to the vectors of their first, second ... dwords.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose16(x: [__m512i; 16]) -> [__m512i; 16] {
    // Within each 128 bits: vectors 4i..4i+4 become the four columns of a 4×4 block in each quarter.
    let mut y = x;
    for i in 0..4 {
        let part = transpose([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]);
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

/// The unpacked weights of the inner kernel's rows.
struct Right {
    q: *const PanelCell,
    scales: *const PanelScales,
    mins: *const PanelScales,
}

/// `ROWS` rows times `V` tiles over `groups` times 32 values; `sums` has the tokens of a row side by side.
///
/// # Safety
/// `tiles` has `V` times `blocks` superblocks, `right` as many, `sums` has `ROWS` rows of [`TOKENS_MAX`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn kernel<U: Unpack, const V: usize, const FINE: bool>(
    tiles: *const TileCell,
    right: &Right,
    blocks: usize,
    groups: usize,
    waiting: &mut [[[[f32; TILE]; 2]; ROWS]; 4],
    sums: *mut f32,
) {
    let vectors = std::hint::black_box(if U::BY_16 { 4 } else { 8 });
    let leaves = Leaf::count(U::BY_16);
    // SAFETY: see above; offsets stay inside the cells of a slot.
    unsafe {
        for number in 0..leaves {
            let leaf = Leaf::new(number, U::BY_16);
            let mut total = [[_mm512_setzero_ps(); V]; ROWS];
            for b in 0..groups / SLOTS + usize::from(leaf.group() < groups % SLOTS) {
                let at = leaf.slot * blocks + b;
                let tile: [*const TileCell; V] = std::array::from_fn(|v| tiles.add(v * blocks * SLOTS + at));
                let (scales, mins) = (right.scales.add(b).cast::<f32>(), right.mins.add(b).cast::<f32>());
                part::<U, V, FINE>(tile, right.q.add(at).cast(), (scales, mins), leaf, vectors, &mut total);
            }
            // Whole pairs wait at the level of their size.
            let level = number.trailing_ones() as usize;
            for sums in &waiting[..level] {
                for r in 0..ROWS {
                    for v in 0..V {
                        total[r][v] = _mm512_add_ps(_mm512_loadu_ps(sums[r][v].as_ptr()), total[r][v]);
                    }
                }
            }
            for r in 0..ROWS {
                for v in 0..V {
                    let at = match waiting.get_mut(level) {
                        Some(waiting) if number + 1 < leaves => waiting[r][v].as_mut_ptr(),
                        _ => sums.add(r * TOKENS_MAX + v * TILE),
                    };
                    _mm512_storeu_ps(at, total[r][v]);
                }
            }
        }
    }
}

/// Adds the products of the values at `$q` (`$vectors` vectors of each tile) to `$dots`. A macro, so that all sums stay in
/// registers; `$vectors` is a number that the compiler does not see, as it would otherwise unroll the loop, load far ahead
/// and run out of registers.
macro_rules! multiply {
    ($q:expr, $weights:expr, $vectors:expr, $dots:ident) => {{
        let q: [*const __m512i; V] = $q;
        for j in 0..$vectors {
            let mut a = [_mm512_setzero_si512(); V];
            for v in 0..V {
                a[v] = _mm512_load_si512(q[v].add(j));
            }
            let weights = $weights.add(j);
            for r in 0..ROWS {
                let w = _mm512_set1_epi32(weights.add(r * (size_of::<[u8; 32]>() / 4)).read_unaligned());
                for v in 0..V {
                    $dots[r][v] = _mm512_dpbusd_epi32($dots[r][v], w, a[v]);
                }
            }
        }
    }};
}

/// Adds the products of a leaf in one superblock.
///
/// # Safety
/// The pointers are those of the superblock: a cell of each tile and of the panel, and scales of `ROWS` rows.
#[allow(clippy::needless_range_loop, reason = "several arrays share the indices")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,f16c,fma")]
unsafe fn part<U: Unpack, const V: usize, const FINE: bool>(
    tile: [*const TileCell; V],
    weights: *const i32,
    (scales, mins): (*const f32, *const f32),
    leaf: Leaf,
    vectors: usize,
    total: &mut [[__m512; V]; ROWS],
) {
    // SAFETY: see above.
    unsafe {
        let weights = weights.add(4 * leaf.half);
        let sum = |v: usize| (&raw const (*tile[v]).sum[leaf.half]).cast::<__m512i>();
        let start = |v: usize| if U::SHIFT.is_some() { _mm512_load_si512(sum(v)) } else { _mm512_setzero_si512() };
        let mut dots = [[_mm512_setzero_si512(); V]; ROWS];
        if !FINE {
            for v in 0..V {
                let start = start(v);
                for r in 0..ROWS {
                    dots[r][v] = start;
                }
            }
        }
        multiply!(std::array::from_fn(|v| (&raw const (*tile[v]).q[leaf.half]).cast()), weights, vectors, dots);
        if FINE {
            for v in 0..V {
                let start = start(v);
                for r in 0..ROWS {
                    dots[r][v] = _mm512_add_epi32(_mm512_slli_epi32::<FINE_BITS>(dots[r][v]), start);
                }
            }
            multiply!(std::array::from_fn(|v| (&raw const (*tile[v]).fine[leaf.half]).cast()), weights, vectors, dots);
        }
        for r in 0..ROWS {
            let scale = _mm512_set1_ps(*scales.add(16 * r + leaf.lane()));
            for v in 0..V {
                let scale = _mm512_mul_ps(scale, _mm512_load_ps((&raw const (*tile[v]).scale).cast()));
                total[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][v]), scale, total[r][v]);
            }
        }
        if U::MINS {
            for r in 0..ROWS {
                let min = _mm512_set1_ps(*mins.add(16 * r + leaf.lane()));
                for v in 0..V {
                    total[r][v] = _mm512_fmadd_ps(min, _mm512_castsi512_ps(_mm512_load_si512(sum(v))), total[r][v]);
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
