//! From logits to the next token: truncation, temperature, penalties, and stop strings in the text that results.
//!
//! Knows nothing of models or devices. Names and order are those people know from llama.cpp: bias, penalties, then
//! top-k, typical-p, top-p, min-p, and temperature last. The same seed and the same logits give the same tokens.

mod grammar;
mod params;
mod penalties;
mod sampler;
mod select;
mod stop;

use thiserror::Error;

use crate::units::TokenId;

pub use grammar::{Grammar, GrammarCompiler, GrammarMask, GrammarToken};
pub use params::SamplingParams;
pub use sampler::{Sampled, Sampler, TokenLogprob};
pub use stop::{StopMatcher, StopOutcome};

/// What can be wrong with parameters or logits.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SampleError {
    #[error("{name} is {value}, but must be {expected}")]
    BadParameter { name: &'static str, value: String, expected: &'static str },
    #[error("logit bias for token {token}, but the vocabulary has {vocab} tokens")]
    BiasOutOfRange { token: TokenId, vocab: usize },
    #[error("the model returned {found} logits for a vocabulary of {expected} tokens")]
    WrongLength { found: usize, expected: usize },
    #[error("the logit of token {token} is {value}: the model's output is not usable")]
    NotFinite { token: TokenId, value: f32 },
    #[error("every token is excluded by masks or bias")]
    NothingLeft,
    #[error("a stop string is empty")]
    EmptyStop,
    #[error("the grammar cannot be used: {detail}")]
    BadGrammar { detail: String },
    #[error("the grammar cannot be followed any further: {detail}")]
    GrammarFailed { detail: String },
}

/// Decides before each draw which tokens may follow.
pub trait LogitMask: Send {
    /// Sets the logits of all other tokens to minus infinity.
    fn apply(&mut self, logits: &mut [f32]) -> Result<(), SampleError>;
    /// Notes the token that was chosen.
    fn accept(&mut self, token: TokenId) -> Result<(), SampleError>;
}
