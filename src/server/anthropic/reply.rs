//! Answers of `/v1/messages`: the message, and the events by which it grows.

use serde_json::{Value as Json, json};

use crate::server::error::Shape;
use crate::server::ids;
use crate::server::sse::{Encoder, Frames};
use crate::server::turn::{Finished, Out, Reason, Usage};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    Thinking,
    Text,
    Call,
}

pub struct Reply {
    message: Json,
    content: Vec<Json>,
    open: Open,
    /// The input of the call that grows now.
    input: String,
}

fn usage_json(usage: &Usage) -> Json {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    })
}

impl Reply {
    pub fn new(model: &str) -> Reply {
        let message = json!({
            "id": ids::new("msg_"), "type": "message", "role": "assistant", "model": model,
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage_json(&Usage::default()),
        });
        Reply { message, content: Vec::new(), open: Open::Nothing, input: String::new() }
    }

    pub fn into_message(self) -> Json {
        self.message
    }

    fn index(&self) -> usize {
        self.content.len().saturating_sub(1)
    }

    /// Takes a part of the answer.
    pub fn take(&mut self, out: Out, frames: &mut Frames) {
        match out {
            Out::Started { prompt, cached } => {
                self.message["usage"] = usage_json(&Usage { prompt, cached, ..Usage::default() });
                frames.event("message_start", &json!({ "type": "message_start", "message": self.message }));
            }
            Out::Progress { done, total } => frames.comment(&format!("prompt {done}/{total}")),
            Out::Token(_) => {}
            Out::Reasoning(text) => {
                self.begin(Open::Thinking, json!({ "type": "thinking", "thinking": "", "signature": "" }), frames);
                self.grow("thinking", "thinking_delta", &text, frames);
            }
            Out::Text(text) => {
                self.begin(Open::Text, json!({ "type": "text", "text": "" }), frames);
                self.grow("text", "text_delta", &text, frames);
            }
            Out::ToolStart { id, name, .. } => {
                self.close(frames);
                let id = id.replacen("call_", "toolu_", 1);
                self.begin(Open::Call, json!({ "type": "tool_use", "id": id, "name": name, "input": {} }), frames);
            }
            Out::ToolArgs { json, .. } => {
                self.input.push_str(&json);
                self.delta(json!({ "type": "input_json_delta", "partial_json": json }), frames);
            }
            Out::ToolEnd { .. } => self.close(frames),
            Out::Finished(finished) => self.finish(&finished, frames),
            Out::Failed(error) => frames.event("error", &error.body(Shape::Anthropic)),
        }
    }

    fn begin(&mut self, kind: Open, block: Json, frames: &mut Frames) {
        if self.open == kind {
            return;
        }
        self.close(frames);
        self.open = kind;
        self.content.push(block.clone());
        let event = json!({ "type": "content_block_start", "index": self.index(), "content_block": block });
        frames.event("content_block_start", &event);
    }

    fn grow(&mut self, field: &str, kind: &str, text: &str, frames: &mut Frames) {
        if let Some(Json::String(whole)) = self.content.last_mut().and_then(|block| block.get_mut(field)) {
            whole.push_str(text);
        }
        self.delta(json!({ "type": kind, field: text }), frames);
    }

    fn delta(&self, delta: Json, frames: &mut Frames) {
        let event = json!({ "type": "content_block_delta", "index": self.index(), "delta": delta });
        frames.event("content_block_delta", &event);
    }

    fn close(&mut self, frames: &mut Frames) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => return,
            Open::Thinking => {
                // Nobody checks signatures here, but clients keep them and send them back.
                let signature = "strata";
                self.delta(json!({ "type": "signature_delta", "signature": signature }), frames);
                if let Some(block) = self.content.last_mut() {
                    block["signature"] = json!(signature);
                }
            }
            Open::Text => {}
            Open::Call => {
                let input = serde_json::from_str(&std::mem::take(&mut self.input)).unwrap_or_else(|_| json!({}));
                if let Some(block) = self.content.last_mut() {
                    block["input"] = input;
                }
            }
        }
        frames.event("content_block_stop", &json!({ "type": "content_block_stop", "index": self.index() }));
    }

    fn finish(&mut self, finished: &Finished, frames: &mut Frames) {
        self.close(frames);
        let (reason, sequence) = match &finished.reason {
            Reason::Stop => ("end_turn", None),
            Reason::StopText(text) => ("stop_sequence", Some(text.as_str())),
            Reason::MaxTokens => ("max_tokens", None),
            Reason::ContextFull => ("model_context_window_exceeded", None),
            Reason::ToolCalls => ("tool_use", None),
        };
        self.message["content"] = Json::Array(self.content.clone());
        self.message["stop_reason"] = json!(reason);
        self.message["stop_sequence"] = json!(sequence);
        self.message["usage"] = usage_json(&finished.usage);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        let event = json!({ "type": "message_delta", "delta": delta, "usage": self.message["usage"] });
        frames.event("message_delta", &event);
        frames.event("message_stop", &json!({ "type": "message_stop" }));
    }
}

impl Encoder for Reply {
    fn out(&mut self, _choice: usize, out: Out, frames: &mut Frames) {
        self.take(out, frames);
    }

    fn end(&mut self, _frames: &mut Frames) {}
}
