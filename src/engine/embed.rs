//! From a text to one vector, a part at a time: the rows of an embedding model, pooled and scaled to length 1.

use std::time::Instant;

use super::{Engine, EngineError, GenerateError, GenerationStats, Want};
use crate::model::{Dims, Pooling};
use crate::state::Sequence;
use crate::units::TokenId;

/// One vector in the making.
pub struct Embedding {
    tokens: Vec<TokenId>,
    pooling: Pooling,
    /// Of the rows that count.
    sum: Vec<f64>,
    stats: GenerationStats,
}

/// What a step did.
#[derive(Debug, Clone, PartialEq)]
pub enum EmbeddingProgress {
    /// `done` of the tokens are in the sequence.
    Read { done: usize, total: usize },
    /// The vector, of length 1.
    Vector(Vec<f32>),
}

impl Embedding {
    /// # Errors
    /// The model is not made for it, or there are no tokens.
    pub fn new(dims: Dims, tokens: Vec<TokenId>) -> Result<Embedding, GenerateError> {
        let pooling = dims.pooling.ok_or(GenerateError::NoEmbeddings)?;
        if tokens.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let stats = GenerationStats { prompt_tokens: tokens.len(), ..GenerationStats::default() };
        Ok(Embedding { tokens, pooling, sum: vec![0.0; dims.width as usize], stats })
    }

    pub fn stats(&self) -> GenerationStats {
        self.stats
    }

    /// Reads on in a sequence that was empty at the first step.
    ///
    /// # Errors
    /// A full context before anything is computed, or a device error; the sequence is then empty.
    pub fn step(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<EmbeddingProgress, EngineError> {
        let (done, total, capacity) = (sequence.len(), self.tokens.len(), engine.options().context as usize);
        if total > capacity {
            return Err(EngineError::ContextFull { length: done, added: total - done, capacity });
        }
        let start = Instant::now();
        let end = total.min(done + engine.prompt_step_tokens());
        let want = match self.pooling {
            Pooling::Mean => Want::All,
            Pooling::Last if end == total => Want::Last,
            Pooling::Last => Want::Nothing,
        };
        let sum = &mut self.sum;
        engine.feed(sequence, &self.tokens[done..end], want, &mut |_, row| {
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        })?;
        self.stats.prompt_time += start.elapsed();
        Ok(if end == total { EmbeddingProgress::Vector(unit(&self.sum)) } else { EmbeddingProgress::Read { done: end, total } })
    }
}

/// The vector of length 1 in the same direction; zeros have none and stay. A mean and its sum have the same one.
fn unit(vector: &[f64]) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    vector.iter().map(|x| (x * scale) as f32).collect()
}
