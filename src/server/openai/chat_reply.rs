//! Answers of `/v1/chat/completions`, whole and in chunks.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::engine::GenerationStats;
use crate::engine::service::Chosen;
use crate::server::app::App;
use crate::server::error::Shape;
use crate::server::ids;
use crate::server::sse::{Encoder, Frames};
use crate::server::turn::{Out, Reason, Usage, Whole};
use crate::tokenizer::Tokenizer;
use crate::units::TokenId;

/// What all chunks of an answer say.
#[derive(Debug, Clone)]
pub struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub logprobs: bool,
}

impl Head {
    pub fn new(prefix: &str, model: &str, logprobs: bool) -> Head {
        Head { id: ids::new(prefix), created: ids::now(), model: model.to_owned(), logprobs }
    }
}

pub fn finish_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::Stop | Reason::StopText(_) => "stop",
        Reason::MaxTokens | Reason::ContextFull => "length",
        Reason::ToolCalls => "tool_calls",
    }
}

pub fn usage_json(usage: &Usage) -> Json {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning },
    })
}

/// Speeds, under llama.cpp's names.
pub fn timings(stats: &GenerationStats) -> Json {
    json!({
        "prompt_n": stats.prompt_tokens.saturating_sub(stats.reused_tokens),
        "prompt_ms": stats.prompt_time.as_secs_f64() * 1e3,
        "prompt_per_second": stats.prompt_rate(),
        "predicted_n": stats.generated_tokens,
        "predicted_ms": stats.decode_time.as_secs_f64() * 1e3,
        "predicted_per_second": stats.decode_rate(),
        "cache_n": stats.reused_tokens,
    })
}

/// A token with its probability. JSON has no minus infinity, so a token that cannot be gets the API's -9999.
fn token_json(tokenizer: &Tokenizer, token: TokenId, logprob: f32) -> Json {
    let logprob = if logprob.is_finite() { logprob } else { -9999.0 };
    json!({
        "token": tokenizer.token_text(token).unwrap_or_default(),
        "logprob": logprob,
        "bytes": tokenizer.token_bytes(token),
    })
}

fn logprob_json(tokenizer: &Tokenizer, chosen: &Chosen) -> Json {
    let mut entry = token_json(tokenizer, chosen.id, chosen.logprob.unwrap_or(0.0));
    let top: Vec<Json> = chosen.top.iter().map(|top| token_json(tokenizer, top.token, top.logprob)).collect();
    entry["top_logprobs"] = Json::Array(top);
    entry
}

pub fn whole_reply(app: &App, head: &Head, answers: &[Whole]) -> Json {
    let choices: Vec<Json> = answers.iter().enumerate().map(|(index, whole)| choice(app, head, index, whole)).collect();
    let usage = answers.iter().map(Whole::usage).fold(Usage::default(), |sum, usage| sum + usage);
    let mut reply = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": usage_json(&usage),
    });
    if let [Whole { finished: Some(finished), .. }] = answers {
        reply["timings"] = timings(&finished.stats);
    }
    reply
}

fn choice(app: &App, head: &Head, index: usize, whole: &Whole) -> Json {
    let mut message = json!({ "role": "assistant", "content": whole.text });
    if !whole.reasoning.is_empty() {
        message["reasoning_content"] = json!(whole.reasoning);
    }
    if !whole.calls.is_empty() {
        if whole.text.is_empty() {
            message["content"] = Json::Null;
        }
        let calls = whole.calls.iter().map(
            |call| json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": call.arguments } }),
        );
        message["tool_calls"] = calls.collect();
    }
    let logprobs = head.logprobs.then(|| {
        let shown = whole.tokens.iter().filter(|token| !token.reasoning);
        json!({ "content": shown.map(|token| logprob_json(&app.tokenizer, token)).collect::<Vec<_>>() })
    });
    json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason(&whole.reason()) })
}

/// Chunks of a streamed answer.
pub struct Stream {
    app: Arc<App>,
    head: Head,
    with_usage: bool,
    with_progress: bool,
    usage: Usage,
    timings: Json,
    /// Of each choice, probabilities that wait for their text.
    logprobs: Vec<Vec<Json>>,
    failed: bool,
}

impl Stream {
    pub fn new(app: Arc<App>, head: Head, choices: usize, with_usage: bool, with_progress: bool) -> Stream {
        let logprobs = vec![Vec::new(); choices];
        Stream { app, head, with_usage, with_progress, usage: Usage::default(), timings: Json::Null, logprobs, failed: false }
    }

    fn chunk(&self, choices: Json) -> Json {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        });
        if self.with_usage {
            chunk["usage"] = Json::Null;
        }
        chunk
    }

    fn delta(&mut self, choice: usize, delta: Json, finish: Option<&str>, frames: &mut Frames) {
        let mut entry = json!({ "index": choice, "delta": delta, "finish_reason": finish });
        if self.head.logprobs {
            let waiting = self.logprobs.get_mut(choice).map(std::mem::take).unwrap_or_default();
            entry["logprobs"] = if waiting.is_empty() { Json::Null } else { json!({ "content": waiting }) };
        }
        frames.data(&self.chunk(json!([entry])));
    }

    fn progress(&self, done: usize, total: usize, frames: &mut Frames) {
        frames.comment(&format!("prompt {done}/{total}"));
        if self.with_progress {
            let mut chunk = self.chunk(json!([]));
            chunk["prompt_progress"] = json!({ "processed": done, "total": total });
            frames.data(&chunk);
        }
    }
}

impl Encoder for Stream {
    fn out(&mut self, choice: usize, out: Out, frames: &mut Frames) {
        match out {
            Out::Started { .. } => self.delta(choice, json!({ "role": "assistant", "content": "" }), None, frames),
            Out::Progress { done, total } => self.progress(done, total, frames),
            Out::Reasoning(text) => self.delta(choice, json!({ "reasoning_content": text }), None, frames),
            Out::Text(text) => self.delta(choice, json!({ "content": text }), None, frames),
            Out::Token(chosen) => {
                if self.head.logprobs && !chosen.reasoning {
                    let entry = logprob_json(&self.app.tokenizer, &chosen);
                    if let Some(waiting) = self.logprobs.get_mut(choice) {
                        waiting.push(entry);
                    }
                }
            }
            Out::ToolStart { index, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                let call = json!({ "index": index, "id": id, "type": "function", "function": function });
                self.delta(choice, json!({ "tool_calls": [call] }), None, frames);
            }
            Out::ToolArgs { index, json } => {
                let call = json!({ "index": index, "function": { "arguments": json } });
                self.delta(choice, json!({ "tool_calls": [call] }), None, frames);
            }
            Out::ToolEnd { .. } => {}
            Out::Finished(finished) => {
                self.usage = self.usage + finished.usage;
                self.timings = timings(&finished.stats);
                self.delta(choice, json!({}), Some(finish_reason(&finished.reason)), frames);
            }
            Out::Failed(error) => {
                self.failed = true;
                frames.data(&error.body(Shape::OpenAi));
            }
        }
    }

    fn end(&mut self, frames: &mut Frames) {
        if self.with_usage && !self.failed {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage_json(&self.usage);
            chunk["timings"] = self.timings.take();
            frames.data(&chunk);
        }
        frames.raw("[DONE]");
    }
}
