//! Whole models of PyPI packages, where `tests/run` could fetch them. Says plainly which tests were skipped.

use std::path::Path;

use crate::rig::{path, strata, strata_with_input};
use crate::skip::skipped;

/// The model file, or nothing and a line that says so.
fn model(name: &str, test: &str) -> Option<String> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("test-models").join(name);
    if file.exists() {
        return Some(path(&file).to_owned());
    }
    skipped(&format!("{test}: {} is not there (tests/run fetches it)", file.display()));
    None
}

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

#[test]
fn smollm2_answers() {
    let Some(file) = model(SMOLLM2, "smollm2_answers") else { return };
    let ran = strata(&["run", "-m", &file, "--temp", "0", "-n", "8", "What is the capital of France?"]).ok();
    assert!(ran.out.contains("Paris"), "{}", ran.out);
    let ran = strata(&["run", "-m", &file, "--temp", "0", "-n", "24", "What is the largest planet of the solar system?"]).ok();
    assert!(ran.out.contains("Jupiter"), "{}", ran.out);
}

#[test]
fn smollm2_answers_in_chat() {
    let Some(file) = model(SMOLLM2, "smollm2_answers_in_chat") else { return };
    let input = "What is the largest planet of the solar system?\nIs it larger than the Earth?\n/stats\n";
    let ran = strata_with_input(&["chat", "-m", &file, "--temp", "0", "-n", "24"], input).ok();
    assert!(ran.out.lines().next().is_some_and(|line| line.contains("Jupiter")), "{}", ran.out);
    assert!(ran.out.lines().count() >= 2 && ran.err.contains("kept)"), "{}", ran.err);
}

/// The largest relative distance of a text's scores, read one token at a time and ten at once.
fn steps_against_chunks(file: &str, flags: &[&str]) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str, how: &[&str]| {
        let out = dir.path().join(name);
        let text = "The quick brown fox jumps over the lazy dog.";
        strata(&[&["logits", "-m", file, "--text", text, "-o", path(&out)], flags, how].concat()).ok();
        let npy = npyz::NpyFile::new(std::fs::File::open(&out).unwrap()).unwrap();
        assert_eq!(npy.shape()[1], 49152);
        npy.into_vec::<f32>().unwrap()
    };
    let (chunked, stepped) = (read("chunk.npy", &[]), read("step.npy", &["--step"]));
    let square = |f: &dyn Fn(usize) -> f32| (0..chunked.len()).map(|i| f64::from(f(i)).powi(2)).sum::<f64>();
    (square(&|i| chunked[i] - stepped[i]) / square(&|i| chunked[i])).sqrt()
}

#[test]
fn smollm2_steps_and_chunks_agree_in_reference_mode() {
    let Some(file) = model(SMOLLM2, "smollm2_steps_and_chunks_agree_in_reference_mode") else { return };
    let error = steps_against_chunks(&file, &["--reference"]);
    assert!(error <= 1e-3, "{error}");
}

#[test]
fn smollm2_steps_and_chunks_agree_in_fast_mode() {
    let Some(file) = model(SMOLLM2, "smollm2_steps_and_chunks_agree_in_fast_mode") else { return };
    let error = steps_against_chunks(&file, &[]);
    assert_eq!(error, 0.0, "the same bits in every window");
}

/// A model that only continues text, without a chat template.
#[test]
fn gemma3_answers() {
    let Some(file) = model(GEMMA3, "gemma3_answers") else { return };
    let ran = strata(&["run", "-m", &file, "--temp", "0", "-n", "16", "What is the capital of France?"]).ok();
    assert_eq!(ran.out, "The capital of France is Paris.\n");
    assert!(ran.err.contains("no chat template"), "{}", ran.err);
    let ran = strata(&["run", "-m", &file, "--temp", "0", "-n", "4", "--raw", "The quick brown fox jumps over the lazy"]).ok();
    assert!(ran.out.starts_with(" dog"), "{}", ran.out);
    let ran = strata_with_input(&["chat", "-m", &file, "--temp", "0", "-n", "16"], "What is the capital of France?\n").ok();
    assert_eq!(ran.out, "The capital of France is Paris.\n");
}
