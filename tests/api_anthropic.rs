//! Promise: the Anthropic API answers in the shapes that its clients expect, whole and streamed, with the same text.

mod api_support;

use std::sync::LazyLock;

use api_support::*;
use serde_json::{Value as Json, json};
use strata::server::Server;

static SERVER: LazyLock<Server> = LazyLock::new(|| Setup::default().start());

const MESSAGES: &str = "/v1/messages";

#[test]
fn a_message_knows_the_capital() {
    let body = json!({ "model": "tiny", "max_tokens": 40, "system": "Answer briefly.", "messages": user(FRANCE) });
    let reply = ask(&SERVER, "/v1/messages?beta=true", &body);
    assert_eq!((&reply["type"], &reply["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(reply["stop_reason"], "end_turn");
    assert_eq!(reply["content"][0]["type"], "text");
    assert!(reply["content"][0]["text"].as_str().unwrap().contains("Paris"), "{reply}");
    let count = ask(&SERVER, "/v1/messages/count_tokens", &body);
    let usage = &reply["usage"];
    let read = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"], read);
}

/// Checks the grammar of a stream and returns its blocks as a message would have them.
fn blocks(data: &[Json]) -> Vec<Json> {
    assert_eq!(data.first().unwrap()["type"], "message_start");
    assert_eq!(data.last().unwrap()["type"], "message_stop");
    assert_eq!(data[data.len() - 2]["type"], "message_delta");
    let mut blocks: Vec<Json> = Vec::new();
    let mut open = false;
    let mut input = String::new();
    for event in &data[1..data.len() - 2] {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(!std::mem::replace(&mut open, true));
                assert_eq!(event["index"], blocks.len());
                blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                assert!(open && event["index"] == blocks.len() - 1);
                let block = blocks.last_mut().unwrap();
                let delta = &event["delta"];
                let (field, text) = match delta["type"].as_str().unwrap() {
                    "text_delta" => ("text", &delta["text"]),
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    "input_json_delta" => {
                        input.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("{other}"),
                };
                block[field] = json!(format!("{}{}", block[field].as_str().unwrap(), text.as_str().unwrap()));
            }
            "content_block_stop" => {
                assert!(std::mem::replace(&mut open, false));
                if !input.is_empty() {
                    blocks.last_mut().unwrap()["input"] = serde_json::from_str(&input).unwrap();
                    input.clear();
                }
            }
            other => panic!("{other}"),
        }
    }
    assert!(!open);
    blocks
}

fn compare(mut body: Json) -> Json {
    let whole = ask(&SERVER, MESSAGES, &body);
    body["stream"] = json!(true);
    let reply = post(&SERVER, MESSAGES, &body);
    let events = reply.events();
    let data = reply.data();
    assert!(events.iter().zip(&data).all(|((name, _), data)| name.as_deref() == data["type"].as_str()));
    let mut streamed = blocks(&data);
    for (block, other) in streamed.iter_mut().zip(whole["content"].as_array().unwrap()) {
        if block["type"] == "tool_use" {
            block["id"] = other["id"].clone();
        }
    }
    assert_eq!(json!(streamed), whole["content"]);
    let delta = &data[data.len() - 2];
    assert_eq!(delta["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(delta["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    whole
}

#[test]
fn a_stream_says_the_same() {
    compare(json!({ "max_tokens": 40, "messages": user(FRANCE) }));
}

#[test]
fn thinking_is_a_block_of_its_own() {
    let body = json!({
        "max_tokens": 200, "messages": user("What is 17 + 25?"), "thinking": { "type": "enabled", "budget_tokens": 1024 },
    });
    let reply = compare(body);
    let kinds: Vec<&str> = reply["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text"]);
}

#[test]
fn stop_sequences_and_limits() {
    let reply = compare(json!({ "max_tokens": 40, "messages": user(FRANCE), "stop_sequences": ["aris"] }));
    assert_eq!((&reply["stop_reason"], &reply["stop_sequence"]), (&json!("stop_sequence"), &json!("aris")));
    let reply = compare(json!({ "max_tokens": 1, "messages": user(FRANCE) }));
    assert_eq!(reply["stop_reason"], "max_tokens");
}

#[test]
fn a_forced_tool_is_called() {
    let schema = json!({ "type": "object", "properties": { "unit": { "enum": ["C", "F"] } }, "required": ["unit"],
                         "additionalProperties": false });
    let body = json!({
        "max_tokens": 100, "messages": user("What is the weather?"),
        "tools": [{ "name": "weather", "description": "now", "input_schema": schema }],
        "tool_choice": { "type": "tool", "name": "weather" },
    });
    let reply = compare(body);
    assert_eq!(reply["stop_reason"], "tool_use", "{reply}");
    let call = &reply["content"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("weather")));
    assert!(["C", "F"].contains(&call["input"]["unit"].as_str().unwrap()));
}

#[test]
fn a_conversation_with_tools_is_taken() {
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "Look it up.", "cache_control": { "type": "ephemeral" } }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "s" },
            { "type": "tool_use", "id": "t1", "name": "f", "input": { "a": 1 } },
        ]},
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "42" }], "is_error": true },
            { "type": "text", "text": FRANCE },
        ]},
    ]);
    let tools = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    ask(&SERVER, MESSAGES, &json!({ "max_tokens": 3, "messages": messages, "tools": tools }));
}
