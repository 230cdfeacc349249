//! How many floats of a row live at the same time while a layer runs: an estimate from the shapes, replaced by the
//! packed programs as soon as a stage has been built (`Limits::stage_arenas`).

use super::{ConvFacts, Mixer};

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
    pub ngram_floats: u64,
    pub gated_attention: bool,
}

/// (floats alive at the worst step, widest buffer), without the residual streams.
pub fn layer_floats(s: &WorkShapes, mixer: &Mixer, ngram: Option<ConvFacts>) -> (u64, u64) {
    let streams = s.streams * s.width;
    let mix = if s.streams > 1 { 2 * streams + s.rank + s.width + s.streams } else { 2 * s.width };
    let (block, block_widest) = mixer_floats(s, mixer);
    let inner = s.used * s.expert_width;
    let moe = 2 * s.width + s.experts + 2 * s.used + 2 * inner.max(s.feed_forward) + s.feed_forward;
    let gram = ngram.map_or(0, |c| s.ngram_floats + s.width + 3 * u64::from(c.channels));
    let carried = if s.streams > 1 { s.streams } else { s.width };
    let alive = mix.max(block + carried).max(moe + carried).max(gram);
    let widest = streams.max(block_widest).max(inner).max(s.feed_forward).max(s.experts);
    (alive, widest)
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
