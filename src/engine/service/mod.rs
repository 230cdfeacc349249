//! The engine on a thread of its own: requests go in through one bounded queue, events come back to each request's sink.
//!
//! Promises of this room:
//!
//! - every request that was taken gets exactly one terminal event ([`Event::is_terminal`]), also when the engine fails or
//!   panics, and then the engine is opened again and the next request is served;
//! - a request whose sink says that nobody listens any more, whose flag was set or whose deadline has passed computes at
//!   most one more window;
//! - while one request reads its prompt, all others decode a token between any two of its windows.

mod answer;
mod job;
mod parked;
mod status;
mod worker;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use thiserror::Error;

pub use status::{Activity, DeviceUse, EngineInfo, RecentRequest, SlotState, SlotStatus, State, Status, Totals};

use super::{Engine, Finish, GenerateError, GenerationStats};
use crate::picture::Placed;
use crate::plan::{CardCheck, Plan};
use crate::sample::{LogitMask, SampleError, SamplingParams, TokenLogprob};
use crate::tokenizer::{Part, ShowSpecial, Tokenizer};
use crate::units::TokenId;

/// Where the reasoning of an answer is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// Everything is answer: plain completion.
    NotSplit,
    /// The answer may begin with reasoning.
    AtStart,
    /// The prompt has opened the reasoning already.
    Inside,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The prompt continued.
    Text,
    /// One vector for the prompt. Of the request's fields only those count that do not speak of an answer.
    Embedding,
}

/// What every API's request becomes.
pub struct Request {
    pub id: String,
    pub wanted: Wanted,
    pub prompt: Vec<TokenId>,
    /// In the order of their places, which do not overlap. Only where [`EngineInfo::pictures`] says how they shall be.
    pub pictures: Vec<Placed>,
    pub sampling: SamplingParams,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    pub show: ShowSpecial,
    pub thinking: Thinking,
    /// Reasoning is closed after so many tokens.
    pub reasoning_budget: Option<usize>,
    /// Constrains the answer, not the reasoning before it.
    pub mask: Option<Box<dyn LogitMask>>,
    pub deadline: Option<Instant>,
    /// Set by others to end the request.
    pub cancel: Arc<AtomicBool>,
    /// Shown in the list of recent requests, if the owner of the machine wants that.
    pub label: Option<String>,
}

impl Request {
    /// Continues `prompt` as text, everything else by default.
    pub fn new(id: impl Into<String>, prompt: Vec<TokenId>) -> Request {
        Request {
            id: id.into(),
            wanted: Wanted::Text,
            prompt,
            pictures: Vec::new(),
            sampling: SamplingParams::default(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_eos: false,
            show: ShowSpecial::ExceptEog,
            thinking: Thinking::NotSplit,
            reasoning_budget: None,
            mask: None,
            deadline: None,
            cancel: Arc::new(AtomicBool::new(false)),
            label: None,
        }
    }
}

/// A token that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    pub id: TokenId,
    pub reasoning: bool,
    pub logprob: Option<f32>,
    pub top: Vec<TokenLogprob>,
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub finish: Finish,
    /// Text that was held back until the end.
    pub parts: Vec<Part>,
    pub stats: GenerationStats,
    pub reasoning_tokens: usize,
}

/// The end of a request for an embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedded {
    /// Of length 1.
    pub vector: Vec<f32>,
    pub stats: GenerationStats,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The request has a slot. `cached` tokens of its prompt need not be read.
    Started {
        slot: usize,
        prompt: usize,
        cached: usize,
        seed: u64,
    },
    Prompt {
        done: usize,
        total: usize,
    },
    Token {
        parts: Vec<Part>,
        chosen: Chosen,
    },
    Done(Box<Outcome>),
    Embedded(Box<Embedded>),
    Failed(ServiceError),
}

impl Event {
    pub fn is_terminal(&self) -> bool {
        matches!(self, Event::Done(_) | Event::Embedded(_) | Event::Failed(_))
    }

    /// How a request ended that ended well, in a word.
    fn end(&self) -> Option<String> {
        match self {
            Event::Done(outcome) => Some(outcome.finish.name().to_owned()),
            Event::Embedded(_) => Some("embedded".to_owned()),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Error)]
pub enum ServiceError {
    #[error("{waiting} requests are waiting already, and no more than {limit} may; try again later")]
    Busy { waiting: usize, limit: usize },
    #[error("the prompt has {tokens} tokens and the context holds {context}; shorten it or serve with a larger --ctx-size")]
    PromptTooLong { tokens: usize, context: usize },
    #[error("the prompt is empty: there is nothing to go on from")]
    EmptyPrompt,
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error("{reason}")]
    OtherKind { reason: String },
    #[error("{reason}")]
    Pictures { reason: String },
    #[error("the request did not finish within its time limit")]
    Deadline,
    #[error("the request was cancelled")]
    Cancelled,
    #[error("the engine failed: {reason}; it is being started again")]
    Engine { reason: String },
    #[error("the engine cannot be started: {reason}")]
    Down { reason: String },
    #[error("the server is shutting down")]
    Stopping,
}

impl From<GenerateError> for ServiceError {
    fn from(error: GenerateError) -> ServiceError {
        match error {
            GenerateError::Sample(error) => error.into(),
            GenerateError::EmptyPrompt => ServiceError::EmptyPrompt,
            GenerateError::NoText | GenerateError::NoEmbeddings => ServiceError::OtherKind { reason: error.to_string() },
            other => ServiceError::Engine { reason: other.to_string() },
        }
    }
}

/// Takes events; false means that nobody listens any more.
pub type Sink = Box<dyn FnMut(Event) -> bool + Send>;

/// Opens the engine, the first time and after a failure.
pub type OpenEngine = Box<dyn FnMut() -> Result<Opened, String> + Send>;

/// An open engine and what it was opened by.
pub struct Opened {
    pub engine: Engine,
    pub plan: Option<Arc<Plan>>,
    /// What is gone of each card, against the plan.
    pub cards: Vec<CardCheck>,
}

/// Called before every step with the request's id; for tests that make the engine fail.
pub type StepHook = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Clone)]
pub struct ServiceOptions {
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// Checkpoints of recurrent state that a slot keeps.
    pub checkpoints: usize,
    /// A checkpoint after every so many tokens of a prompt, beside those at turns.
    pub checkpoint_tokens: usize,
    /// RAM for conversations whose slots others needed.
    pub parked_bytes: usize,
    pub recent: usize,
    pub before_step: Option<StepHook>,
}

impl Default for ServiceOptions {
    fn default() -> ServiceOptions {
        ServiceOptions { queue: 64, checkpoints: 6, checkpoint_tokens: 8192, parked_bytes: 0, recent: 50, before_step: None }
    }
}

/// The sink of a request, which makes sure of the one terminal event.
pub(crate) struct Reply {
    sink: Sink,
    finished: bool,
    shared: Arc<Shared>,
}

impl Reply {
    fn send(&mut self, event: Event) -> bool {
        if self.finished {
            return false;
        }
        if event.is_terminal() {
            self.close();
        }
        (self.sink)(event)
    }

    /// No event comes any more. Counted before the client can know, so that its next request finds the place free.
    fn close(&mut self) {
        if !std::mem::replace(&mut self.finished, true) {
            self.shared.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Reply {
    /// Reached without a terminal event only if the engine's thread unwinds.
    fn drop(&mut self) {
        self.send(Event::Failed(ServiceError::Engine { reason: "it stopped in the middle of the answer".into() }));
    }
}

pub(crate) struct Queued {
    request: Request,
    reply: Reply,
    since: Instant,
}

/// What the handle and the thread share.
pub(crate) struct Shared {
    status: Mutex<Status>,
    /// Requests that have no slot yet.
    waiting: AtomicUsize,
    /// Requests that have not ended, those in slots too.
    inside: AtomicUsize,
    /// Slots of the open engine.
    slots: AtomicUsize,
    stop: AtomicBool,
    options: ServiceOptions,
}

impl Shared {
    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A handle of the engine's thread. Dropping the last one ends it.
pub struct Service {
    shared: Arc<Shared>,
    queue: Mutex<Option<Sender<Queued>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Service {
    /// Starts the thread, which opens the engine and then serves.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(tokenizer: Arc<Tokenizer>, open: OpenEngine, options: ServiceOptions) -> std::io::Result<Service> {
        let shared = Arc::new(Shared {
            status: Mutex::new(Status::new()),
            waiting: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            slots: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            options,
        });
        let (sender, receiver): (Sender<Queued>, Receiver<Queued>) = channel();
        let thread_shared = Arc::clone(&shared);
        let run = move || worker::supervise(&tokenizer, open, &thread_shared, &receiver, &mut VecDeque::new());
        let thread = std::thread::Builder::new().name("engine".into()).spawn(run)?;
        Ok(Service { shared, queue: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// The queue is full, or the service is stopping. The sink is then dropped without any event.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<(), ServiceError> {
        let shared = &self.shared;
        // Requests that came a moment ago may still be on their way to free slots.
        let (limit, slots) = (shared.options.queue, shared.slots.load(Ordering::SeqCst));
        let inside = shared.inside.fetch_add(1, Ordering::SeqCst);
        let mut queued =
            Queued { request, reply: Reply { sink, finished: false, shared: Arc::clone(shared) }, since: Instant::now() };
        if inside >= limit + slots {
            queued.reply.close();
            shared.status().totals.refused += 1;
            return Err(ServiceError::Busy { waiting: inside.saturating_sub(slots), limit });
        }
        let queue = self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(queue) = queue.as_ref() else {
            queued.reply.close();
            return Err(ServiceError::Stopping);
        };
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        queue.send(queued).map_err(|mut lost| {
            lost.0.reply.close();
            shared.waiting.fetch_sub(1, Ordering::SeqCst);
            ServiceError::Stopping
        })
    }

    pub fn options(&self) -> &ServiceOptions {
        &self.shared.options
    }

    /// What the engine is doing now.
    pub fn status(&self) -> Status {
        let mut status = self.shared.status().clone();
        status.waiting = self.shared.waiting.load(Ordering::SeqCst);
        status
    }

    /// Waits until the engine is open or has failed to open.
    pub fn wait_until_open(&self, most: Duration) -> State {
        let end = Instant::now() + most;
        loop {
            let state = self.shared.status().state.clone();
            if state != State::Loading || Instant::now() >= end {
                return state;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends all requests and the thread. Further requests are refused.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take());
        let thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(thread) = thread {
            // The thread catches its own panics, so there is nothing to learn from how it ended.
            let _ = thread.join();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop();
    }
}
