//! Promise: two models as they are published, SmolLM2-135M-Instruct and Gemma 3 270M, open, are cut into tokens as llama.cpp
//! cuts them, give nearly the same probabilities, and answer sensibly. They are too large to lie in the repository: `tests/run`
//! puts them under `target/test-models`, and a test whose model is not there says so and counts as passed.

mod common;

use std::path::PathBuf;

use common::npz::Npz;
use common::skip::skipped;
use common::*;
use strata::backend::cpu::Mode;
use strata::engine::{Engine, OpenOptions};
use strata::gguf::ModelFiles;
use strata::tokenizer::template::{ChatRequest, ChatTemplate};
use strata::tokenizer::{ShowSpecial, Special, Tokenizer};
use strata::units::TokenId;

const SMOLLM: &str = "SmolLM2-135M-Instruct.Q4_1";
const GEMMA: &str = "gemma-3-270m-q4_k_m";
const PROMPTS: usize = 5;

struct Downloaded {
    engine: Engine,
    tokenizer: Tokenizer,
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("test-models").join(format!("{name}.gguf"))
}

/// The model, or a line that it is missing.
fn open_if_there(name: &str, mode: Mode) -> Option<Downloaded> {
    let path = path(name);
    if !path.exists() {
        skipped(&format!("{name}: it is not under target/test-models; tests/run fetches it"));
        return None;
    }
    let files = ModelFiles::open(&path).expect("the model opens");
    let tokenizer = Tokenizer::from_metadata(files.metadata()).expect("a tokenizer");
    let options = OpenOptions { context: 256, prompt_rows: 64, max_outputs: 64, ..options(mode, 256, 64) };
    Some(Downloaded { engine: open_path(&path, mode, 2, options), tokenizer })
}

impl Downloaded {
    fn tokens(&self, text: &str) -> Vec<TokenId> {
        let mut tokens = self.tokenizer.encode(text, Special::Parse).expect("tokens");
        self.tokenizer.add_bos_eos(&mut tokens);
        tokens
    }

    /// The most likely tokens after a prompt, as text.
    fn greedy(&mut self, prompt: &[TokenId], count: usize) -> String {
        let mut s = self.engine.start().expect("a free slot");
        let mut logits = last_logits(&mut self.engine, &mut s, prompt);
        let mut answer = vec![];
        while answer.len() < count {
            let token = TokenId(argmax(&logits) as u32);
            if self.tokenizer.is_eog(token) {
                break;
            }
            answer.push(token);
            logits = last_logits(&mut self.engine, &mut s, &[token]);
        }
        self.engine.end(s);
        self.tokenizer.decode(&answer, ShowSpecial::ExceptEog).expect("text")
    }
}

fn log_probability(logits: &[f32], token: TokenId) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    f64::from(logits[token.0 as usize] - max) - sum.ln()
}

/// Both engines compute with 8-bit activations, in different ways: equal up to that noise.
fn check_against_llama_cpp(name: &str, mode: Mode, prompts: usize) {
    let Some(mut model) = open_if_there(name, mode) else { return };
    let mut npz = Npz::open(&fixture(&format!("families/downloaded-{name}.npz")));
    let (mut sure, mut same, mut differences, mut ours_nll, mut theirs_nll, mut count) = (0, 0, 0f64, 0f64, 0f64, 0);
    for prompt in 0..prompts {
        let text = String::from_utf8(npz.bytes(&format!("p{prompt}_text"))).expect("text");
        let tokens = ids(&npz.ints(&format!("p{prompt}_tokens")));
        assert_eq!(model.tokens(&text), tokens, "{name}: {text:?} is cut differently");
        let mut s = model.engine.start().expect("a free slot");
        let logits = all_logits(&mut model.engine, &mut s, &tokens, 64);
        model.engine.end(s);
        let argmaxes = npz.ints(&format!("p{prompt}_argmax"));
        let margins = npz.floats(&format!("p{prompt}_margin"));
        for ((row, theirs), margin) in logits.iter().zip(&argmaxes).zip(margins) {
            if margin > 0.3 {
                sure += 1;
                same += usize::from(argmax(row) == *theirs as usize);
            }
        }
        let next = npz.floats(&format!("p{prompt}_next"));
        for ((row, token), theirs) in logits.iter().zip(&tokens[1..]).zip(next) {
            let ours = log_probability(row, *token);
            differences += (ours - f64::from(theirs)).abs();
            ours_nll -= ours;
            theirs_nll -= f64::from(theirs);
            count += 1;
        }
    }
    let n = f64::from(count);
    println!(
        "{name} {mode:?}: the same top token at {same} of {sure} sure positions; negative log-likelihood {:.4}, llama.cpp {:.4}; \
         mean difference of a log-probability {:.4}",
        ours_nll / n,
        theirs_nll / n,
        differences / n
    );
    assert!(same * 100 >= sure * 98, "{name} {mode:?}: {same} of {sure}");
    assert!((ours_nll - theirs_nll).abs() / theirs_nll < 0.02, "{name} {mode:?}: {ours_nll} and {theirs_nll}");
    assert!(differences / n < 0.1, "{name} {mode:?}: {}", differences / n);
}

#[test]
fn smollm_is_near_llama_cpp() {
    check_against_llama_cpp(SMOLLM, Mode::Fast, PROMPTS);
    // The scalar path takes its time.
    check_against_llama_cpp(SMOLLM, Mode::Reference, 2);
}

#[test]
fn gemma_is_near_llama_cpp() {
    check_against_llama_cpp(GEMMA, Mode::Fast, PROMPTS);
}

#[test]
fn smollm_answers_a_chat() {
    let Some(mut model) = open_if_there(SMOLLM, Mode::Fast) else { return };
    let question = serde_json::json!({"role": "user", "content": "What is the capital of France? Answer briefly."});
    let chat = ChatTemplate::new(&model.tokenizer).and_then(|t| t.render(&ChatRequest::new(vec![question])));
    let prompt = model.tokenizer.encode_chat(&chat.expect("a rendered chat")).expect("tokens");
    let answer = model.greedy(&prompt, 24);
    println!("{SMOLLM}: {answer:?}");
    assert!(answer.contains("Paris"), "{answer:?}");
}

#[test]
fn gemma_answers_a_question() {
    let Some(mut model) = open_if_there(GEMMA, Mode::Fast) else { return };
    // A model that was not trained to chat.
    let prompt = model.tokens("Question: What is the capital of France?\nAnswer:");
    let answer = model.greedy(&prompt, 12);
    println!("{GEMMA}: {answer:?}");
    assert!(answer.contains("Paris"), "{answer:?}");
}
