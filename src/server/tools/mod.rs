//! Tool calls: the formats that models write them in, read while the answer arrives.

mod fallback;
mod grammar;
mod json_call;
mod parser;
mod qwen;

use serde_json::Value as Json;

pub use fallback::describe_in_messages;
pub use grammar::{forced_call, json_grammar};
pub use parser::{Piece, ToolParser};

/// How a model writes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`.
    Hermes,
    /// `<tool_call><function=…><parameter=…>…</parameter></function></tool_call>`.
    QwenXml,
    /// The whole answer is `{"name": …, "parameters": …}`, perhaps after `<|python_tag|>`.
    Llama3,
}

impl ToolFormat {
    /// The format that a chat template asks its model for.
    pub fn of_template(source: &str) -> ToolFormat {
        if source.contains("<function=") {
            ToolFormat::QwenXml
        } else if source.contains("<tool_call>") {
            ToolFormat::Hermes
        } else if source.contains("<|python_tag|>") || (source.contains("ipython") && source.contains("<|start_header_id|>")) {
            ToolFormat::Llama3
        } else {
            ToolFormat::Hermes
        }
    }
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    pub name: String,
    pub description: Option<String>,
    /// JSON schema of the arguments; always an object.
    pub parameters: Json,
}

impl ToolSpec {
    /// As templates expect it.
    pub fn to_json(&self) -> Json {
        serde_json::json!({
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description.as_deref().unwrap_or_default(),
                "parameters": self.parameters,
            }
        })
    }
}

/// Whether the model calls a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    #[default]
    Auto,
    None,
    /// Any of them, but one at least.
    Required,
    Named(String),
}
