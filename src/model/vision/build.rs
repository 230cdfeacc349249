//! From configuration to the one program: patches in, pre-norm blocks, squares of patches joined and projected.

use super::{PLACES, VisionConfig};
use crate::model::tensors::Linear;
use crate::model::{ModelError, Tensors};
use crate::program::{
    Epilogue, InputKind, MatrixSpec, Op, OutputKind, ProgramBuilder, Rope, RopeId, RopePairing, Rows, ShapeClass, Stage,
    StageBuilder, View, WeightId,
};

struct Norm {
    weight: WeightId,
    bias: WeightId,
}

impl Norm {
    fn find(tensors: &Tensors<'_>, stage: &mut StageBuilder, base: &str, width: u32) -> Result<Norm, ModelError> {
        let weight = tensors.vector(stage, &format!("{base}.weight"), width)?;
        Ok(Norm { weight, bias: tensors.vector(stage, &format!("{base}.bias"), width)? })
    }

    fn step(&self, p: &mut ProgramBuilder, name: String, x: View, out: View, eps: f32) {
        p.step(name, Op::LayerNorm { x, weight: self.weight, bias: self.bias, out, eps });
    }
}

struct Block {
    attention_norm: Norm,
    qkv: Linear,
    out: Linear,
    inner_norm: Norm,
    up: Linear,
    down: Linear,
}

struct Weights {
    /// Of both frames of a video; a still is shown to both.
    slices: [WeightId; 2],
    patch_bias: WeightId,
    blocks: Vec<Block>,
    norm: Norm,
    joined: Linear,
    projected: Linear,
}

/// A matrix with a bias, which every product of the encoder has.
fn biased(tensors: &Tensors<'_>, stage: &mut StageBuilder, base: &str, cols: u32, rows: u32) -> Result<Linear, ModelError> {
    let linear = tensors.linear(stage, base, cols, rows)?;
    match linear.bias {
        Some(_) => Ok(linear),
        None => Err(ModelError::MissingTensor { tensor: format!("{base}.bias") }),
    }
}

fn find(config: &VisionConfig, tensors: &Tensors<'_>, stage: &mut StageBuilder) -> Result<Weights, ModelError> {
    let (width, inner, patch) = (config.width, config.inner, config.patch_size);
    let mut slice = |name: &str| -> Result<WeightId, ModelError> {
        let format = tensors.shaped(name, &[patch, patch, 3, width])?.format;
        Ok(stage.weight(MatrixSpec { tensor: name.into(), format, cols: config.patch_width(), rows: width }))
    };
    let slices = [slice("v.patch_embd.weight")?, slice("v.patch_embd.weight.1")?];
    let patch_bias = tensors.vector(stage, "v.patch_embd.bias", width)?;
    let block = |i: u32| -> Result<Block, ModelError> {
        let base = |part: &str| format!("v.blk.{i}.{part}");
        Ok(Block {
            attention_norm: Norm::find(tensors, stage, &base("ln1"), width)?,
            qkv: biased(tensors, stage, &base("attn_qkv"), width, 3 * width)?,
            out: biased(tensors, stage, &base("attn_out"), width, width)?,
            inner_norm: Norm::find(tensors, stage, &base("ln2"), width)?,
            up: biased(tensors, stage, &base("ffn_up"), width, inner)?,
            down: biased(tensors, stage, &base("ffn_down"), inner, width)?,
        })
    };
    let blocks = (0..config.layers).map(block).collect::<Result<_, _>>()?;
    let joined_width = width * config.merge * config.merge;
    // Floats, whatever format the file has; the host reads them.
    tensors.floats(PLACES, width, config.table_side * config.table_side)?;
    Ok(Weights {
        slices,
        patch_bias,
        blocks,
        norm: Norm::find(tensors, stage, "v.post_ln", width)?,
        joined: biased(tensors, stage, "mm.0", joined_width, joined_width)?,
        projected: biased(tensors, stage, "mm.2", joined_width, config.output_width)?,
    })
}

/// Angles of the whole head: the first half of the pairs turn with the patch's row, the others with its column.
fn rope(config: &VisionConfig) -> Rope {
    let axis = config.width / config.heads / 4;
    let frequency = |i: u32| 10_000f64.powf(-f64::from(i) / f64::from(axis));
    Rope {
        pairing: RopePairing::Half,
        inv_freq: (0..2 * axis).map(|i| frequency(i % axis)).collect(),
        component: (0..2 * axis).map(|i| if i < axis { 1 } else { 2 }).collect(),
        magnitude: 1.0,
    }
}

pub fn stage(config: &VisionConfig, tensors: &Tensors<'_>, max_tokens: u32) -> Result<Stage, ModelError> {
    let mut stage = StageBuilder::new("vision");
    let weights = find(config, tensors, &mut stage)?;
    let rope = stage.rope(rope(config));
    let joined = config.merge * config.merge;
    let shape = ShapeClass { max_rows: max_tokens * joined, max_outputs: max_tokens };
    let mut p = ProgramBuilder::new("picture", shape);
    let x = embed(config, &weights, &mut p);
    for (i, block) in weights.blocks.iter().enumerate() {
        p.step(format!("V{i} may wait"), Op::Pause);
        attend(config, block, i, rope, x, &mut p);
        feed_forward(config, block, i, x, &mut p);
    }
    p.step("before the projector", Op::Pause);
    project(config, &weights, x, &mut p);
    stage.program(p);
    Ok(stage.finish())
}

fn embed(config: &VisionConfig, weights: &Weights, p: &mut ProgramBuilder) -> View {
    let patches = p.input("patches", config.patch_width(), InputKind::Patches);
    let places = p.input("places", config.width, InputKind::PatchPlaces);
    let x = p.buffer("x", config.width);
    let [first, second] = weights.slices;
    let part = |weight, bias, epilogue| vec![Linear { weight, scale: None, bias }.part(x, epilogue)];
    let parts = part(first, Some(weights.patch_bias), Epilogue::None);
    p.step("patches, first frame", Op::MatMul { x: patches, parts });
    p.step("patches, second frame", Op::MatMul { x: patches, parts: part(second, None, Epilogue::Accumulate) });
    p.step("places", Op::Add { x, y: places, scale: None });
    x
}

fn attend(config: &VisionConfig, block: &Block, i: usize, rope: RopeId, x: View, p: &mut ProgramBuilder) {
    let (width, heads) = (config.width, config.heads);
    let normed = p.buffer(format!("V{i} normed"), width);
    let qkv = p.buffer(format!("V{i} qkv"), 3 * width);
    let attended = p.buffer(format!("V{i} attended"), width);
    block.attention_norm.step(p, format!("V{i} attention norm"), x, normed, config.eps);
    p.step(format!("V{i} qkv"), Op::MatMul { x: normed, parts: vec![block.qkv.part(qkv, Epilogue::None)] });
    let [q, k, v] = [0, 1, 2].map(|n| qkv.columns(n * width, width).heads(heads));
    for (name, heads) in [("q", q), ("k", k)] {
        p.step(format!("V{i} {name} rope"), Op::HeadNormRope { heads, weight: None, eps: config.eps, rope: Some(rope) });
    }
    let scale = 1.0 / f64::from(width / heads).sqrt() as f32;
    p.step(format!("V{i} attention"), Op::WindowAttention { q, k, v, out: attended.heads(heads), scale });
    p.step(format!("V{i} out"), Op::MatMul { x: attended, parts: vec![block.out.part(x, Epilogue::Accumulate)] });
}

fn feed_forward(config: &VisionConfig, block: &Block, i: usize, x: View, p: &mut ProgramBuilder) {
    let normed = p.buffer(format!("V{i} ff normed"), config.width);
    let inner = p.buffer(format!("V{i} inner"), config.inner);
    block.inner_norm.step(p, format!("V{i} ff norm"), x, normed, config.eps);
    p.step(format!("V{i} up"), Op::MatMul { x: normed, parts: vec![block.up.part(inner, Epilogue::GeluTanh)] });
    p.step(format!("V{i} down"), Op::MatMul { x: inner, parts: vec![block.down.part(x, Epilogue::Accumulate)] });
}

fn project(config: &VisionConfig, weights: &Weights, x: View, p: &mut ProgramBuilder) {
    let joined_width = config.width * config.merge * config.merge;
    let normed = p.buffer("normed", config.width);
    let joined = p.output_rows("joined", joined_width);
    let hidden = p.output_rows("hidden", joined_width);
    let rows = p.output("rows", Rows::Outputs, config.output_width, OutputKind::Picture);
    weights.norm.step(p, "norm".into(), x, normed, config.eps);
    p.step("joined", Op::JoinRows { x: normed, out: joined });
    p.step("mm.0", Op::MatMul { x: joined, parts: vec![weights.joined.part(hidden, Epilogue::GeluErf)] });
    p.step("mm.2", Op::MatMul { x: hidden, parts: vec![weights.projected.part(rows, Epilogue::None)] });
}
