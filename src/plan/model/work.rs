//! The buffers of the draft block, which has no program yet: an estimate from the shapes.

use super::{LayerWork, Mixer, WorkBuffer};

/// Widths that the estimate needs beside those of the mixer.
pub struct WorkShapes {
    pub width: u64,
    pub streams: u64,
    /// Rank of the hyper-connection gates; 0 without them.
    pub rank: u64,
    /// Width of the dense or shared feed-forward part.
    pub feed_forward: u64,
    pub experts: u64,
    pub used: u64,
    pub expert_width: u64,
    pub gated_attention: bool,
}

/// The residual, the widest buffer, and what else is alive at the worst step.
pub fn draft_work(s: &WorkShapes, mixer: &Mixer) -> LayerWork {
    let streams = s.streams * s.width;
    let mix = if s.streams > 1 { 2 * streams + s.rank + s.width + s.streams } else { 2 * s.width };
    let (block, block_widest) = mixer_floats(s, mixer);
    let inner = s.used * s.expert_width;
    let moe = 2 * s.width + s.experts + 2 * s.used + 2 * inner.max(s.feed_forward) + s.feed_forward;
    let carried = if s.streams > 1 { s.streams } else { s.width };
    // The block joins embedding and hidden state before its layer, and has a mix of its own after it.
    let alive = mix.max(block + carried).max(moe + carried) + 2 * streams;
    let widest = streams.max(block_widest).max(inner).max(s.feed_forward).max(s.experts);
    let buffer = |floats: u64, carried: bool| WorkBuffer {
        row_bytes: 4 * floats,
        per_output: false,
        carried,
        first_step: 0,
        last_step: 0,
    };
    let all = vec![buffer(streams, true), buffer(widest, false), buffer(alive.saturating_sub(widest), false)];
    LayerWork { whole: all.clone(), partial: all, product_floats: widest }
}

fn mixer_floats(s: &WorkShapes, mixer: &Mixer) -> (u64, u64) {
    match *mixer {
        Mixer::Attention { q_heads, kv_heads, head_dim, index } => {
            let q = u64::from(q_heads) * u64::from(head_dim) * if s.gated_attention { 2 } else { 1 };
            let kv = 2 * u64::from(kv_heads) * u64::from(head_dim);
            let out = u64::from(q_heads) * u64::from(head_dim);
            let chosen = index.map_or(0, |i| 5 * u64::from(i.dim) + u64::from(i.budget / i.ratio.max(1)) + 1);
            (2 * s.width + q + kv + out + chosen, q.max(out))
        }
        Mixer::Delta { value_heads, value_dim, conv, .. } => {
            let channels = u64::from(conv.channels);
            let out = u64::from(value_heads) * u64::from(value_dim);
            (2 * s.width + 2 * channels + out + 2 * u64::from(value_heads), channels.max(out))
        }
    }
}
