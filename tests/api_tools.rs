//! Promise: what is constrained is constrained while sampling: JSON always parses and fits, forced calls are calls.

mod api_support;

use std::sync::LazyLock;

use api_support::*;
use serde_json::{Value as Json, json};
use strata::server::Server;

static SERVER: LazyLock<Server> = LazyLock::new(|| Setup::default().start());

const CHAT: &str = "/v1/chat/completions";

fn content(reply: &Json) -> Json {
    let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn weather() -> Json {
    json!({ "type": "function", "function": { "name": "weather", "description": "The weather", "parameters": {
        "type": "object", "required": ["city", "days"],
        "properties": { "city": { "enum": ["Paris", "Oslo"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
    }}})
}

fn other() -> Json {
    json!({ "type": "function", "function": { "name": "stop_all" } })
}

fn schema() -> Json {
    json!({ "type": "object", "required": ["name", "size", "parts"], "additionalProperties": false, "properties": {
        "name": { "type": "string", "maxLength": 12 },
        "size": { "type": "integer", "minimum": 0, "maximum": 99 },
        "parts": { "type": "array", "items": { "enum": ["a", "b"] }, "minItems": 1, "maxItems": 3 },
    }})
}

#[test]
fn a_schema_is_kept_at_any_temperature() {
    for (temperature, seed) in [(0.0, 1), (1.0, 2), (2.0, 3), (2.0, 4)] {
        let body = json!({
            "messages": user("Describe the box."), "temperature": temperature, "seed": seed, "max_tokens": 200, "top_k": 0, "min_p": 0,
            "response_format": { "type": "json_schema", "json_schema": { "name": "box", "schema": schema(), "strict": true } },
        });
        let reply = ask(&SERVER, CHAT, &body);
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
        let value = content(&reply);
        assert!(value["name"].as_str().unwrap().chars().count() <= 12);
        assert!((0..=99).contains(&value["size"].as_i64().unwrap()));
        assert!((1..=3).contains(&value["parts"].as_array().unwrap().len()), "{value}");
    }
}

#[test]
fn responses_keep_a_schema_too() {
    let format = json!({ "type": "json_schema", "name": "box", "schema": schema() });
    let reply = ask(&SERVER, "/v1/responses", &json!({ "input": "Describe the box.", "text": { "format": format } }));
    let text = reply["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(serde_json::from_str::<Json>(text).unwrap()["size"].is_i64(), "{text}");
}

#[test]
fn a_grammar_is_kept_after_reasoning() {
    let body = json!({ "messages": user("Yes or no?"), "grammar": "start: \"yes\" | \"no\"" });
    let reply = ask(&SERVER, CHAT, &body);
    assert!(["yes", "no"].contains(&reply["choices"][0]["message"]["content"].as_str().unwrap()), "{reply}");
    let body = json!({
        "messages": user("What is 17 + 25?"), "reasoning_effort": "high", "reasoning_budget": 30, "max_tokens": 300,
        "response_format": { "type": "json_schema", "json_schema": { "schema": schema() } },
    });
    let reply = ask(&SERVER, CHAT, &body);
    assert!(!reply["choices"][0]["message"]["reasoning_content"].as_str().unwrap_or_default().starts_with('{'), "{reply}");
    assert!(content(&reply)["size"].is_i64());
}

fn check_call(call: &Json) {
    assert_eq!(call["type"], "function");
    let arguments: Json = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(["Paris", "Oslo"].contains(&arguments["city"].as_str().unwrap()));
    assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()));
}

#[test]
fn forced_calls_are_calls_in_every_format() {
    // Templates that name a format, so that the server takes it; the model is made to follow.
    let chatml =
        "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}<|im_start|>assistant\n";
    for mark in ["", "{# tools <function= #}", "{# tools <|python_tag|> #}"] {
        let template: &'static str = Box::leak(format!("{mark}{chatml}").into_boxed_str());
        let server = Setup { template: (!mark.is_empty()).then_some(template), slots: 1, ..Setup::default() }.start();
        for choice in [json!("required"), json!({ "type": "function", "function": { "name": "weather" } })] {
            let tools = if choice.is_string() { json!([weather()]) } else { json!([other(), weather()]) };
            let body = json!({ "messages": user("Weather?"), "tools": tools, "tool_choice": choice, "parallel_tool_calls": false,
                               "max_tokens": 200 });
            let reply = ask(&server, CHAT, &body);
            assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{mark}: {reply}");
            let calls = reply["choices"][0]["message"]["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 1);
            assert_eq!(calls[0]["function"]["name"], "weather");
            check_call(&calls[0]);
            assert_eq!(reply["choices"][0]["message"]["content"], Json::Null);
        }
    }
}

#[test]
fn calls_are_streamed_as_deltas() {
    let body = json!({ "messages": user("Weather?"), "tools": [weather()], "tool_choice": "required", "stream": true,
                       "parallel_tool_calls": false, "max_tokens": 200 });
    let data = post(&SERVER, CHAT, &body).data();
    let deltas: Vec<&Json> =
        data.iter().map(|c| &c["choices"][0]["delta"]["tool_calls"][0]).filter(|call| !call.is_null()).collect();
    assert!(deltas.len() > 2, "arguments arrive in pieces");
    assert!(deltas[0]["id"].as_str().unwrap().starts_with("call_"));
    assert!(deltas[1..].iter().all(|delta| delta["id"].is_null() && delta["index"] == 0));
    let arguments: String = deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
    check_call(&json!({ "type": "function", "function": { "arguments": arguments } }));
    assert!(data.iter().any(|chunk| chunk["choices"][0]["finish_reason"] == "tool_calls"));
    let reply = post(
        &SERVER,
        "/v1/responses",
        &json!({
            "input": "Weather?", "stream": true, "tool_choice": "required", "parallel_tool_calls": false,
            "tools": [{ "type": "function", "name": "weather", "parameters": weather()["function"]["parameters"] }, { "type": "web_search" }],
        }),
    );
    let data = reply.data();
    let done = data.iter().find(|event| event["type"] == "response.function_call_arguments.done").expect("a call");
    check_call(&json!({ "type": "function", "function": { "arguments": done["arguments"] } }));
    assert_eq!(data.last().unwrap()["response"]["output"][0]["type"], "function_call");
}

#[test]
fn tools_that_may_not_be_called_are_not_offered() {
    let body = |choice: &str| json!({ "messages": user("Weather?"), "tools": [weather()], "tool_choice": choice });
    let prompt = |choice: &str| ask(&SERVER, "/apply-template", &body(choice))["prompt"].to_string();
    assert!(prompt("auto").contains("weather") && !prompt("none").contains("stop_all"));
    assert!(!prompt("none").contains("The weather"));
}
