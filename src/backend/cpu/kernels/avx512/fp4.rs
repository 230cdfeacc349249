//! MXFP4 and NVFP4: nibbles that are 4-bit floats, looked up as integers of twice the value.

use super::blocks::{lane, load, load_8x16, nibbles, spread};
use super::iq4::{look_up, table16};
use super::kquants::to_lanes;
use super::{Super, Unpack, unpack};
use crate::backend::cpu::kernels::each::each;
use crate::quant::fp4::E2M1_DOUBLED;
use std::arch::x86_64::*;

const VALUES: [u8; 64] = table16(&E2M1_DOUBLED, 16);

unpack! { MXFP4, 8 * 17, shift: Some(4), mins: false, by_16: false, |p| {
    let q = look_up(nibbles(load_8x16(p.add(1), 17)), &VALUES);
    let at = |i: usize| u64::from(*p.add(17 * i)) << (8 * i);
    let e = at(0) | at(1) | at(2) | at(3) | at(4) | at(5) | at(6) | at(7);
    let e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(e as i64));
    // Half of 2^(e - 127): exponent e - 1, or a subnormal number.
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    let small = _mm256_cmplt_epi32_mask(e, _mm256_set1_epi32(2));
    let scale = _mm256_castsi256_ps(_mm256_mask_mov_epi32(normal, small, subnormal));
    Super { q, scale: spread(scale), min: _mm512_setzero_ps() }
}}

unpack! { NVFP4, 4 * 36, shift: Some(4), mins: false, by_16: true, |p| {
    // Sixteen weights are eight bytes, weights 0..8 in the low nibbles and 8..16 in the high ones. 128 weights are 18
    // dwords; counted from the first after the scales, those wanted are in reach of one vector.
    const DWORD: [i32; 16] = {
        let mut index = [0; 16];
        let mut i = 0;
        while i < 16 {
            let (hh, n, l) = lane(i);
            let group = 2 * n + l;
            index[i] = (16 * hh + 9 * (group / 4) + 2 * (group % 4)) as i32;
            i += 1;
        }
        index
    };
    let [first, second] = each!(2 of [4, 8], |at| {
        let a = _mm512_loadu_si512(p.add(at).cast());
        let b = _mm512_loadu_si512(p.add(at + 72).cast());
        _mm512_permutex2var_epi32(a, load(&DWORD), b)
    });
    let x = [first, second, _mm512_srli_epi32::<4>(first), _mm512_srli_epi32::<4>(second)];
    let at = |i: usize| p.add(36 * i).cast::<i32>().read_unaligned();
    let bits = to_lanes(_mm_setr_epi32(at(0), at(1), at(2), at(3)));
    // E4M3 without sign to f32: the bits fit, the exponent is 120 too small (halved: 119); 0x7f means 0.
    let nan = _mm_cmpeq_epi8_mask(bits, _mm_set1_epi8(0x7f));
    let bits = _mm_maskz_mov_epi8(!nan, _mm_and_si128(bits, _mm_set1_epi8(0x7f)));
    let small = _mm512_castsi512_ps(_mm512_slli_epi32::<20>(_mm512_cvtepu8_epi32(bits)));
    let scale = _mm512_mul_ps(small, _mm512_set1_ps(f32::from_bits((119 + 127) << 23)));
    Super { q: look_up(x, &VALUES), scale, min: _mm512_setzero_ps() }
}}
