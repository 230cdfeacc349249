//! `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::reply::Reply;
use crate::server::app::App;
use crate::server::chat::{Chat, in_background};
use crate::server::error::{ApiError, json_response};
use crate::server::fields::{Fields, wrong};
use crate::server::openai::{read_sampling, read_tool};
use crate::server::pictures::{Pictures, blind};
use crate::server::sse::{self, Frames};
use crate::server::tools::{ToolChoice, ToolSpec};
use crate::server::turn::{Delivery, Out};
use crate::tokenizer::content::Content;

const MAX_STOPS: usize = 64;

pub async fn messages(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let (stream, prepared) = in_background(&app, move |app| {
        let fields = Fields::body(&body)?;
        let stream = fields.bool("stream")?.unwrap_or(false);
        let most = fields.count("max_tokens", 1..=i64::from(u32::MAX))?;
        let most = most.ok_or_else(|| fields.error("max_tokens", "the most tokens of the answer are needed"))?;
        let mut chat = read(app, &fields)?;
        chat.max_tokens = Some(most);
        Ok((stream, chat.prepare(app)?))
    })
    .await?;
    let mut turns = prepared.start(&app, Delivery::of(stream))?;
    let mut reply = Reply::new(&app.options.model_name);
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
    Ok(json_response(StatusCode::OK, &reply.into_message()))
}

pub async fn count_tokens(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let prompt = in_background(&app, move |app| read(app, &Fields::body(&body)?)?.prompt(app)).await?;
    Ok(json_response(StatusCode::OK, &json!({ "input_tokens": prompt.tokens.len() })))
}

fn read(app: &App, fields: &Fields<'_>) -> Result<Chat, ApiError> {
    fields.text("model")?;
    let mut messages = Vec::new();
    if let Some(system) = read_blocks(fields, "system", None)?.filter(|system| !system.says_nothing()) {
        messages.push(json!({ "role": "system", "content": system.into_json() }));
    }
    let Some(list) = fields.list("messages")? else {
        return Err(fields.error("messages", "the conversation is missing; send a list of messages"));
    };
    if list.is_empty() {
        return Err(fields.error("messages", "the list is empty; send at least one message"));
    }
    let mut pictures = Pictures::new(app);
    for (i, value) in list.iter().enumerate() {
        read_message(&Fields::at(value, format!("messages[{i}]"))?, &mut messages, &mut pictures)?;
    }
    if messages.iter().all(|message| message["role"] == "system") {
        return Err(fields.error("messages", "all messages are empty; say something"));
    }
    let (tool_choice, parallel_calls) = read_tool_choice(fields)?;
    let stop = fields.texts("stop_sequences", MAX_STOPS)?;
    if stop.iter().any(String::is_empty) {
        return Err(fields.error("stop_sequences", "an empty text would end every answer at once; leave it out"));
    }
    let mut chat = Chat {
        messages,
        pictures: pictures.into_taken(),
        tools: read_tools(fields)?,
        tool_choice,
        parallel_calls,
        sampling: read_sampling(app, fields)?,
        choices: 1,
        stop,
        ..Chat::default()
    };
    read_thinking(fields, &mut chat)?;
    Ok(chat)
}

/// Text, or a list of blocks of text and, if there may be `pictures`, of these.
fn read_blocks(fields: &Fields<'_>, key: &str, mut pictures: Option<&mut Pictures<'_>>) -> Result<Option<Content>, ApiError> {
    match fields.get(key) {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(Content::text(text))),
        Some(Json::Array(blocks)) => {
            let mut content = Content::new("\n\n");
            for (i, value) in blocks.iter().enumerate() {
                let block = Fields::at(value, format!("{}[{i}]", fields.path(key)))?;
                match (block.text("type")?.unwrap_or("text"), &mut pictures) {
                    ("text", _) => content.push_text(required(&block, "text")?),
                    ("image", Some(pictures)) => content.push_picture(read_picture(&block, pictures)?),
                    (other, _) => return Err(unsupported(&block, other)),
                }
            }
            Ok(Some(content))
        }
        Some(other) => Err(wrong(fields.path(key), "text or a list of blocks", other)),
    }
}

fn required<'a>(fields: &Fields<'a>, key: &str) -> Result<&'a str, ApiError> {
    fields.text(key)?.ok_or_else(|| fields.error(key, "the text is missing"))
}

fn unsupported(block: &Fields<'_>, kind: &str) -> ApiError {
    let problem = match kind {
        "image" => "pictures can stand in messages of the user and in results of tools, nowhere else".to_owned(),
        "document" => "documents are not supported; send their text, or pictures of their pages".to_owned(),
        other => format!("'{other}' is not supported here"),
    };
    block.error("type", problem)
}

/// `{source: {type: base64, media_type, data} | {type: url, url}}`
fn read_picture(block: &Fields<'_>, pictures: &mut Pictures<'_>) -> Result<usize, ApiError> {
    if !pictures.are_seen() {
        return Err(blind(&block.path("type")));
    }
    let source = block.object("source")?.ok_or_else(|| block.error("source", "the picture is missing"))?;
    match source.text("type")? {
        Some("base64") => pictures.add_typed(required(&source, "media_type")?, required(&source, "data")?, &source),
        Some("url") => pictures.add_address(required(&source, "url")?, &source.path("url")),
        Some("file") => Err(source.error("type", "this server keeps no files; send the picture itself in base64")),
        Some(other) => Err(source.error("type", format!("'{other}' is not known; known are base64 and url"))),
        None => Err(source.error("type", "a type is needed: base64 or url")),
    }
}

fn read_message(message: &Fields<'_>, messages: &mut Vec<Json>, pictures: &mut Pictures<'_>) -> Result<(), ApiError> {
    let role = required(message, "role")?;
    if !["user", "assistant", "system"].contains(&role) {
        return Err(message.error("role", format!("'{role}' is not known; known are user, assistant, system")));
    }
    let blocks = match message.get("content") {
        Some(Json::String(text)) => {
            if role != "assistant" || !text.trim().is_empty() {
                messages.push(json!({ "role": role, "content": text }));
            }
            return Ok(());
        }
        Some(Json::Array(blocks)) => blocks,
        Some(other) => return Err(wrong(message.path("content"), "text or a list of blocks", other)),
        None => return Err(message.error("content", "a message needs a content")),
    };
    let mut parts = Parts { content: Content::new("\n"), ..Parts::default() };
    for (i, value) in blocks.iter().enumerate() {
        let block = Fields::at(value, format!("{}[{i}]", message.path("content")))?;
        parts.read(role, &block, messages, pictures)?;
    }
    parts.push(role, messages);
    Ok(())
}

/// The blocks of one message.
#[derive(Default)]
struct Parts {
    content: Content,
    thinking: Vec<String>,
    calls: Vec<Json>,
}

impl Parts {
    /// Results of calls are messages of their own, which come first.
    fn read(
        &mut self,
        role: &str,
        block: &Fields<'_>,
        messages: &mut Vec<Json>,
        pictures: &mut Pictures<'_>,
    ) -> Result<(), ApiError> {
        match (block.text("type")?.unwrap_or("text"), role) {
            ("text", _) => self.content.push_text(required(block, "text")?),
            ("image", "user") => self.content.push_picture(read_picture(block, pictures)?),
            ("thinking", "assistant") => self.thinking.push(required(block, "thinking")?.to_owned()),
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let input = match block.get("input") {
                    None => json!({}),
                    Some(input @ Json::Object(_)) => input.clone(),
                    Some(other) => return Err(wrong(block.path("input"), "an object", other)),
                };
                let (id, name) = (required(block, "id")?, required(block, "name")?);
                let function = json!({ "name": name, "arguments": input });
                self.calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            ("tool_result", "user") => {
                let id = required(block, "tool_use_id")?;
                let mut content = read_blocks(block, "content", Some(pictures))?.unwrap_or_default();
                if block.bool("is_error")?.unwrap_or(false) {
                    content.begin_with("Error: ");
                }
                messages.push(json!({ "role": "tool", "content": content.into_json(), "tool_call_id": id }));
            }
            (other, _) => return Err(unsupported(block, other)),
        }
        Ok(())
    }

    fn push(self, role: &str, messages: &mut Vec<Json>) {
        // As with plain text, only the assistant's silence is left out. A turn of results alone has no text.
        let silent = if role == "assistant" { self.content.is_blank() } else { self.content.is_empty() };
        if silent && self.calls.is_empty() {
            return;
        }
        let mut message = Map::new();
        message.insert("role".into(), json!(role));
        message.insert("content".into(), self.content.into_json());
        if !self.thinking.is_empty() {
            message.insert("reasoning_content".into(), json!(self.thinking.join("\n")));
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".into(), Json::Array(self.calls));
        }
        messages.push(Json::Object(message));
    }
}

fn read_tools(fields: &Fields<'_>) -> Result<Vec<ToolSpec>, ApiError> {
    let mut tools: Vec<ToolSpec> = Vec::new();
    for (i, value) in fields.list("tools")?.into_iter().flatten().enumerate() {
        let tool = Fields::at(value, format!("tools[{i}]"))?;
        let kind = tool.text("type")?.unwrap_or("custom");
        if kind != "custom" {
            return Err(tool.error("type", format!("the server's own tool '{kind}' does not exist here; send tools of your own")));
        }
        if tool.get("input_schema").is_none() {
            return Err(tool.error("input_schema", "a tool needs the JSON schema of its input"));
        }
        let spec = read_tool(&tool, "input_schema")?;
        if tools.iter().any(|other| other.name == spec.name) {
            return Err(tool.error("name", format!("another tool is named '{}' already", spec.name)));
        }
        tools.push(spec);
    }
    Ok(tools)
}

/// The choice, and whether several calls at once are welcome.
fn read_tool_choice(fields: &Fields<'_>) -> Result<(ToolChoice, bool), ApiError> {
    let Some(choice) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, true)) };
    let parallel = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
    let kind = choice.word("type", &[("auto", 0), ("any", 1), ("tool", 2), ("none", 3)])?;
    let choice = match kind {
        Some(0) => ToolChoice::Auto,
        Some(1) => ToolChoice::Required,
        Some(2) => ToolChoice::Named(required(&choice, "name")?.to_owned()),
        Some(_) => ToolChoice::None,
        None => return Err(choice.error("type", "a type is needed: auto, any, tool or none")),
    };
    Ok((choice, parallel))
}

fn read_thinking(fields: &Fields<'_>, chat: &mut Chat) -> Result<(), ApiError> {
    if let Some(thinking) = fields.object("thinking")? {
        let kind = thinking.word("type", &[("enabled", 0), ("disabled", 1), ("adaptive", 2)])?;
        match kind {
            Some(0) => {
                let budget = thinking.count("budget_tokens", 1..=i64::from(u32::MAX))?;
                let budget = budget.ok_or_else(|| thinking.error("budget_tokens", "the most tokens of reasoning are needed"))?;
                chat.thinking = Some(true);
                chat.reasoning_budget = Some(budget);
            }
            Some(1) => chat.thinking = Some(false),
            Some(_) => chat.thinking = Some(true),
            None => return Err(thinking.error("type", "a type is needed: enabled, adaptive or disabled")),
        }
    }
    if let Some(output) = fields.object("output_config")?
        && let Some(effort) = output.text("effort")?
    {
        chat.effort = Some(effort.to_owned());
    }
    Ok(())
}
