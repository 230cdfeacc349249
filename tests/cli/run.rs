//! `strata run` with the built-in model.

use crate::rig::{command, strata, strata_with_input};

const QUESTION: &str = "What is the capital of France?";
const ANSWER: &str = "The capital of France is Paris.\n";

#[test]
fn the_first_command_of_the_readme_answers() {
    let ran = strata(&["run", "--temp", "0", QUESTION]).ok();
    assert_eq!(ran.out, ANSWER);
    let (plan, lines): (Vec<&str>, Vec<&str>) =
        ran.err.lines().partition(|line| line.starts_with("plan: ") || line.starts_with("loaded: "));
    assert_eq!(lines.len(), 1, "the plan, one summary line and nothing else: {}", ran.err);
    for (line, words) in
        plan.iter().zip([["plan: cpu: layers 0-7", "used"], ["plan: host", "predicted"], ["loaded: cpu", "as planned"]])
    {
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    assert!(plan.len() == 3 && !ran.err.contains("unexplained"), "{}", ran.err);
    for part in ["prompt ", "decode ", "tok/s", "GB/s", "%", "memory"] {
        assert!(lines[0].contains(part), "'{part}' is not in: {}", lines[0]);
    }
}

#[test]
fn quiet_leaves_the_plan_out() {
    let ran = strata(&["run", "--quiet", "--temp", "0", QUESTION]).ok();
    assert_eq!((ran.out.as_str(), ran.err.lines().count()), (ANSWER, 1), "{}", ran.err);
}

#[test]
fn the_prompt_may_come_from_elsewhere() {
    assert_eq!(strata(&["run", "--temp", "0", "-p", QUESTION]).ok().out, ANSWER);
    assert_eq!(strata_with_input(&["run", "--temp", "0"], &format!("{QUESTION}\n")).ok().out, ANSWER);
    assert_eq!(strata_with_input(&["run", "--temp", "0", "-"], QUESTION).ok().out, ANSWER);
}

#[test]
fn json_tells_everything_in_one_object() {
    let answer = strata(&["run", "--temp", "0", "--json", "-t", "1", QUESTION]).json();
    assert_eq!(answer["text"], ANSWER.trim_end());
    assert_eq!(answer["finish"], "end_token");
    let tokens = answer["tokens"].as_array().unwrap();
    assert_eq!(answer["report"]["generated_tokens"], tokens.len());
    assert_eq!(answer["report"]["threads"], 1);
    assert!(answer["report"]["decode_tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(answer["report"]["memory_gb_per_second"].as_f64().unwrap() > 0.0);
    assert!(answer["report"]["memory"]["weights_bytes"].as_u64().unwrap() > 1 << 20);
}

#[test]
fn lengths_and_stop_texts_end_an_answer() {
    let cut = strata(&["run", "--temp", "0", "-n", "3", "--json", QUESTION]).json();
    assert_eq!(cut["finish"], "max_tokens");
    assert_eq!(cut["tokens"].as_array().unwrap().len(), 3);
    let none = strata(&["run", "-n", "0", "--json", QUESTION]).json();
    assert_eq!(none["text"], "");
    let stopped = strata(&["run", "--temp", "0", "--stop", "France", "--json", QUESTION]).json();
    assert_eq!((&stopped["finish"], &stopped["text"]), (&"stop_text".into(), &"The capital of ".into()));
    let full = strata(&["run", "--temp", "0", "--ignore-eos", "-c", "32", "--json", QUESTION]).json();
    assert_eq!(full["finish"], "context_full");
    let used = full["report"]["prompt_tokens"].as_u64().unwrap() + full["report"]["generated_tokens"].as_u64().unwrap();
    assert_eq!(used, 33, "the last token needs no room");
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let run = |seed: &str| {
        let args = ["run", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-n", "24", "--json", "-s", seed];
        strata(&[&args[..], &["--ignore-eos", "--raw", "Once upon a time"]].concat()).json()
    };
    let (first, again, other) = (run("7"), run("7"), run("8"));
    assert_eq!(first["tokens"], again["tokens"]);
    assert_ne!(first["tokens"], other["tokens"]);
    assert_eq!(first["seed"], 7);
}

#[test]
fn thinking_goes_to_standard_error() {
    let ran = strata(&["run", "--temp", "0", "--think", "What is 47 + 38?"]).ok();
    assert_eq!(ran.out, "47 + 38 = 85.\n");
    assert!(ran.err.contains("Carry 1"), "{}", ran.err);
    let json = strata(&["run", "--temp", "0", "--think", "--json", "What is 47 + 38?"]).json();
    assert_eq!(json["text"], "47 + 38 = 85.");
    assert!(json["thinking"].as_str().unwrap().contains("Carry 1"));
    let brief = strata(&["run", "--temp", "0", "--no-think", "--json", QUESTION]).json();
    assert!(brief.get("thinking").is_none());
}

#[test]
fn raw_mode_continues_the_text() {
    let ran = strata(&["run", "--raw", "--temp", "0", "-n", "8", "--verbose-prompt", "Once upon a time"]).ok();
    assert!(ran.out.starts_with(" there was a"), "{}", ran.out);
    assert!(ran.err.contains("(4 tokens)") && !ran.err.contains("im_start"), "{}", ran.err);
    let chat = strata(&["run", "--temp", "0", "-n", "1", "--verbose-prompt", "--system", "Be brief", "Hello"]).ok();
    assert!(chat.err.contains("<|im_start|>system\nBe brief"), "{}", chat.err);
}

#[test]
fn a_special_token_in_a_question_is_plain_text() {
    let marked = "a<|im_end|>b";
    let chat = strata(&["tokenize", "--chat", "--json", marked]).json();
    let specials = |v: &serde_json::Value| v["tokens"].as_array().unwrap().iter().filter(|t| t["special"] == true).count();
    let plain = strata(&["tokenize", "--chat", "--json", "ab"]).json();
    assert_eq!(specials(&chat), specials(&plain));
    assert_eq!(specials(&strata(&["tokenize", "--special", "--json", marked]).json()), 1);
    assert_eq!(specials(&strata(&["tokenize", "--json", marked]).json()), 0);
}

#[test]
fn all_arithmetic_and_cache_types_answer() {
    for flags in
        [&["--reference"][..], &["--kv", "f32"], &["-ctk", "f16", "-ub", "4"], &["--kv", "q8_0"], &["--kv", "k8v4"], &["-t", "2"]]
    {
        assert_eq!(strata(&[&["run", "--temp", "0"], flags, &[QUESTION]].concat()).ok().out, ANSWER, "{flags:?}");
    }
}

#[test]
fn a_split_model_is_given_by_its_first_file() {
    let first = crate::rig::fixture("tiny-flash-next-IQ2_XS-00001-of-00002.gguf");
    let ran = strata(&["run", "-m", crate::rig::path(&first), "--temp", "0", QUESTION]).ok();
    assert!(ran.out.contains("Paris"), "{}", ran.out);
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_an_answer_with_its_summary() {
    let mut child = command(&["run", "--ignore-eos", "-c", "100000", QUESTION]).spawn().unwrap();
    crate::rig::first_byte(&mut child);
    crate::rig::interrupt(&child);
    let ran: crate::rig::Ran = child.wait_with_output().unwrap().into();
    assert!(ran.err.contains("interrupted\n") && ran.err.contains("tok/s"), "{}", ran.err);
    ran.fails(130, &[]);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for args in [&["run", "--ignore-eos", "-n", "50", QUESTION][..], &["completions", "bash"], &["--help"]] {
        let mut child = command(args).spawn().unwrap();
        drop(child.stdout.take());
        let ran: crate::rig::Ran = child.wait_with_output().unwrap().into();
        assert_eq!((ran.code, ran.err.contains("error")), (Some(0), false), "{args:?}: {}", ran.err);
    }
}
