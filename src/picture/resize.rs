//! Bicubic scaling with a filter that grows with the reduction (antialiasing), in the arithmetic of Pillow's `BICUBIC` for bytes:
//! weights in fixed point, first along rows, then along columns, each rounded to bytes. torchvision's antialiased bicubic, which
//! the fast processors of `transformers` use, has the same filter and differs by a rounding.

use super::decode::Pixels;

/// Fractional bits of a weight: what 32 bits leave beside a byte, a sign and the overshoot of the filter.
const WEIGHT_BITS: u32 = 22;

/// Half the width of the cubic filter, in pixels of the coarser side.
const SUPPORT: f64 = 2.0;

/// The same picture with other sides, none of them 0.
pub fn resize(from: &Pixels, width: u32, height: u32) -> Pixels {
    let (from_width, from_height) = (from.width as usize, from.height as usize);
    let narrowed = match width == from.width {
        true => None,
        false => Some(along_rows(&from.rgb, from_width, &taps(from.width, width))),
    };
    let rows = narrowed.as_deref().unwrap_or(&from.rgb);
    let rgb = match height == from.height {
        true => rows.to_vec(),
        false => along_columns(rows, from_height, width as usize, &taps(from.height, height)),
    };
    Pixels { width, height, rgb }
}

/// What an output pixel takes of its line: from the pixel `first` on, one weight each.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

fn taps(from: u32, to: u32) -> Vec<Taps> {
    let scale = f64::from(from) / f64::from(to);
    // Enlarging interpolates; reducing takes the mean of more pixels.
    let stretch = scale.max(1.0);
    let reach = SUPPORT * stretch;
    let one = |x: u32| {
        let center = (f64::from(x) + 0.5) * scale;
        let first = (center - reach + 0.5).max(0.0) as usize;
        let end = ((center + reach + 0.5) as usize).min(from as usize);
        let weights: Vec<f64> = (first..end).map(|i| cubic((i as f64 - center + 0.5) / stretch)).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: &f64| (weight / sum * f64::from(1u32 << WEIGHT_BITS)).round() as i32;
        Taps { first, weights: weights.iter().map(fixed).collect() }
    };
    (0..to).map(one).collect()
}

/// Keys' cubic convolution with a = -1/2.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

const HALF: i32 = 1 << (WEIGHT_BITS - 1);

fn to_byte(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

fn along_rows(rgb: &[u8], width: usize, taps: &[Taps]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rgb.len() / width * taps.len());
    for row in rgb.chunks_exact(width * 3) {
        for Taps { first, weights } in taps {
            let mut sums = [HALF; 3];
            for (pixel, weight) in row[first * 3..].chunks_exact(3).zip(weights) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*value) * weight;
                }
            }
            out.extend(sums.map(to_byte));
        }
    }
    out
}

fn along_columns(rgb: &[u8], height: usize, width: usize, taps: &[Taps]) -> Vec<u8> {
    let row_bytes = width * 3;
    debug_assert_eq!(rgb.len(), row_bytes * height);
    let mut out = Vec::with_capacity(row_bytes * taps.len());
    let mut sums = vec![HALF; row_bytes];
    for Taps { first, weights } in taps {
        sums.fill(HALF);
        for (row, weight) in rgb[first * row_bytes..].chunks_exact(row_bytes).zip(weights) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += i32::from(*value) * weight;
            }
        }
        out.extend(sums.iter().map(|sum| to_byte(*sum)));
    }
    out
}
