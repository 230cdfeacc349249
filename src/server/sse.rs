//! Answers as streams of server-sent events.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::FutureExt;
use serde_json::Value as Json;

use super::error::text_response;
use super::turn::{Out, Turn};

/// Frames to be sent.
#[derive(Debug, Default)]
pub struct Frames {
    text: String,
}

impl Frames {
    pub fn data(&mut self, value: &Json) {
        self.raw(&value.to_string());
    }

    /// One line of data that is not JSON.
    pub fn raw(&mut self, data: &str) {
        let _ = write!(self.text, "data: {data}\n\n");
    }

    pub fn event(&mut self, name: &str, value: &Json) {
        let _ = write!(self.text, "event: {name}\ndata: {value}\n\n");
    }

    /// Clients skip comments; they keep the connection alive and can be seen with curl.
    pub fn comment(&mut self, text: &str) {
        let _ = write!(self.text, ": {text}\n\n");
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    fn len(&self) -> usize {
        self.text.len()
    }

    fn take(&mut self) -> Option<String> {
        (!self.text.is_empty()).then(|| std::mem::take(&mut self.text))
    }
}

/// How an API writes the parts of its answers.
pub trait Encoder: Send + 'static {
    /// Before anything is known.
    fn begin(&mut self, _frames: &mut Frames) {}
    fn out(&mut self, choice: usize, out: Out, frames: &mut Frames);
    /// After the last part of the last choice.
    fn end(&mut self, frames: &mut Frames);
}

/// What comes so soon after the last piece waits and goes out with what comes meanwhile. A fast model writes more pieces a
/// second than anybody can read, and each costs a wake-up and a packet on both sides.
const GATHER: Duration = Duration::from_millis(10);

/// What a reader does not fetch waits with the turn, not here.
const MOST_GATHERED_BYTES: usize = 64 << 10;

struct Streaming<E> {
    turns: Vec<Option<Turn>>,
    encoder: E,
    frames: Frames,
    keep_alive: Duration,
    /// When the last piece of an answer went out; what comes before the first one never waits.
    sent: Option<Instant>,
    ended: bool,
}

impl<E: Encoder> Streaming<E> {
    /// The next text to send; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        if let Some(early) = self.sent.and_then(|sent| GATHER.checked_sub(sent.elapsed()))
            && let Some(ended) = self.turns.iter().flatten().next().map(Turn::ended)
        {
            // The end of an answer waits for nothing.
            let _ = tokio::time::timeout(early, ended.notified()).await;
        }
        while self.frames.is_empty() && !self.ended {
            match tokio::time::timeout(self.keep_alive, next_of(&mut self.turns)).await {
                Err(_) => self.frames.comment("keep-alive"),
                Ok(next) => self.take(next),
            }
        }
        while !self.ended
            && self.frames.len() < MOST_GATHERED_BYTES
            && let Some(next) = next_of(&mut self.turns).now_or_never()
        {
            self.take(next);
        }
        self.frames.take()
    }

    fn take(&mut self, next: Option<(usize, Out)>) {
        match next {
            Some((choice, out)) => {
                if matches!(out, Out::Text(_) | Out::Reasoning(_) | Out::ToolArgs { .. }) {
                    self.sent = Some(Instant::now());
                }
                self.encoder.out(choice, out, &mut self.frames);
            }
            None => {
                self.encoder.end(&mut self.frames);
                self.ended = true;
            }
        }
    }
}

/// The next part of any turn; `None` when all are over.
async fn next_of(turns: &mut [Option<Turn>]) -> Option<(usize, Out)> {
    std::future::poll_fn(|context| {
        let mut running = false;
        for (index, slot) in turns.iter_mut().enumerate() {
            let Some(turn) = slot else { continue };
            let polled = {
                let mut next = std::pin::pin!(turn.next());
                Pin::as_mut(&mut next).poll(context)
            };
            match polled {
                Poll::Ready(Some(out)) => return Poll::Ready(Some((index, out))),
                Poll::Ready(None) => *slot = None,
                Poll::Pending => running = true,
            }
        }
        if running { Poll::Pending } else { Poll::Ready(None) }
    })
    .await
}

/// A response that lives as long as its turns. When the client goes away it is dropped, and with it the turns.
pub fn response<E: Encoder>(turns: Vec<Turn>, mut encoder: E, keep_alive: Duration) -> Response {
    let mut frames = Frames::default();
    encoder.begin(&mut frames);
    let turns: Vec<Option<Turn>> = turns.into_iter().map(Some).collect();
    let streaming = Streaming { turns, encoder, frames, keep_alive, sent: None, ended: false };
    let stream = futures_util::stream::unfold(streaming, |mut streaming| async move {
        let text = streaming.next().await?;
        Some((Ok::<_, Infallible>(text), streaming))
    });
    let mut response = text_response(StatusCode::OK, "text/event-stream; charset=utf-8", Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
