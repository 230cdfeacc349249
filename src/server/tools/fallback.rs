//! Tools for models whose chat template knows none: they are described in the system message, and earlier calls and
//! results are written into the messages, in the form that [`super::ToolFormat::Hermes`] reads.

use serde_json::{Value as Json, json};

use super::ToolSpec;
use crate::tokenizer::content::{enclosed, words};

/// Messages in which a template without tools finds everything it needs.
pub fn describe_in_messages(messages: &[Json], tools: &[ToolSpec]) -> Vec<Json> {
    let mut out: Vec<Json> = messages.iter().map(plain).collect();
    if tools.is_empty() {
        return out;
    }
    let list: Vec<String> = tools.iter().map(|tool| tool.to_json().to_string()).collect();
    let text = format!(
        "You may call functions. They are described here, one a line:\n<tools>\n{}\n</tools>\nTo call one, write only\n\
         <tool_call>\n{{\"name\": <name of the function>, \"arguments\": <object of its arguments>}}\n</tool_call>",
        list.join("\n")
    );
    match out.first_mut().filter(|first| first["role"] == "system") {
        Some(first) => first["content"] = json!(format!("{}\n\n{text}", first["content"].as_str().unwrap_or_default())),
        None => out.insert(0, json!({ "role": "system", "content": text })),
    }
    out
}

/// A message without calls and results.
fn plain(message: &Json) -> Json {
    match message["role"].as_str() {
        Some("tool") => {
            json!({ "role": "user", "content": enclosed(&message["content"], "<tool_response>\n", "\n</tool_response>") })
        }
        Some("assistant") => {
            let Some(calls) = message["tool_calls"].as_array() else { return message.clone() };
            let mut content = words(&message["content"]).into_owned();
            for call in calls {
                let function = &call["function"];
                let call = json!({ "name": function["name"], "arguments": function["arguments"] });
                let gap = if content.is_empty() { "" } else { "\n" };
                content.push_str(&format!("{gap}<tool_call>\n{call}\n</tool_call>"));
            }
            let mut message = message.clone();
            message["content"] = json!(content);
            message
        }
        _ => message.clone(),
    }
}
