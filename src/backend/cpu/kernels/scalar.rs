//! The scalar level: weights are decoded as their format specifies, and multiplied in f32 with the quantised
//! activations. It defines what the other levels compute, up to the order of additions.

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
    let mut weights = [0.0f32; SUPER];
    for row in job.rows.clone() {
        for (b, bytes) in job.weight_row(row).chunks(super_bytes).enumerate() {
            let len = (job.k - b * SUPER).min(SUPER);
            decode(format, bytes, &mut weights[..len]);
            for token in 0..job.tokens.len() {
                let sum = dot(&weights[..len], job, token, b);
                // SAFETY: the job is checked: the view holds all tokens and rows.
                unsafe {
                    let out = job.out.at(token, row);
                    *out = if b == 0 { sum } else { *out + sum };
                }
            }
        }
    }
}

fn dot(weights: &[f32], job: &Job, token: usize, block: usize) -> f32 {
    let act = &job.act_row(token)[block];
    let mut sum = 0.0;
    for (g, weights) in weights.chunks(16).enumerate() {
        let mut part = 0.0;
        for (i, w) in weights.iter().enumerate() {
            part += w * f32::from(act.q[position(16 * g + i)]);
        }
        sum += part * act.scale[position(16 * g) / 4];
    }
    sum
}
