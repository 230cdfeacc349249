//! The OpenAPI document, made from the table of routes.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::app::App;
use super::error::ApiError;
use super::routes::{Method, Route, ready, routes};

pub async fn document(_app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    Ok(ready(&build()))
}

pub fn build() -> Json {
    let mut paths = Map::new();
    // Embeddings are told of only by servers that can make them, and no model of today can.
    for route in routes().iter().filter(|route| !route.page && route.name != "embeddings") {
        let method = route.method.name().to_ascii_lowercase();
        let entry = paths.entry(route.path).or_insert_with(|| json!({}));
        entry[method.as_str()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Strata", "version": env!("CARGO_PKG_VERSION"), "description": "Chat and completion with a local model." },
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

fn operation(route: &Route) -> Json {
    let error = json!({
        "description": "What is wrong and what to do",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
    });
    let kind = match route.name {
        "metrics" => "application/openmetrics-text",
        _ => "application/json",
    };
    let mut content = json!({ kind: { "schema": {} } });
    if ["chat", "completions", "responses", "messages"].contains(&route.name) {
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
        let content = json!({ "application/json": { "schema": request_schema(route.name) } });
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

/// Text, or a list of parts with text.
fn content(kind: &str) -> Json {
    let part = object(json!({ "type": maybe(json!({ "const": kind })), "text": { "type": "string" } }), &["text"]);
    json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": part }] })
}

/// Messages that say something.
fn messages(roles: &[&str], kind: &str) -> Json {
    let said = object(json!({ "role": { "enum": roles }, "content": content(kind) }), &["role", "content"]);
    let answered = object(
        json!({ "role": { "const": "assistant" }, "content": { "type": "string", "pattern": "\\S" } }),
        &["role", "content"],
    );
    json!({ "type": "array", "items": { "anyOf": [said, answered] }, "minItems": 1 })
}

fn name() -> Json {
    json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$" })
}

fn request_schema(route: &str) -> Json {
    let switch = || maybe(json!({ "type": "boolean" }));
    let text = || json!({ "type": "string" });
    match route {
        "chat" | "apply_template" => {
            let function = object(json!({ "name": name(), "description": maybe(text()) }), &["name"]);
            let tool = object(json!({ "type": maybe(json!({ "const": "function" })), "function": function }), &["function"]);
            let format = object(json!({ "type": { "enum": ["text", "json_object"] } }), &["type"]);
            let described = object(json!({ "schema": { "type": "object" } }), &["schema"]);
            let described =
                object(json!({ "type": { "const": "json_schema" }, "json_schema": described }), &["type", "json_schema"]);
            let properties = json!({
                "messages": messages(&["system", "developer", "user", "tool"], "text"),
                "stream": switch(), "n": maybe(count(1, 16)), "max_completion_tokens": maybe(count(-1, MOST_TOKENS)),
                "temperature": range(0, 2), "top_p": range(0, 1), "seed": maybe(count(i64::MIN, i64::MAX)),
                "presence_penalty": range(-2, 2), "frequency_penalty": range(-2, 2), "logprobs": switch(),
                "tools": maybe(json!({ "type": "array", "items": tool, "maxItems": 1 })),
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
            let items = messages(&["system", "developer", "user"], "input_text");
            let properties = json!({
                "input": { "anyOf": [text(), items] }, "instructions": maybe(text()), "stream": switch(),
                "max_output_tokens": maybe(count(1, MOST_TOKENS)), "temperature": range(0, 2), "top_p": range(0, 1),
            });
            object(properties, &["input"])
        }
        "messages" => {
            let properties = json!({
                "messages": messages(&["user"], "text"), "max_tokens": count(1, MOST_TOKENS), "system": maybe(content("text")),
                "stream": switch(), "temperature": range(0, 2), "top_p": range(0, 1),
            });
            object(properties, &["messages", "max_tokens"])
        }
        "count_tokens" => {
            object(json!({ "messages": messages(&["user"], "text"), "system": maybe(content("text")) }), &["messages"])
        }
        "tokenize" => object(
            json!({ "content": text(), "add_special": switch(), "parse_special": switch(), "with_pieces": switch() }),
            &["content"],
        ),
        "detokenize" => object(json!({ "tokens": { "type": "array", "items": count(0, 100) } }), &["tokens"]),
        _ => json!({}),
    }
}
