//! One request in a slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::answer::Answer;
use super::{Embedded, Event, Queued, Reply, Request, ServiceError, Wanted};
use crate::engine::{Embedding, EmbeddingProgress, Engine, EngineError, GenerateError, GenerationStats};
use crate::experts::TierStats;
use crate::state::Sequence;
use crate::tokenizer::Tokenizer;
use crate::units::TokenId;

pub(super) struct Job<'t> {
    pub id: String,
    pub label: Option<String>,
    pub waited: Duration,
    reply: Reply,
    task: Task<'t>,
    cancel: Arc<AtomicBool>,
    deadline: Option<Instant>,
    /// The sink said that nobody listens.
    abandoned: bool,
}

enum Task<'t> {
    Answer(Box<Answer<'t>>),
    Embed(Box<Embedding>),
}

/// How a step left the job.
pub(super) enum Step {
    Going,
    /// Ended, with a word for the list of recent requests.
    Ended(String),
    /// The device is in an unknown state.
    Broken(String),
}

/// Why a task cannot go on.
pub(super) enum StepError {
    Engine(EngineError),
    Request(ServiceError),
}

impl From<ServiceError> for StepError {
    fn from(error: ServiceError) -> StepError {
        StepError::Request(error)
    }
}

impl From<GenerateError> for StepError {
    fn from(error: GenerateError) -> StepError {
        match error {
            GenerateError::Engine(error) => StepError::Engine(error),
            other => StepError::Request(other.into()),
        }
    }
}

impl<'t> Task<'t> {
    fn new(
        tokenizer: &'t Tokenizer,
        engine: &Engine,
        request: Request,
        max_checkpoints: usize,
        checkpoint_tokens: usize,
    ) -> Result<Task<'t>, ServiceError> {
        let context = engine.options().context as usize;
        if request.prompt.len() > context {
            return Err(ServiceError::PromptTooLong { tokens: request.prompt.len(), context });
        }
        let refuse = |reason: String| ServiceError::Pictures { reason };
        engine.check_pictures(request.prompt.len(), &request.pictures).map_err(|error| refuse(error.to_string()))?;
        if request.wanted == Wanted::Embedding && !request.pictures.is_empty() {
            return Err(refuse("texts with pictures have no embeddings".into()));
        }
        Ok(match request.wanted {
            Wanted::Text => Task::Answer(Box::new(Answer::new(tokenizer, engine, request, max_checkpoints, checkpoint_tokens)?)),
            Wanted::Embedding => Task::Embed(Box::new(Embedding::new(engine.dims(), request.prompt)?)),
        })
    }

    fn step(&mut self, engine: &mut Engine, sequence: &mut Sequence) -> Result<Event, StepError> {
        match self {
            Task::Answer(answer) => answer.step(engine, sequence),
            Task::Embed(embedding) => match embedding.step(engine, sequence).map_err(StepError::Engine)? {
                EmbeddingProgress::Read { done, total } => Ok(Event::Prompt { done, total }),
                EmbeddingProgress::Vector(vector) => {
                    // Nothing goes on from a text that was embedded, so nothing of it is kept.
                    engine.rollback(sequence, 0).map_err(StepError::Engine)?;
                    Ok(Event::Embedded(Box::new(Embedded { vector, stats: embedding.stats() })))
                }
            },
        }
    }
}

impl<'t> Job<'t> {
    /// Checks the request and prepares what it asks for. On an error the reply has been given.
    pub fn new(
        tokenizer: &'t Tokenizer,
        engine: &Engine,
        queued: Queued,
        max_checkpoints: usize,
        checkpoint_tokens: usize,
    ) -> Result<Job<'t>, ServiceError> {
        let Queued { request, mut reply, since } = queued;
        let (id, label) = (request.id.clone(), request.label.clone());
        let (cancel, deadline) = (Arc::clone(&request.cancel), request.deadline);
        match Task::new(tokenizer, engine, request, max_checkpoints, checkpoint_tokens) {
            Ok(task) => Ok(Job { id, label, waited: since.elapsed(), reply, task, cancel, deadline, abandoned: false }),
            Err(error) => {
                reply.send(Event::Failed(error.clone()));
                Err(error)
            }
        }
    }

    /// Takes the slot's sequence back to what it shares with the prompt.
    pub fn start(&mut self, engine: &mut Engine, sequence: &mut Sequence, slot: usize) -> Step {
        let rewound = match &mut self.task {
            Task::Answer(answer) => answer.rewind(engine, sequence),
            Task::Embed(_) => engine.rollback(sequence, 0).map(|cached| (cached, 0)),
        };
        match rewound {
            Ok((cached, seed)) => {
                let prompt = self.stats().prompt_tokens;
                self.tell(Event::Started { slot, prompt, cached, seed });
                Step::Going
            }
            Err(error) => self.broken(&error.to_string()),
        }
    }

    pub fn stats(&self) -> GenerationStats {
        match &self.task {
            Task::Answer(answer) => answer.stats(),
            Task::Embed(embedding) => embedding.stats(),
        }
    }

    pub fn is_reading(&self) -> bool {
        match &self.task {
            Task::Answer(answer) => answer.is_reading(),
            Task::Embed(_) => true,
        }
    }

    /// What the next step does, for the breadcrumb.
    pub fn doing(&self, engine: &Engine, sequence: &Sequence) -> &'static str {
        match &self.task {
            Task::Answer(answer) if answer.is_looking(engine, sequence) => "looking at a picture",
            _ if self.is_reading() => "reading a prompt",
            _ => "decoding",
        }
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

    /// Why nobody wants the answer any more.
    fn unwanted(&self) -> Option<ServiceError> {
        if self.abandoned || self.cancel.load(Ordering::Relaxed) {
            return Some(ServiceError::Cancelled);
        }
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline).then_some(ServiceError::Deadline)
    }

    /// The token that the job's next step needs computed, if somebody still wants the answer.
    pub fn awaits(&self, engine: &Engine, sequence: &Sequence) -> Option<TokenId> {
        match &self.task {
            Task::Answer(answer) if self.unwanted().is_none() => answer.awaits(engine, sequence),
            _ => None,
        }
    }

    /// The scores of the awaited token, computed together with those of other jobs.
    pub fn computed(&mut self, cells: usize, scores: &[f32]) {
        if let Task::Answer(answer) = &mut self.task {
            answer.computed(cells, scores);
        }
    }

    pub fn took(&mut self, time: Duration, tiers: Option<TierStats>) {
        if let Task::Answer(answer) = &mut self.task {
            answer.took(time, tiers);
        }
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
        if let Some(error) = self.unwanted() {
            return self.fail(error);
        }
        match self.task.step(engine, sequence) {
            Ok(event) => {
                let end = event.end();
                self.tell(event);
                end.map_or(Step::Going, Step::Ended)
            }
            Err(StepError::Engine(error)) if error.is_interruption() => self.fail(ServiceError::Stopping),
            Err(StepError::Engine(error)) => self.failed(&error),
            Err(StepError::Request(error)) => self.fail(error),
        }
    }
}
