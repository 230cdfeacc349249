//! Verbs whose output is data: inspect, tokenize, bench, completions, help.

use crate::rig::{fixture, path, random_model, strata, strata_with_input};

#[test]
fn inspect_shows_what_is_in_a_file() {
    let file = fixture("tiny-flash-next-IQ2_XS-00001-of-00002.gguf");
    let ran = strata(&["inspect", path(&file)]).ok();
    for part in ["00002-of-00002", "general.architecture", "experts", "n-gram table", "IQ2_XS", "bits/weight", "8 layers"] {
        assert!(ran.out.contains(part), "'{part}' is not in: {}", ran.out);
    }
    assert!(!ran.out.contains("blk.0.ffn_gate_exps.weight"));
    assert!(strata(&["inspect", "--tensors", path(&file)]).ok().out.contains("blk.0.ffn_gate_exps.weight"));
}

#[test]
fn inspect_json_adds_up() {
    let json = strata(&["inspect", "--json", "--tensors", &random_model()]).json();
    let tensors = json["tensors"].as_array().unwrap();
    let bytes: u64 = tensors.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    for table in ["by_part", "by_format"] {
        let rows = json[table].as_object().unwrap();
        assert_eq!(rows.values().map(|r| r["bytes"].as_u64().unwrap()).sum::<u64>(), bytes, "{table}");
        assert_eq!(rows.values().map(|r| r["tensors"].as_u64().unwrap()).sum::<u64>(), tensors.len() as u64, "{table}");
    }
    assert_eq!(json["metadata"]["general.architecture"], "qwen4exp");
    assert_eq!(json["problem"], serde_json::Value::Null);
}

#[test]
fn inspect_shows_files_that_cannot_be_run() {
    let draft = fixture("tiny-flash-next-MTP-Q5_0.gguf");
    let ran = strata(&["inspect", path(&draft)]).ok();
    assert!(ran.out.contains("cannot be run") && ran.out.contains("draft layer"), "{}", ran.out);
    strata(&["run", "-m", path(&draft), "x"]).fails(1, &["draft layer", "MTP"]);
}

#[test]
fn inspect_prints_programs() {
    let ran = strata(&["inspect", "--program", &random_model()]).ok();
    assert!(ran.out.contains("program decode") && ran.out.contains("program prompt"), "{}", ran.out);
}

#[test]
fn tokens_go_there_and_back() {
    let text = " Hello,\tworld\n\u{1F600} e\u{301}";
    let json = strata_with_input(&["tokenize", "--json"], text).json();
    let ids: Vec<String> = json["tokens"].as_array().unwrap().iter().map(|t| t["id"].to_string()).collect();
    let back = strata(&["tokenize", "--json", "--ids", &ids.join(",")]).json();
    // The family normalises to composed characters.
    assert_eq!(back["text"], " Hello,\tworld\n\u{1F600} \u{e9}");
    let lines = strata(&["tokenize", "Hello"]).ok().out;
    assert!(lines.lines().count() >= 1 && lines.contains('"'));
}

#[test]
fn bench_measures() {
    let args = ["bench", "-m", &random_model(), "-p", "4,8", "-n", "2", "-d", "0,3", "-r", "2"];
    let table = strata(&args).ok().out;
    for part in ["pp4 ", "pp8 ", "tg2 ", "tg2 @ d3", "GB/s", "threads"] {
        assert!(table.contains(part), "'{part}' is not in: {table}");
    }
    let json = strata(&[&args[..], &["--json"]].concat()).json();
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    for r in results {
        let rate = |name: &str| r[name].as_f64().unwrap();
        assert!(rate("min_tokens_per_second") <= rate("median_tokens_per_second"));
        assert!(rate("median_tokens_per_second") <= rate("max_tokens_per_second"));
        assert_eq!(r["gb_per_second"].is_null(), r["test"].as_str().unwrap().starts_with("pp"));
    }
}

#[test]
fn help_version_and_completions() {
    let help = strata(&["--help"]).ok().out;
    for verb in ["run", "chat", "inspect", "bench", "trace", "replay", "tokenize", "logits", "completions"] {
        assert!(help.contains(verb), "{help}");
        assert!(strata(&[verb, "--help"]).ok().out.contains("Usage"), "{verb}");
    }
    assert!(strata(&["--version"]).ok().out.contains(env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(strata(&["completions", shell]).ok().out.contains("strata"), "{shell}");
    }
}
