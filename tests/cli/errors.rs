//! Every error says what, where and what to do, in one line, and has its exit code.

use crate::rig::{fixture, path, strata, strata_with_input};

#[test]
fn files_that_are_not_models() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let file = dir.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        file
    };
    let whole = std::fs::read(fixture("tiny-random-BF16.gguf")).unwrap();
    let cases = [
        (dir.path().join("missing.gguf"), "missing.gguf"),
        (dir.path().to_owned(), "folder"),
        (file("text.gguf", b"This is a text, not a model."), "not a GGUF file"),
        (file("empty.gguf", b""), "empty.gguf"),
        (file("header.gguf", &whole[..1000]), "cut short"),
        (file("data.gguf", &whole[..whole.len() / 2]), "cut short"),
    ];
    for (file, word) in &cases {
        for verb in ["run", "bench"] {
            let ran = strata(&[&[verb, "-m", path(file)][..], if verb == "run" { &["x"][..] } else { &[] }].concat());
            assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
            ran.fails(1, &["error: ", word]);
        }
        strata(&["inspect", path(file)]).fails(1, &["error: ", word]);
    }
}

#[test]
fn a_missing_shard_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("alone-00001-of-00002.gguf");
    std::fs::copy(fixture("tiny-flash-next-IQ2_XS-00001-of-00002.gguf"), &first).unwrap();
    strata(&["run", "-m", path(&first), "x"]).fails(1, &["shard 2 of 2", "missing"]);
    let second = fixture("tiny-flash-next-IQ2_XS-00002-of-00002.gguf");
    strata(&["inspect", path(&second)]).fails(1, &["first shard"]);
}

#[test]
fn wrong_arguments() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["sing"], "sing"),
        (&["run", "--nonsense", "x"], "--nonsense"),
        (&["run", "--temp", "warm", "x"], "warm"),
        (&["run", "--temp", "-1", "x"], "below 0"),
        (&["run", "--top-p", "0", "x"], "above 0"),
        (&["run", "--min-p", "2", "x"], "between 0 and 1"),
        (&["run", "-t", "0", "x"], "--threads"),
        (&["run", "-n", "-2", "x"], "--predict"),
        (&["run", "--kv", "q1", "x"], "possible values"),
        (&["run", "--stop", "", "x"], "--reverse-prompt"),
        (&["run", "-p", "x", "y"], "cannot be used with"),
        (&["run", "--raw", "--system", "s", "x"], "--raw"),
        (&["run", ""], "empty"),
        (&["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (&["bench", "-p", "many"], "many"),
        (&["tokenize", "--ids", "1,x"], "\"x\""),
        (&["tokenize", "--ids", "999999"], "999999"),
        (&["logits", "--tokens", "999999", "-o", "x.npy"], "999999"),
        (&["logits", "--tokens", "1", "--chunk", "8", "-ub", "4", "-o", "x.npy"], "--chunk"),
        (&["run", "-c", "-5", "x"], "invalid value '-5'"),
        (&["run", "--top-k", "-1", "x"], "invalid value '-1'"),
        (&["run", "--device", "cuda:77", "x"], "cuda:77"),
        (&["serve", "--parallel", "-1"], "invalid value '-1'"),
        (&["inspect", "-m", "a.gguf", "b.gguf"], "cannot be used with"),
        (&["completions", "cobol"], "possible values"),
        (&["inspect"], "FILE"),
    ];
    for (args, word) in cases {
        strata(args).fails(2, &[word]);
    }
}

#[test]
fn a_context_too_small_for_the_prompt() {
    strata(&["run", "-c", "8", "What is the capital of France?"]).fails(2, &["19 tokens", "holds 8", "--ctx-size"]);
}

#[test]
fn a_context_too_large_for_the_machine_is_refused_before_loading() {
    strata(&["run", "-c", "4000000000", "x"]).fails(2, &["context (-c) of 4000000000", "Nothing was loaded"]);
    if cfg!(target_os = "linux") {
        strata(&["run", "-c", "16000000", "--kv", "f32", "x"]).fails(3, &["GiB", "short", "--context", "Nothing was loaded"]);
    }
}

#[test]
fn standard_input_must_be_text() {
    use std::io::Write;
    let mut child = crate::rig::command(&["run"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"\xff\xfe\x00").unwrap();
    let ran: crate::rig::Ran = child.wait_with_output().unwrap().into();
    ran.fails(1, &["UTF-8"]);
    strata_with_input(&["run"], "").fails(2, &["empty"]);
    for verb in ["tokenize", "chat"] {
        let mut child = crate::rig::command(&[verb]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"Hello \xff\xfe\n").unwrap();
        let ran: crate::rig::Ran = child.wait_with_output().unwrap().into();
        ran.fails(1, &["standard input", "UTF-8", "byte 6"]);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_device_without_end_is_not_read_into_memory() {
    let zero = "/dev/zero";
    strata(&["plan", "--machine", zero]).fails(1, &[zero, "longer than"]);
    strata(&["serve", "--port", "0", "--api-key-file", zero]).fails(1, &[zero, "longer than"]);
    strata(&["run", "-m", zero, "x"]).fails(1, &[zero]);
}

#[test]
fn a_folder_for_steps_may_hold_the_output_too() {
    let folder = tempfile::tempdir().unwrap();
    let (steps, output) = (folder.path().join("new"), folder.path().join("new/x.npy"));
    let (steps, output) = (steps.to_str().unwrap(), output.to_str().unwrap());
    strata(&["logits", "--tokens", "1,2", "--dump", steps, "-o", output]).ok();
    assert!(std::path::Path::new(output).exists());
}

#[test]
fn what_goes_beyond_the_trained_context_is_told() {
    let model = crate::rig::random_model();
    let trained = strata(&["inspect", "-m", &model, "--json"]).json();
    let trained = trained["metadata"].as_object().unwrap();
    let trained = trained.iter().find(|(key, _)| key.ends_with("context_length")).unwrap().1.as_u64().unwrap();
    let more = (trained + 1).to_string();
    let ran = strata(&["bench", "-m", &model, "-p", &more, "-n", "0", "-r", "1"]).ok();
    assert!(ran.err.contains("warning") && ran.err.contains(&trained.to_string()), "{}", ran.err);
}

#[test]
#[cfg(target_os = "linux")]
fn an_output_that_cannot_be_written() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = crate::rig::command(&["tokenize", "Hello"]).stdout(full).output().unwrap();
    crate::rig::Ran::from(ran).fails(1, &["standard output"]);
    strata(&["logits", "--tokens", "1,2", "-o", "/dev/full"]).fails(1, &["cannot write", "/dev/full"]);
}

#[test]
fn an_output_never_takes_the_place_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("own.gguf");
    std::fs::copy(crate::rig::fixture("tiny-random-BF16.gguf"), &model).unwrap();
    let before = std::fs::metadata(&model).unwrap().len();
    let name = model.to_str().unwrap();
    strata(&["logits", "-m", name, "--tokens", "1,2", "-o", name]).fails(2, &["own.gguf", "choose another output"]);
    strata(&["model-sheet", name, "-o", name]).fails(2, &["own.gguf", "choose another output"]);
    assert_eq!(std::fs::metadata(&model).unwrap().len(), before);
}

#[test]
fn an_address_that_cannot_be_listened_on_is_told_before_the_model_is_loaded() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = strata(&["serve", "--port", &port]);
    assert!(!ran.err.contains("loaded"), "{}", ran.err);
    ran.fails(1, &["cannot listen", &port, "--port"]);
}
