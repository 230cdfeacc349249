//! The scalar level: weights are decoded as their format specifies, and multiplied in f32 with the quantised
//! activations. It defines what the other levels compute, up to the order of additions.

use super::activations::ActBlock;
use super::job::Job;
use super::layout::{SUPER, position};
use crate::quant::Format;

/// Decodes 256 weights, fewer at the end of a row.
fn decode(format: Format, bytes: &[u8], weights: &mut [f32]) {
    let info = format.info();
    let bytes = &bytes[..weights.len() / info.block_len * info.block_bytes];
    if format.decode_row(bytes, weights).is_err() {
        unreachable!("a checked row is whole blocks");
    }
}

pub(super) fn product(format: Format, job: &Job) {
    let info = format.info();
    let super_bytes = SUPER / info.block_len * info.block_bytes;
    for row in job.rows.clone() {
        for (b, bytes) in job.weight_row(row).chunks(super_bytes).enumerate() {
            let len = (job.k - b * SUPER).min(SUPER);
            let mut natural = [0.0f32; SUPER];
            decode(format, bytes, &mut natural[..len]);
            let mut weights = [0.0f32; SUPER];
            for (i, weight) in natural.into_iter().enumerate() {
                weights[position(i)] = weight;
            }
            for token in 0..job.tokens.len() {
                let sum = dot(&weights, &job.act_row(token)[b]);
                // SAFETY: the job is checked: the view holds all tokens and rows.
                unsafe {
                    let out = job.out.at(token, row);
                    *out = if b == 0 { sum } else { *out + sum };
                }
            }
        }
    }
}

/// Weights stand in the order of the activations. Sums run side by side, so that compilers make vectors of them.
fn dot(weights: &[f32; SUPER], act: &ActBlock) -> f32 {
    let mut sums = [0.0f32; 64];
    let vectors = weights.as_chunks::<64>().0.iter().zip(act.q.as_chunks::<64>().0);
    for (weights, q) in vectors {
        for ((sum, weight), q) in sums.iter_mut().zip(weights).zip(q) {
            *sum += weight * f32::from(*q);
        }
    }
    let lanes = sums.as_chunks::<4>().0.iter().zip(&act.scale);
    lanes.map(|(sums, scale)| ((sums[0] + sums[1]) + (sums[2] + sums[3])) * scale).sum()
}
