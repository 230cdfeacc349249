//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::chat_reply::{Head, Stream, whole_reply};
use super::messages::read_messages;
use super::sampling::{read_sampling, read_tool_list};
use crate::server::app::App;
use crate::server::chat::{Chat, Format, in_background};
use crate::server::error::{ApiError, json_response};
use crate::server::fields::Fields;
use crate::server::pictures::Pictures;
use crate::server::sse;
use crate::server::tools::ToolChoice;
use crate::server::turn::{Delivery, Whole};

/// More answers to one prompt than anybody reads.
pub const MAX_CHOICES: i64 = 16;
pub const MAX_STOPS: usize = 16;

/// How the client wants its answer.
struct Wishes {
    stream: bool,
    usage: bool,
    progress: bool,
    logprobs: bool,
}

pub async fn chat(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let (wishes, prepared) = in_background(&app, move |app| {
        let fields = Fields::body(&body)?;
        let wishes = read_wishes(&fields)?;
        Ok((wishes, read_chat(app, &fields)?.prepare(app)?))
    })
    .await?;
    let turns = prepared.start(&app, Delivery::of(wishes.stream))?;
    let head = Head::new("chatcmpl-", &app.options.model_name, wishes.logprobs);
    if wishes.stream {
        let stream = Stream::new(Arc::clone(&app), head, turns.len(), wishes.usage, wishes.progress);
        return Ok(sse::response(turns, stream, app.options.keep_alive));
    }
    let mut answers = Vec::with_capacity(turns.len());
    for turn in turns {
        answers.push(Whole::of(turn).await?);
    }
    Ok(json_response(StatusCode::OK, &whole_reply(&app, &head, &answers)))
}

/// `/apply-template`: the prompt that the same body would give to the model.
pub async fn apply_template(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let prompt = in_background(&app, move |app| read_chat(app, &Fields::body(&body)?)?.prompt(app)).await?;
    let tokens: Vec<u32> = prompt.tokens.iter().map(|token| token.0).collect();
    Ok(json_response(StatusCode::OK, &json!({ "prompt": prompt.text, "tokens": tokens })))
}

fn read_wishes(fields: &Fields<'_>) -> Result<Wishes, ApiError> {
    let options = fields.object("stream_options")?;
    Ok(Wishes {
        stream: fields.bool("stream")?.unwrap_or(false),
        usage: options.map(|options| options.bool("include_usage")).transpose()?.flatten().unwrap_or(false),
        progress: fields.bool("return_progress")?.unwrap_or(false),
        logprobs: fields.bool("logprobs")?.unwrap_or(false),
    })
}

fn read_chat(app: &App, fields: &Fields<'_>) -> Result<Chat, ApiError> {
    fields.text("model")?;
    for key in ["functions", "function_call"] {
        if fields.get(key).is_some() {
            return Err(fields.error(key, "this old form is not supported; use 'tools' and 'tool_choice'"));
        }
    }
    let audio = |values: &Vec<Json>| values.iter().any(|value| value != "text");
    if fields.list("modalities")?.is_some_and(audio) {
        return Err(fields.error("modalities", "only text is possible"));
    }
    let mut sampling = read_sampling(app, fields)?;
    let top = fields.count("top_logprobs", 0..=20)?;
    match fields.bool("logprobs")? {
        Some(true) => sampling.logprobs = Some(top.unwrap_or(0)),
        _ if top.is_some() => return Err(fields.error("top_logprobs", "it needs 'logprobs': true")),
        _ => {}
    }
    let limit = fields.first(&["max_completion_tokens", "max_tokens", "n_predict"]).unwrap_or("max_tokens");
    let mut pictures = Pictures::new(app);
    let mut chat = Chat {
        messages: read_messages(fields, &mut pictures)?,
        tools: read_tool_list(fields, false)?,
        tool_choice: read_tool_choice(fields)?,
        parallel_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
        format: read_format(fields)?,
        sampling,
        choices: fields.count("n", 1..=MAX_CHOICES)?.unwrap_or(1),
        max_tokens: fields.count(limit, -1..=i64::from(u32::MAX))?,
        stop: read_stop(fields)?,
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        ..Chat::default()
    };
    read_thinking(fields, &mut chat)?;
    chat.pictures = pictures.into_taken();
    Ok(chat)
}

pub fn read_stop(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let stop = fields.texts("stop", MAX_STOPS)?;
    if stop.iter().any(String::is_empty) {
        return Err(fields.error("stop", "an empty text would end every answer at once; leave it out"));
    }
    Ok(stop)
}

/// Levels of effort: whether the model thinks at all, and what the template is told.
pub fn read_effort(fields: &Fields<'_>, key: &str, chat: &mut Chat) -> Result<(), ApiError> {
    let levels = ["none", "minimal", "low", "medium", "high", "xhigh", "max"].map(|level| (level, level));
    if let Some(effort) = fields.word(key, &levels)? {
        chat.thinking = Some(effort != "none");
        chat.effort = Some(effort.to_owned());
    }
    Ok(())
}

fn read_thinking(fields: &Fields<'_>, chat: &mut Chat) -> Result<(), ApiError> {
    read_effort(fields, "reasoning_effort", chat)?;
    if let Some(thinking) = fields.bool("enable_thinking")? {
        chat.thinking = Some(thinking);
    }
    if let Some(variables) = fields.object("chat_template_kwargs")? {
        if let Some(thinking) = variables.bool("enable_thinking")? {
            chat.thinking = Some(thinking);
        }
        let own = ["enable_thinking", "messages", "tools", "add_generation_prompt"];
        let others = variables.map().iter().filter(|(key, _)| !own.contains(&key.as_str()));
        chat.template_variables = others.map(|(key, value)| (key.clone(), value.clone())).collect();
    }
    let budget = fields.first(&["reasoning_budget", "thinking_budget", "thinking_budget_tokens"]).unwrap_or("reasoning_budget");
    chat.reasoning_budget = fields.count(budget, -1..=i64::from(u32::MAX))?;
    Ok(())
}

pub fn read_tool_choice(fields: &Fields<'_>) -> Result<ToolChoice, ApiError> {
    match fields.get("tool_choice") {
        Some(Json::Object(_)) => {
            let Some(choice) = fields.object("tool_choice")? else { return Ok(ToolChoice::Auto) };
            let kind = choice.text("type")?.unwrap_or("function");
            if kind != "function" {
                return Err(choice.error("type", format!("'{kind}' is not supported; only 'function' is")));
            }
            let function = choice.object("function")?.unwrap_or_else(|| choice.clone());
            let name = function.text("name")?.ok_or_else(|| function.error("name", "the name of a tool is needed"))?;
            Ok(ToolChoice::Named(name.to_owned()))
        }
        _ => {
            let none = fields.word("tool_choice", &[("auto", 0), ("none", 1), ("required", 2)])?;
            Ok(match none {
                None | Some(0) => ToolChoice::Auto,
                Some(1) => ToolChoice::None,
                Some(_) => ToolChoice::Required,
            })
        }
    }
}

fn read_format(fields: &Fields<'_>) -> Result<Format, ApiError> {
    if let Some(grammar) = fields.text("grammar")? {
        return Ok(Format::Grammar(grammar.to_owned()));
    }
    match fields.object("response_format")? {
        None => Ok(Format::Free),
        Some(format) => read_json_format(&format, "json_schema"),
    }
}

/// `{type: text | json_object | json_schema, …}`; the schema lies under `key`, or beside the type where `key` is empty.
pub fn read_json_format(format: &Fields<'_>, key: &str) -> Result<Format, ApiError> {
    match format.text("type")? {
        None => Err(format.error("type", "a type is needed: text, json_object or json_schema")),
        Some("text") => Ok(Format::Free),
        Some("json_object") => match format.get("schema") {
            Some(schema @ Json::Object(_)) => Ok(Format::Json(schema.clone())),
            _ => Ok(Format::Json(json!({ "type": "object" }))),
        },
        Some("json_schema") => {
            let holder = if key.is_empty() { Some(format.clone()) } else { format.object(key)? };
            let holder = holder.ok_or_else(|| format.error(key, "the schema is missing"))?;
            let Some(schema) = holder.object("schema")? else { return Err(holder.error("schema", "the schema is missing")) };
            Ok(Format::Json(Json::Object(schema.map().clone())))
        }
        Some(other) => {
            let problem = format!("'{other}' is not known; known are text, json_object, json_schema");
            Err(format.error("type", problem))
        }
    }
}
