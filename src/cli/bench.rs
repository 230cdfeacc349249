//! `strata bench`: how fast a model runs on this machine.

use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::args::{ComputeArgs, ModelArgs};
use super::error::CliError;
use super::interrupt::Interrupt;
use super::open::{Loaded, OpenModel, Opening, Stopping};
use super::output::Output;
use super::report::{MemoryReport, arithmetic, percent, short};
use crate::engine::Want;
use crate::experts::{Experts, Rates, TierStats};
use crate::state::Sequence;
use crate::units::{HumanBytes, TokenId};

const EXAMPLES: &str = "\
Examples:
  strata bench -m model.gguf
  strata bench -m model.gguf -p 128,512,2048 -n 0 -r 3
  strata bench -m model.gguf -p 0 -n 128 -d 0,4096 -t 8
  strata bench -m model.gguf --json

pp512 reads a prompt of 512 tokens, tg128 generates 128 tokens one by one, both after as many tokens as -d says. GB/s are
the bytes of weights and state that one token needs, times the tokens a second; the share is of what this machine's memory
gives to all cores.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Sizes of prompts to read; 0 is none
    #[arg(short = 'p', long, value_name = "N,...", value_delimiter = ',', default_value = "512", value_parser = size())]
    n_prompt: Vec<u32>,
    /// Numbers of tokens to generate; 0 is none
    #[arg(short = 'n', long, value_name = "N,...", value_delimiter = ',', default_value = "128", value_parser = size())]
    n_gen: Vec<u32>,
    /// Tokens that the sequence holds already
    #[arg(short = 'd', long, value_name = "N,...", value_delimiter = ',', default_value = "0", value_parser = size())]
    n_depth: Vec<u32>,
    /// How often each test is run
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

fn size() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=1 << 24)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prompt,
    Generate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Test {
    kind: Kind,
    tokens: u32,
    depth: u32,
}

impl Test {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prompt => "pp",
            Kind::Generate => "tg",
        };
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        format!("{kind}{}{depth}", self.tokens)
    }
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
struct Outcome {
    test: String,
    tokens: u32,
    depth: u32,
    repetitions: usize,
    min_tokens_per_second: f64,
    median_tokens_per_second: f64,
    max_tokens_per_second: f64,
    /// Of generation, at the median, in 10^9.
    gb_per_second: Option<f64>,
    percent_of_memory: Option<f64>,
    /// Of generation where only some experts are on a card.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<Bound>,
    seconds: Vec<f64>,
}

/// How fast measured rates would allow a token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Bound {
    /// Bytes a token that the card reads, and that the processor works through.
    card_bytes: u64,
    processor_bytes: u64,
    /// 10^9 bytes a second of either: the card as it was measured ([`Roofs::device_gbs`](super::roofs::Roofs)), and the processor on
    /// experts as it was when they were loaded.
    card_gb_per_second: f64,
    processor_gb_per_second: f64,
    card_seconds: f64,
    processor_seconds: f64,
    /// Whether the two work at the same time.
    overlaps: bool,
    tokens_per_second: f64,
    percent: f64,
}

impl Bound {
    fn new(row_bytes: u64, tiers: &TierStats, rates: &Rates, card_gbs: f64, tokens_per_second: f64) -> Bound {
        let processor_bytes = tiers.processor_bytes / tiers.tokens.max(1);
        let card_bytes = row_bytes.saturating_sub(processor_bytes);
        let (card_s, processor_s) =
            (card_bytes as f64 / (card_gbs * 1e9), processor_bytes as f64 / rates.processor_bytes_s.max(1.0));
        let bound = 1.0 / rates.together_s(card_s, processor_s).max(1e-12);
        Bound {
            card_bytes,
            processor_bytes,
            card_gb_per_second: card_gbs,
            processor_gb_per_second: rates.processor_bytes_s / 1e9,
            card_seconds: card_s,
            processor_seconds: processor_s,
            overlaps: rates.overlaps,
            tokens_per_second: bound,
            percent: percent(tokens_per_second, bound),
        }
    }

    fn line(&self) -> String {
        format!(
            "bound: card {} at {} GB/s = {:.2} ms, processor {} at {} GB/s = {:.2} ms, {}: {} tok/s, of which {:.0} % were reached",
            HumanBytes(self.card_bytes),
            short(self.card_gb_per_second),
            self.card_seconds * 1e3,
            HumanBytes(self.processor_bytes),
            short(self.processor_gb_per_second),
            self.processor_seconds * 1e3,
            if self.overlaps { "at the same time" } else { "one after the other" },
            short(self.tokens_per_second),
            self.percent,
        )
    }
}

#[derive(Debug, Serialize)]
struct JsonBench<'a> {
    model: &'a str,
    file: String,
    model_bytes: u64,
    parameters: u64,
    threads: usize,
    arithmetic: String,
    ubatch_size: u32,
    kv: &'static str,
    load_seconds: f64,
    memory_gb_per_second: Option<f64>,
    memory: MemoryReport,
    results: Vec<Outcome>,
}

pub fn bench(args: &BenchArgs) -> Result<(), CliError> {
    let tests = tests(args);
    let Some(longest) = tests.iter().map(|t| t.tokens.saturating_add(t.depth)).max() else {
        return Err(CliError::Usage("nothing to measure: -p and -n are both 0".into()));
    };
    let opened = OpenModel::open(&args.model)?;
    let interrupt = Interrupt::install()?;
    let context = opened.context_of_all(longest as usize)?;
    let opening = Opening::new(context, &args.compute, Stopping::AtOnce);
    let mut loaded = opened.load(&args.compute, opening, &interrupt)?;
    let (roof, device_gbs) = (loaded.roofs.memory_gbs, loaded.roofs.device_gbs);
    let mut bench = Bench { sequence: loaded.engine.start()?, vocab: opened.model.dims().vocab, roof, device_gbs };
    let mut out = Output::new();
    if !args.json {
        table_head(&mut out, &opened, &loaded, roof, args.repetitions)?;
    }
    let mut results = Vec::with_capacity(tests.len());
    for test in tests {
        let outcome = bench.measure(&mut loaded, test, args.repetitions)?;
        if !args.json {
            out.line(table_row(&outcome))?;
            if let Some(bound) = &outcome.bound {
                out.line(bound.line())?;
            }
            out.flush()?;
        }
        results.push(outcome);
    }
    if args.json {
        out.json(&JsonBench {
            model: &opened.model.name,
            file: opened.files.name(),
            model_bytes: opened.files.total_bytes(),
            parameters: parameters(&opened),
            threads: loaded.threads,
            arithmetic: arithmetic(&loaded),
            ubatch_size: loaded.engine.options().prompt_rows,
            kv: loaded.engine.options().kv.name(),
            load_seconds: loaded.load_time.as_secs_f64(),
            memory_gb_per_second: roof,
            memory: MemoryReport::now(loaded.engine.memory()),
            results,
        })?;
    }
    Ok(())
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests = Vec::new();
    for &depth in &args.n_depth {
        for (kind, sizes) in [(Kind::Prompt, &args.n_prompt), (Kind::Generate, &args.n_gen)] {
            let sized = sizes.iter().filter(|n| **n > 0).map(|&tokens| Test { kind, tokens, depth });
            tests.extend(sized);
        }
    }
    tests
}

fn parameters(opened: &OpenModel) -> u64 {
    opened.files.tensors().iter().fold(0, |sum, t| sum.saturating_add(t.elements()))
}

/// What is measured and with what, and the head of the table.
fn table_head(
    out: &mut Output,
    opened: &OpenModel,
    loaded: &Loaded,
    roof: Option<f64>,
    repetitions: u32,
) -> Result<(), CliError> {
    let options = loaded.engine.options();
    out.line(format!(
        "{} ({}, {} weights), {}, kv {}, prompt chunks of {}",
        opened.model.name,
        HumanBytes(opened.files.total_bytes()),
        parameters(opened),
        arithmetic(loaded),
        options.kv.name(),
        options.prompt_rows,
    ))?;
    let roof = roof.map_or("memory not measured".to_owned(), |r| format!("memory reads {} GB/s", short(r)));
    out.line(format!("{roof}; {repetitions} repetitions after a warm-up\n"))?;
    out.line("| test           | median tok/s |      min |      max |     GB/s | of memory |")?;
    out.line("| -------------- | -----------: | -------: | -------: | -------: | --------: |")?;
    out.flush()
}

fn table_row(outcome: &Outcome) -> String {
    let cell = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    format!(
        "| {:<14} | {:>12} | {:>8} | {:>8} | {:>8} | {:>9} |",
        outcome.test,
        short(outcome.median_tokens_per_second),
        short(outcome.min_tokens_per_second),
        short(outcome.max_tokens_per_second),
        cell(outcome.gb_per_second.map(short)),
        cell(outcome.percent_of_memory.map(|p| format!("{p:.0} %"))),
    )
}

struct Bench {
    sequence: Sequence,
    vocab: u32,
    roof: Option<f64>,
    /// GB/s of the devices, for the bound.
    device_gbs: Option<f64>,
}

impl Bench {
    fn measure(&mut self, loaded: &mut Loaded, test: Test, repetitions: u32) -> Result<Outcome, CliError> {
        let warm_up = Test { tokens: test.tokens.min(if test.kind == Kind::Prompt { u32::MAX } else { 4 }), ..test };
        self.run(loaded, warm_up)?;
        let before = loaded.engine.tier_stats();
        let mut seconds = Vec::with_capacity(repetitions as usize);
        for _ in 0..repetitions {
            seconds.push(self.run(loaded, test)?);
        }
        let mut rates: Vec<f64> = seconds.iter().map(|s| f64::from(test.tokens) / s.max(1e-9)).collect();
        rates.sort_by(f64::total_cmp);
        let median = median(&rates);
        let middle_cells = test.depth.saturating_add(test.tokens / 2);
        let bytes = loaded.engine.decode_row_bytes(middle_cells) as f64;
        let gb_per_second = (test.kind == Kind::Generate).then_some(bytes * median / 1e9);
        let tiers = before.zip(loaded.engine.tier_stats()).map(|(before, now)| now - before);
        let measured = loaded.engine.pipeline().experts.as_ref().map(Experts::rates);
        let bound = tiers.zip(measured).zip(self.device_gbs).filter(|_| test.kind == Kind::Generate && test.depth == 0);
        let bound = bound.map(|((tiers, measured), device)| Bound::new(bytes as u64, &tiers, &measured, device, median));
        Ok(Outcome {
            bound,
            test: test.name(),
            tokens: test.tokens,
            depth: test.depth,
            repetitions: rates.len(),
            min_tokens_per_second: rates.first().copied().unwrap_or(0.0),
            median_tokens_per_second: median,
            max_tokens_per_second: rates.last().copied().unwrap_or(0.0),
            gb_per_second,
            percent_of_memory: gb_per_second.zip(self.roof).map(|(used, roof)| percent(used, roof)),
            seconds,
        })
    }

    /// Seconds of one repetition.
    fn run(&mut self, loaded: &mut Loaded, test: Test) -> Result<f64, CliError> {
        let engine = &mut loaded.engine;
        engine.rollback(&mut self.sequence, 0)?;
        if test.depth > 0 {
            let tokens = self.tokens(test.depth, 1);
            engine.feed(&mut self.sequence, &tokens, Want::Nothing, &mut |_, _| {})?;
        }
        let tokens = self.tokens(test.tokens, 2);
        let start = Instant::now();
        match test.kind {
            Kind::Prompt => engine.feed(&mut self.sequence, &tokens, Want::Last, &mut |_, _| {})?,
            Kind::Generate => {
                for token in &tokens {
                    engine.feed(&mut self.sequence, std::slice::from_ref(token), Want::Last, &mut |_, _| {})?;
                }
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Tokens without a pattern, the same in every run.
    fn tokens(&self, count: u32, seed: u64) -> Vec<TokenId> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            TokenId(((state >> 33) % u64::from(self.vocab.max(1))) as u32)
        };
        (0..count).map(|_| next()).collect()
    }
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
    }

    #[test]
    fn tests_have_the_names_that_people_know() {
        let name = |kind, depth| Test { kind, tokens: 8, depth }.name();
        assert_eq!(name(Kind::Prompt, 0), "pp8");
        assert_eq!(name(Kind::Generate, 64), "tg8 @ d64");
    }
}
