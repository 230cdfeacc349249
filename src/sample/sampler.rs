//! The sampler: state of one generation.

use std::hash::{BuildHasher, RandomState};

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::units::TokenId;

use super::penalties::Penalties;
use super::select::{self, Candidate};
use super::{SampleError, SamplingParams};

/// A token and its log-probability under the model's own distribution (before penalties and truncation).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    pub token: TokenId,
    pub logprob: f32,
}

/// What one draw gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    pub token: TokenId,
    /// Only if the parameters ask for log-probabilities.
    pub logprob: Option<f32>,
    /// How many tokens were left to draw from.
    pub candidates: usize,
}

/// Chooses tokens for one generation. All memory is taken at the start.
pub struct Sampler {
    params: SamplingParams,
    vocab: usize,
    seed: u64,
    rng: ChaCha12Rng,
    penalties: Option<Penalties>,
    candidates: Vec<Candidate>,
    /// The model's own logits and the best of them, kept only where log-probabilities are asked for.
    own: Vec<f32>,
    own_best: Vec<Candidate>,
    top: Vec<TokenLogprob>,
}

impl Sampler {
    /// `vocab` is the number of logits every call will bring.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self, SampleError> {
        params.validate(vocab)?;
        let seed = params.seed.unwrap_or_else(|| RandomState::new().hash_one(0u64));
        let draws = params.temperature > 0.0;
        let top = params.logprobs.map(|count| count.min(vocab));
        Ok(Self {
            penalties: Penalties::new(&params, vocab),
            candidates: Vec::with_capacity(if draws { select::room(params.top_k, vocab) } else { 0 }),
            own: Vec::with_capacity(top.map_or(0, |_| vocab)),
            own_best: Vec::with_capacity(top.filter(|top| *top > 0).map_or(0, |top| select::room(top, vocab))),
            top: Vec::with_capacity(top.unwrap_or(0)),
            rng: ChaCha12Rng::seed_from_u64(seed),
            params,
            vocab,
            seed,
        })
    }

    /// The seed in use, so that a run can be repeated.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Draws a token. Bias and penalties are applied to `logits` in place. Minus infinity excludes a token; NaN and
    /// plus infinity are errors. The token is not counted before [`Self::accept`].
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<Sampled, SampleError> {
        if logits.len() != self.vocab {
            return Err(SampleError::WrongLength { found: logits.len(), expected: self.vocab });
        }
        if let Some(index) = first_unusable(logits) {
            return Err(SampleError::NotFinite { token: TokenId(index as u32), value: logits[index] });
        }
        let log_mass = self.params.logprobs.map(|count| self.note_own(logits, count));
        for (token, bias) in &self.params.logit_bias {
            logits[token.index()] += bias;
        }
        if let Some(penalties) = &self.penalties {
            penalties.apply(logits);
        }
        let (token, candidates) = match self.params.temperature > 0.0 {
            true => (self.draw(logits)?, self.candidates.len()),
            false => (best_token(logits)?, 1),
        };
        let logprob = log_mass.map(|log_mass| (f64::from(self.own[token.index()]) - log_mass) as f32);
        Ok(Sampled { token, logprob, candidates })
    }

    /// Counts a token of the generated text for the penalties.
    pub fn accept(&mut self, token: TokenId) {
        if let Some(penalties) = &mut self.penalties {
            penalties.accept(token);
        }
    }

    /// The most probable tokens of the last draw, best first, as many as the parameters ask for.
    pub fn top_logprobs(&self) -> &[TokenLogprob] {
        &self.top
    }

    /// Forgets the generated text and starts the random numbers again.
    pub fn reset(&mut self) {
        self.rng = ChaCha12Rng::seed_from_u64(self.seed);
        if let Some(penalties) = &mut self.penalties {
            penalties.reset();
        }
    }

    /// Keeps the model's own logits; returns the logarithm of their total mass.
    fn note_own(&mut self, logits: &[f32], count: usize) -> f64 {
        self.own.clear();
        self.own.extend_from_slice(logits);
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| select::weight(*logit, best)).sum();
        let log_mass = f64::from(best) + sum.ln();
        self.top.clear();
        if count > 0 {
            select::top_k(logits, count.min(self.vocab), &mut self.own_best);
            self.own_best.sort_unstable_by(select::order);
            let logprob = |candidate: &Candidate| (f64::from(candidate.logit) - log_mass) as f32;
            self.top.extend(self.own_best.iter().map(|best| TokenLogprob { token: best.token, logprob: logprob(best) }));
        }
        log_mass
    }

    fn draw(&mut self, logits: &[f32]) -> Result<TokenId, SampleError> {
        let (params, candidates) = (&self.params, &mut self.candidates);
        select::top_k(logits, params.top_k.min(self.vocab), candidates);
        select::typical_p(candidates, params.typical_p);
        select::top_p(candidates, params.top_p);
        select::min_p(candidates, params.min_p);
        let best = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
        let temperature = f64::from(params.temperature);
        let weight = |candidate: &Candidate| (f64::from(candidate.logit - best) / temperature).exp();
        let total: f64 = candidates.iter().map(weight).sum();
        // 53 random bits: a number in [0, 1).
        let unit = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = unit * total;
        for candidate in candidates.iter() {
            left -= weight(candidate);
            if left < 0.0 {
                return Ok(candidate.token);
            }
        }
        // Rounding can leave a little; it belongs to the last token that has any weight.
        let last = candidates.iter().rev().find(|candidate| weight(candidate) > 0.0);
        last.map(|candidate| candidate.token).ok_or(SampleError::NothingLeft)
    }
}

/// Scores looked at together, so that the compiler can compare them side by side: a vocabulary is long and every token waits.
const SIDE_BY_SIDE: usize = 32;

/// The best token, the lowest id on ties.
fn best_token(logits: &[f32]) -> Result<TokenId, SampleError> {
    let (blocks, rest) = logits.as_chunks::<SIDE_BY_SIDE>();
    let mut lanes = [f32::NEG_INFINITY; SIDE_BY_SIDE];
    for block in blocks {
        for (lane, logit) in lanes.iter_mut().zip(block) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    let best = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |best, logit| if *logit > best { *logit } else { best });
    let index = logits.iter().position(|logit| *logit == best).filter(|_| best > f32::NEG_INFINITY);
    index.map(|index| TokenId(index as u32)).ok_or(SampleError::NothingLeft)
}

/// The first score that is NaN or plus infinity.
fn first_unusable(logits: &[f32]) -> Option<usize> {
    let usable = |logit: &f32| *logit < f32::INFINITY;
    let (blocks, rest) = logits.as_chunks::<SIDE_BY_SIDE>();
    let all = blocks.iter().all(|block| block.iter().fold(true, |all, logit| all & usable(logit)));
    if all && rest.iter().all(usable) {
        return None;
    }
    logits.iter().position(|logit| !usable(logit))
}
