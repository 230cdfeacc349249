//! Promise: a model that breaks a rule of its family (for `qwen4exp`: section 8.3 of the specification) is refused with the
//! key or tensor at fault and what was found, and no metadata or table of tensors, however absurd, makes opening a model or
//! building its programs panic.

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use common::*;
use proptest::prelude::*;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::engine::{Engine, OpenOptions};
use strata::gguf::{Array, GgufWriter, Metadata, ModelFiles, Value};
use strata::model::{Model, StageOptions, Tensors};
use strata::quant::Format;

/// A model's header as it can be changed: its keys, and its tensors without data.
#[derive(Debug, Clone)]
struct Header {
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, Format)>,
}

impl Header {
    fn of(path: &Path) -> Header {
        let files = ModelFiles::open(path).expect("the fixture opens");
        Header {
            keys: files.metadata().iter().map(|(k, v)| (k.to_string(), v.clone())).collect(),
            tensors: files.tensors().iter().map(|t| (t.name.clone(), t.shape.clone(), t.format)).collect(),
        }
    }

    fn random() -> Header {
        Header::of(&model_path(RANDOM))
    }

    fn family(name: &str) -> Header {
        Header::of(&fixture(&format!("families/{name}.gguf")))
    }

    fn arch(&self) -> String {
        match self.keys.iter().find(|(k, _)| k == "general.architecture") {
            Some((_, Value::String(arch))) => arch.clone(),
            other => panic!("no architecture: {other:?}"),
        }
    }

    fn set(mut self, key: &str, value: impl Into<Value>) -> Header {
        let value = value.into();
        match self.keys.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.keys.push((key.to_string(), value)),
        }
        self
    }

    fn remove(mut self, key: &str) -> Header {
        self.keys.retain(|(k, _)| k != key);
        self
    }

    fn drop_tensor(mut self, name: &str) -> Header {
        self.tensors.retain(|(n, _, _)| n != name);
        self
    }

    fn tensor(mut self, name: &str, shape: &[u64], format: Format) -> Header {
        match self.tensors.iter_mut().find(|(n, _, _)| n == name) {
            Some(entry) => *entry = (name.to_string(), shape.to_vec(), format),
            None => self.tensors.push((name.to_string(), shape.to_vec(), format)),
        }
        self
    }

    fn shape(&self, name: &str) -> Vec<u64> {
        self.tensors.iter().find(|(n, _, _)| n == name).map(|(_, shape, _)| shape.clone()).expect("a tensor of that name")
    }

    /// The files, as far as a header says; `None` where not even that can be written.
    fn files(&self) -> Option<ModelFiles> {
        let mut metadata = Metadata::new();
        for (key, value) in &self.keys {
            metadata.insert(key, value.clone());
        }
        let mut writer = GgufWriter::new();
        writer.set_all(&metadata);
        for (name, shape, format) in &self.tensors {
            writer.zeros(name, shape, *format).ok()?;
        }
        let (header, file_bytes) = writer.header().ok()?;
        ModelFiles::from_header("changed.gguf", header.as_slice(), file_bytes).ok()
    }

    /// Opens the model and builds all of it: its warnings, or the error.
    fn build_with(&self, options: &OpenOptions) -> Result<Vec<String>, String> {
        let files = self.files().ok_or("unwritable")?;
        let model = Model::open(&files).map_err(|e| e.to_string())?;
        let options: StageOptions = options.stage_options(0..model.dims().layers);
        model.config.stage(&Tensors::new(&files), &options).map_err(|e| e.to_string())?;
        Ok(model.warnings)
    }

    fn build(&self) -> Result<Vec<String>, String> {
        self.build_with(&OpenOptions { context: 128, ..OpenOptions::default() })
    }

    #[track_caller]
    fn refused(&self, needles: &[&str]) {
        let error = self.build().expect_err(&format!("no error with {needles:?}"));
        for needle in needles {
            assert!(error.contains(needle), "the error says nothing of {needle:?}: {error}");
        }
    }
}

fn key(name: &str) -> String {
    format!("qwen4exp.{name}")
}

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

/// Sizes at the edges of what a type holds.
const EDGES: [u32; 22] = [
    0,
    1,
    2,
    3,
    4,
    7,
    16,
    63,
    64,
    65,
    256,
    1000,
    1 << 12,
    1 << 16,
    (1 << 16) + 1,
    1 << 20,
    1 << 28,
    (1 << 28) + 1,
    1 << 30,
    1 << 31,
    u32::MAX - 1,
    u32::MAX,
];

fn edge() -> impl Strategy<Value = u32> {
    prop_oneof![4 => prop::sample::select(EDGES.to_vec()), 1 => any::<u32>()]
}

fn any_value() -> impl Strategy<Value = Value> {
    let floats = prop::sample::select(vec![0f32, -1.0, 1.0, 1e-38, 3e38, f32::NAN, f32::INFINITY, 0.1]);
    prop_oneof![
        8 => edge().prop_map(Value::U32),
        1 => any::<i32>().prop_map(Value::I32),
        1 => any::<u64>().prop_map(Value::U64),
        2 => floats.prop_map(Value::F32),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => prop::sample::select(vec!["", "yarn", "linear", "none"]).prop_map(Value::from),
        2 => prop::collection::vec(edge(), 0..9).prop_map(Value::from),
        1 => prop::collection::vec(any::<bool>(), 0..6).prop_map(Value::from),
        1 => prop::collection::vec(prop_oneof![Just(u64::MAX), Just(0), any::<u64>(), 0u64..300], 0..9)
            .prop_map(|v| Value::Array(Array::U64(v))),
    ]
}

/// A change of a header: by the number of a key or tensor, to be taken modulo their count.
#[derive(Debug, Clone)]
enum Change {
    Set(usize, Value),
    Remove(usize),
    Scaling(u8, f32),
    Shape(usize, Vec<u32>),
    Drop(usize),
    Reformat(usize, Format),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        12 => (any::<usize>(), any_value()).prop_map(|(i, v)| Change::Set(i, v)),
        2 => any::<usize>().prop_map(Change::Remove),
        2 => (any::<u8>(), prop::sample::select(vec![0f32, 0.5, 4.0, 1e30, f32::NAN])).prop_map(|(k, f)| Change::Scaling(k, f)),
        2 => (any::<usize>(), prop::collection::vec(edge(), 1..4)).prop_map(|(i, s)| Change::Shape(i, s)),
        1 => any::<usize>().prop_map(Change::Drop),
        1 => (any::<usize>(), prop::sample::select(vec![Format::F32, Format::Q8_0, Format::Q4_K, Format::BF16]))
            .prop_map(|(i, f)| Change::Reformat(i, f)),
    ]
}

impl Change {
    fn apply(&self, header: &mut Header) {
        let arch = header.arch();
        let prefix = format!("{arch}.");
        let keys: Vec<usize> = (0..header.keys.len()).filter(|i| header.keys[*i].0.starts_with(&prefix)).collect();
        let tensors = header.tensors.len().max(1);
        match self {
            Change::Set(i, value) => header.keys[keys[i % keys.len()]].1 = value.clone(),
            Change::Remove(i) if keys.len() > 1 => drop(header.keys.remove(keys[i % keys.len()])),
            Change::Remove(_) => {}
            Change::Scaling(kind, factor) => {
                let kinds = ["linear", "yarn", "none"];
                *header = header
                    .clone()
                    .set(&format!("{arch}.rope.scaling.type"), kinds[*kind as usize % 3])
                    .set(&format!("{arch}.rope.scaling.factor"), *factor)
                    .set(&format!("{arch}.rope.scaling.yarn_beta_fast"), *factor * 0.5)
                    .set(&format!("{arch}.rope.scaling.original_context_length"), *factor as u32);
            }
            Change::Shape(i, shape) => {
                if let Some(tensor) = header.tensors.get_mut(i % tensors) {
                    tensor.1 = shape.iter().map(|d| u64::from(*d)).collect();
                }
            }
            Change::Drop(i) if !header.tensors.is_empty() => drop(header.tensors.remove(i % tensors)),
            Change::Drop(_) => {}
            Change::Reformat(i, format) => {
                if let Some(tensor) = header.tensors.get_mut(i % tensors) {
                    tensor.2 = *format;
                }
            }
        }
    }
}

fn any_options() -> impl Strategy<Value = OpenOptions> {
    (edge(), edge(), edge(), edge(), edge(), edge()).prop_map(|(context, slots, prompt_rows, decode_rows, max_outputs, undo)| {
        OpenOptions { context, slots, prompt_rows, decode_rows, max_outputs, undo_tokens: undo, ..OpenOptions::default() }
    })
}

/// A whole `qwen4exp` model of one delta-net and one attention layer whose tensors agree with its keys.
#[derive(Debug, Clone)]
struct Sizes {
    width: u32,
    streams: u32,
    rank: u32,
    heads: u32,
    kv_heads: u32,
    dim: u32,
    key_heads: u32,
    value_heads: u32,
    state: u32,
    kernel: u32,
    experts: u32,
    used: u32,
    hidden: u32,
    shared: u32,
    index_heads: u32,
    top_k: u32,
}

const SMALL: Sizes = Sizes {
    width: 64,
    streams: 4,
    rank: 8,
    heads: 4,
    kv_heads: 2,
    dim: 32,
    key_heads: 1,
    value_heads: 2,
    state: 32,
    kernel: 4,
    experts: 8,
    used: 2,
    hidden: 32,
    shared: 32,
    index_heads: 2,
    top_k: 64,
};

/// Number of fields of [`Sizes`].
const FIELDS: usize = 16;

impl Sizes {
    fn with(mut self, field: usize, value: u32) -> Sizes {
        let fields: [&mut u32; FIELDS] = [
            &mut self.width,
            &mut self.streams,
            &mut self.rank,
            &mut self.heads,
            &mut self.kv_heads,
            &mut self.dim,
            &mut self.key_heads,
            &mut self.value_heads,
            &mut self.state,
            &mut self.kernel,
            &mut self.experts,
            &mut self.used,
            &mut self.hidden,
            &mut self.shared,
            &mut self.index_heads,
            &mut self.top_k,
        ];
        *fields[field] = value;
        self
    }

    fn header(&self) -> Header {
        let s = self;
        let mut header = Header { keys: vec![], tensors: vec![] }.set("general.architecture", "qwen4exp");
        for (name, value) in [
            ("block_count", 2),
            ("context_length", 4096),
            ("embedding_length", s.width),
            ("attention.head_count", s.heads),
            ("attention.head_count_kv", s.kv_heads),
            ("attention.key_length", s.dim),
            ("attention.value_length", s.dim),
            ("rope.dimension_count", s.dim),
            ("expert_count", s.experts),
            ("expert_used_count", s.used),
            ("expert_feed_forward_length", s.hidden),
            ("expert_shared_feed_forward_length", s.shared),
            ("ssm.conv_kernel", s.kernel),
            ("ssm.state_size", s.state),
            ("ssm.group_count", s.key_heads),
            ("ssm.time_step_rank", s.value_heads),
            ("ssm.inner_size", s.value_heads.wrapping_mul(s.state)),
            ("hyper_connection.count", s.streams),
            ("hyper_connection.low_rank", s.rank),
            ("attention.indexer.head_count", s.index_heads),
            ("attention.indexer.key_length", s.dim),
            ("attention.indexer.top_k", s.top_k),
        ] {
            header = header.set(&key(name), value);
        }
        header = header
            .set(&key("attention.layer_norm_rms_epsilon"), 1e-6f32)
            .set(&key("rope.dimension_sections"), vec![s.dim; 3])
            .set(&key("attention.recurrent_layers"), vec![true, false])
            .set(&key("attention.compress_ratios"), vec![0u32, 1]);
        let n = u64::from;
        let wide = n(s.width).saturating_mul(n(s.streams));
        let inner = n(s.value_heads) * n(s.state);
        let channels = (n(s.key_heads) * n(s.state)).saturating_mul(2).saturating_add(inner);
        let (q, kv) = (n(s.heads) * n(s.dim), n(s.kv_heads) * n(s.dim));
        let mut add = |name: String, shape: &[u64]| header = header.clone().tensor(&name, shape, Format::F32);
        add("token_embd.weight".into(), &[n(s.width), 32]);
        let mix = |add: &mut dyn FnMut(String, &[u64]), base: String| {
            add(format!("{base}_norm.weight"), &[wide]);
            add(format!("{base}_down.weight"), &[wide, n(s.rank)]);
            add(format!("{base}_up.weight"), &[n(s.rank), wide]);
            add(format!("{base}_inject.weight"), &[wide, n(s.streams)]);
        };
        mix(&mut add, "output_hc".into());
        for i in 0..2 {
            mix(&mut add, format!("blk.{i}.hc_attn"));
            mix(&mut add, format!("blk.{i}.hc_ffn"));
            let (w, h, e, sh) = (n(s.width), n(s.hidden), n(s.experts), n(s.shared));
            for (part, shape) in [
                ("ffn_gate_inp_shexp", vec![w]),
                ("ffn_gate_shexp", vec![w, sh]),
                ("ffn_up_shexp", vec![w, sh]),
                ("ffn_down_shexp", vec![sh, w]),
                ("ffn_gate_inp", vec![w, e]),
                ("ffn_gate_exps", vec![w, h, e]),
                ("ffn_up_exps", vec![w, h, e]),
                ("ffn_down_exps", vec![h, w, e]),
            ] {
                add(format!("blk.{i}.{part}.weight"), &shape);
            }
        }
        let w = n(s.width);
        for (part, shape) in [
            ("attn_qkv.weight", vec![w, channels]),
            ("attn_gate.weight", vec![w, inner]),
            ("ssm_alpha.weight", vec![w, n(s.value_heads)]),
            ("ssm_beta.weight", vec![w, n(s.value_heads)]),
            ("ssm_a", vec![n(s.value_heads)]),
            ("ssm_dt.bias", vec![n(s.value_heads)]),
            ("ssm_conv1d.weight", vec![n(s.kernel), channels]),
            ("ssm_norm.weight", vec![n(s.state)]),
            ("ssm_out.weight", vec![inner, w]),
        ] {
            add(format!("blk.0.{part}"), &shape);
        }
        for (part, shape) in [
            ("attn_q", vec![w, q.saturating_mul(2)]),
            ("attn_k", vec![w, kv]),
            ("attn_v", vec![w, kv]),
            ("attn_output", vec![q, w]),
            ("attn_q_norm", vec![n(s.dim)]),
            ("attn_k_norm", vec![n(s.dim)]),
            ("indexer.q_proj", vec![w, n(s.index_heads) * n(s.dim)]),
            ("indexer.k_proj", vec![w, n(s.dim)]),
            ("indexer.q_norm", vec![n(s.dim)]),
            ("indexer.k_norm", vec![n(s.dim)]),
        ] {
            add(format!("blk.1.{part}.weight"), &shape);
        }
        header
    }
}

#[test]
fn the_model_of_the_property_tests_is_accepted_at_ordinary_sizes() {
    SMALL.header().build().expect("a sound model");
    // Too large for any machine, but not absurd one by one.
    let options = OpenOptions { context: u32::MAX, slots: u32::MAX, ..OpenOptions::default() };
    let error = SMALL.header().build_with(&options).expect_err("a refusal");
    assert!(error.contains("State arena") && error.contains("more than any machine has"), "{error}");
}

#[test]
fn one_size_at_its_edges_makes_a_clear_error_or_a_model() {
    let (mut accepted, mut refused) = (0, 0);
    for field in 0..FIELDS {
        for value in EDGES.into_iter().filter(|v| *v > 0) {
            match SMALL.clone().with(field, value).header().build() {
                Ok(_) => accepted += 1,
                Err(error) => {
                    assert!(error.contains("qwen4exp.") || error == "unwritable", "field {field} = {value}: {error}");
                    refused += 1;
                }
            }
        }
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 100 && refused > 50, "{accepted} accepted, {refused} refused");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_a_header_makes_building_panic(
        base in 0usize..8,
        changes in prop::collection::vec(change(), 1..5),
        options in any_options(),
    ) {
        // The flagship half of the time.
        let mut header = BASES.with(|b| b[base.saturating_sub(3)].clone());
        for change in &changes {
            change.apply(&mut header);
        }
        if let Err(error) = header.build_with(&options) {
            prop_assert!(!error.is_empty());
        }
    }

    #[test]
    fn no_sizes_make_building_a_consistent_model_panic(
        changes in prop::collection::vec((0..FIELDS, edge()), 1..4),
        options in any_options(),
    ) {
        let sizes = changes.into_iter().fold(SMALL, |sizes, (field, value)| sizes.with(field, value));
        if let Err(error) = sizes.header().build_with(&options) {
            prop_assert!(!error.is_empty());
        }
    }
}

thread_local! {
    /// Without the vocabulary, which only costs time here.
    static BASES: [Header; 5] = {
        let bare = |mut header: Header| {
            header.keys.retain(|(k, _)| !k.starts_with("tokenizer."));
            header
        };
        [
            bare(Header::random()),
            bare(Header::family("llama-yarn")),
            bare(Header::family("qwen2")),
            bare(Header::family("qwen3moe")),
            bare(Header::family("gemma3-local")),
        ]
    };
}
