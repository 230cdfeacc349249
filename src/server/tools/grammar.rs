//! Grammars that make a model call a tool, and that make it write JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::parser::{CLOSE, OPEN};
use super::{ToolFormat, ToolSpec};
use crate::sample::Grammar;
use crate::tokenizer::Tokenizer;

/// The text as a literal of the grammar language.
fn literal(text: &str) -> String {
    Json::String(text.to_owned()).to_string()
}

/// A tag: the vocabulary's own token if it has one, its text otherwise.
fn tag(tokenizer: &Tokenizer, text: &str) -> String {
    if tokenizer.special_id(text).is_some() { text.to_owned() } else { literal(text) }
}

/// One layout of blanks, so that a model cannot write blanks without end.
fn schema(schema: &Json) -> String {
    let mut schema = match schema {
        Json::Object(map) => map.clone(),
        // `true` and `false` are schemas too.
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    let layout = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    schema.insert("x-guidance".to_owned(), layout);
    format!("%json {}", Json::Object(schema))
}

/// A grammar for an answer that is a JSON document. After reasoning the model may write its usual empty line first.
pub fn json_grammar(wanted: &Json, after_reasoning: bool) -> Grammar {
    let blank = if after_reasoning { "\"\\n\\n\"? " } else { "" };
    Grammar::Lark(format!("start: {blank}document\ndocument: {}\n", schema(wanted)))
}

/// A grammar for an answer that is one call, or several, of `tools`.
pub fn forced_call(
    tokenizer: &Tokenizer,
    format: ToolFormat,
    tools: &[&ToolSpec],
    several: bool,
    after_reasoning: bool,
) -> Grammar {
    let blank = if after_reasoning { "\"\\n\\n\"? " } else { "" };
    let names: Vec<String> = (0..tools.len()).map(|i| format!("call_{i}")).collect();
    let (open, close) = (tag(tokenizer, OPEN), tag(tokenizer, CLOSE));
    let mut text = match (format, several) {
        (ToolFormat::Llama3, _) => format!("start: {blank}call\n"),
        (_, false) => format!("start: {blank}wrapped\n"),
        (_, true) => format!("start: {blank}wrapped (\"\\n\" wrapped)*\n"),
    };
    if format != ToolFormat::Llama3 {
        let _ = writeln!(text, "wrapped: {open} \"\\n\" call \"\\n\" {close}");
    }
    let _ = writeln!(text, "call: {}", names.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        match format {
            ToolFormat::Hermes => json_rule(&mut text, i, tool, "arguments"),
            ToolFormat::Llama3 => json_rule(&mut text, i, tool, "parameters"),
            ToolFormat::QwenXml => qwen_rules(&mut text, i, tool),
        }
    }
    Grammar::Lark(text)
}

fn json_rule(text: &mut String, i: usize, tool: &ToolSpec, key: &str) {
    let head = literal(&format!("{{\"name\": {}, \"{key}\": ", Json::String(tool.name.clone())));
    let _ = writeln!(text, "call_{i}: {head} args_{i} \"}}\"\nargs_{i}: {}", arguments(&tool.parameters));
}

/// Arguments are those that the tool describes, unless it says otherwise.
fn arguments(parameters: &Json) -> String {
    let mut parameters = parameters.clone();
    if let Json::Object(map) = &mut parameters {
        map.entry("type").or_insert_with(|| json!("object"));
        map.entry("additionalProperties").or_insert_with(|| json!(false));
    }
    schema(&parameters)
}

fn qwen_rules(text: &mut String, i: usize, tool: &ToolSpec) {
    let empty = Map::new();
    let properties = tool.parameters.get("properties").and_then(Json::as_object).unwrap_or(&empty);
    let required = tool.parameters.get("required").and_then(Json::as_array);
    let is_required = |key: &str| required.is_some_and(|names| names.iter().any(|name| name == key));
    let mut call = format!("call_{i}: {}", literal(&format!("<function={}>\n", tool.name)));
    let mut rules = String::new();
    for (p, (key, wanted)) in properties.iter().enumerate() {
        let _ = write!(call, " param_{i}_{p}{}", if is_required(key) { "" } else { "?" });
        let head = literal(&format!("<parameter={key}>\n"));
        let is_text = wanted.get("type").is_some_and(|kind| kind == "string") && wanted.get("enum").is_none();
        let words = wanted.get("enum").and_then(Json::as_array);
        let tail = "\"\\n</parameter>\\n\"";
        let _ = match (is_text, words) {
            (true, _) => writeln!(rules, "param_{i}_{p}: {head} value_{i}_{p}\nvalue_{i}_{p}[suffix={tail}]: /(.|\\n)*/"),
            (false, Some(words)) => {
                let bare = |word: &Json| literal(word.as_str().map_or_else(|| word.to_string(), str::to_owned).as_str());
                let words: Vec<String> = words.iter().map(bare).collect();
                writeln!(rules, "param_{i}_{p}: {head} ({}) {tail}", words.join(" | "))
            }
            (false, None) => {
                writeln!(rules, "param_{i}_{p}: {head} value_{i}_{p} {tail}\nvalue_{i}_{p}: {}", schema(wanted))
            }
        };
    }
    let _ = writeln!(text, "{call} \"</function>\"\n{rules}");
}
