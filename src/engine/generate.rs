//! From a prompt to text, one step at a time: the caller pulls, and decides between any two steps whether to go on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::{Engine, EngineError, Look, Want};
use crate::experts::TierStats;
use crate::model::Dims;
use crate::picture::{Placed, Span};
use crate::sample::{LogitMask, SampleError, Sampled, Sampler, SamplingParams, StopMatcher, TokenLogprob};
use crate::state::{Sequence, Text, common_prefix};
use crate::tokenizer::{ShowSpecial, TokenStream, Tokenizer, TokenizerError};
use crate::units::TokenId;

/// When to stop and what to show.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// `None`: as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer. They are not part of it.
    pub stop: Vec<String>,
    /// Never chooses a token that ends a generation.
    pub ignore_eos: bool,
    pub show: ShowSpecial,
    /// Lengths of the prompt at which the sequence's state is remembered, for [`Generation::rewind`] later. Ascending.
    pub checkpoints: Vec<usize>,
    /// Checkpoints that a sequence keeps at most; each may be many megabytes.
    pub max_checkpoints: usize,
    /// Set by others to end the generation after the present step.
    pub interrupt: Arc<AtomicBool>,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_tokens: None,
            stop: Vec::new(),
            ignore_eos: false,
            show: ShowSpecial::ExceptEog,
            checkpoints: Vec::new(),
            max_checkpoints: 4,
            interrupt: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its answer.
    EndToken(TokenId),
    /// One of the texts of [`GenerateOptions::stop`] appeared.
    StopText(String),
    MaxTokens,
    ContextFull,
    Interrupted,
}

impl Finish {
    /// A short name for reports.
    pub fn name(&self) -> &'static str {
        match self {
            Finish::EndToken(_) => "end_token",
            Finish::StopText(_) => "stop_text",
            Finish::MaxTokens => "max_tokens",
            Finish::ContextFull => "context_full",
            Finish::Interrupted => "interrupted",
        }
    }
}

/// What a step did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A part of the prompt was read: `done` of its tokens are in the sequence.
    Prompt { done: usize, total: usize },
    /// A picture of the prompt is being looked at: `done` of the steps are taken.
    Picture { number: usize, done: usize, total: usize },
    /// A token was chosen; `text` is what is certain now, often empty inside a character or a possible stop text.
    Token { id: TokenId, text: String },
    /// The end, with the text that was held back until now. Every further step gives this again, without text.
    End { finish: Finish, text: String },
}

/// Counts and times of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GenerationStats {
    pub prompt_tokens: usize,
    /// Tokens of the prompt that the sequence held already.
    pub reused_tokens: usize,
    pub prompt_time: Duration,
    /// Pictures that were looked at for this answer, and the time that took, which the prompt's does not hold.
    pub pictures: usize,
    pub picture_time: Duration,
    pub generated_tokens: usize,
    /// One-token windows that were computed; the first token comes with the prompt.
    pub decode_steps: usize,
    pub decode_time: Duration,
    /// Tokens that the sequence held at the first and at the last of these.
    pub first_cells: usize,
    pub last_cells: usize,
    /// What the tiers of experts did for this answer; `None` where devices hold all experts.
    pub tiers: Option<TierStats>,
}

fn rate(count: f64, time: Duration) -> Option<f64> {
    (count > 0.0 && !time.is_zero()).then(|| count / time.as_secs_f64())
}

impl GenerationStats {
    /// Tokens of the prompt read a second.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens.saturating_sub(self.reused_tokens) as f64, self.prompt_time)
    }

    /// Tokens decoded a second.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.decode_steps as f64, self.decode_time)
    }

    /// Bytes of weights and state that the decode steps had to read. They grow evenly with the tokens held, so the first
    /// and the last step give the mean of all.
    pub fn decode_bytes(&self, engine: &Engine) -> u64 {
        let bytes = |cells: usize| engine.decode_row_bytes(u32::try_from(cells).unwrap_or(u32::MAX));
        (bytes(self.first_cells) + bytes(self.last_cells)) / 2 * self.decode_steps as u64
    }

    /// Bytes read a second while decoding.
    pub fn decode_bytes_per_second(&self, engine: &Engine) -> Option<f64> {
        rate(self.decode_bytes(engine) as f64, self.decode_time)
    }
}

/// Why a generation could not go on.
#[derive(Debug, Error)]
pub enum GenerateError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("the prompt is empty: there is nothing to go on from")]
    EmptyPrompt,
    #[error("this model gives embeddings, not text; `strata serve` offers them as /v1/embeddings")]
    NoText,
    #[error("this model writes text and gives no embeddings; embedding models say so in their files (pooling_type)")]
    NoEmbeddings,
}

/// One answer in the making.
pub struct Generation<'a> {
    tokenizer: &'a Tokenizer,
    sampler: Sampler,
    stream: TokenStream<'a>,
    stops: StopMatcher,
    options: GenerateOptions,
    prompt: Vec<TokenId>,
    /// The pictures of the prompt, and where they stand.
    pictures: Vec<Placed>,
    spans: Vec<Span>,
    /// Of these, how many need no looking at any more before they are read.
    looked: usize,
    generated: Vec<TokenId>,
    /// The next token's scores, once the prompt is read.
    logits: Vec<f32>,
    /// Chosen, and not yet in the sequence.
    pending: Option<TokenId>,
    finish: Option<Finish>,
    stats: GenerationStats,
    /// What may be chosen at all, while it is switched on.
    mask: Option<Box<dyn LogitMask>>,
    mask_is_on: bool,
    /// Tokens that are taken next instead of chosen ones.
    forced: VecDeque<TokenId>,
    sampled: Option<Sampled>,
}

impl<'a> Generation<'a> {
    /// Prepares to continue `prompt` on an engine of `dims`. If the sequence is not empty, call [`Generation::rewind`]
    /// before the first step.
    ///
    /// # Errors
    /// Sampling parameters that mean nothing, an empty stop text, an empty prompt, or a model that writes no text.
    pub fn new(
        tokenizer: &'a Tokenizer,
        dims: Dims,
        sampling: SamplingParams,
        prompt: Vec<TokenId>,
        options: GenerateOptions,
    ) -> Result<Generation<'a>, GenerateError> {
        if dims.pooling.is_some() {
            return Err(GenerateError::NoText);
        }
        if prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        Ok(Generation {
            tokenizer,
            sampler: Sampler::new(sampling, dims.vocab as usize)?,
            stream: TokenStream::after_prompt(tokenizer, &prompt, options.show),
            stops: StopMatcher::new(options.stop.clone())?,
            options,
            generated: Vec::new(),
            logits: Vec::with_capacity(dims.vocab as usize),
            pending: None,
            finish: None,
            stats: GenerationStats { prompt_tokens: prompt.len(), ..GenerationStats::default() },
            prompt,
            pictures: Vec::new(),
            spans: Vec::new(),
            looked: 0,
            mask: None,
            mask_is_on: false,
            forced: VecDeque::new(),
            sampled: None,
        })
    }

    /// The pictures of the prompt, which [`Engine::check_pictures`] has passed.
    pub fn show(&mut self, pictures: Vec<Placed>) {
        self.spans = pictures.iter().map(Placed::span).collect();
        self.pictures = pictures;
    }

    fn prompt_text(&self) -> Text<'_> {
        Text { tokens: &self.prompt, pictures: &self.spans }
    }

    /// Takes the sequence back to what it has in common with the prompt, so that only the rest must be read. Returns the
    /// tokens kept. At least the prompt's last token is read again, as its scores are needed.
    ///
    /// # Errors
    /// A device error while a checkpoint is copied back.
    pub fn rewind(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<usize, EngineError> {
        let wanted = common_prefix(sequence.text(), self.prompt_text()).min(self.prompt.len().saturating_sub(1));
        self.stats.reused_tokens = engine.rollback(sequence, wanted)?;
        Ok(self.stats.reused_tokens)
    }

    /// Lets only those tokens be chosen that `mask` allows.
    pub fn set_mask(&mut self, mask: Box<dyn LogitMask>) {
        self.mask = Some(mask);
        self.mask_is_on = true;
    }

    /// A mask that is off neither excludes tokens nor sees those that are chosen: a grammar for the answer must not
    /// constrain the reasoning before it.
    pub fn switch_mask(&mut self, on: bool) {
        self.mask_is_on = on;
    }

    /// Takes `tokens` next, whatever the scores say. A mask does not see them.
    pub fn force(&mut self, tokens: &[TokenId]) {
        self.forced.extend(tokens);
    }

    pub fn is_forcing(&self) -> bool {
        !self.forced.is_empty()
    }

    /// How the last token was drawn; `None` if it was forced.
    pub fn sampled(&self) -> Option<Sampled> {
        self.sampled
    }

    /// The likeliest tokens of the last draw, as many as the parameters ask for.
    pub fn top_logprobs(&self) -> &[TokenLogprob] {
        if self.sampled.is_some() { self.sampler.top_logprobs() } else { &[] }
    }

    /// The tokens chosen so far, with the one that ended the answer.
    pub fn generated(&self) -> &[TokenId] {
        &self.generated
    }

    pub fn stats(&self) -> GenerationStats {
        self.stats
    }

    /// The seed in use, with which the same answer can be had again.
    pub fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// The token that the next step would compute with, so that several generations can do it in one window
    /// ([`Engine::feed_each`]); `None` where the next step computes a prompt, or nothing.
    pub fn awaits(&self, engine: &Engine, sequence: &Sequence) -> Option<TokenId> {
        let ends = self.finish.is_some()
            || self.options.interrupt.load(Ordering::Relaxed)
            || self.options.max_tokens == Some(self.generated.len())
            || sequence.len() >= engine.options().context as usize;
        self.pending.filter(|_| !ends && sequence.len() >= self.prompt.len())
    }

    /// Takes the scores after the awaited token, which a sequence of now `cells` tokens holds.
    pub fn computed(&mut self, cells: usize, scores: &[f32]) {
        copy_row(&mut self.logits, scores);
        self.pending = None;
        self.count_step(cells);
    }

    /// Counts a window that was computed outside of [`Generation::step`]: its time and what the tiers did, both of them for all
    /// answers in it together.
    pub fn took(&mut self, time: Duration, tiers: Option<TierStats>) {
        self.stats.decode_time += time;
        self.add_tiers(tiers);
    }

    fn add_tiers(&mut self, tiers: Option<TierStats>) {
        if let Some(tiers) = tiers {
            self.stats.tiers = Some(self.stats.tiers.unwrap_or_default() + tiers);
        }
    }

    /// Reads a part of the prompt or produces a token.
    ///
    /// # Errors
    /// A device error; the sequence is then empty. An interruption inside a step is an end, not an error.
    pub fn step(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<Progress, GenerateError> {
        if let Some(finish) = &self.finish {
            return Ok(Progress::End { finish: finish.clone(), text: String::new() });
        }
        if self.options.interrupt.load(Ordering::Relaxed) {
            return Ok(self.end(Finish::Interrupted));
        }
        let start = Instant::now();
        let before = engine.tier_stats();
        let reading = sequence.len() < self.prompt.len();
        let (result, time) = if let Some(number) = self.next_picture(engine, sequence) {
            (self.look(engine, number), &mut self.stats.picture_time)
        } else if reading {
            (self.read_prompt(engine, sequence), &mut self.stats.prompt_time)
        } else {
            (self.produce(engine, sequence), &mut self.stats.decode_time)
        };
        *time += start.elapsed();
        self.add_tiers(engine.tier_stats().zip(before).map(|(now, before)| now - before));
        match result {
            Err(GenerateError::Engine(error)) if error.is_interruption() => Ok(self.end(Finish::Interrupted)),
            other => other,
        }
    }

    /// Whether the next step looks at a picture.
    pub fn is_looking(&self, engine: &Engine, sequence: &Sequence) -> bool {
        self.unseen(engine, sequence).is_some()
    }

    /// Where the next piece of the prompt ends, marks apart.
    fn chunk_end(&self, engine: &Engine, sequence: &Sequence) -> usize {
        (sequence.len() + engine.prompt_step_tokens()).min(self.prompt.len())
    }

    /// The number of a picture that the next piece of the prompt needs rows of and that has not been looked at. Each is looked at
    /// ahead once: if its rows are gone again when they are needed, feeding looks once more.
    fn unseen(&self, engine: &Engine, sequence: &Sequence) -> Option<usize> {
        let end = self.chunk_end(engine, sequence);
        let needed = |span: &Span| span.at < end && span.range().end > sequence.len();
        let numbers = (self.looked..self.spans.len()).filter(|number| needed(&self.spans[*number]));
        numbers.into_iter().find(|number| !engine.has_seen(&self.pictures[*number]))
    }

    /// The same, counting those whose rows are there.
    fn next_picture(&mut self, engine: &mut Engine, sequence: &Sequence) -> Option<usize> {
        let unseen = self.unseen(engine, sequence);
        let end = self.chunk_end(engine, sequence);
        let behind = self.spans.iter().filter(|span| span.at < end).count();
        let passed = self.looked..unseen.unwrap_or(behind).max(self.looked);
        let reused = self.spans[passed.clone()].iter().filter(|span| span.range().end > sequence.len()).count();
        engine.count_reused(reused);
        self.looked = passed.end;
        unseen
    }

    /// One step of looking at a picture.
    fn look(&mut self, engine: &mut Engine, number: usize) -> Result<Progress, GenerateError> {
        let (done, total) = match engine.look(&self.pictures[number])? {
            Look::Going { done, total } => (done, total),
            Look::Done => {
                self.looked = number + 1;
                self.stats.pictures += 1;
                (1, 1)
            }
        };
        Ok(Progress::Picture { number, done, total })
    }

    /// Reads up to a chunk, a checkpoint or the end of the prompt.
    fn read_prompt(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<Progress, GenerateError> {
        let (done, total) = (sequence.len(), self.prompt.len());
        let capacity = engine.options().context as usize;
        if total > capacity {
            // Told before anything is computed.
            return Err(EngineError::ContextFull { length: done, added: total - done, capacity }.into());
        }
        let chunk_end = self.chunk_end(engine, sequence);
        // Where nothing would be remembered, a mark is no reason to cut a window.
        let remembers = engine.is_recurrent() && self.options.max_checkpoints > 0;
        let mark = self.options.checkpoints.iter().copied().find(|length| remembers && *length > done);
        let end = chunk_end.min(mark.unwrap_or(total)).min(total);
        let want = if end == total { Want::Last } else { Want::Nothing };
        let logits = &mut self.logits;
        engine.feed_seeing(sequence, &self.prompt[done..end], &self.pictures, want, &mut |_, row| copy_row(logits, row))?;
        if mark == Some(end) {
            engine.checkpoint(sequence)?;
            sequence.keep_checkpoints(self.options.max_checkpoints);
        }
        Ok(Progress::Prompt { done: end, total })
    }

    /// Chooses a token, after computing with the one chosen before.
    fn produce(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<Progress, GenerateError> {
        if self.options.max_tokens == Some(self.generated.len()) {
            return Ok(self.end(Finish::MaxTokens));
        }
        if let Some(token) = self.pending.take() {
            if sequence.len() >= engine.options().context as usize {
                return Ok(self.end(Finish::ContextFull));
            }
            let logits = &mut self.logits;
            engine.feed(sequence, &[token], Want::Last, &mut |_, row| copy_row(logits, row))?;
            self.count_step(sequence.len());
        }
        let id = self.choose()?;
        self.sampler.accept(id);
        self.generated.push(id);
        self.stats.generated_tokens = self.generated.len();
        if self.tokenizer.is_eog(id) && !self.options.ignore_eos {
            return Ok(self.end(Finish::EndToken(id)));
        }
        self.pending = Some(id);
        let outcome = self.stops.push(&self.stream.push(id)?);
        if let Some(stop) = outcome.stopped.and_then(|i| self.options.stop.get(i)) {
            let finish = Finish::StopText(stop.clone());
            self.finish = Some(finish.clone());
            return Ok(Progress::End { finish, text: outcome.text });
        }
        Ok(Progress::Token { id, text: outcome.text })
    }

    fn choose(&mut self) -> Result<TokenId, GenerateError> {
        self.sampled = None;
        if let Some(id) = self.forced.pop_front() {
            return Ok(id);
        }
        self.exclude_unusable();
        let mut mask = self.mask.as_mut().filter(|_| self.mask_is_on);
        if let Some(mask) = &mut mask {
            mask.apply(&mut self.logits)?;
        }
        let sampled = self.sampler.sample(&mut self.logits)?;
        if let Some(mask) = mask {
            mask.accept(sampled.token)?;
        }
        self.sampled = Some(sampled);
        Ok(sampled.token)
    }

    /// Tokens that must not be chosen: rows of the model beyond the vocabulary, and ends that the user does not want.
    fn exclude_unusable(&mut self) {
        let known = self.tokenizer.vocab_len().min(self.logits.len());
        self.logits[known..].fill(f32::NEG_INFINITY);
        if self.options.ignore_eos {
            for token in self.tokenizer.eog_tokens() {
                if let Some(score) = self.logits.get_mut(token.index()) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    }

    fn count_step(&mut self, cells: usize) {
        if self.stats.decode_steps == 0 {
            self.stats.first_cells = cells;
        }
        self.stats.decode_steps += 1;
        self.stats.last_cells = cells;
    }

    /// Ends with what was held back.
    fn end(&mut self, finish: Finish) -> Progress {
        let mut rest = String::new();
        self.stream.finish_into(&mut rest);
        let outcome = self.stops.push(&rest);
        let mut text = outcome.text;
        if let Ok(empty) = StopMatcher::new(Vec::new()) {
            text.push_str(&std::mem::replace(&mut self.stops, empty).finish());
        }
        self.finish = Some(finish.clone());
        Progress::End { finish, text }
    }
}

fn copy_row(to: &mut Vec<f32>, row: &[f32]) {
    to.clear();
    to.extend_from_slice(row);
}
