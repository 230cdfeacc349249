//! `/v1/responses`, without memory: every request brings its whole conversation.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::chat::{read_effort, read_json_format, read_tool_choice};
use super::messages::{may_show, read_arguments, read_content};
use super::responses_reply::Reply;
use super::sampling::{read_sampling, read_tool_list};
use crate::server::app::App;
use crate::server::chat::{Chat, Format, in_background};
use crate::server::error::{ApiError, json_response};
use crate::server::fields::Fields;
use crate::server::pictures::Pictures;
use crate::server::sse::{self, Frames};
use crate::server::turn::{Delivery, Out};

pub async fn responses(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let (stream, echo, prepared) = in_background(&app, move |app| {
        let fields = Fields::body(&body)?;
        let stream = fields.bool("stream")?.unwrap_or(false);
        let chat = read(app, &fields)?;
        let echo = echo(app, &fields, &chat);
        Ok((stream, echo, chat.prepare(app)?))
    })
    .await?;
    let mut turns = prepared.start(&app, Delivery::of(stream))?;
    let mut reply = Reply::new(echo);
    if stream {
        return Ok(sse::response(turns, reply, app.options.keep_alive));
    }
    for turn in &mut turns {
        while let Some(out) = turn.next().await {
            if let Out::Failed(error) = out {
                return Err(error);
            }
            reply.take(out, &mut Frames::default());
        }
    }
    Ok(json_response(StatusCode::OK, &reply.into_response()))
}

fn read(app: &App, fields: &Fields<'_>) -> Result<Chat, ApiError> {
    fields.text("model")?;
    for key in ["previous_response_id", "conversation", "prompt"] {
        if fields.get(key).is_some() {
            return Err(fields.error(key, "this server keeps no conversations; send the whole of it in 'input'"));
        }
    }
    if fields.bool("background")?.unwrap_or(false) {
        return Err(fields.error("background", "answers in the background are not supported; use 'stream'"));
    }
    let mut messages = Vec::new();
    if let Some(text) = fields.text("instructions")? {
        messages.push(json!({ "role": "system", "content": text }));
    }
    let before = messages.len();
    let mut pictures = Pictures::new(app);
    read_input(fields, &mut messages, &mut pictures)?;
    if messages.len() == before {
        return Err(fields.error("input", "all items are empty; say something"));
    }
    let mut sampling = read_sampling(app, fields)?;
    sampling.logprobs = fields.count("top_logprobs", 0..=20)?.filter(|count| *count > 0);
    let mut chat = Chat {
        messages,
        pictures: pictures.into_taken(),
        tools: read_tool_list(fields, true)?,
        tool_choice: read_tool_choice(fields)?,
        parallel_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
        format: match fields.object("text")?.map(|text| text.object("format")).transpose()?.flatten() {
            Some(format) => read_json_format(&format, "")?,
            None => Format::Free,
        },
        sampling,
        choices: 1,
        max_tokens: fields.count("max_output_tokens", 1..=i64::from(u32::MAX))?,
        ..Chat::default()
    };
    if let Some(reasoning) = fields.object("reasoning")? {
        read_effort(&reasoning, "effort", &mut chat)?;
    }
    Ok(chat)
}

fn read_input(fields: &Fields<'_>, messages: &mut Vec<Json>, pictures: &mut Pictures<'_>) -> Result<(), ApiError> {
    match fields.get("input") {
        None => return Err(fields.error("input", "the conversation is missing; send text or a list of items")),
        Some(Json::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(_) => {
            let items = fields.list("input")?.map(Vec::as_slice).unwrap_or_default();
            if items.is_empty() {
                return Err(fields.error("input", "the list is empty; send at least one item"));
            }
            let mut reasoning = None;
            for (i, value) in items.iter().enumerate() {
                read_item(&Fields::at(value, format!("input[{i}]"))?, messages, &mut reasoning, pictures)?;
            }
        }
    }
    Ok(())
}

/// One item. Reasoning waits for the message or call that it led to.
fn read_item(
    item: &Fields<'_>,
    messages: &mut Vec<Json>,
    reasoning: &mut Option<String>,
    pictures: &mut Pictures<'_>,
) -> Result<(), ApiError> {
    match item.text("type")?.unwrap_or("message") {
        "message" => {
            let role = match item.text("role")? {
                Some("system" | "developer") => "system",
                Some("user") => "user",
                Some("assistant") => "assistant",
                Some(other) => {
                    let problem = format!("'{other}' is not known; known are system, developer, user, assistant");
                    return Err(item.error("role", problem));
                }
                None => return Err(item.error("role", "a message needs a role")),
            };
            let content = read_content(item, "content", may_show(role).then_some(pictures))?;
            let content = content.ok_or_else(|| item.error("content", "a message needs a content"))?;
            if role == "assistant" && content.is_blank() {
                return Ok(());
            }
            let mut message = json!({ "role": role, "content": content.into_json() });
            if role == "assistant"
                && let Some(text) = reasoning.take()
            {
                message["reasoning_content"] = json!(text);
            }
            messages.push(message);
        }
        "function_call" => {
            let name = item.text("name")?.ok_or_else(|| item.error("name", "a call needs a name"))?;
            let arguments = read_arguments(item.text("arguments")?.unwrap_or_default());
            let id = item.text("call_id")?.ok_or_else(|| item.error("call_id", "a call needs an id"))?;
            let call = json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            push_call(messages, call, reasoning.take());
        }
        "function_call_output" => {
            let id = item.text("call_id")?.ok_or_else(|| item.error("call_id", "a result needs the id of its call"))?;
            let output = read_content(item, "output", Some(pictures))?;
            let output = output.ok_or_else(|| item.error("output", "a result needs an output"))?;
            messages.push(json!({ "role": "tool", "content": output.into_json(), "tool_call_id": id }));
        }
        "reasoning" => {
            let parts = item.list("content")?.or(item.list("summary")?).map(Vec::as_slice).unwrap_or_default();
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            *reasoning = Some(texts.join("\n")).filter(|text| !text.is_empty());
        }
        other => {
            let problem = format!("'{other}' is not supported; message, function_call, function_call_output and reasoning are");
            return Err(item.error("type", problem));
        }
    }
    Ok(())
}

/// Calls in a row are one turn of the assistant, with the text before them.
fn push_call(messages: &mut Vec<Json>, call: Json, reasoning: Option<String>) {
    let calls = match messages.last_mut().filter(|last| last["role"] == "assistant") {
        Some(last) => last,
        None => {
            let mut message = json!({ "role": "assistant", "content": "" });
            if let Some(text) = reasoning {
                message["reasoning_content"] = json!(text);
            }
            messages.push(message);
            let last = messages.len() - 1;
            &mut messages[last]
        }
    };
    match calls["tool_calls"].as_array_mut() {
        Some(list) => list.push(call),
        None => calls["tool_calls"] = json!([call]),
    }
}

/// What the response repeats of its request.
fn echo(app: &App, fields: &Fields<'_>, chat: &Chat) -> Map<String, Json> {
    let as_sent = |key: &str, otherwise: Json| fields.get(key).cloned().unwrap_or(otherwise);
    let pairs = [
        ("model", json!(app.options.model_name)),
        ("instructions", as_sent("instructions", Json::Null)),
        ("max_output_tokens", as_sent("max_output_tokens", Json::Null)),
        ("metadata", as_sent("metadata", json!({}))),
        ("parallel_tool_calls", json!(chat.parallel_calls)),
        ("previous_response_id", Json::Null),
        ("reasoning", json!({ "effort": chat.effort, "summary": null })),
        ("store", json!(false)),
        ("temperature", json!(chat.sampling.temperature)),
        ("text", as_sent("text", json!({ "format": { "type": "text" } }))),
        ("tool_choice", as_sent("tool_choice", json!("auto"))),
        ("tools", as_sent("tools", json!([]))),
        ("top_p", json!(chat.sampling.top_p)),
        ("truncation", json!("disabled")),
        ("background", json!(false)),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
