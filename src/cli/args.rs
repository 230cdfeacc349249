//! Flags that several verbs share, under the names that users of llama.cpp know.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::plan::KvType;
use crate::sample::SamplingParams;

use super::tiers::TierArgs;
use super::wishes::WishArgs;

#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// GGUF file of the model; of a model in several files the first. Without it the small built-in model is used
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
}

/// Element type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheType {
    F32,
    F16,
    #[value(alias = "q8_0")]
    Int8,
    K8v4,
    #[value(name = "q4_0")]
    Q4_0,
}

impl CacheType {
    pub fn planned(self) -> KvType {
        match self {
            CacheType::F32 => KvType::F32,
            CacheType::F16 => KvType::F16,
            CacheType::Int8 => KvType::Int8,
            CacheType::K8v4 => KvType::K8v4,
            CacheType::Q4_0 => KvType::Q4_0,
        }
    }
}

/// How to compute.
#[derive(Debug, Clone, Args)]
pub struct ComputeArgs {
    /// Threads to compute with [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Computing")]
    pub threads: Option<u32>,
    /// Tokens of a prompt that are read at once; 'auto' leaves it to the memory plan (-ub is understood too)
    #[arg(long, visible_alias = "prefill", value_name = "N", default_value = "auto", value_parser = prompt_chunk, help_heading = "Computing")]
    pub ubatch_size: PromptChunk,
    /// Type of cached keys and values (-ctk is understood too)
    #[arg(long, alias = "cache-type-k", value_name = "TYPE", value_enum, default_value_t = CacheType::F16, help_heading = "Computing")]
    pub kv: CacheType,
    /// Compute slowly and exactly: scalar code, 32-bit activations. What all else is tested against
    #[arg(long, help_heading = "Computing")]
    pub reference: bool,
    /// Bits that activations are rounded to in products with quantised weights. 15 is as good as exact; 8 is what most engines
    /// do, and reads prompts up to half as fast again
    #[arg(long, value_name = "BITS", default_value = "15", value_parser = ["8", "15"], help_heading = "Computing")]
    pub activation_bits: String,
    /// Do not show the memory plan
    #[arg(short, long, help_heading = "Memory plan")]
    pub quiet: bool,
    #[command(flatten)]
    pub wishes: WishArgs,
    #[command(flatten)]
    pub tiers: TierArgs,
}

/// Tokens of a prompt that are read at once; `None` leaves it to the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptChunk(pub Option<u32>);

pub fn prompt_chunk(text: &str) -> Result<PromptChunk, String> {
    match text.parse() {
        _ if text == "auto" => Ok(PromptChunk(None)),
        Ok(n) if (1..=65536).contains(&n) => Ok(PromptChunk(Some(n))),
        _ => Err("a number from 1 to 65536 is needed, or 'auto'".into()),
    }
}

/// How much a sequence can hold.
#[derive(Debug, Clone, Args)]
pub struct ContextArgs {
    /// Tokens that the conversation can hold, prompt and answer together; 0 is what the model was trained for
    /// [default: 4096, in a chat 8192; more if the prompt and -n need it, never more than the model was trained for]
    #[arg(short, long, visible_alias = "context", value_name = "N", help_heading = "Computing")]
    pub ctx_size: Option<u32>,
}

/// How the next token is chosen.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Most tokens to generate; -1 is as many as the context holds
    #[arg(short = 'n', long = "predict", alias = "n-predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..=1 << 32))]
    pub predict: i64,
    /// Randomness: 0 always takes the likeliest token
    #[arg(long, alias = "temperature", value_name = "T", default_value_t = 0.8, allow_negative_numbers = true, value_parser = not_negative)]
    pub temp: f32,
    /// Choose among the K likeliest tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: u32,
    /// Choose among the likeliest tokens that make up this share; 1 is all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true, value_parser = positive_share)]
    pub top_p: f32,
    /// Drop tokens less likely than this share of the likeliest; 0 is none
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true, value_parser = share)]
    pub min_p: f32,
    /// Seed of the random choices: the same seed gives the same text; -1 is a new one each time
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub seed: i64,
    /// Divide the scores of tokens that occurred already by this; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true, value_parser = positive)]
    pub repeat_penalty: f32,
    /// How many of the last tokens the penalties look at; 0 is none, -1 is all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..))]
    pub repeat_last_n: i32,
    /// Subtract this from the scores of tokens that occurred already
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = finite)]
    pub presence_penalty: f32,
    /// Subtract this from the scores of tokens for each time they occurred already
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, value_parser = finite)]
    pub frequency_penalty: f32,
    /// Stop when this text appears; may be given several times
    #[arg(short = 'r', long = "reverse-prompt", visible_alias = "stop", value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub reverse_prompt: Vec<String>,
    /// Go on after the token with which the model ends its answer
    #[arg(long)]
    pub ignore_eos: bool,
}

impl SamplingArgs {
    /// Most tokens to generate, if there is a limit.
    pub fn max_tokens(&self) -> Option<usize> {
        usize::try_from(self.predict).ok()
    }

    pub fn params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temp,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: u64::try_from(self.seed).ok(),
            ..SamplingParams::default()
        }
    }
}

/// The chat template.
#[derive(Debug, Clone, Args)]
pub struct TemplateArgs {
    /// What the model is told before the conversation (-sys is understood too)
    #[arg(long = "system", alias = "system-prompt", value_name = "TEXT")]
    pub system: Option<String>,
    /// Let a thinking model think before it answers
    #[arg(long, overrides_with = "no_think")]
    pub think: bool,
    /// Have a thinking model answer at once
    #[arg(long, overrides_with = "think")]
    pub no_think: bool,
}

impl TemplateArgs {
    /// `None` leaves it to the model's template.
    pub fn thinking(&self) -> Option<bool> {
        match (self.think, self.no_think) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

fn number(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("a number is needed".into()),
    }
}

fn finite(text: &str) -> Result<f32, String> {
    number(text)
}

fn not_negative(text: &str) -> Result<f32, String> {
    let value = number(text)?;
    if value >= 0.0 { Ok(value) } else { Err("it must not be below 0".into()) }
}

fn positive(text: &str) -> Result<f32, String> {
    let value = number(text)?;
    if value > 0.0 { Ok(value) } else { Err("it must be above 0".into()) }
}

fn share(text: &str) -> Result<f32, String> {
    let value = number(text)?;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err("it must lie between 0 and 1".into()) }
}

fn positive_share(text: &str) -> Result<f32, String> {
    let value = number(text)?;
    if value > 0.0 && value <= 1.0 { Ok(value) } else { Err("it must be above 0 and at most 1".into()) }
}

/// Flags of one dash and several letters, which the argument parser does not know, and what they stand for.
const SHORT_WORDS: &[(&str, &str)] = &[("-ub", "--ubatch-size"), ("-ctk", "--kv"), ("-sys", "--system")];

/// Replaces [`SHORT_WORDS`] before the arguments are parsed.
pub fn expand_short_words(args: impl Iterator<Item = std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    let mut literal = false;
    let expand = |arg: std::ffi::OsString| {
        literal |= arg == "--";
        let long = SHORT_WORDS.iter().find(|(short, _)| !literal && arg == *short).map(|(_, long)| *long);
        long.map_or(arg, Into::into)
    };
    args.map(expand).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_words_are_replaced_up_to_the_double_dash() {
        let args = ["run", "-ub", "64", "--", "-ub"].map(std::ffi::OsString::from);
        assert_eq!(expand_short_words(args.into_iter()), ["run", "--ubatch-size", "64", "--", "-ub"]);
    }

    #[test]
    fn numbers_are_checked() {
        assert!(share("1.1").is_err() && share("nan").is_err() && share("0.5").is_ok());
        assert!(positive("0").is_err() && not_negative("-1").is_err() && finite("inf").is_err());
    }
}
