//! Answers of `/v1/responses`: the response object, and the events by which it grows.

use serde_json::{Map, Value as Json, json};

use crate::server::error::{ApiError, Shape};
use crate::server::ids;
use crate::server::sse::{Encoder, Frames};
use crate::server::turn::{Finished, Out, Reason, Usage};

/// The item of the output that grows now.
enum Open {
    Nothing,
    Reasoning { id: String, text: String },
    Message { id: String, text: String },
    Call { id: String, call_id: String, name: String, arguments: String },
}

pub struct Reply {
    response: Map<String, Json>,
    output: Vec<Json>,
    open: Open,
    sequence: u64,
}

impl Reply {
    /// `echo`: what the response repeats of its request.
    pub fn new(echo: Map<String, Json>) -> Reply {
        let mut response = Map::new();
        response.insert("id".into(), json!(ids::new("resp_")));
        response.insert("object".into(), json!("response"));
        response.insert("created_at".into(), json!(ids::now()));
        response.insert("status".into(), json!("in_progress"));
        response.insert("error".into(), Json::Null);
        response.insert("incomplete_details".into(), Json::Null);
        response.extend(echo);
        response.insert("output".into(), json!([]));
        response.insert("usage".into(), Json::Null);
        Reply { response, output: Vec::new(), open: Open::Nothing, sequence: 0 }
    }

    pub fn into_response(self) -> Json {
        Json::Object(self.response)
    }

    fn event(&mut self, kind: &str, mut body: Json, frames: &mut Frames) {
        body["type"] = json!(kind);
        body["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        frames.event(kind, &body);
    }

    fn whole(&mut self, kind: &str, frames: &mut Frames) {
        let response = Json::Object(self.response.clone());
        self.event(kind, json!({ "response": response }), frames);
    }

    fn index(&self) -> usize {
        self.output.len()
    }

    /// Takes a part of the answer.
    pub fn take(&mut self, out: Out, frames: &mut Frames) {
        match out {
            Out::Started { .. } | Out::Token(_) => {}
            Out::Progress { done, total } => frames.comment(&format!("prompt {done}/{total}")),
            Out::Reasoning(text) => self.reasoning(&text, frames),
            Out::Text(text) => self.text(&text, frames),
            Out::ToolStart { id, name, .. } => self.call(id, name, frames),
            Out::ToolArgs { json, .. } => {
                if let Open::Call { id, arguments, .. } = &mut self.open {
                    arguments.push_str(&json);
                    let id = id.clone();
                    let body = json!({ "item_id": id, "output_index": self.index(), "delta": json });
                    self.event("response.function_call_arguments.delta", body, frames);
                }
            }
            Out::ToolEnd { .. } => self.close("completed", frames),
            Out::Finished(finished) => self.finish(&finished, frames),
            Out::Failed(error) => self.fail(&error, frames),
        }
    }

    fn added(&mut self, item: Json, frames: &mut Frames) {
        let body = json!({ "output_index": self.index(), "item": item });
        self.event("response.output_item.added", body, frames);
    }

    fn reasoning(&mut self, text: &str, frames: &mut Frames) {
        if !matches!(self.open, Open::Reasoning { .. }) {
            self.close("completed", frames);
            let id = ids::new("rs_");
            let item = json!({ "id": id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress" });
            self.added(item, frames);
            self.open = Open::Reasoning { id, text: String::new() };
        }
        if let Open::Reasoning { id, text: whole } = &mut self.open {
            whole.push_str(text);
            let id = id.clone();
            let body = json!({ "item_id": id, "output_index": self.index(), "content_index": 0, "delta": text });
            self.event("response.reasoning_text.delta", body, frames);
        }
    }

    fn text(&mut self, text: &str, frames: &mut Frames) {
        if !matches!(self.open, Open::Message { .. }) {
            self.close("completed", frames);
            let id = ids::new("msg_");
            let item = json!({ "id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": [] });
            self.added(item, frames);
            let body = json!({ "item_id": id, "output_index": self.index(), "content_index": 0, "part": output_text("") });
            self.event("response.content_part.added", body, frames);
            self.open = Open::Message { id, text: String::new() };
        }
        if let Open::Message { id, text: whole } = &mut self.open {
            whole.push_str(text);
            let id = id.clone();
            let body = json!({ "item_id": id, "output_index": self.index(), "content_index": 0, "delta": text, "logprobs": [] });
            self.event("response.output_text.delta", body, frames);
        }
    }

    fn call(&mut self, call_id: String, name: String, frames: &mut Frames) {
        self.close("completed", frames);
        let id = ids::new("fc_");
        let item = json!({
            "id": id, "type": "function_call", "status": "in_progress", "call_id": call_id, "name": name, "arguments": "",
        });
        self.added(item, frames);
        self.open = Open::Call { id, call_id, name, arguments: String::new() };
    }

    /// Ends the item that grows now.
    fn close(&mut self, status: &str, frames: &mut Frames) {
        let index = self.index();
        let item = match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => return,
            Open::Reasoning { id, text } => {
                let body = json!({ "item_id": id, "output_index": index, "content_index": 0, "text": text });
                self.event("response.reasoning_text.done", body, frames);
                let content = json!([{ "type": "reasoning_text", "text": text }]);
                json!({ "id": id, "type": "reasoning", "summary": [], "content": content, "status": status })
            }
            Open::Message { id, text } => {
                let at = json!({ "item_id": id, "output_index": index, "content_index": 0 });
                let mut body = at.clone();
                body["text"] = json!(text);
                body["logprobs"] = json!([]);
                self.event("response.output_text.done", body, frames);
                let mut body = at;
                body["part"] = output_text(&text);
                self.event("response.content_part.done", body, frames);
                json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": [output_text(&text)] })
            }
            Open::Call { id, call_id, name, arguments } => {
                let body = json!({ "item_id": id, "output_index": index, "name": name, "arguments": arguments });
                self.event("response.function_call_arguments.done", body, frames);
                json!({
                    "id": id, "type": "function_call", "status": status,
                    "call_id": call_id, "name": name, "arguments": arguments,
                })
            }
        };
        self.event("response.output_item.done", json!({ "output_index": index, "item": item }), frames);
        self.output.push(item);
    }

    fn finish(&mut self, finished: &Finished, frames: &mut Frames) {
        let cut = matches!(finished.reason, Reason::MaxTokens | Reason::ContextFull);
        let status = if cut { "incomplete" } else { "completed" };
        self.close(status, frames);
        self.response.insert("status".into(), json!(status));
        if cut {
            self.response.insert("incomplete_details".into(), json!({ "reason": "max_output_tokens" }));
        }
        self.response.insert("output".into(), Json::Array(std::mem::take(&mut self.output)));
        self.response.insert("usage".into(), usage_json(&finished.usage));
        self.whole(&format!("response.{status}"), frames);
    }

    fn fail(&mut self, error: &ApiError, frames: &mut Frames) {
        self.close("incomplete", frames);
        let body = error.body(Shape::OpenAi);
        self.response.insert("status".into(), json!("failed"));
        let code = body["error"]["code"].as_str().unwrap_or("server_error").to_owned();
        self.response.insert("error".into(), json!({ "code": code, "message": error.message }));
        self.response.insert("output".into(), Json::Array(std::mem::take(&mut self.output)));
        self.whole("response.failed", frames);
    }
}

fn output_text(text: &str) -> Json {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn usage_json(usage: &Usage) -> Json {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.cached },
        "output_tokens": usage.completion,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.prompt + usage.completion,
    })
}

impl Encoder for Reply {
    fn begin(&mut self, frames: &mut Frames) {
        self.whole("response.created", frames);
        self.whole("response.in_progress", frames);
    }

    fn out(&mut self, _choice: usize, out: Out, frames: &mut Frames) {
        self.take(out, frames);
    }

    fn end(&mut self, _frames: &mut Frames) {}
}
