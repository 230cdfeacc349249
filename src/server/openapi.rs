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
    for route in routes().iter().filter(|route| !route.page) {
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
    let maybe = json!({ "type": ["string", "null"] });
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
        content["text/event-stream"] = json!({ "schema": { "type": "string" } });
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

fn request_schema(name: &str) -> Json {
    let list = json!({ "type": "array", "items": { "type": "object" }, "minItems": 1 });
    let switch = json!({ "type": "boolean" });
    let count = json!({ "type": "integer", "minimum": 1 });
    let (properties, required) = match name {
        "chat" | "apply_template" => (
            json!({ "messages": list, "stream": switch, "max_completion_tokens": count, "temperature": range(0, 2), "top_p": range(0, 1),
                    "tools": { "type": "array" }, "response_format": { "type": "object" }, "n": count }),
            json!(["messages"]),
        ),
        "completions" => (
            json!({ "prompt": {}, "stream": switch, "max_tokens": { "type": "integer", "minimum": -1 }, "temperature": range(0, 2) }),
            json!(["prompt"]),
        ),
        "responses" => (
            json!({ "input": { "type": ["string", "array"] }, "instructions": { "type": "string" }, "stream": switch,
                    "max_output_tokens": count }),
            json!(["input"]),
        ),
        "messages" => (
            json!({ "messages": list, "max_tokens": count, "system": {}, "stream": switch, "temperature": range(0, 2) }),
            json!(["messages", "max_tokens"]),
        ),
        "count_tokens" => (json!({ "messages": list, "system": {} }), json!(["messages"])),
        "tokenize" => (json!({ "content": { "type": "string" } }), json!(["content"])),
        "detokenize" => (json!({ "tokens": { "type": "array", "items": { "type": "integer" } } }), json!(["tokens"])),
        _ => (json!({}), json!([])),
    };
    json!({ "type": "object", "properties": properties, "required": required })
}

fn range(least: u32, most: u32) -> Json {
    json!({ "type": "number", "minimum": least, "maximum": most })
}
