//! Messages of the OpenAI chat format, put into the form that templates expect.

use serde_json::{Map, Value as Json, json};

use crate::server::error::ApiError;
use crate::server::fields::{Fields, wrong};
use crate::server::pictures::{Pictures, blind};
use crate::tokenizer::content::Content;

/// `messages`. System messages may stand anywhere, `developer` is another word for system, and empty turns of the
/// assistant are left out: they would teach the model to say nothing.
pub fn read_messages(fields: &Fields<'_>, pictures: &mut Pictures<'_>) -> Result<Vec<Json>, ApiError> {
    let Some(list) = fields.list("messages")? else {
        return Err(fields.error("messages", "the conversation is missing; send a list of messages"));
    };
    if list.is_empty() {
        return Err(fields.error("messages", "the list is empty; send at least one message"));
    }
    let mut messages = Vec::with_capacity(list.len());
    for (i, value) in list.iter().enumerate() {
        let message = Fields::at(value, format!("{}[{i}]", fields.path("messages")))?;
        messages.extend(read_message(&message, pictures)?);
    }
    if messages.is_empty() {
        return Err(fields.error("messages", "all messages are empty; say something"));
    }
    Ok(messages)
}

fn read_message(message: &Fields<'_>, pictures: &mut Pictures<'_>) -> Result<Option<Json>, ApiError> {
    let Some(role) = message.text("role")? else { return Err(message.error("role", "a message needs a role")) };
    let content = read_content(message, "content", may_show(role).then_some(pictures))?;
    match role {
        "system" | "developer" => Ok(Some(json!({ "role": "system", "content": content.unwrap_or_default().into_json() }))),
        "user" => {
            let content = content.ok_or_else(|| message.error("content", "a user's message needs a content"))?;
            Ok(Some(json!({ "role": "user", "content": content.into_json() })))
        }
        "assistant" => assistant(message, content),
        "tool" | "function" => {
            let mut out = json!({ "role": "tool", "content": content.unwrap_or_default().into_json() });
            for key in ["tool_call_id", "name"] {
                if let Some(text) = message.text(key)? {
                    out[key] = json!(text);
                }
            }
            Ok(Some(out))
        }
        other => {
            let problem = format!("'{other}' is not known; known are system, developer, user, assistant, tool");
            Err(message.error("role", problem))
        }
    }
}

/// Whose messages may hold pictures: the user's and results of tools.
pub fn may_show(role: &str) -> bool {
    matches!(role, "user" | "tool" | "function")
}

fn assistant(message: &Fields<'_>, content: Option<Content>) -> Result<Option<Json>, ApiError> {
    let mut calls = Vec::new();
    for (i, value) in message.list("tool_calls")?.into_iter().flatten().enumerate() {
        let call = Fields::at(value, format!("{}[{i}]", message.path("tool_calls")))?;
        let Some(function) = call.object("function")? else {
            return Err(call.error("function", "a call needs a function with 'name' and 'arguments'"));
        };
        let Some(name) = function.text("name")? else { return Err(function.error("name", "a call needs a name")) };
        let arguments = match function.get("arguments") {
            None => json!({}),
            Some(Json::String(text)) => read_arguments(text),
            Some(object @ Json::Object(_)) => object.clone(),
            Some(other) => return Err(wrong(function.path("arguments"), "text that holds a JSON object", other)),
        };
        let id = call.text("id")?.unwrap_or_default();
        calls.push(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }));
    }
    let reasoning = message.text(message.first(&["reasoning_content", "reasoning"]).unwrap_or("reasoning_content"))?;
    let content = content.or(message.text("refusal")?.map(Content::text)).unwrap_or_default();
    if content.is_blank() && calls.is_empty() {
        return Ok(None);
    }
    let mut out = Map::new();
    out.insert("role".into(), json!("assistant"));
    out.insert("content".into(), content.into_json());
    if let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) {
        out.insert("reasoning_content".into(), json!(reasoning));
    }
    if !calls.is_empty() {
        out.insert("tool_calls".into(), Json::Array(calls));
    }
    Ok(Some(Json::Object(out)))
}

/// Arguments as templates want them. What a model wrote badly must not end the conversation.
pub fn read_arguments(text: &str) -> Json {
    match serde_json::from_str(text) {
        Ok(object @ Json::Object(_)) => object,
        _ if text.trim().is_empty() => json!({}),
        _ => json!({ "malformed": text }),
    }
}

/// Content that is text or a list of parts; `None` if there is none. Without `pictures` none are allowed in it.
pub fn read_content(
    message: &Fields<'_>,
    key: &str,
    mut pictures: Option<&mut Pictures<'_>>,
) -> Result<Option<Content>, ApiError> {
    match message.get(key) {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(Content::text(text))),
        Some(Json::Array(parts)) => {
            let mut content = Content::new("\n");
            for (i, value) in parts.iter().enumerate() {
                read_part(value, format!("{}[{i}]", message.path(key)), pictures.as_deref_mut(), &mut content)?;
            }
            Ok(Some(content))
        }
        Some(other) => Err(wrong(message.path(key), "text or a list of parts", other)),
    }
}

fn read_part(value: &Json, path: String, pictures: Option<&mut Pictures<'_>>, content: &mut Content) -> Result<(), ApiError> {
    if let Json::String(text) = value {
        content.push_text(text);
        return Ok(());
    }
    let part = Fields::at(value, path)?;
    match part.text("type")?.unwrap_or("text") {
        "text" | "input_text" | "output_text" => {
            content.push_text(part.text("text")?.ok_or_else(|| part.error("text", "the part has no text"))?);
        }
        "refusal" => content.push_text(part.text("refusal")?.unwrap_or_default()),
        "image_url" | "input_image" => content.push_picture(read_picture_part(&part, pictures)?),
        other => return Err(part.error("type", format!("'{other}' is not supported; text and pictures (image_url) are"))),
    }
    Ok(())
}

/// `{image_url: address | {url: address, detail}, detail}`. The detail is left to the model's own limits.
fn read_picture_part(part: &Fields<'_>, pictures: Option<&mut Pictures<'_>>) -> Result<usize, ApiError> {
    let Some(pictures) = pictures else {
        return Err(part.error("type", "pictures can stand in messages of the user and in results of tools, nowhere else"));
    };
    if !pictures.are_seen() {
        return Err(blind(&part.path("type")));
    }
    if part.get("file_id").is_some() {
        return Err(part.error("file_id", "this server keeps no files; send the picture itself in 'image_url'"));
    }
    part.text("detail")?;
    match part.get("image_url") {
        Some(Json::String(address)) => pictures.add_address(address, &part.path("image_url")),
        Some(Json::Object(_)) => {
            let Some(holder) = part.object("image_url")? else { return Err(part.error("image_url", "the picture is missing")) };
            holder.text("detail")?;
            let address = holder.text("url")?.ok_or_else(|| holder.error("url", "the picture is missing"))?;
            pictures.add_address(address, &holder.path("url"))
        }
        Some(other) => Err(wrong(part.path("image_url"), "an object with a 'url', or text", other)),
        None => Err(part.error("image_url", "the picture is missing; send data:image/png;base64,…")),
    }
}
