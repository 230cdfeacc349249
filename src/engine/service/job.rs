//! One request in a slot.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Chosen, Event, Outcome, Queued, Reply, Request, ServiceError, Thinking};
use crate::engine::{Engine, EngineError, Finish, GenerateError, GenerateOptions, Generation, GenerationStats, Progress};
use crate::experts::TierStats;
use crate::state::Sequence;
use crate::tokenizer::{Part, Special, ThinkSplitter, Tokenizer};
use crate::units::TokenId;

/// What closes a reasoning that has used up its budget.
const CLOSE_REASONING: &str = "\n</think>\n\n";

pub(super) struct Job<'t> {
    pub id: String,
    pub label: Option<String>,
    pub waited: Duration,
    reply: Reply,
    generation: Generation<'t>,
    splitter: Option<ThinkSplitter>,
    tokenizer: &'t Tokenizer,
    cancel: Arc<std::sync::atomic::AtomicBool>,
    deadline: Option<Instant>,
    reasoning_budget: Option<usize>,
    reasoning_tokens: usize,
    reading: bool,
    /// The sink said that nobody listens.
    abandoned: bool,
}

/// How a step left the job.
pub(super) enum Step {
    Going,
    /// Ended, with a word for the list of recent requests.
    Ended(String),
    /// The device is in an unknown state.
    Broken(String),
}

/// Where the state of a prompt is worth remembering: after its first turn, which many conversations share, at its last
/// turns, and every so often.
fn checkpoints(tokenizer: &Tokenizer, prompt: &[TokenId], every: usize) -> Vec<usize> {
    let turns: Vec<usize> = (0..prompt.len()).filter(|i| tokenizer.is_eog(prompt[*i])).map(|i| i + 1).collect();
    let last = turns.len().saturating_sub(2);
    let mut marks: Vec<usize> = turns.first().into_iter().chain(&turns[last..]).copied().collect();
    marks.extend((1..).map(|n| n * every.max(1)).take_while(|at| *at < prompt.len()));
    marks.retain(|at| *at < prompt.len());
    marks.sort_unstable();
    marks.dedup();
    marks
}

impl<'t> Job<'t> {
    /// Checks the request and prepares the generation. On an error the reply has been given.
    pub fn new(
        tokenizer: &'t Tokenizer,
        engine: &Engine,
        queued: Queued,
        max_checkpoints: usize,
        checkpoint_tokens: usize,
    ) -> Result<Job<'t>, ServiceError> {
        let Queued { request, mut reply, since } = queued;
        let (id, label, thinking) = (request.id.clone(), request.label.clone(), request.thinking);
        let (cancel, deadline, reasoning_budget) = (Arc::clone(&request.cancel), request.deadline, request.reasoning_budget);
        match prepare(tokenizer, engine, request, max_checkpoints, checkpoint_tokens) {
            Ok(generation) => Ok(Job {
                id,
                label,
                waited: since.elapsed(),
                reply,
                generation,
                splitter: match thinking {
                    Thinking::NotSplit => None,
                    Thinking::AtStart => Some(ThinkSplitter::new(false)),
                    Thinking::Inside => Some(ThinkSplitter::new(true)),
                },
                tokenizer,
                cancel,
                deadline,
                reasoning_budget,
                reasoning_tokens: 0,
                reading: true,
                abandoned: false,
            }),
            Err(error) => {
                reply.send(Event::Failed(error.clone()));
                Err(error)
            }
        }
    }

    /// Takes the slot's sequence back to what it shares with the prompt.
    pub fn start(&mut self, engine: &mut Engine, sequence: &mut Sequence, slot: usize) -> Step {
        match self.generation.rewind(engine, sequence) {
            Ok(cached) => {
                let (prompt, seed) = (self.stats().prompt_tokens, self.generation.seed());
                self.tell(Event::Started { slot, prompt, cached, seed });
                Step::Going
            }
            Err(error) => self.broken(&error.to_string()),
        }
    }

    pub fn stats(&self) -> GenerationStats {
        self.generation.stats()
    }

    pub fn is_reading(&self) -> bool {
        self.reading
    }

    fn tell(&mut self, event: Event) {
        self.abandoned |= !self.reply.send(event) && !self.reply.finished;
    }

    fn fail(&mut self, error: ServiceError) -> Step {
        let word = match &error {
            ServiceError::Cancelled => "cancelled",
            ServiceError::Deadline => "timed out",
            _ => "failed",
        };
        self.reply.send(Event::Failed(error));
        Step::Ended(word.into())
    }

    fn broken(&mut self, reason: &str) -> Step {
        self.fail_engine(reason);
        Step::Broken(reason.to_owned())
    }

    pub fn stop(&mut self) {
        self.reply.send(Event::Failed(ServiceError::Stopping));
    }

    /// The token that the job's next step needs computed, if somebody still wants the answer.
    pub fn awaits(&self, engine: &Engine, sequence: &Sequence) -> Option<TokenId> {
        let unwanted = self.abandoned
            || self.cancel.load(Ordering::Relaxed)
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if unwanted { None } else { self.generation.awaits(engine, sequence) }
    }

    /// The scores of the awaited token, computed together with those of other jobs.
    pub fn computed(&mut self, cells: usize, scores: &[f32]) {
        self.generation.computed(cells, scores);
    }

    pub fn took(&mut self, time: Duration, tiers: Option<TierStats>) {
        self.generation.took(time, tiers);
    }

    /// Ends the request after an error of the engine.
    pub fn failed(&mut self, error: &EngineError) -> Step {
        match error.spares_the_engine() {
            true => self.fail(ServiceError::Engine { reason: error.to_string() }),
            false => self.broken(&error.to_string()),
        }
    }

    /// Ends the request because the engine failed.
    pub fn fail_engine(&mut self, reason: &str) {
        self.reply.send(Event::Failed(ServiceError::Engine { reason: reason.to_owned() }));
    }

    /// One window of the prompt or one token.
    pub fn step(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Step {
        if self.abandoned || self.cancel.load(Ordering::Relaxed) {
            return self.fail(ServiceError::Cancelled);
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return self.fail(ServiceError::Deadline);
        }
        if !self.reading {
            self.steer();
        }
        let progress = match self.generation.step(engine, sequence) {
            Ok(progress) => progress,
            Err(GenerateError::Engine(error)) => return self.failed(&error),
            Err(GenerateError::Sample(error)) => return self.fail(error.into()),
            Err(error) => return self.fail(ServiceError::Engine { reason: error.to_string() }),
        };
        match progress {
            Progress::Prompt { done, total } => {
                self.reading = done < total;
                self.tell(Event::Prompt { done, total });
                Step::Going
            }
            Progress::Token { id, text } => {
                self.token(id, &text);
                Step::Going
            }
            Progress::End { finish: Finish::Interrupted, .. } => self.fail(ServiceError::Stopping),
            Progress::End { finish, text } => self.end(finish, &text),
        }
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

    fn token(&mut self, id: TokenId, text: &str) {
        let reasoning = self.splitter.as_ref().is_some_and(ThinkSplitter::is_reasoning);
        self.reasoning_tokens += usize::from(reasoning);
        let parts = match &mut self.splitter {
            Some(splitter) => splitter.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Part::Answer(text.to_owned())],
        };
        let logprob = self.generation.sampled().and_then(|sampled| sampled.logprob);
        let chosen = Chosen { id, reasoning, logprob, top: self.generation.top_logprobs().to_vec() };
        self.tell(Event::Token { parts, chosen });
    }

    fn end(&mut self, finish: Finish, text: &str) -> Step {
        let parts = match self.splitter.take() {
            Some(mut splitter) => {
                let mut parts = splitter.push(text);
                parts.extend(splitter.finish());
                parts
            }
            None if text.is_empty() => Vec::new(),
            None => vec![Part::Answer(text.to_owned())],
        };
        let word = finish.name().to_owned();
        let (stats, reasoning_tokens) = (self.generation.stats(), self.reasoning_tokens);
        self.reply.send(Event::Done(Box::new(Outcome { finish, parts, stats, reasoning_tokens })));
        Step::Ended(word)
    }
}

fn prepare<'t>(
    tokenizer: &'t Tokenizer,
    engine: &Engine,
    request: Request,
    max_checkpoints: usize,
    checkpoint_tokens: usize,
) -> Result<Generation<'t>, ServiceError> {
    let context = engine.options().context as usize;
    if request.prompt.len() > context {
        return Err(ServiceError::PromptTooLong { tokens: request.prompt.len(), context });
    }
    let options = GenerateOptions {
        max_tokens: request.max_tokens,
        stop: request.stop,
        ignore_eos: request.ignore_eos,
        show: request.show,
        checkpoints: checkpoints(tokenizer, &request.prompt, checkpoint_tokens),
        max_checkpoints,
        interrupt: Arc::default(),
    };
    let made = Generation::new(tokenizer, engine.dims(), request.sampling, request.prompt, options);
    let mut generation = made.map_err(|error| match error {
        GenerateError::Sample(error) => error.into(),
        GenerateError::EmptyPrompt => ServiceError::EmptyPrompt,
        other => ServiceError::Engine { reason: other.to_string() },
    })?;
    if let Some(mask) = request.mask {
        generation.set_mask(mask);
    }
    Ok(generation)
}
