//! Promise: whatever a client sends, it gets an answer in its API's own shape that names the field, and the next request
//! works.

mod api_support;

use std::io::Write;
use std::net::TcpStream;
use std::sync::LazyLock;

use api_support::*;
use serde_json::{Value as Json, json};
use strata::server::{Server, ServerOptions};

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let setup = Setup::default();
    Setup { options: ServerOptions { max_body_bytes: 1 << 20, ..setup.options.clone() }, ..setup }.start()
});

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn check_error(path: &str, body: &str, field: Option<&str>) {
    let reply = send(&SERVER, "POST", path, &[], body).read();
    assert_eq!(reply.status, 400, "{path} {body}: {}", reply.body);
    let json = reply.json();
    let message = json["error"]["message"].as_str().unwrap_or_else(|| panic!("a message: {json}"));
    if path.starts_with(MESSAGES) {
        assert_eq!((&json["type"], &json["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
    } else {
        assert_eq!(json["error"]["type"], "invalid_request_error", "{json}");
        assert_eq!(json["error"]["param"].as_str(), field, "{path} {body}: {json}");
    }
    if let Some(field) = field {
        assert!(message.contains(field), "{path} {body}: the message names {field}: {message}");
    }
}

/// A good body with one field changed; the error must name the second.
fn bad_fields() -> Vec<(&'static str, Json, &'static str)> {
    let chat = |field: &str, value: Json| {
        let mut body = json!({ "messages": user("Hi") });
        body[field] = value;
        body
    };
    let text = |field: &str, value: Json| {
        let mut body = json!({ "prompt": "Hi", "max_tokens": 1 });
        body[field] = value;
        body
    };
    let anthropic = |field: &str, value: Json| {
        let mut body = json!({ "messages": user("Hi"), "max_tokens": 1 });
        body[field] = value;
        body
    };
    let responses = |field: &str, value: Json| {
        let mut body = json!({ "input": "Hi" });
        body[field] = value;
        body
    };
    let mut cases = vec![
        (CHAT, json!([]), "body"),
        (CHAT, json!({}), "messages"),
        (CHAT, json!({ "messages": "[{\"role\": \"user\"}]" }), "messages"),
        (CHAT, json!({ "messages": [] }), "messages"),
        (CHAT, json!({ "messages": [3] }), "messages[0]"),
        (CHAT, json!({ "messages": [{ "content": "x" }] }), "messages[0].role"),
        (CHAT, json!({ "messages": [{ "role": 5, "content": "x" }] }), "messages[0].role"),
        (CHAT, json!({ "messages": [{ "role": "alien", "content": "x" }] }), "messages[0].role"),
        (CHAT, json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (CHAT, json!({ "messages": [{ "role": "user", "content": 5 }] }), "messages[0].content"),
        (CHAT, json!({ "messages": [{ "role": "user", "content": [{ "type": "text" }] }] }), "messages[0].content[0].text"),
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "file:///etc/passwd" } }] }] }),
            "messages[0].content[0].type",
        ),
        (CHAT, json!({ "messages": [{ "role": "assistant", "tool_calls": [{}] }] }), "messages[0].tool_calls[0].function"),
        (CHAT, json!({ "messages": [{ "role": "assistant", "tool_calls": 1 }] }), "messages[0].tool_calls"),
        (CHAT, json!({ "messages": [{ "role": "assistant", "content": "" }] }), "messages"),
        (TEXT, json!({}), "prompt"),
        (TEXT, json!({ "prompt": "" }), "prompt"),
        (TEXT, json!({ "prompt": [] }), "prompt"),
        (TEXT, json!({ "prompt": [99999999] }), "prompt[0]"),
        (TEXT, json!({ "prompt": ["a", 1] }), "prompt[0]"),
        (TEXT, json!({ "prompt": { "a": 1 } }), "prompt"),
        (RESPONSES, json!({}), "input"),
        (RESPONSES, json!({ "input": [] }), "input"),
        (RESPONSES, json!({ "input": [{ "role": "assistant", "content": "" }], "instructions": "Be brief." }), "input"),
        (RESPONSES, json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0].type"),
        (RESPONSES, json!({ "input": [{ "type": "function_call", "name": "f" }] }), "input[0].call_id"),
        (MESSAGES, json!({ "messages": user("Hi") }), "max_tokens"),
        (MESSAGES, json!({ "max_tokens": 1 }), "messages"),
        (MESSAGES, json!({ "max_tokens": 1, "messages": [{ "role": "user" }] }), "messages[0].content"),
        (MESSAGES, json!({ "max_tokens": 1, "messages": [{ "role": "tool", "content": "x" }] }), "messages[0].role"),
        (
            MESSAGES,
            json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] }),
            "messages[0].content[0].type",
        ),
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({ "content": 3 }), "content"),
        ("/detokenize", json!({ "tokens": "x" }), "tokens"),
        ("/detokenize", json!({ "tokens": [-1] }), "tokens[0]"),
        ("/detokenize", json!({ "tokens": [1, 99999999] }), "tokens[1]"),
    ];
    let tool = |function: Json| json!([{ "type": "function", "function": function }]);
    for (field, value, named) in [
        ("model", json!(3), "model"),
        ("temperature", json!("hot"), "temperature"),
        ("temperature", json!(-1), "temperature"),
        ("temperature", json!(1e300), "temperature"),
        ("top_p", json!(2), "top_p"),
        ("top_k", json!(1.5), "top_k"),
        ("min_p", json!([]), "min_p"),
        ("presence_penalty", json!(9), "presence_penalty"),
        ("frequency_penalty", json!("x"), "frequency_penalty"),
        ("repeat_penalty", json!(0), "repeat_penalty"),
        ("logit_bias", json!([]), "logit_bias"),
        ("logit_bias", json!({ "x": 1 }), "logit_bias.x"),
        ("logit_bias", json!({ "1": "x" }), "logit_bias.1"),
        ("seed", json!("x"), "seed"),
        ("n", json!(0), "n"),
        ("n", json!(1000), "n"),
        ("stop", json!(5), "stop"),
        ("stop", json!([1]), "stop[0]"),
        ("stop", json!(""), "stop"),
        ("max_tokens", json!("many"), "max_tokens"),
        ("stream", json!("yes"), "stream"),
        ("stream_options", json!(true), "stream_options"),
    ] {
        cases.push((CHAT, chat(field, value.clone()), named));
        cases.push((TEXT, text(field, value), named));
    }
    for (field, value, named) in [
        ("top_logprobs", json!(3), "top_logprobs"),
        ("logprobs", json!(1), "logprobs"),
        ("tools", json!({}), "tools"),
        ("tools", json!([1]), "tools[0]"),
        ("tools", json!([{ "type": "retrieval" }]), "tools[0].type"),
        ("tools", tool(json!({})), "tools[0].function.name"),
        ("tools", tool(json!({ "name": "a b" })), "tools[0].function.name"),
        ("tools", tool(json!({ "name": "f", "parameters": [] })), "tools[0].function.parameters"),
        ("tools", tool(json!({ "name": "f", "parameters": { "properties": 3 } })), "tools[0].function.parameters.properties"),
        ("tool_choice", json!("maybe"), "tool_choice"),
        ("tool_choice", json!("required"), "tool_choice"),
        ("tool_choice", json!({ "type": "function", "function": { "name": "f" } }), "tool_choice"),
        ("tool_choice", json!({ "type": "function" }), "tool_choice.name"),
        ("response_format", json!("json"), "response_format"),
        ("response_format", json!({}), "response_format.type"),
        ("response_format", json!({ "type": "xml" }), "response_format.type"),
        ("response_format", json!({ "type": "json_schema" }), "response_format.json_schema"),
        ("response_format", json!({ "type": "json_schema", "json_schema": {} }), "response_format.json_schema.schema"),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "nonsense" } } }),
            "response_format",
        ),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "$ref": "http://127.0.0.1:1/x.json" } } }),
            "response_format",
        ),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "$ref": "file:///etc/hostname" } } }),
            "response_format",
        ),
        ("grammar", json!("start: ((("), "grammar"),
        ("reasoning_effort", json!("heroic"), "reasoning_effort"),
        ("chat_template_kwargs", json!(1), "chat_template_kwargs"),
        ("modalities", json!(["text", "audio"]), "modalities"),
        ("functions", json!([]), "functions"),
        ("parallel_tool_calls", json!("x"), "parallel_tool_calls"),
    ] {
        cases.push((CHAT, chat(field, value), named));
    }
    for (field, value, named) in
        [("suffix", json!("x"), "suffix"), ("best_of", json!(3), "best_of"), ("logprobs", json!(9), "logprobs")]
    {
        cases.push((TEXT, text(field, value), named));
    }
    for (field, value, named) in [
        ("previous_response_id", json!("resp_1"), "previous_response_id"),
        ("background", json!(true), "background"),
        ("max_output_tokens", json!(0), "max_output_tokens"),
        ("reasoning", json!({ "effort": 3 }), "reasoning.effort"),
        ("text", json!({ "format": { "type": "json_schema" } }), "text.format.schema"),
    ] {
        cases.push((RESPONSES, responses(field, value), named));
    }
    for (field, value, named) in [
        ("max_tokens", json!(0), "max_tokens"),
        ("system", json!(5), "system"),
        ("stop_sequences", json!([""]), "stop_sequences"),
        ("temperature", json!("x"), "temperature"),
        ("tools", json!([{ "name": "f" }]), "tools[0].input_schema"),
        ("tools", json!([{ "type": "web_search_20250305", "name": "web_search" }]), "tools[0].type"),
        ("tool_choice", json!({ "type": "tool" }), "tool_choice.name"),
        ("tool_choice", json!("auto"), "tool_choice"),
        ("thinking", json!({ "type": "enabled" }), "thinking.budget_tokens"),
        ("thinking", json!({}), "thinking.type"),
    ] {
        cases.push((MESSAGES, anthropic(field, value), named));
    }
    cases
}

#[test]
fn every_wrong_field_is_named() {
    let cases = bad_fields();
    assert!(cases.len() > 100);
    for (path, body, field) in cases {
        check_error(path, &body.to_string(), Some(field));
    }
    ask(&SERVER, CHAT, &json!({ "messages": user("Hi"), "max_tokens": 1 }));
}

/// Requests that are taken as they stand, one for every route that takes any.
fn good_bodies() -> Vec<(&'static str, Json)> {
    vec![
        (CHAT, json!({ "messages": user("Hi"), "max_tokens": 1, "stop": ["x\u{1f600}"] })),
        (TEXT, json!({ "prompt": "Hi", "max_tokens": 1, "logit_bias": { "1": -1.5 } })),
        (RESPONSES, json!({ "input": "Hi", "max_output_tokens": 1, "metadata": null })),
        (MESSAGES, json!({ "messages": user("Hi"), "max_tokens": 1, "stream": false })),
        ("/v1/messages/count_tokens", json!({ "messages": user("Hi") })),
        ("/apply-template", json!({ "messages": user("Hi") })),
        ("/tokenize", json!({ "content": "Hi", "add_special": true })),
        ("/detokenize", json!({ "tokens": [1, 2, 3] })),
    ]
}

/// Texts that are no JSON, whatever is done with what they say.
const NOT_JSON: &[&str] = &[
    " ",
    "nul",
    "tru",
    "True",
    "None",
    "NaN",
    "Infinity",
    "-Infinity",
    "undefined",
    "\u{0}",
    "\u{feff}",
    "\u{feff}{",
    "{",
    "}",
    "[",
    "]",
    "[]]",
    "{}}",
    "{}{}",
    "{} x",
    "{},",
    ",",
    ":",
    "\"",
    "'a'",
    "{'a': 1}",
    "{a: 1}",
    "{\"a\"}",
    "{\"a\":}",
    "{\"a\" 1}",
    "{\"a\"::1}",
    "{:1}",
    "{1: 1}",
    "{null: 1}",
    "{\"a\": 1,}",
    "{,\"a\": 1}",
    "{\"a\": 1,, \"b\": 2}",
    "{\"a\": 1 \"b\": 2}",
    "{\"a\": 1; \"b\": 2}",
    "{\"a\": [1,]}",
    "{\"a\": [,1]}",
    "{\"a\": [1 2]}",
    "{\"a\": [1}",
    "{\"messages\": [}",
    "{\"a\": {\"b\": 1}",
    "{\"a\": 01}",
    "{\"a\": +1}",
    "{\"a\": .5}",
    "{\"a\": 1.}",
    "{\"a\": 1e}",
    "{\"a\": 1e+}",
    "{\"a\": --1}",
    "{\"a\": 0x10}",
    "{\"a\": 1_000}",
    "{\"a\": 1e999999}",
    "{\"a\": \"\\ud800\"}",
    "{\"a\": \"\\udc00x\"}",
    "{\"a\": \"\\u12\"}",
    "{\"a\": \"\\x41\"}",
    "{\"a\": \"\\\"}",
    "{\"a\": \"line\nbreak\"}",
    "{\"a\": \"tab\there\"}",
    "{\"a\": \"\u{1}\"}",
    "{\"a\": \"open}",
    "/* c */ {}",
    "{} // c",
    "# c\n{}",
    "{\"a\": `x`}",
    "{\"a\": 'x'}",
    "<a/>",
    "a=1&b=2",
    "data: {}",
    "--x\r\n\r\n{}\r\n--x--",
    "{\"a\": True}",
    "{\"a\": None}",
    "{\"a\": NaN}",
];

/// Every good body cut at every byte, and every text that is none on every route: (route, body).
fn broken_bodies() -> Vec<(&'static str, String)> {
    let deep = ["[".repeat(100_000), "{\"a\":".repeat(100_000), format!("{{\"messages\": {}", "[".repeat(100_000))];
    let mut bodies = Vec::new();
    for (path, body) in good_bodies() {
        let text = body.to_string();
        bodies.extend((0..text.len()).filter(|cut| text.is_char_boundary(*cut)).map(|cut| (path, text[..cut].to_owned())));
        bodies.extend(NOT_JSON.iter().copied().chain(deep.iter().map(String::as_str)).map(|bad| (path, bad.to_owned())));
    }
    bodies
}

#[test]
fn broken_json_is_a_400_wherever_it_breaks() {
    let bodies = broken_bodies();
    assert!(bodies.len() >= 300);
    for (path, body) in bodies {
        check_error(path, &body, None);
    }
    for (path, body) in good_bodies() {
        ask(&SERVER, path, &body);
    }
}

#[test]
fn bytes_that_are_not_text_are_a_400() {
    let mut stream = TcpStream::connect(SERVER.address()).expect("the server listens");
    let body = b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}";
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).expect("the request is sent");
    assert_eq!(Pending { stream: std::io::BufReader::new(stream) }.read().status, 400);
}

#[test]
fn a_prompt_that_does_not_fit_is_told_with_numbers() {
    let long = long_text(3000);
    let reply = post(&SERVER, CHAT, &json!({ "messages": user(&long) }));
    assert_eq!(reply.status, 400);
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("1024"));
    let reply = post(&SERVER, MESSAGES, &json!({ "messages": user(&long), "max_tokens": 1 }));
    assert_eq!((reply.status, &reply.json()["type"]), (400, &json!("error")));
    // An answer that would not fit is cut to what does.
    let reply = ask(&SERVER, CHAT, &json!({ "messages": user("Hi"), "max_tokens": 10_000_000, "stop": ["."] }));
    assert!(reply["usage"]["total_tokens"].as_u64().unwrap() <= u64::from(CONTEXT));
}

#[test]
fn unknown_places_and_methods_and_sizes() {
    assert_eq!(get(&SERVER, "/v2/nothing").status, 404);
    assert_eq!(get(&SERVER, "/web/../../Cargo.toml").status, 404);
    assert_eq!(get(&SERVER, "/web/%2e%2e%2fCargo.toml").status, 404);
    assert_eq!(get(&SERVER, CHAT).status, 405);
    // Slips that are made with base addresses.
    for (path, meant) in [
        ("/chat/completions", CHAT),
        ("/v1/v1/chat/completions", CHAT),
        ("//v1/chat/completions/", CHAT),
        ("/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
    ] {
        let reply = get(&SERVER, path);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(reply.status == 404 && message.ends_with(&format!("{meant} does")), "{path}: {message}");
    }
    assert_eq!(post(&SERVER, "/v1/models", &json!({})).status, 405);
    let reply = get(&SERVER, "/v1/messages");
    assert_eq!((reply.status, &reply.json()["type"]), (405, &json!("error")));
    let reply = post(&SERVER, CHAT, &json!({ "messages": user(&"x".repeat(2 << 20)) }));
    assert_eq!(reply.status, 413);
}

#[test]
fn the_template_says_what_it_refuses() {
    let template = "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}\
                    {%- endif %}{%- if m.content == 'bad' %}{{ raise_exception('no bad words') }}{%- endif %}\
                    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}<|im_start|>assistant\n";
    let server = Setup { template: Some(template), ..Setup::default() }.start();
    let reply = post(&server, CHAT, &json!({ "messages": user("bad") }));
    assert_eq!(reply.status, 400);
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("no bad words"));
    let messages = json!([{ "role": "user", "content": "a" }, { "role": "system", "content": "late" }]);
    let prompt = ask(&server, "/apply-template", &json!({ "messages": messages }))["prompt"].clone();
    assert!(prompt.as_str().unwrap().starts_with("<|im_start|>system\nlate"), "{prompt}");
}
