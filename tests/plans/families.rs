//! Ordinary models: llama, qwen2, qwen3, qwen3moe, gemma3.

use super::support::{machine, planned};
use strata::plan::{KvType, Limits, MetaValue, ModelHeader, PlanModel, TensorRow};
use strata::quant::Format;

/// A model of `layers` layers, 32 heads of 128 with 8 KV heads.
fn header(arch: &str, layers: u64, experts: u64, tied: bool) -> ModelHeader {
    let mut header = ModelHeader::default();
    header.metadata.insert("general.architecture".into(), MetaValue::Text(arch.into()));
    header.metadata.insert("general.name".into(), MetaValue::Text(format!("some {arch}")));
    let numbers = [
        ("block_count", layers),
        ("context_length", 32_768),
        ("embedding_length", 4096),
        ("feed_forward_length", 14_336),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
        ("expert_count", experts),
        ("expert_used_count", 8),
        ("expert_feed_forward_length", 768),
    ];
    for (key, value) in numbers.into_iter().filter(|(key, value)| *value > 0 || !key.starts_with("expert")) {
        header.metadata.insert(format!("{arch}.{key}"), MetaValue::Unsigned(value));
    }
    header.metadata.insert(format!("{arch}.attention.layer_norm_rms_epsilon"), MetaValue::Float(1e-6));
    let mut add = |name: String, format: Format, shape: &[u64]| {
        header.tensors.push(TensorRow { name, format, shape: shape.to_vec() });
    };
    add("token_embd.weight".into(), Format::Q4_K, &[4096, 128_256]);
    if !tied {
        add("output.weight".into(), Format::Q6_K, &[4096, 128_256]);
    }
    add("output_norm.weight".into(), Format::F32, &[4096]);
    for l in 0..layers {
        let gemma = ["post_attention_norm", "post_ffw_norm"].iter().filter(|_| arch == "gemma3");
        for norm in ["attn_norm", "ffn_norm"].iter().chain(gemma) {
            add(format!("blk.{l}.{norm}.weight"), Format::F32, &[4096]);
        }
        for norm in ["attn_q_norm", "attn_k_norm"].iter().filter(|_| arch != "llama" && arch != "qwen2") {
            add(format!("blk.{l}.{norm}.weight"), Format::F32, &[128]);
        }
        add(format!("blk.{l}.attn_q.weight"), Format::Q4_K, &[4096, 4096]);
        add(format!("blk.{l}.attn_k.weight"), Format::Q4_K, &[4096, 1024]);
        add(format!("blk.{l}.attn_v.weight"), Format::Q6_K, &[4096, 1024]);
        add(format!("blk.{l}.attn_output.weight"), Format::Q4_K, &[4096, 4096]);
        if experts > 0 {
            add(format!("blk.{l}.ffn_gate_inp.weight"), Format::F32, &[4096, experts]);
            for part in ["gate", "up"] {
                add(format!("blk.{l}.ffn_{part}_exps.weight"), Format::Q4_K, &[4096, 768, experts]);
            }
            add(format!("blk.{l}.ffn_down_exps.weight"), Format::Q6_K, &[768, 4096, experts]);
        } else {
            add(format!("blk.{l}.ffn_gate.weight"), Format::Q4_K, &[4096, 14_336]);
            add(format!("blk.{l}.ffn_up.weight"), Format::Q4_K, &[4096, 14_336]);
            add(format!("blk.{l}.ffn_down.weight"), Format::Q4_K, &[14_336, 4096]);
        }
    }
    header
}

#[test]
fn every_family_is_planned() {
    for (arch, experts, tied) in
        [("llama", 0, false), ("qwen2", 0, false), ("qwen3", 0, true), ("qwen3moe", 64, false), ("gemma3", 0, true)]
    {
        let model = PlanModel::from_header(&header(arch, 32, experts, tied)).unwrap();
        assert_eq!((model.streams, model.tied_head, model.ngram), (1, tied, None));
        let limits = Limits { context: Some(8192), ..Limits::default() };
        let plan = planned(&model, &machine("linux-rtx3090-24g-128g"), &limits).unwrap();
        // 32 layers x 8192 cells x 8 heads x 128 x K and V x 2 B
        assert_eq!(plan.row("cuda:0/kv-cache").unwrap().bytes, 32 * 8192 * 8 * 128 * 4, "{arch}");
        assert_eq!(plan.held_experts, experts * 32);
        assert!(plan.row("cuda:0/index-keys").is_none() && plan.row("ram/ngram-cache").is_none());
    }
}

#[test]
fn a_dense_model_that_is_too_large_for_one_card_is_split() {
    let model = PlanModel::from_header(&header("llama", 120, 0, false)).unwrap();
    let limits = Limits { context: Some(16_384), kv: KvType::Int8, ..Limits::default() };
    let plan = planned(&model, &machine("linux-4x3090-24g-256g"), &limits).unwrap();
    assert!(plan.stages.len() >= 2, "{}", plan.split_text());
    let small = planned(&model, &machine("win-rtx5070-12g-64g"), &limits).unwrap_err();
    assert!(small.short.iter().any(|p| p.name.starts_with("cuda:0")), "{small}");
}

#[test]
fn other_architectures_are_named() {
    let unknown = header("mystery", 2, 0, true);
    assert!(PlanModel::from_header(&unknown).unwrap_err().to_string().contains("qwen3moe"));
}
