//! Rotary embeddings from metadata: plain, linear scaling, YaRN, and per-pair factors.

use super::ModelError;
use crate::gguf::Metadata;
use crate::program::{Rope, RopePairing};

/// The `rope.*` keys of a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RopeConfig {
    /// Elements of a head that rotate.
    pub dims: u32,
    pub base: f64,
    pub scaling: Scaling,
    pub pairing: RopePairing,
    /// Divisors of the frequency of each pair (`rope_freqs.weight`).
    pub factors: Option<Vec<f32>>,
    /// Position component of each pair; empty means time for all.
    pub component: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    /// Peng et al. 2023, "YaRN", section 3.
    Yarn {
        factor: f64,
        original_context: u32,
        beta_fast: f64,
        beta_slow: f64,
        attention_factor: f64,
    },
}

impl Scaling {
    /// Reads `{arch}.rope.scaling.*`.
    pub fn from_metadata(metadata: &Metadata, arch: &str, context: u32) -> Result<Scaling, ModelError> {
        let key = |name: &str| format!("{arch}.rope.scaling.{name}");
        let factor_key = match metadata.contains_key(&key("factor")) {
            true => key("factor"),
            // Old files have only this key for linear scaling.
            false => format!("{arch}.rope.scale_linear"),
        };
        let above_zero = |key: String| match metadata.opt_f32(&key)? {
            Some(value) if !(value.is_finite() && value > 0.0) => Err(ModelError::invalid(key, value, "it must be above 0")),
            value => Ok(value.map(f64::from)),
        };
        // Some writers say "no scaling" by a factor of 0.
        let factor = if metadata.opt_f32(&factor_key)? == Some(0.0) { None } else { above_zero(factor_key)? };
        match metadata.opt_str(&key("type"))?.unwrap_or("linear") {
            "none" => Ok(Scaling::None),
            "linear" => Ok(factor.filter(|f| *f != 1.0).map_or(Scaling::None, |factor| Scaling::Linear { factor })),
            "yarn" => {
                let needed = || ModelError::invalid(key("factor"), "missing", "YaRN scaling needs it, above 0");
                let factor = factor.ok_or_else(needed)?;
                let original_context = metadata.opt_u32(&key("original_context_length"))?.unwrap_or(context);
                if original_context == 0 {
                    return Err(ModelError::invalid(key("original_context_length"), 0, "it must be above 0"));
                }
                let stated = above_zero(key("attn_factor"))?.unwrap_or(1.0);
                Ok(Scaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: above_zero(key("yarn_beta_fast"))?.unwrap_or(32.0),
                    beta_slow: above_zero(key("yarn_beta_slow"))?.unwrap_or(1.0),
                    attention_factor: stated * (1.0 + 0.1 * factor.max(1.0).ln()),
                })
            }
            other => Err(ModelError::invalid(key("type"), format!("'{other}'"), "known are none, linear and yarn")),
        }
    }
}

impl RopeConfig {
    pub fn to_rope(&self) -> Rope {
        let pairs = self.dims / 2;
        let plain = |i: u32| {
            let frequency = self.base.powf(-2.0 * f64::from(i) / f64::from(self.dims));
            self.factors.as_ref().map_or(frequency, |f| frequency / f64::from(f[i as usize]))
        };
        let (inv_freq, magnitude) = match self.scaling {
            Scaling::None => ((0..pairs).map(plain).collect(), 1.0),
            Scaling::Linear { factor } => ((0..pairs).map(|i| plain(i) / factor).collect(), 1.0),
            Scaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
                let correction = |rotations: f64| {
                    let wavelengths = f64::from(original_context) / (rotations * 2.0 * std::f64::consts::PI);
                    f64::from(self.dims) * wavelengths.ln() / (2.0 * self.base.ln())
                };
                let low = correction(beta_fast).floor().max(0.0);
                let high = correction(beta_slow).ceil().min(f64::from(self.dims) - 1.0);
                let blend = |i: u32| {
                    let ramp = ((f64::from(i) - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    plain(i) * (1.0 - ramp) + plain(i) / factor * ramp
                };
                ((0..pairs).map(blend).collect(), attention_factor)
            }
        };
        let component = if self.component.is_empty() { vec![0; pairs as usize] } else { self.component.clone() };
        Rope { pairing: self.pairing, inv_freq, component, magnitude: magnitude as f32 }
    }
}

/// Position component of each pair for interleaved M-RoPE (specification 1.3): `t h w t h w ...` as far as the sections of
/// height and width reach, time elsewhere.
pub(super) fn interleaved_components(sections: &[u32], pairs: u32) -> Vec<u8> {
    let reach = |i: usize| section_reach(sections, i);
    let component = |i: u32| match i % 3 {
        1 if u64::from(i) < reach(1) => 1,
        2 if u64::from(i) < reach(2) => 2,
        _ => 0,
    };
    (0..pairs).map(component).collect()
}

/// The pair from which on a section has no more entries.
fn section_reach(sections: &[u32], i: usize) -> u64 {
    3 * u64::from(sections.get(i).copied().unwrap_or(0))
}

/// The first pair that no section reaches. Engines disagree on what it turns by.
pub(super) fn uncovered_pair(sections: &[u32], pairs: u32) -> Option<u32> {
    (0..pairs).find(|i| u64::from(*i) >= section_reach(sections, (*i % 3) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_sections_give_the_pattern_of_the_specification() {
        let c = interleaved_components(&[11, 11, 10, 0], 32);
        let count = |k| c.iter().filter(|x| **x == k).count();
        assert_eq!((count(0), count(1), count(2)), (11, 11, 10));
        assert_eq!(&c[..6], [0, 1, 2, 0, 1, 2]);
        assert_eq!(&c[30..], [0, 1]);
    }

    #[test]
    fn the_first_pair_beyond_the_sections_is_found() {
        assert_eq!(uncovered_pair(&[11, 11, 10, 0], 32), None);
        assert_eq!(uncovered_pair(&[11, 11, 10, 0], 33), Some(32));
        assert_eq!(uncovered_pair(&[11, 0, 10], 32), Some(1));
        assert_eq!(uncovered_pair(&[u32::MAX; 3], 32), None);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let scaling = Scaling::Yarn {
            factor: 4.0,
            original_context: 32768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0 + 0.1 * 4f64.ln(),
        };
        let config =
            |scaling| RopeConfig { dims: 128, base: 1e6, scaling, pairing: RopePairing::Half, factors: None, component: vec![] };
        let (yarn, plain) = (config(scaling).to_rope(), config(Scaling::None).to_rope());
        assert_eq!(yarn.inv_freq[0], plain.inv_freq[0]);
        assert!((yarn.inv_freq[63] * 4.0 / plain.inv_freq[63] - 1.0).abs() < 1e-12);
        assert!((yarn.magnitude - 1.138_629_4).abs() < 1e-6);
    }
}
