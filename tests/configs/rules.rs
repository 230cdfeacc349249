//! Rules of the families, one by one: what breaks one is refused by name.

use std::num::NonZeroUsize;
use std::sync::Arc;

use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::engine::Engine;
use strata::gguf::{ModelFiles, Value};
use strata::model::Model;
use strata::quant::Format;

use crate::common::*;
use crate::header::{Header, key};

#[track_caller]
fn refused_with(name: &str, value: impl Into<Value>, needles: &[&str]) {
    let key = key(name);
    Header::random().set(&key, value).refused(&[&[key.as_str()], needles].concat());
}

const REQUIRED: [&str; 25] = [
    "block_count",
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
    "ssm.time_step_rank",
    "ssm.inner_size",
    "hyper_connection.count",
    "hyper_connection.low_rank",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "ple.ngram_size",
    "ple.heads_per_ngram",
    "ple.conv_kernel",
    "embedding_length_per_layer_input",
];

#[test]
fn the_fixture_itself_is_accepted_without_warnings() {
    assert_eq!(Header::random().build(), Ok(vec![]));
}

#[test]
fn a_required_key_that_is_missing_zero_or_of_another_type_is_named() {
    for name in REQUIRED {
        let key = key(name);
        Header::random().remove(&key).refused(&[&key, "needed"]);
        Header::random().set(&key, 0u32).refused(&[&key, "0"]);
        Header::random().set(&key, "many").refused(&[&key, "string", "expected"]);
        Header::random().set(&key, -1i32).refused(&[&key, "-1"]);
    }
    for name in [
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_sections",
        "ple.eos_token_id",
        "ple.layer_multipliers",
        "ple.head_offsets",
        "ple.head_vocab_sizes",
    ] {
        let key = key(name);
        Header::random().remove(&key).refused(&[&key, "needed"]);
        Header::random().set(&key, true).refused(&[&key, "bool", "expected"]);
    }
    Header::random().remove("general.architecture").refused(&["general.architecture"]);
    Header::random().set("general.architecture", "mamba").refused(&["mamba", "qwen4exp", "llama"]);
}

#[test]
fn optional_keys_may_be_absent_and_integers_may_be_signed() {
    for name in ["attention.recurrent_layers", "full_attention_interval", "ple.image_token_id", "nextn_predict_layers"] {
        assert_eq!(Header::random().remove(&key(name)).build(), Ok(vec![]), "{name}");
    }
    // Dense attention, and no n-gram embedding: what is left over is ignored with a line.
    assert!(Header::random().remove(&key("attention.compress_ratios")).build().is_ok());
    assert!(Header::random().remove(&key("ple.layers")).build().is_ok());
    let warnings = Header::random().remove(&key("rope.freq_base")).build().expect("it has a default");
    assert!(warnings.iter().any(|w| w.contains("rope.freq_base")), "{warnings:?}");
    let signed = Header::random();
    let keys = signed.keys.iter().map(|(k, v)| match v {
        Value::U32(value) => (k.clone(), Value::I32(*value as i32)),
        _ => (k.clone(), v.clone()),
    });
    assert_eq!(Header { keys: keys.collect(), ..signed.clone() }.build(), Ok(vec![]));
}

#[test]
fn arrays_have_the_length_and_type_that_the_model_needs() {
    refused_with("attention.recurrent_layers", vec![true, true, false], &["4", "3"]);
    refused_with("attention.recurrent_layers", vec![1u32, 1, 1, 0], &["expected"]);
    refused_with("attention.compress_ratios", vec![0i32, 0, 0, 4, 4], &["4", "5"]);
    refused_with("ple.layer_multipliers", vec![1u64, 2], &["2", "3"]);
    refused_with("ple.head_offsets", vec![0u64; 7], &["7", "8"]);
    refused_with("ple.head_vocab_sizes", vec![1u64; 7], &["7", "8"]);
    refused_with("ple.head_offsets", vec![0i32; 8], &["expected"]);
    refused_with("rope.dimension_sections", vec![16i32, 0], &["2"]);
    refused_with("expert_count", vec![8u32, 8, 8, 4], &["4"]);
    refused_with("expert_used_count", vec![4u32, 4, 4], &["3", "4"]);
}

#[test]
fn sizes_must_fit_together() {
    refused_with("attention.head_count_kv", 0u32, &["0"]);
    refused_with("attention.head_count_kv", 3u32, &["3"]);
    refused_with("attention.value_length", 32u32, &["32"]);
    refused_with("rope.dimension_count", 31u32, &["31", "even"]);
    refused_with("rope.dimension_count", 128u32, &["128"]);
    refused_with("rope.dimension_sections", vec![6i32, 5, 4, 0], &["[6, 5, 4, 0]", "pair 14"]);
    refused_with("attention.indexer.key_length", 16u32, &["16", "rope.dimension_count"]);
    refused_with("ssm.inner_size", 127u32, &["127"]);
    Header::random().set(&key("ssm.group_count"), 3u32).refused(&["ssm.time_step_rank", "ssm.group_count"]);
    let bare = Header::random().remove(&key("attention.recurrent_layers"));
    bare.set(&key("full_attention_interval"), 0u32).refused(&["full_attention_interval", "0"]);
    refused_with("expert_used_count", 9u32, &["9", "expert_count"]);
    refused_with("hyper_connection.count", 1u32, &["1"]);
}

#[test]
fn numbers_that_are_no_numbers_are_refused() {
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        refused_with("attention.layer_norm_rms_epsilon", value, &[]);
        refused_with("rope.freq_base", value, &[]);
    }
    let yarn = || Header::random().set(&key("rope.scaling.type"), "yarn").set(&key("rope.scaling.factor"), 4f32);
    assert!(yarn().build().is_ok());
    yarn().remove(&key("rope.scaling.factor")).refused(&["rope.scaling.factor", "missing"]);
    yarn().set(&key("rope.scaling.factor"), -2f32).refused(&["rope.scaling.factor", "-2"]);
    yarn().set(&key("rope.scaling.original_context_length"), 0u32).refused(&["original_context_length", "0"]);
    for name in ["attn_factor", "yarn_beta_fast", "yarn_beta_slow"] {
        yarn().set(&key(&format!("rope.scaling.{name}")), f32::NAN).refused(&[name, "NaN"]);
    }
    refused_with("rope.scaling.type", "longrope", &["longrope", "yarn"]);
    assert!(Header::random().set(&key("rope.scaling.type"), "none").build().is_ok());
}

#[test]
fn sparse_attention_has_whole_blocks_of_at_most_64_tokens() {
    refused_with("attention.indexer.top_k", 30u32, &["30", "multiple"]);
    refused_with("attention.compress_ratios", vec![0i32, 0, 0, 65], &["65", "64"]);
    // Ratios of delta-net layers mean nothing.
    assert_eq!(Header::random().set(&key("attention.compress_ratios"), vec![7i32, 100, 0, 4]).build(), Ok(vec![]));
}

#[test]
fn the_ngram_embedding_follows_its_rules() {
    refused_with("ple.layers", vec![0i32, 1], &["[0, 1]", "one"]);
    refused_with("ple.layers", vec![3i32], &["3", "delta-net"]);
    refused_with("ple.layers", vec![4i32], &["4"]);
    for size in [1u32, 9] {
        refused_with("ple.ngram_size", size, &[&size.to_string(), "2 to 8"]);
    }
    refused_with("ple.heads_per_ngram", 65u32, &["65", "64"]);
    refused_with("embedding_length_per_layer_input", 31u32, &["31"]);
    refused_with("ple.eos_token_id", 512u32, &["512", "vocabulary"]);
    refused_with("ple.image_token_id", 512u32, &["512", "vocabulary"]);
    refused_with("ple.head_vocab_sizes", vec![211u64, 0, 227, 229, 233, 239, 241, 251], &["0"]);
    refused_with("ple.head_vocab_sizes", vec![1921u64; 8], &["0+1921", "1920"]);
    refused_with("ple.head_vocab_sizes", vec![u64::MAX; 8], &["18446744073709551615"]);
    let table = "per_layer_token_embd.weight";
    Header::random().tensor(table, &[33, 1920], Format::BF16).refused(&[table, "[33, 1920]", "[32, 1920]"]);
    // Rows beyond 31 bits, in a table that has them.
    let huge = Header::random().tensor(table, &[32, 1 << 32], Format::BF16);
    huge.set(&key("ple.head_vocab_sizes"), vec![1u64 << 31; 8]).refused(&["ple.head_vocab_sizes", "2147483648"]);
    let wraps = Header::random().set(&key("ple.layer_multipliers"), vec![u64::MAX, 3, 5]).build().expect("only a warning");
    assert!(wraps.iter().any(|w| w.contains("layer_multipliers")), "{wraps:?}");
}

#[test]
fn draft_layers_are_recognised_and_a_file_of_drafts_alone_is_refused() {
    refused_with("nextn_predict_layers", 2u32, &["2"]);
    let one = Header::random().set(&key("block_count"), 1u32);
    one.set(&key("nextn_predict_layers"), 1u32).refused(&["nextn_predict_layers", "1"]);
    Header::of(&fixture("tiny-flash-next-MTP-Q5_0.gguf")).refused(&["draft", "own file"]);
}

#[test]
fn every_tensor_must_be_there_with_its_shape_and_a_usable_format() {
    let all = ["llama-moe", "llama-factors", "qwen2", "qwen3", "qwen3moe", "gemma3"].map(Header::family);
    for header in all.into_iter().chain([Header::random()]) {
        let optional = |name: &str| {
            ["output.weight", "rope_freqs.weight"].contains(&name)
                || name.ends_with("attn_q.bias")
                || name.ends_with("attn_k.bias")
                || name.ends_with("attn_v.bias")
        };
        for (name, shape, format) in &header.tensors {
            if !optional(name) {
                header.clone().drop_tensor(name).refused(&[name, "no tensor"]);
            }
            let mut longer = shape.clone();
            longer[0] += format.info().block_len as u64;
            let found = format!("[{}]", longer.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
            header.clone().tensor(name, &longer, *format).refused(&[name, &found, "expected"]);
            if let [cols, rows] = shape[..]
                && cols != rows
                // More rows of these two are for the vocabulary to judge.
                && !["token_embd.weight", "per_layer_token_embd.weight"].contains(&name.as_str())
            {
                let found = format!("[{rows}, {cols}]");
                header.clone().tensor(name, &[rows, cols], Format::F32).refused(&[name, &found, "expected"]);
            }
            if shape.len() == 1 && shape[0].is_multiple_of(32) && name.contains("norm") {
                header.clone().tensor(name, shape, Format::Q8_0).refused(&[name, "Q8_0", "F32"]);
            }
        }
        let embedding = header.shape("token_embd.weight");
        let more = [embedding[0], embedding[1] + 1];
        let mut changed = header.clone().tensor("token_embd.weight", &more, Format::F32);
        if header.tensors.iter().any(|(n, _, _)| n == "output.weight") {
            changed = changed.tensor("output.weight", &more, Format::F32);
        }
        let found = format!("{}", embedding[1]);
        changed.refused(&["tokenizer.ggml.tokens", &found, &format!("{}", embedding[1] + 1)]);
    }
}

#[test]
fn fused_experts_come_first_and_unknown_tensors_are_one_line() {
    let mut header = Header::random();
    for layer in 0..4 {
        header = header.tensor(&format!("blk.{layer}.ffn_gate_up_exps.weight"), &[256, 64, 8], Format::BF16);
    }
    let warnings = header.build().expect("it is accepted");
    assert!(warnings.len() == 1 && warnings[0].contains("ffn_gate_up_exps"), "{warnings:?}");
    for header in [Header::random(), Header::family("llama-gqa")] {
        let header = header.tensor("blk.0.strange.weight", &[8], Format::F32).tensor("odd.weight", &[8], Format::F32);
        let warnings = header.build().expect("it is accepted");
        assert!(warnings.len() == 1 && warnings[0].contains("2 unknown tensors"), "{warnings:?}");
    }
}

#[test]
fn the_other_families_name_what_is_wrong() {
    for name in ["llama-gqa", "llama-moe", "qwen2", "qwen3", "qwen3moe", "gemma3"] {
        let header = Header::family(name);
        let key = |k: &str| format!("{}.{k}", header.arch());
        let mut required = vec!["block_count", "context_length", "embedding_length", "attention.head_count"];
        required.push(if header.arch() == "qwen3moe" { "expert_used_count" } else { "feed_forward_length" });
        for name in required {
            let key = key(name);
            header.clone().remove(&key).refused(&[&key, "needed"]);
            header.clone().set(&key, 0u32).refused(&[&key, "0"]);
            header.clone().set(&key, "many").refused(&[&key, "string"]);
        }
        header.clone().remove(&key("attention.layer_norm_rms_epsilon")).refused(&["layer_norm_rms_epsilon", "needed"]);
        header.clone().set(&key("attention.head_count_kv"), 5u32).refused(&[&key("attention.head_count_kv"), "5"]);
        header.clone().set(&key("attention.value_length"), 7u32).refused(&[&key("attention.value_length"), "7"]);
        header.clone().set(&key("rope.dimension_count"), 7u32).refused(&[&key("rope.dimension_count"), "7"]);
        header.clone().set(&key("rope.freq_base"), f32::NAN).refused(&[&key("rope.freq_base"), "NaN"]);
        header.clone().set(&key("rope.scaling.type"), "longrope").refused(&[&key("rope.scaling.type"), "longrope"]);
        // Traits of relatives that would give other numbers.
        header.clone().set(&key("final_logit_softcapping"), 30f32).refused(&[&key("final_logit_softcapping"), "30"]);
        header.clone().set(&key("attention.causal"), false).refused(&[&key("attention.causal"), "false"]);
        header.clone().set(&key("pooling_type"), 2u32).refused(&[&key("pooling_type"), "2", "mean"]);
        let bias = "blk.0.ffn_gate.bias";
        if header.tensors.iter().any(|(n, _, _)| n == "blk.0.ffn_gate.weight") {
            let rows = header.shape("blk.0.ffn_gate.weight")[1];
            header.clone().tensor(bias, &[rows], Format::F32).refused(&[bias, "not supported"]);
        }
    }
    let moe = Header::family("qwen3moe");
    moe.clone().set("qwen3moe.expert_count", 0u32).refused(&["qwen3moe.expert_count", "0"]);
    moe.clone().set("qwen3moe.expert_used_count", 9u32).refused(&["qwen3moe.expert_used_count", "9", "8"]);
    let gemma = Header::family("gemma3-local");
    let pattern = "gemma3.attention.sliding_window_pattern";
    gemma.clone().set(pattern, vec![true, false]).refused(&[pattern, "4", "2"]);
    gemma.clone().set("gemma3.rope.freq_base_swa", 0f32).refused(&["gemma3.rope.freq_base_swa", "0"]);
    // A number a layer is as good as one for all, if the layers agree.
    let llama = Header::family("llama-gqa");
    assert!(llama.clone().set("llama.attention.head_count_kv", vec![2u32, 2]).build().is_ok());
    llama.clone().set("llama.attention.head_count_kv", vec![2u32, 4]).refused(&["llama.attention.head_count_kv", "2", "4"]);
}

/// Opens a fixture for real, with one float of one tensor replaced.
fn load_with(tensor: &str, element: usize, value: f32) -> Result<(), String> {
    let files = ModelFiles::open(model_path(RANDOM)).expect("the fixture opens");
    let place = files.tensor(tensor).expect("a tensor of that name");
    assert_eq!(place.format, Format::F32);
    let at = place.offset as usize + element * 4;
    let mut bytes = std::fs::read(model_path(RANDOM)).expect("a readable file");
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let files = Arc::new(ModelFiles::from_bytes("changed.gguf", bytes).expect("the file opens"));
    let model = Arc::new(Model::open(&files).map_err(|e| e.to_string())?);
    let threads = NonZeroUsize::new(1).expect("threads");
    let cpu = CpuBackend::new(CpuOptions::new(Mode::Reference).with_threads(threads)).expect("the backend opens");
    let options = options(Mode::Reference, 64, 8);
    Engine::open(files, model, Box::new(cpu), options, &mut |_| ()).map(drop).map_err(|e| e.to_string())
}

#[test]
fn norms_and_decays_hold_possible_values() {
    assert_eq!(load_with("blk.0.hc_attn_norm.weight", 5, 0.25), Ok(()));
    for (tensor, element, value, found) in [
        ("blk.0.hc_attn_norm.weight", 5, f32::NAN, "NaN"),
        ("output_hc_norm.weight", 1023, f32::INFINITY, "inf"),
        ("blk.2.ssm_dt.bias", 1, f32::NEG_INFINITY, "-inf"),
        ("blk.1.ssm_a", 1, 0.5, "0.5"),
        ("blk.1.ssm_a", 0, 0.0, "0"),
        ("blk.1.ssm_a", 0, f32::NAN, "NaN"),
    ] {
        let error = load_with(tensor, element, value).expect_err("a refusal");
        assert!(error.contains(tensor) && error.contains(found), "{error}");
    }
}
