//! The formats with blocks of 32 and the helpers that others share.

use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use std::arch::x86_64::*;

/// Four vectors of 16 dwords, built at compile time.
pub(super) type Index = [[i32; 16]; 4];

/// The half (`hh`), the pair of groups (`n`) and the place in the pair (`l`) of a lane: the lane holds group
/// `8 * hh + 2 * n + l`, in the 32 weights numbered `4 * hh + n`.
pub(super) const fn lane(lane: usize) -> (usize, usize, usize) {
    (lane / 8, lane % 4, lane % 8 / 4)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn load(table: &[i32; 16]) -> __m512i {
    // SAFETY: the array is 64 bytes.
    unsafe { _mm512_loadu_si512(table.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn load_bytes(table: &[u8; 64]) -> __m512i {
    // SAFETY: the array is 64 bytes.
    unsafe { _mm512_loadu_si512(table.as_ptr().cast()) }
}

/// From natural order (vector `n` holds weights `32n..32n+32` and `128+32n..128+32n+32`) to the order of the layout:
/// a 4×4 transposition of dwords within every 128 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn transpose(x: [__m512i; 4]) -> [__m512i; 4] {
    let ab_low = _mm512_unpacklo_epi32(x[0], x[1]);
    let ab_high = _mm512_unpackhi_epi32(x[0], x[1]);
    let cd_low = _mm512_unpacklo_epi32(x[2], x[3]);
    let cd_high = _mm512_unpackhi_epi32(x[2], x[3]);
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Values of the eight groups of 32 to lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn spread(by_32: __m256) -> __m512 {
    let wide = _mm512_castps256_ps512(by_32);
    _mm512_shuffle_f32x4::<0b01_01_00_00>(wide, wide)
}

/// The half precision number at `p` in all lanes.
///
/// # Safety
/// Two bytes at `p` are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) unsafe fn half(p: *const u8) -> __m512 {
    // SAFETY: see above.
    let bits = unsafe { p.cast::<u16>().read_unaligned() };
    _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits))))
}

/// The half precision numbers at `p + i * stride` for the eight groups of 32, in lanes.
///
/// # Safety
/// They are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,f16c")]
pub(super) unsafe fn halves(p: *const u8, stride: usize) -> __m512 {
    // SAFETY: see above.
    let at = |i: usize| unsafe { u64::from(p.add(i * stride).cast::<u16>().read_unaligned()) };
    let low = at(0) | at(1) << 16 | at(2) << 32 | at(3) << 48;
    let high = at(4) | at(5) << 16 | at(6) << 32 | at(7) << 48;
    // Twice the first four and twice the last four are the lanes of the layout.
    let bits = _mm256_set_epi64x(high as i64, high as i64, low as i64, low as i64);
    _mm512_cvtph_ps(bits)
}

/// Sixteen bytes at `p + i * stride` for `i` in 0..4 and 4..8.
///
/// # Safety
/// They are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn load_8x16(p: *const u8, stride: usize) -> [__m512i; 2] {
    // SAFETY: see above.
    let at = |i: usize| unsafe { _mm_loadu_si128(p.add(i * stride).cast()) };
    let four = |i: usize| {
        let (low, high) = (_mm256_set_m128i(at(i + 1), at(i)), _mm256_set_m128i(at(i + 3), at(i + 2)));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    };
    [four(0), four(4)]
}

const BLOCK_DWORD: Index = {
    let mut index = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        let (hh, n, _) = lane(i % 16);
        index[i / 16][i % 16] = (16 * hh + 4 * n + i / 16) as i32;
        i += 1;
    }
    index
};

/// Lanes of the second 16 weights of a pair.
pub(super) const SECOND: __mmask16 = 0xf0f0;

/// Dword `j` of the 16 bytes of every block of 32, the same for both halves of the block; the high nibbles are moved
/// down in the lanes of the second half. The upper nibble of each byte is junk.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn nibbles([low, high]: [__m512i; 2]) -> [__m512i; 4] {
    each!(4, |j| {
        let x = _mm512_permutex2var_epi32(low, load(&BLOCK_DWORD[j]), high);
        _mm512_mask_srli_epi32::<4>(x, SECOND, x)
    })
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn low_nibbles(x: [__m512i; 4]) -> [__m512i; 4] {
    let mask = _mm512_set1_epi8(0x0f);
    each!(4 of x, |x| _mm512_and_si512(x, mask))
}

/// Adds 16 to the weights of 32-blocks whose fifth bit is set: `bits` holds, in every lane, the 32 bits of its block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn add_fifth_bit(q: [__m512i; 4], bits: __m512i) -> [__m512i; 4] {
    // The byte of the lane's first (or last) eight weights, four times. Lanes of the second half take bytes 2 and 3.
    const fn bytes(which: u8) -> [u8; 64] {
        let mut index = [0; 64];
        let mut i = 0;
        while i < 64 {
            let (_, _, l) = lane(i / 4);
            index[i] = (i % 16 / 4 * 4) as u8 + 2 * l as u8 + which;
            i += 1;
        }
        index
    }
    const BYTES: [[u8; 64]; 2] = [bytes(0), bytes(1)];
    let x = each!(2 of [0, 1], |i| _mm512_shuffle_epi8(bits, load_bytes(&BYTES[i])));
    let select = [_mm512_set1_epi32(0x0804_0201), _mm512_set1_epi32(0x8040_2010u32 as i32)];
    each!(4, |j| {
        let set = _mm512_test_epi8_mask(x[j / 2], select[j % 2]);
        _mm512_mask_add_epi8(q[j], set, q[j], _mm512_set1_epi8(16))
    })
}

/// The 32 bits at `p + i * stride` for the eight groups of 32, in lanes.
///
/// # Safety
/// They are readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn dwords(p: *const u8, stride: usize) -> __m512i {
    // SAFETY: see above.
    let at = |i: usize| unsafe { p.add(i * stride).cast::<i32>().read_unaligned() };
    let low = _mm_set_epi32(at(3), at(2), at(1), at(0));
    let high = _mm_set_epi32(at(7), at(6), at(5), at(4));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(_mm256_broadcastsi128_si256(low)), _mm256_broadcastsi128_si256(high))
}

unpack! { Q4_0, 8 * 18, shift: Some(3), mins: false, by_16: false, |p| {
    Super { q: low_nibbles(nibbles(load_8x16(p.add(2), 18))), scale: halves(p, 18), min: _mm512_setzero_ps() }
}}

unpack! { Q4_1, 8 * 20, shift: None, mins: true, by_16: false, |p| {
    let headers = dwords(p, 20);
    Super {
        q: low_nibbles(nibbles(load_8x16(p.add(4), 20))),
        scale: _mm512_cvtph_ps(_mm512_cvtepi32_epi16(headers)),
        min: _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(headers))),
    }
}}

unpack! { Q5_0, 8 * 22, shift: Some(4), mins: false, by_16: false, |p| {
    let q = low_nibbles(nibbles(load_8x16(p.add(6), 22)));
    Super { q: add_fifth_bit(q, dwords(p.add(2), 22)), scale: halves(p, 22), min: _mm512_setzero_ps() }
}}

unpack! { Q5_1, 8 * 24, shift: None, mins: true, by_16: false, |p| {
    let headers = dwords(p, 24);
    let q = low_nibbles(nibbles(load_8x16(p.add(8), 24)));
    Super {
        q: add_fifth_bit(q, dwords(p.add(4), 24)),
        scale: _mm512_cvtph_ps(_mm512_cvtepi32_epi16(headers)),
        min: _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(headers))),
    }
}}

unpack! { Q8_0, 8 * 34, shift: Some(7), mins: false, by_16: false, |p| {
    let natural = each!(4, |n| {
        let low = _mm256_loadu_si256(p.add(34 * n + 2).cast());
        let high = _mm256_loadu_si256(p.add(34 * (n + 4) + 2).cast());
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
    });
    let sign = _mm512_set1_epi8(-128);
    let q = each!(4 of transpose(natural), |q| _mm512_xor_si512(q, sign));
    Super { q, scale: halves(p, 34), min: _mm512_setzero_ps() }
}}

unpack! {
    /// 64 weights of two bits, value `q - 1`, four to a byte: a lane is one dword of the file.
    Q2_0, 4 * 18, shift: Some(0), mins: false, by_16: false, |p| {
    const WORDS: [u16; 32] = {
        let mut index = [0; 32];
        let mut i = 0;
        while i < 32 {
            let (hh, n, l) = lane(i / 2);
            let group = 8 * hh + 2 * n + l;
            // Words of the vector at `p`; those past it (32..) are in the vector at `p + 8`, four words further.
            let word = 9 * (group / 4) + 1 + 2 * (group % 4) + i % 2;
            index[i] = if word < 32 { word } else { word - 4 + 32 } as u16;
            i += 1;
        }
        index
    };
    const SCALES: [u16; 32] = {
        let mut index = [0; 32];
        let mut i = 0;
        while i < 16 {
            let (hh, n, _) = lane(i);
            index[i] = (9 * ((4 * hh + n) / 2)) as u16;
            i += 1;
        }
        index
    };
    const FIELDS: [[u8; 64]; 4] = [fields(2, 0), fields(2, 8), fields(2, 16), fields(2, 24)];
    let a = _mm512_loadu_si512(p.cast());
    let b = _mm512_loadu_si512(p.add(8).cast());
    let x = _mm512_permutex2var_epi16(a, _mm512_loadu_si512(WORDS.as_ptr().cast()), b);
    let d = _mm512_permutexvar_epi16(_mm512_loadu_si512(SCALES.as_ptr().cast()), a);
    let three = _mm512_set1_epi8(3);
    Super {
        q: each!(4, |j| {
            _mm512_and_si512(_mm512_multishift_epi64_epi8(load_bytes(&FIELDS[j]), x), three)
        }),
        scale: _mm512_cvtph_ps(_mm512_castsi512_si256(d)),
        min: _mm512_setzero_ps(),
    }
}}

/// Control of `vpmultishiftqb`: byte `t` of a lane takes the eight bits of its dword from bit `first + t * step`.
pub(super) const fn fields(step: usize, first: usize) -> [u8; 64] {
    let mut index = [0; 64];
    let mut i = 0;
    while i < 64 {
        index[i] = (32 * (i / 4 % 2) + first + step * (i % 4)) as u8;
        i += 1;
    }
    index
}
