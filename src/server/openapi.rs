//! The OpenAPI document, made from the table of routes.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::app::App;
use super::error::ApiError;
use super::routes::{Method, Route, ready, routes};

pub async fn document(app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    Ok(ready(&build(app.model.vocab, app.model.embedding_width, app.model.vision.is_some())))
}

/// `embedding_width`: elements of a vector, if the model gives these and not text. `sees`: the model takes pictures.
pub fn build(vocab: usize, embedding_width: Option<usize>, sees: bool) -> Json {
    let mut paths = Map::new();
    // What the model cannot answer is not offered.
    for route in routes().iter().filter(|route| !route.page && route.suits(embedding_width.is_some())) {
        let method = route.method.name().to_ascii_lowercase();
        let entry = paths.entry(route.path).or_insert_with(|| json!({}));
        entry[method.as_str()] = operation(route, (vocab, embedding_width.unwrap_or(1)), sees);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Strata", "version": env!("CARGO_PKG_VERSION"), "description": "A local model behind the interfaces of OpenAI and Anthropic." },
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Error": error_schema() },
        },
        "security": [{ "key": [] }, {}],
    })
}

fn error_schema() -> Json {
    let text = json!({ "type": "string" });
    let maybe = maybe(text.clone());
    let error = json!({ "type": "object", "required": ["message", "type"], "properties": {
        "message": text, "type": text, "param": maybe, "code": maybe,
    }});
    json!({ "type": "object", "required": ["error"], "properties": { "error": error } })
}

fn operation(route: &Route, sizes: (usize, usize), sees: bool) -> Json {
    let error = json!({
        "description": "What is wrong and what to do",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
    });
    let kind = match route.name {
        "metrics" => "application/openmetrics-text",
        _ => "application/json",
    };
    let mut content = json!({ kind: { "schema": {} } });
    if route.text {
        content["text/event-stream"] = json!({ "schema": {} });
    }
    let mut operation = json!({
        "operationId": route.name,
        "summary": route.doc,
        "responses": { "200": { "description": "Done", "content": content }, "4XX": error, "5XX": error },
    });
    if route.open {
        operation["security"] = json!([]);
    }
    if route.path.contains("{model}") {
        operation["parameters"] = json!([{ "name": "model", "in": "path", "required": true, "schema": { "type": "string" } }]);
    }
    if route.method == Method::Post {
        let content = json!({ "application/json": { "schema": request_schema(route.name, sizes, sees) } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

/// A field that may be left out; `null` is the same.
fn maybe(mut schema: Json) -> Json {
    match schema["type"].as_str() {
        Some(kind) => schema["type"] = json!([kind, "null"]),
        None => schema = json!({ "anyOf": [schema, { "type": "null" }] }),
    }
    schema
}

fn range(least: i64, most: i64) -> Json {
    maybe(json!({ "type": "number", "minimum": least, "maximum": most }))
}

fn count(least: i64, most: i64) -> Json {
    json!({ "type": "integer", "minimum": least, "maximum": most })
}

const MOST_TOKENS: i64 = u32::MAX as i64;

fn object(properties: Json, required: &[&str]) -> Json {
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Text, or a list of parts with text; `plain` parts may be mere text too.
fn content(kind: &str, plain: bool) -> Json {
    let part = object(json!({ "type": maybe(json!({ "const": kind })), "text": { "type": "string" } }), &["text"]);
    let item = if plain { json!({ "anyOf": [{ "type": "string" }, part] }) } else { part };
    json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": item }] })
}

/// A picture, as a schema can describe one.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mM4IScHAAK2AQUKW6YGAAAAAElFTkSuQmCC";

/// The address of a picture in an API's part.
fn picture_address() -> Json {
    json!({
        "const": format!("data:image/png;base64,{PICTURE}"),
        "description": "any PNG, JPEG, WebP or GIF as a data: address; a schema can only name one",
    })
}

/// A part of OpenAI's chats that is a picture.
fn image_url_part() -> Json {
    let holder = object(json!({ "url": picture_address(), "detail": maybe(json!({ "type": "string" })) }), &["url"]);
    object(json!({ "type": { "const": "image_url" }, "image_url": holder }), &["type", "image_url"])
}

/// A part of OpenAI's responses that is a picture.
fn input_image_part() -> Json {
    let detail = maybe(json!({ "type": "string" }));
    object(
        json!({ "type": { "const": "input_image" }, "image_url": picture_address(), "detail": detail }),
        &["type", "image_url"],
    )
}

/// A block of Anthropic's messages that is a picture.
fn image_block() -> Json {
    let properties =
        json!({ "type": { "const": "base64" }, "media_type": { "const": "image/png" }, "data": { "const": PICTURE } });
    let source = object(properties, &["type", "media_type", "data"]);
    object(json!({ "type": { "const": "image" }, "source": source }), &["type", "source"])
}

/// The content, whose list may hold such a part too.
fn with_part(content: &Json, part: Option<Json>) -> Json {
    let mut content = content.clone();
    if let Some(part) = part {
        let items = &mut content["anyOf"][1]["items"];
        *items = match items["anyOf"].as_array() {
            Some(kinds) => json!({ "anyOf": kinds.iter().cloned().chain([part]).collect::<Vec<_>>() }),
            None => json!({ "anyOf": [items, part] }),
        };
    }
    content
}

/// Who speaks, what they may say, and whether the turn may be without content.
type Turns<'a> = (&'a [&'a str], &'a Json, bool);

/// A conversation in which at least one turn says something: empty turns of the assistant are left out.
fn messages(turns: &[Turns<'_>], assistant: &Json) -> Json {
    let turn = |(roles, content, may_be_empty): &Turns<'_>| match may_be_empty {
        true => object(json!({ "role": { "enum": roles }, "content": maybe((*content).clone()) }), &["role"]),
        false => object(json!({ "role": { "enum": roles }, "content": content }), &["role", "content"]),
    };
    let said: Vec<Json> = turns.iter().map(turn).collect();
    let spoken = json!({ "type": "string", "pattern": "\\S" });
    let answered = object(json!({ "role": { "const": "assistant" }, "content": spoken }), &["role", "content"]);
    let items: Vec<&Json> = said.iter().chain([assistant]).collect();
    let one_of: Vec<&Json> = said.iter().chain([&answered]).collect();
    json!({ "type": "array", "minItems": 1, "items": { "anyOf": items }, "contains": { "anyOf": one_of } })
}

fn openai_messages(sees: bool) -> Json {
    let content = content("text", true);
    let seen = with_part(&content, sees.then(image_url_part));
    let assistant = object(json!({ "role": { "const": "assistant" }, "content": maybe(content.clone()) }), &["role"]);
    messages(&[(&["system", "developer"], &content, true), (&["tool"], &seen, true), (&["user"], &seen, false)], &assistant)
}

fn responses_messages(sees: bool) -> Json {
    let content = content("input_text", true);
    let seen = with_part(&content, sees.then(input_image_part));
    let assistant = object(json!({ "role": { "const": "assistant" }, "content": content }), &["role", "content"]);
    messages(&[(&["system", "developer"], &content, false), (&["user"], &seen, false)], &assistant)
}

fn anthropic_messages(sees: bool) -> Json {
    let any = content("text", false);
    let seen = with_part(&any, sees.then(image_block));
    let mut filled = seen.clone();
    filled["anyOf"][1]["minItems"] = json!(1);
    let role =
        |roles: &[&str], content: &Json| object(json!({ "role": { "enum": roles }, "content": content }), &["role", "content"]);
    let mut list = messages(&[(&["user"], &filled, false)], &role(&["assistant"], &any));
    // A turn without blocks is left out, and system messages go to the front: a turn of somebody must be there.
    list["items"] = json!({ "anyOf": [role(&["user"], &seen), role(&["system", "assistant"], &any)] });
    list
}

fn name() -> Json {
    json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$" })
}

fn request_schema(route: &str, (vocab, width): (usize, usize), sees: bool) -> Json {
    let switch = || maybe(json!({ "type": "boolean" }));
    let text = || json!({ "type": "string" });
    match route {
        "apply_template" => object(json!({ "messages": openai_messages(sees) }), &["messages"]),
        "chat" => {
            let function = object(json!({ "name": name(), "description": maybe(text()) }), &["name"]);
            let tool = object(json!({ "type": maybe(json!({ "const": "function" })), "function": function }), &["function"]);
            let format = object(json!({ "type": { "enum": ["text", "json_object"] } }), &["type"]);
            let described = object(json!({ "schema": { "type": "object" } }), &["schema"]);
            let described =
                object(json!({ "type": { "const": "json_schema" }, "json_schema": described }), &["type", "json_schema"]);
            let properties = json!({
                "messages": openai_messages(sees),
                "stream": switch(), "n": maybe(count(1, 16)), "max_completion_tokens": maybe(count(-1, MOST_TOKENS)),
                "temperature": range(0, 2), "top_p": range(0, 1), "seed": maybe(count(i64::MIN, i64::MAX)),
                "presence_penalty": range(-2, 2), "frequency_penalty": range(-2, 2), "logprobs": switch(),
                "tools": maybe(json!({
                    "type": "array", "items": tool, "maxItems": 1,
                    "description": "any number whose names differ; a schema can only say so of one",
                })),
                "response_format": maybe(json!({ "anyOf": [format, described] })),
            });
            object(properties, &["messages"])
        }
        "completions" => {
            let properties = json!({
                "prompt": { "type": "string", "minLength": 1 }, "stream": switch(), "max_tokens": maybe(count(-1, MOST_TOKENS)),
                "temperature": range(0, 2), "top_p": range(0, 1), "n": maybe(count(1, 16)), "echo": switch(),
                "logprobs": maybe(count(0, 5)),
            });
            object(properties, &["prompt"])
        }
        "responses" => {
            let properties = json!({
                "input": { "anyOf": [text(), responses_messages(sees)] }, "instructions": maybe(text()), "stream": switch(),
                "max_output_tokens": maybe(count(1, MOST_TOKENS)), "temperature": range(0, 2), "top_p": range(0, 1),
            });
            object(properties, &["input"])
        }
        "messages" => {
            let properties = json!({
                "messages": anthropic_messages(sees), "max_tokens": count(1, MOST_TOKENS), "system": maybe(content("text", false)),
                "stream": switch(), "temperature": range(0, 2), "top_p": range(0, 1),
            });
            object(properties, &["messages", "max_tokens"])
        }
        "count_tokens" => {
            object(json!({ "messages": anthropic_messages(sees), "system": maybe(content("text", false)) }), &["messages"])
        }
        "embeddings" => {
            let text = json!({ "type": "string", "minLength": 1 });
            let tokens = json!({ "type": "array", "items": count(0, vocab as i64 - 1), "minItems": 1 });
            let one = json!([text, tokens]);
            let list = json!({ "type": "array", "items": { "anyOf": one }, "minItems": 1, "maxItems": 2048 });
            let properties = json!({
                "input": { "anyOf": [text, tokens, list] }, "encoding_format": maybe(json!({ "enum": ["float", "base64"] })),
                "dimensions": maybe(count(1, width as i64)),
            });
            object(properties, &["input"])
        }
        "tokenize" => object(
            json!({ "content": text(), "add_special": switch(), "parse_special": switch(), "with_pieces": switch() }),
            &["content"],
        ),
        "detokenize" => object(json!({ "tokens": { "type": "array", "items": count(0, vocab as i64 - 1) } }), &["tokens"]),
        _ => json!({}),
    }
}
