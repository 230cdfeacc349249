//! Writes the shipped model sheets: the shapes of Qwen3.8-Flash-Next with the formats that its published files use,
//! its draft block and its vision encoder. Usage: `cargo run --example model_sheets -- assets/sheets`

use std::path::Path;

use strata::plan::{MetaValue, ModelHeader, TensorRow, write_sheet};
use strata::quant::Format;

const LAYERS: u64 = 48;
const WIDTH: u64 = 2560;
const STREAMS: u64 = 4 * WIDTH;
const RANK: u64 = 320;
const VOCAB: u64 = 248_320;
const EXPERTS: u64 = 512;
const EXPERT_WIDTH: u64 = 640;

/// Formats of one published file.
struct Quant {
    name: &'static str,
    mixers: Format,
    head: Format,
    embedding: Format,
    /// Gate and up, down: of most layers.
    experts: (Format, Format),
    /// Of some layers.
    heavier: &'static [(u64, Format, Format)],
}

const QUANTS: [Quant; 4] = [
    Quant {
        name: "IQ2_XS",
        mixers: Format::Q5_K,
        head: Format::IQ4_XS,
        embedding: Format::IQ4_XS,
        experts: (Format::IQ2_XS, Format::Q2_0),
        heavier: &[
            (2, Format::IQ2_XS, Format::IQ4_NL),
            (4, Format::IQ2_XS, Format::IQ4_NL),
            (46, Format::IQ2_XS, Format::IQ4_NL),
            (47, Format::IQ2_XS, Format::IQ4_NL),
        ],
    },
    Quant {
        name: "IQ3_XXS",
        mixers: Format::Q5_K,
        head: Format::Q5_K,
        embedding: Format::IQ4_XS,
        experts: (Format::IQ3_XXS, Format::Q2_0),
        heavier: &[
            (2, Format::IQ3_XXS, Format::IQ4_NL),
            (46, Format::IQ3_XXS, Format::IQ4_NL),
            (47, Format::IQ3_XXS, Format::IQ4_NL),
        ],
    },
    Quant {
        name: "IQ3_S",
        mixers: Format::Q6_K,
        head: Format::Q5_K,
        embedding: Format::IQ4_XS,
        experts: (Format::IQ3_S, Format::Q2_0),
        heavier: &[
            (2, Format::IQ4_XS, Format::IQ4_NL),
            (4, Format::IQ4_XS, Format::IQ4_NL),
            (30, Format::IQ4_XS, Format::IQ4_NL),
            (46, Format::IQ4_XS, Format::IQ4_NL),
            (47, Format::IQ4_XS, Format::IQ4_NL),
            (0, Format::IQ3_S, Format::IQ4_NL),
            (1, Format::IQ3_S, Format::IQ4_NL),
            (3, Format::IQ3_S, Format::IQ4_NL),
            (5, Format::IQ3_S, Format::IQ4_NL),
            (11, Format::IQ3_S, Format::IQ4_NL),
            (23, Format::IQ3_S, Format::IQ4_NL),
            (35, Format::IQ3_S, Format::IQ4_NL),
            (43, Format::IQ3_S, Format::IQ4_NL),
            (44, Format::IQ3_S, Format::IQ4_NL),
            (45, Format::IQ3_S, Format::IQ4_NL),
        ],
    },
    Quant {
        name: "Q4_K",
        mixers: Format::Q8_0,
        head: Format::Q6_K,
        embedding: Format::Q4_K,
        experts: (Format::Q4_K, Format::Q5_1),
        heavier: &[(2, Format::Q5_K, Format::Q8_0), (30, Format::Q5_K, Format::Q8_0), (47, Format::Q5_K, Format::Q8_0)],
    },
];

struct Table(Vec<TensorRow>);

impl Table {
    fn add(&mut self, name: impl Into<String>, format: Format, shape: &[u64]) {
        self.0.push(TensorRow { name: name.into(), format, shape: shape.to_vec() });
    }

    /// Tensors that every block has.
    fn block(&mut self, layer: u64, inject: Format, (gate_up, down): (Format, Format)) {
        let name = |rest: &str| format!("blk.{layer}.{rest}");
        for part in ["attn", "ffn"] {
            self.add(name(&format!("hc_{part}_norm.weight")), Format::F32, &[STREAMS]);
            self.add(name(&format!("hc_{part}_down.weight")), Format::Q8_0, &[STREAMS, RANK]);
            self.add(name(&format!("hc_{part}_up.weight")), Format::Q8_0, &[RANK, STREAMS]);
            self.add(name(&format!("hc_{part}_inject.weight")), inject, &[STREAMS, 4]);
        }
        self.add(name("ffn_gate_inp.weight"), Format::F32, &[WIDTH, EXPERTS]);
        self.add(name("ffn_gate_exps.weight"), gate_up, &[WIDTH, EXPERT_WIDTH, EXPERTS]);
        self.add(name("ffn_up_exps.weight"), gate_up, &[WIDTH, EXPERT_WIDTH, EXPERTS]);
        self.add(name("ffn_down_exps.weight"), down, &[EXPERT_WIDTH, WIDTH, EXPERTS]);
        self.add(name("ffn_gate_inp_shexp.weight"), Format::F32, &[WIDTH]);
        self.add(name("ffn_gate_shexp.weight"), Format::Q8_0, &[WIDTH, EXPERT_WIDTH]);
        self.add(name("ffn_up_shexp.weight"), Format::Q8_0, &[WIDTH, EXPERT_WIDTH]);
        self.add(name("ffn_down_shexp.weight"), Format::Q8_0, &[EXPERT_WIDTH, WIDTH]);
    }

    fn attention(&mut self, layer: u64, mixers: Format) {
        let name = |rest: &str| format!("blk.{layer}.{rest}.weight");
        self.add(name("attn_q"), mixers, &[WIDTH, 12_288]);
        self.add(name("attn_k"), mixers, &[WIDTH, 512]);
        self.add(name("attn_v"), mixers, &[WIDTH, 512]);
        self.add(name("attn_output"), mixers, &[6144, WIDTH]);
        self.add(name("attn_q_norm"), Format::F32, &[256]);
        self.add(name("attn_k_norm"), Format::F32, &[256]);
        self.add(name("indexer.q_proj"), Format::BF16, &[WIDTH, 512]);
        self.add(name("indexer.k_proj"), Format::BF16, &[WIDTH, 128]);
        self.add(name("indexer.q_norm"), Format::F32, &[128]);
        self.add(name("indexer.k_norm"), Format::F32, &[128]);
    }

    fn delta(&mut self, layer: u64, mixers: Format) {
        let name = |rest: &str| format!("blk.{layer}.{rest}");
        self.add(name("attn_qkv.weight"), mixers, &[WIDTH, 10_240]);
        self.add(name("attn_gate.weight"), mixers, &[WIDTH, 6144]);
        self.add(name("ssm_conv1d.weight"), Format::F32, &[4, 10_240]);
        self.add(name("ssm_dt.bias"), Format::F32, &[48]);
        self.add(name("ssm_a"), Format::F32, &[48]);
        self.add(name("ssm_beta.weight"), Format::F32, &[WIDTH, 48]);
        self.add(name("ssm_alpha.weight"), Format::F32, &[WIDTH, 48]);
        self.add(name("ssm_norm.weight"), Format::F32, &[128]);
        self.add(name("ssm_out.weight"), mixers, &[6144, WIDTH]);
    }
}

fn text(value: &str) -> MetaValue {
    MetaValue::Text(value.into())
}

fn list(values: impl IntoIterator<Item = u64>) -> MetaValue {
    MetaValue::List(values.into_iter().map(MetaValue::Unsigned).collect())
}

fn hyper_parameters(blocks: u64, draft: u64) -> ModelHeader {
    let mut header = ModelHeader::default();
    let mut set = |key: &str, value: MetaValue| {
        header.metadata.insert(format!("qwen4exp.{key}"), value);
    };
    let numbers = [
        ("block_count", blocks),
        ("nextn_predict_layers", draft),
        ("context_length", 262_144),
        ("embedding_length", WIDTH),
        ("attention.head_count", 24),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 256),
        ("attention.value_length", 256),
        ("attention.indexer.head_count", 4),
        ("attention.indexer.key_length", 128),
        ("attention.indexer.top_k", 2048),
        ("rope.dimension_count", 64),
        ("expert_count", EXPERTS),
        ("expert_used_count", 10),
        ("expert_feed_forward_length", EXPERT_WIDTH),
        ("expert_shared_feed_forward_length", EXPERT_WIDTH),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 128),
        ("ssm.group_count", 16),
        ("ssm.time_step_rank", 48),
        ("ssm.inner_size", 6144),
        ("full_attention_interval", 4),
        ("hyper_connection.count", 4),
        ("hyper_connection.low_rank", RANK),
    ];
    for (key, value) in numbers {
        set(key, MetaValue::Unsigned(value));
    }
    set("attention.layer_norm_rms_epsilon", MetaValue::Float(1e-6));
    set("rope.freq_base", MetaValue::Float(1e7));
    set("rope.dimension_sections", list([11, 11, 10, 0]));
    set("attention.compress_ratios", list((0..blocks).map(|l| if l % 4 == 3 && l < LAYERS { 4 } else { 0 })));
    header.metadata.insert("general.architecture".into(), text("qwen4exp"));
    header
}

fn trunk(quant: &Quant) -> ModelHeader {
    let mut header = hyper_parameters(LAYERS, 0);
    header.metadata.insert("general.name".into(), text(&format!("Qwen3.8-Flash-Next {}", quant.name)));
    for (key, value) in [
        ("ple.ngram_size", 3),
        ("ple.heads_per_ngram", 8),
        ("ple.conv_kernel", 4),
        ("ple.eos_token_id", 248_044),
        ("ple.image_token_id", 248_056),
        ("embedding_length_per_layer_input", 160),
    ] {
        header.metadata.insert(format!("qwen4exp.{key}"), MetaValue::Unsigned(value));
    }
    // One prime a head, from 20 million on; each head begins where the one before it ends.
    const PRIMES: [u64; 16] = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171];
    let sizes = PRIMES.map(|p| 20_000_000 + p);
    let offsets = (0..sizes.len()).map(|head| sizes[..head].iter().sum());
    let multipliers = [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071];
    header.metadata.insert("qwen4exp.ple.layers".into(), list([1]));
    header.metadata.insert("qwen4exp.ple.layer_multipliers".into(), list(multipliers));
    header.metadata.insert("qwen4exp.ple.head_offsets".into(), list(offsets));
    header.metadata.insert("qwen4exp.ple.head_vocab_sizes".into(), list(sizes));
    let mut table = Table(vec![]);
    table.add("token_embd.weight", quant.embedding, &[WIDTH, VOCAB]);
    table.add("output.weight", quant.head, &[WIDTH, VOCAB]);
    table.add("output_hc_norm.weight", Format::F32, &[STREAMS]);
    table.add("output_hc_down.weight", Format::Q8_0, &[STREAMS, RANK]);
    table.add("output_hc_up.weight", Format::Q8_0, &[RANK, STREAMS]);
    table.add("per_layer_token_embd.weight", Format::IQ4_NL, &[160, 320_001_536]);
    for layer in 0..LAYERS {
        let heavier = quant.heavier.iter().find(|(l, ..)| *l == layer);
        table.block(layer, Format::F32, heavier.map_or(quant.experts, |(_, gate_up, down)| (*gate_up, *down)));
        if layer % 4 == 3 {
            table.attention(layer, quant.mixers);
        } else {
            table.delta(layer, quant.mixers);
        }
        if layer == 1 {
            table.add("blk.1.ple_key.weight", Format::Q8_0, &[WIDTH, STREAMS]);
            table.add("blk.1.ple_value.weight", Format::Q8_0, &[WIDTH, WIDTH]);
            for norm in ["key", "query", "conv"] {
                table.add(format!("blk.1.ple_norm_{norm}.weight"), Format::F32, &[STREAMS]);
            }
            table.add("blk.1.ple_conv1d.weight", Format::F32, &[4, STREAMS]);
        }
    }
    header.tensors = table.0;
    header
}

fn draft() -> ModelHeader {
    let mut header = hyper_parameters(LAYERS + 1, 1);
    header.metadata.insert("general.name".into(), text("Qwen3.8-Flash-Next draft block"));
    header.metadata.insert("qwen4exp.nextn_shared_target_tensors".into(), MetaValue::Bool(true));
    let mut table = Table(vec![]);
    table.block(LAYERS, Format::Q8_0, (Format::IQ2_XS, Format::Q2_0));
    table.attention(LAYERS, Format::Q8_0);
    for (rest, format, shape) in [
        ("enorm", Format::F32, vec![WIDTH]),
        ("hnorm", Format::F32, vec![STREAMS]),
        ("eh_proj", Format::Q8_0, vec![2 * WIDTH, WIDTH]),
        ("hc_head_norm", Format::F32, vec![STREAMS]),
        ("hc_head_down", Format::Q8_0, vec![STREAMS, RANK]),
        ("hc_head_up", Format::Q8_0, vec![RANK, STREAMS]),
    ] {
        table.add(format!("blk.{LAYERS}.nextn.{rest}.weight"), format, &shape);
    }
    header.tensors = table.0;
    header
}

fn vision() -> ModelHeader {
    let mut header = ModelHeader::default();
    for (key, value) in [("general.architecture", "clip"), ("general.type", "mmproj"), ("clip.projector_type", "qwen3vl_merger")]
    {
        header.metadata.insert(key.into(), text(value));
    }
    for (key, value) in [
        ("image_size", 768),
        ("patch_size", 16),
        ("embedding_length", 1152),
        ("feed_forward_length", 4304),
        ("block_count", 27),
        ("attention.head_count", 16),
        ("projection_dim", WIDTH),
        ("spatial_merge_size", 2),
    ] {
        header.metadata.insert(format!("clip.vision.{key}"), MetaValue::Unsigned(value));
    }
    let mut table = Table(vec![]);
    table.add("v.patch_embd.weight", Format::F16, &[16, 16, 3, 1152]);
    table.add("v.patch_embd.weight.1", Format::F16, &[16, 16, 3, 1152]);
    table.add("v.patch_embd.bias", Format::F32, &[1152]);
    table.add("v.position_embd.weight", Format::F32, &[1152, 2304]);
    for block in 0..27 {
        for (name, shape) in
            [("attn_qkv", [1152, 3456]), ("attn_out", [1152, 1152]), ("ffn_up", [1152, 4304]), ("ffn_down", [4304, 1152])]
        {
            table.add(format!("v.blk.{block}.{name}.weight"), Format::F16, &shape);
            table.add(format!("v.blk.{block}.{name}.bias"), Format::F32, &shape[1..]);
        }
        for norm in ["ln1", "ln2"] {
            table.add(format!("v.blk.{block}.{norm}.weight"), Format::F32, &[1152]);
            table.add(format!("v.blk.{block}.{norm}.bias"), Format::F32, &[1152]);
        }
    }
    for (name, shape) in [("v.post_ln", vec![1152]), ("mm.0", vec![4608, 4608]), ("mm.2", vec![4608, WIDTH])] {
        let format = if shape.len() > 1 { Format::F16 } else { Format::F32 };
        table.add(format!("{name}.weight"), format, &shape);
        table.add(format!("{name}.bias"), Format::F32, &shape[shape.len() - 1..]);
    }
    header.tensors = table.0;
    header
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("name the folder to write to")?;
    let write = |name: &str, header: &ModelHeader| -> Result<(), Box<dyn std::error::Error>> {
        let path = Path::new(&folder).join(name);
        std::fs::write(&path, write_sheet(header)?)?;
        println!("{}: {} tensors", path.display(), header.tensors.len());
        Ok(())
    };
    for quant in &QUANTS {
        write(&format!("qwen3.8-flash-next-{}.sheet.json", quant.name), &trunk(quant))?;
    }
    write("qwen3.8-flash-next-draft.sheet.json", &draft())?;
    write("qwen3.8-flash-next-vision.sheet.json", &vision())
}
