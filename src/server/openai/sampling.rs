//! Fields that the OpenAI APIs share, with llama.cpp's additions.

use serde_json::{Value as Json, json};

use crate::sample::SamplingParams;
use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, wrong};
use crate::server::tools::ToolSpec;
use crate::units::TokenId;

/// How the next token is chosen; what the client leaves open is as the server was started.
pub fn read_sampling(app: &App, fields: &Fields<'_>) -> Result<SamplingParams, ApiError> {
    let defaults = &app.options.sampling;
    let repeat = fields.first(&["repeat_penalty", "repetition_penalty"]).unwrap_or("repeat_penalty");
    Ok(SamplingParams {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(defaults.temperature),
        top_p: fields.number("top_p", 0.0..=1.0)?.map_or(defaults.top_p, |p| p.max(f32::MIN_POSITIVE)),
        top_k: fields.count("top_k", -1..=1_000_000)?.unwrap_or(match fields.get("top_k") {
            // -1 is all, as 0.
            Some(_) => 0,
            None => defaults.top_k,
        }),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(defaults.min_p),
        typical_p: fields.number("typical_p", 0.0001..=1.0)?.unwrap_or(defaults.typical_p),
        repeat_penalty: fields.number(repeat, 0.01..=10.0)?.unwrap_or(defaults.repeat_penalty),
        repeat_last_n: fields.integer("repeat_last_n", -1..=1 << 24)?.map_or(defaults.repeat_last_n, |n| n as i32),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(defaults.frequency_penalty),
        logit_bias: read_bias(app, fields)?,
        seed: match fields.integer("seed", i64::MIN..=i64::MAX)? {
            Some(-1) => None,
            Some(seed) => Some(seed as u64),
            None => defaults.seed,
        },
        logprobs: None,
    })
}

fn read_bias(app: &App, fields: &Fields<'_>) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(bias) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let vocab = app.tokenizer.vocab_len();
    let read = |key: &String| {
        let id = key.parse::<u32>().ok().filter(|id| (*id as usize) < vocab);
        let id = id.ok_or_else(|| bias.error(key, format!("a token id below {vocab} is expected")))?;
        let value = bias.number(key, -100.0..=100.0)?.unwrap_or(0.0);
        // The API promises that -100 excludes a token.
        Ok((TokenId(id), if value <= -100.0 { f32::NEG_INFINITY } else { value }))
    };
    bias.map().keys().map(read).collect()
}

/// `tools`, in the nested form of chat completions or the flat one of responses. Built-in tools of other servers are left
/// out where `lenient`.
pub fn read_tool_list(fields: &Fields<'_>, lenient: bool) -> Result<Vec<ToolSpec>, ApiError> {
    let mut tools: Vec<ToolSpec> = Vec::new();
    for (i, value) in fields.list("tools")?.into_iter().flatten().enumerate() {
        let tool = Fields::at(value, format!("{}[{i}]", fields.path("tools")))?;
        let kind = tool.text("type")?.unwrap_or("function");
        if kind != "function" {
            if lenient {
                continue;
            }
            return Err(tool.error("type", format!("'{kind}' is not supported; only 'function' is")));
        }
        let function = tool.object("function")?.unwrap_or_else(|| tool.clone());
        let spec = read_tool(&function, "parameters")?;
        if tools.iter().any(|other| other.name == spec.name) {
            return Err(function.error("name", format!("another tool is named '{}' already", spec.name)));
        }
        tools.push(spec);
    }
    Ok(tools)
}

/// One function: its name, description and schema.
pub fn read_tool(function: &Fields<'_>, schema_key: &str) -> Result<ToolSpec, ApiError> {
    let name = function.text("name")?.ok_or_else(|| function.error("name", "a tool needs a name"))?;
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 128 || !name.chars().all(is_good) {
        return Err(function.error("name", "1 to 128 letters, digits, '_', '-' and '.' are possible"));
    }
    let parameters = match function.get(schema_key) {
        None => json!({ "type": "object", "properties": {} }),
        Some(schema @ Json::Object(map)) => {
            if map.get("properties").is_some_and(|p| !p.is_object() && !p.is_null()) {
                return Err(wrong(format!("{}.properties", function.path(schema_key)), "an object", &map["properties"]));
            }
            schema.clone()
        }
        Some(other) => return Err(wrong(function.path(schema_key), "a JSON schema (an object)", other)),
    };
    Ok(ToolSpec { name: name.to_owned(), description: function.text("description")?.map(str::to_owned), parameters })
}
