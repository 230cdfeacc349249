//! A request for text: prompt, reasoning, answer.

use std::time::Duration;

use super::job::StepError;
use super::{Chosen, Event, Outcome, Request, ServiceError, Thinking};
use crate::engine::{Engine, EngineError, Finish, GenerateOptions, Generation, GenerationStats, Progress};
use crate::experts::TierStats;
use crate::picture::Placed;
use crate::state::Sequence;
use crate::tokenizer::{Part, Special, ThinkSplitter, Tokenizer};
use crate::units::TokenId;

/// What closes a reasoning that has used up its budget.
const CLOSE_REASONING: &str = "\n</think>\n\n";

pub(super) struct Answer<'t> {
    generation: Generation<'t>,
    splitter: Option<ThinkSplitter>,
    tokenizer: &'t Tokenizer,
    reasoning_budget: Option<usize>,
    reasoning_tokens: usize,
    reading: bool,
}

/// A mark so near the end of a prompt spares a repetition of it all but one window.
const NEAR_THE_END_TOKENS: usize = 64;

/// Where the state of a prompt is worth remembering: after its first turn, which many conversations share, at its last
/// turns, every so often, and before the last token where the last turn is far: a text without turns may come again.
fn checkpoints(tokenizer: &Tokenizer, prompt: &[TokenId], pictures: &[Placed], every: usize) -> Vec<usize> {
    let turns: Vec<usize> = (0..prompt.len()).filter(|i| tokenizer.is_eog(prompt[*i])).map(|i| i + 1).collect();
    let last = turns.len().saturating_sub(2);
    let mut marks: Vec<usize> = turns.first().into_iter().chain(&turns[last..]).copied().collect();
    marks.extend((1..).map(|n| n * every.max(1)).take_while(|at| *at < prompt.len()));
    marks.retain(|at| *at < prompt.len());
    // The beginning counts as a mark: a short text is as soon read again.
    if marks.iter().chain(&[0]).all(|at| at + NEAR_THE_END_TOKENS < prompt.len()) {
        marks.push(prompt.len() - 1);
    }
    // The state in the middle of a picture is of no use: nothing goes on from there.
    for mark in &mut marks {
        let cut = pictures.iter().map(Placed::range).find(|range| range.start < *mark && *mark < range.end);
        *mark = cut.map_or(*mark, |range| range.start);
    }
    marks.retain(|at| *at > 0);
    marks.sort_unstable();
    marks.dedup();
    marks
}

impl<'t> Answer<'t> {
    pub fn new(
        tokenizer: &'t Tokenizer,
        engine: &Engine,
        request: Request,
        max_checkpoints: usize,
        checkpoint_tokens: usize,
    ) -> Result<Answer<'t>, ServiceError> {
        let splitter = match request.thinking {
            Thinking::NotSplit => None,
            Thinking::AtStart => Some(ThinkSplitter::new(false)),
            Thinking::Inside => Some(ThinkSplitter::new(true)),
        };
        let options = GenerateOptions {
            max_tokens: request.max_tokens,
            stop: request.stop,
            ignore_eos: request.ignore_eos,
            show: request.show,
            checkpoints: checkpoints(tokenizer, &request.prompt, &request.pictures, checkpoint_tokens),
            max_checkpoints,
            ..GenerateOptions::default()
        };
        let mut generation = Generation::new(tokenizer, engine.dims(), request.sampling, request.prompt, options)?;
        generation.show(request.pictures);
        if let Some(mask) = request.mask {
            generation.set_mask(mask);
        }
        let reasoning_budget = request.reasoning_budget;
        Ok(Answer { generation, splitter, tokenizer, reasoning_budget, reasoning_tokens: 0, reading: true })
    }

    /// Takes the slot's sequence back to what it shares with the prompt; returns the tokens kept and the seed.
    pub fn rewind(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<(usize, u64), EngineError> {
        Ok((self.generation.rewind(engine, sequence)?, self.generation.seed()))
    }

    pub fn stats(&self) -> GenerationStats {
        self.generation.stats()
    }

    pub fn is_reading(&self) -> bool {
        self.reading
    }

    pub fn is_looking(&self, engine: &Engine, sequence: &Sequence) -> bool {
        self.generation.is_looking(engine, sequence)
    }

    pub fn awaits(&self, engine: &Engine, sequence: &Sequence) -> Option<TokenId> {
        self.generation.awaits(engine, sequence)
    }

    pub fn computed(&mut self, cells: usize, scores: &[f32]) {
        self.generation.computed(cells, scores);
    }

    pub fn took(&mut self, time: Duration, tiers: Option<TierStats>) {
        self.generation.took(time, tiers);
    }

    /// One window of the prompt or one token.
    pub fn step(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<Event, StepError> {
        if !self.reading {
            self.steer();
        }
        Ok(match self.generation.step(engine, sequence)? {
            Progress::Prompt { done, total } => {
                self.reading = done < total;
                Event::Prompt { done, total }
            }
            Progress::Picture { .. } => Event::Prompt { done: sequence.len(), total: self.generation.stats().prompt_tokens },
            Progress::Token { id, text } => self.token(id, text),
            Progress::End { finish: Finish::Interrupted, .. } => return Err(ServiceError::Stopping.into()),
            Progress::End { finish, text } => self.end(finish, text),
        })
    }

    /// Keeps the grammar out of the reasoning, and the reasoning within its budget.
    fn steer(&mut self) {
        let thinks = self.splitter.as_ref().is_some_and(ThinkSplitter::is_reasoning);
        self.generation.switch_mask(!thinks);
        let over = self.reasoning_budget.is_some_and(|budget| self.reasoning_tokens >= budget);
        if thinks && over && !self.generation.is_forcing() {
            // A vocabulary that cannot spell the closing tag cannot be steered; the reasoning then goes on.
            if let Ok(tokens) = self.tokenizer.encode(CLOSE_REASONING, Special::Parse) {
                self.generation.force(&tokens);
            }
        }
    }

    fn token(&mut self, id: TokenId, text: String) -> Event {
        let reasoning = self.splitter.as_ref().is_some_and(ThinkSplitter::is_reasoning);
        self.reasoning_tokens += usize::from(reasoning);
        let parts = match &mut self.splitter {
            Some(splitter) => splitter.push(&text),
            None => plain(text),
        };
        let logprob = self.generation.sampled().and_then(|sampled| sampled.logprob);
        let chosen = Chosen { id, reasoning, logprob, top: self.generation.top_logprobs().to_vec() };
        Event::Token { parts, chosen }
    }

    fn end(&mut self, finish: Finish, text: String) -> Event {
        let parts = match self.splitter.take() {
            Some(mut splitter) => {
                let mut parts = splitter.push(&text);
                parts.extend(splitter.finish());
                parts
            }
            None => plain(text),
        };
        let (stats, reasoning_tokens) = (self.generation.stats(), self.reasoning_tokens);
        Event::Done(Box::new(Outcome { finish, parts, stats, reasoning_tokens }))
    }
}

fn plain(text: String) -> Vec<Part> {
    if text.is_empty() { Vec::new() } else { vec![Part::Answer(text)] }
}
