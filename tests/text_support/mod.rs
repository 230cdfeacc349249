//! What the tests of chat templates share: a toy vocabulary, messages, and templates as published families write them.

#![allow(dead_code)] // each test binary uses its own part

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use strata::gguf::ModelFiles;
use strata::tokenizer::{ChatRequest, TokenType, Tokenizer, TokenizerSpec};

pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

pub fn fixture(model: &str) -> Tokenizer {
    let files = ModelFiles::open(path("fixtures").join(model)).unwrap();
    Tokenizer::from_metadata(files.metadata()).unwrap()
}

/// A vocabulary of single bytes and the special tokens of many families, with `template`.
pub fn toy(template: &str) -> Tokenizer {
    let mut spec = TokenizerSpec {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        chat_template: (!template.is_empty()).then(|| template.to_owned()),
        ..TokenizerSpec::default()
    };
    for byte in ('!'..='~').chain('¡'..='¬').chain('®'..='ÿ').chain('\u{100}'..='\u{143}') {
        spec.tokens.push(byte.to_string());
        spec.token_types.push(TokenType::Normal);
    }
    let control = [
        "<s>",
        "</s>",
        "<|im_start|>",
        "<|im_end|>",
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "[INST]",
        "[/INST]",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜end▁of▁sentence｜>",
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
        "<|end|>",
    ];
    let markup = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];
    for (texts, kind) in [(&control[..], TokenType::Control), (&markup[..], TokenType::UserDefined)] {
        for text in texts {
            spec.tokens.push((*text).to_owned());
            spec.token_types.push(kind);
        }
    }
    let id = |text: &str| spec.tokens.iter().position(|token| token == text).map(|id| id as u32);
    (spec.bos_id, spec.eos_id) = (id("<s>"), id("</s>"));
    spec.add_bos = Some(false);
    Tokenizer::new(spec).unwrap()
}

pub fn says(role: &str, content: &str) -> Json {
    json!({"role": role, "content": content})
}

pub fn ask(content: &str) -> ChatRequest {
    ChatRequest::new(vec![says("user", content)])
}

pub const LLAMA3: &str = include_str!("../data/templates/llama3.jinja");

pub const GEMMA: &str = include_str!("../data/templates/gemma.jinja");

pub const QWEN3: &str = include_str!("../data/templates/qwen3.jinja");

pub const DEEPSEEK: &str = include_str!("../data/templates/deepseek.jinja");

pub const MISTRAL: &str = include_str!("../data/templates/mistral.jinja");

/// Tokens put together from pieces around the role.
pub const PHI: &str = include_str!("../data/templates/phi.jinja");
