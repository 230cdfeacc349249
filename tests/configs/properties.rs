//! Random and extreme headers: an error or a model, never a panic.

use proptest::prelude::*;
use strata::engine::OpenOptions;
use strata::gguf::{Array, Value};
use strata::quant::Format;

use crate::header::{Header, key};

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
