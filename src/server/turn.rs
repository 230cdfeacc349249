//! One answer on its way from the engine to a client: events of the service become parts of an answer, tool calls among
//! them. Whoever drops a turn ends its request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::app::App;
use super::error::{ApiError, Kind};
use super::ids;
use super::tools::{Piece, ToolParser};
use crate::engine::service::{Chosen, Event, Outcome, Request, Sink};
use crate::engine::{Finish, GenerationStats};
use crate::tokenizer::Part;

/// A part of an answer, or news about it.
#[derive(Debug, Clone, PartialEq)]
pub enum Out {
    Started {
        prompt: usize,
        cached: usize,
    },
    Progress {
        done: usize,
        total: usize,
    },
    Reasoning(String),
    Text(String),
    /// Comes before the text that the token is part of, if the request asks for probabilities.
    Token(Chosen),
    ToolStart {
        index: usize,
        id: String,
        name: String,
    },
    ToolArgs {
        index: usize,
        json: String,
    },
    ToolEnd {
        index: usize,
    },
    /// The last of a turn that went well.
    Finished(Box<Finished>),
    /// The last of a turn that did not.
    Failed(ApiError),
}

/// Why an answer ended, in the words that APIs have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    Stop,
    StopText(String),
    MaxTokens,
    ContextFull,
    ToolCalls,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    pub reason: Reason,
    pub usage: Usage,
    pub stats: GenerationStats,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: usize,
    pub cached: usize,
    /// Tokens of the answer, reasoning included.
    pub completion: usize,
    pub reasoning: usize,
}

impl std::ops::Add for Usage {
    type Output = Usage;

    /// Of several answers to one prompt: the prompt counts once.
    fn add(self, other: Usage) -> Usage {
        Usage {
            prompt: self.prompt.max(other.prompt),
            cached: self.cached.max(other.cached),
            completion: self.completion + other.completion,
            reasoning: self.reasoning + other.reasoning,
        }
    }
}

/// How a client takes its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Stream,
    /// In one piece: nobody looks before the end, so nothing is handed over before it.
    Whole,
}

impl Delivery {
    pub fn of(stream: bool) -> Delivery {
        if stream { Delivery::Stream } else { Delivery::Whole }
    }

    fn sink(self, sender: UnboundedSender<Event>, ended: Arc<Notify>) -> Sink {
        if self == Delivery::Stream {
            return Box::new(move |event| {
                let last = event.is_terminal();
                let heard = sender.send(event).is_ok();
                if last {
                    ended.notify_one();
                }
                heard
            });
        }
        let mut held = Vec::new();
        Box::new(move |event| {
            let last = event.is_terminal();
            held.push(event);
            match last {
                true => held.drain(..).all(|event| sender.send(event).is_ok()),
                false => !sender.is_closed(),
            }
        })
    }
}

pub struct Turn {
    events: UnboundedReceiver<Event>,
    cancel: Arc<AtomicBool>,
    ended: Arc<Notify>,
    delivery: Delivery,
    /// Whether anybody asked for the tokens' probabilities.
    shows_tokens: bool,
    tools: Option<ToolParser>,
    ready: VecDeque<Out>,
    over: bool,
}

impl Turn {
    /// Hands the request to the engine.
    ///
    /// The channel for its events has no bound of its own: an answer is no longer than the context, and the engine must not
    /// wait for a client that reads slowly.
    ///
    /// # Errors
    /// The model writes no text, the queue is full, or the service is stopping.
    pub fn start(app: &App, mut request: Request, tools: Option<ToolParser>, delivery: Delivery) -> Result<Turn, ApiError> {
        if app.model.embedding_width.is_some() {
            let message = format!("'{}' gives embeddings (/v1/embeddings) and writes no text", app.options.model_name);
            return Err(ApiError { kind: Kind::Invalid, message, field: Some("model".into()) });
        }
        let (sender, events) = unbounded_channel();
        let cancel = Arc::new(AtomicBool::new(false));
        request.cancel = Arc::clone(&cancel);
        let shows_tokens = request.sampling.logprobs.is_some();
        let ended = Arc::new(Notify::new());
        app.service.submit(request, delivery.sink(sender, Arc::clone(&ended)))?;
        Ok(Turn { events, cancel, ended, delivery, shows_tokens, tools, ready: VecDeque::new(), over: false })
    }

    /// Notified when the last part of a stream is there, for whoever lets parts gather meanwhile.
    pub fn ended(&self) -> Arc<Notify> {
        Arc::clone(&self.ended)
    }

    /// The next part; `None` after the last. Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Out> {
        loop {
            if let Some(out) = self.ready.pop_front() {
                return Some(out);
            }
            if self.over {
                return None;
            }
            match self.events.recv().await {
                Some(event) => {
                    self.take(event);
                    while self.delivery == Delivery::Whole
                        && let Ok(event) = self.events.try_recv()
                    {
                        self.take(event);
                    }
                }
                None => {
                    // The service promises a terminal event; this is for a defect in it.
                    self.over = true;
                    let message = "the engine went away without an answer";
                    self.ready.push_back(Out::Failed(ApiError::new(Kind::Internal, message)));
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Started { prompt, cached, .. } => self.ready.push_back(Out::Started { prompt, cached }),
            Event::Prompt { done, total } => self.ready.push_back(Out::Progress { done, total }),
            Event::Token { parts, chosen } => {
                if self.shows_tokens {
                    self.ready.push_back(Out::Token(chosen));
                }
                self.parts(parts);
            }
            Event::Done(outcome) => self.finish(*outcome),
            // The service gives what was asked for; this is for a defect in it.
            Event::Embedded(_) => {
                self.over = true;
                self.ready.push_back(Out::Failed(ApiError::new(Kind::Internal, "the engine gave an embedding, not text")));
            }
            Event::Failed(error) => {
                self.over = true;
                self.ready.push_back(Out::Failed(error.into()));
            }
        }
    }

    fn parts(&mut self, parts: Vec<Part>) {
        for part in parts {
            match (part, &mut self.tools) {
                (Part::Reasoning(text), _) => self.put(Out::Reasoning(text)),
                (Part::Answer(text), None) => self.put(Out::Text(text)),
                (Part::Answer(text), Some(tools)) => {
                    let pieces = tools.push(&text);
                    self.pieces(pieces);
                }
            }
        }
    }

    fn pieces(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            self.put(match piece {
                Piece::Text(text) => Out::Text(text),
                Piece::Start { index, name } => Out::ToolStart { index, id: ids::new("call_"), name },
                Piece::Args { index, json } => Out::ToolArgs { index, json },
                Piece::End { index } => Out::ToolEnd { index },
            });
        }
    }

    /// Makes one piece of what belongs together. In a stream, whose parts are fetched one by one, little of it waits here.
    fn put(&mut self, out: Out) {
        match (self.ready.back_mut(), out) {
            (Some(Out::Text(held)), Out::Text(more)) | (Some(Out::Reasoning(held)), Out::Reasoning(more)) => held.push_str(&more),
            (Some(Out::ToolArgs { index, json }), Out::ToolArgs { index: at, json: more }) if *index == at => {
                json.push_str(&more)
            }
            (_, out) => self.ready.push_back(out),
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        self.parts(outcome.parts);
        let rest = self.tools.as_mut().map(ToolParser::finish).unwrap_or_default();
        self.pieces(rest);
        let called = self.tools.as_ref().is_some_and(|tools| tools.calls() > 0);
        let reason = match outcome.finish {
            Finish::EndToken(_) | Finish::Interrupted if called => Reason::ToolCalls,
            Finish::EndToken(_) | Finish::Interrupted => Reason::Stop,
            Finish::StopText(text) => Reason::StopText(text),
            Finish::MaxTokens => Reason::MaxTokens,
            Finish::ContextFull => Reason::ContextFull,
        };
        let stats = outcome.stats;
        let usage = Usage {
            prompt: stats.prompt_tokens,
            cached: stats.reused_tokens,
            completion: stats.generated_tokens,
            reasoning: outcome.reasoning_tokens,
        };
        self.over = true;
        self.ready.push_back(Out::Finished(Box::new(Finished { reason, usage, stats })));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

/// An answer in one piece.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Whole {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<Call>,
    pub tokens: Vec<Chosen>,
    pub finished: Option<Finished>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

impl Whole {
    /// Waits for the end of a turn.
    ///
    /// # Errors
    /// The turn failed.
    pub async fn of(mut turn: Turn) -> Result<Whole, ApiError> {
        let mut whole = Whole::default();
        while let Some(out) = turn.next().await {
            match out {
                Out::Started { .. } | Out::Progress { .. } | Out::ToolEnd { .. } => {}
                Out::Reasoning(text) => whole.reasoning.push_str(&text),
                Out::Text(text) => whole.text.push_str(&text),
                Out::Token(chosen) => whole.tokens.push(chosen),
                Out::ToolStart { id, name, .. } => whole.calls.push(Call { id, name, arguments: String::new() }),
                Out::ToolArgs { index, json } => {
                    if let Some(call) = whole.calls.get_mut(index) {
                        call.arguments.push_str(&json);
                    }
                }
                Out::Finished(finished) => whole.finished = Some(*finished),
                Out::Failed(error) => return Err(error),
            }
        }
        Ok(whole)
    }

    pub fn usage(&self) -> Usage {
        self.finished.as_ref().map(|finished| finished.usage).unwrap_or_default()
    }

    pub fn reason(&self) -> Reason {
        self.finished.as_ref().map_or(Reason::Stop, |finished| finished.reason.clone())
    }
}
