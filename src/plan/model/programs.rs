//! What the model's own code makes of each layer: the tensors that it loads and the buffers of its programs. A layer is built as a
//! stage of its own, in every form that it can have; what a range of layers needs follows from that.

use std::ops::Range;

use super::{DenseFacts, ExpertFacts, FormatBytes, ModelFactsError, ModelHeader};
use crate::gguf::ModelFiles;
use crate::model::{Model, ModelError, Pooling, StageOptions, Tensors};
use crate::program::{ARENA_ALIGN_BYTES, KvFormat, Op, Rows, ShapeClass, Stage, WeightDecl, align_up};

/// A buffer of a layer's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkBuffer {
    pub row_bytes: u64,
    /// It has a row for each row whose scores are wanted, not for each row of the window.
    pub per_output: bool,
    /// It passes from layer to layer.
    pub carried: bool,
    pub first_step: u32,
    pub last_step: u32,
}

/// The buffers of a layer, and of what comes before the first and after the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerWork {
    /// Where the device holds all experts of the layer.
    pub whole: Vec<WorkBuffer>,
    /// Where it holds some of them, found by a table.
    pub partial: Vec<WorkBuffer>,
    /// Floats of the widest row that a product with weights takes.
    pub product_floats: u64,
}

/// Places in the list of different [`LayerWork`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkForms {
    pub usual: usize,
    /// With a context too short for the indexer to leave out anything.
    pub short: usize,
}

/// A layer as it is built.
pub struct BuiltLayer {
    pub work: WorkForms,
    pub dense: DenseFacts,
    pub dense_formats: FormatBytes,
    /// Bytes of `dense` that are not loaded with a short context.
    pub index_bytes: u64,
    pub experts: Option<ExpertFacts>,
}

/// All layers as they are built.
pub struct Built {
    pub layers: Vec<BuiltLayer>,
    pub work: Vec<LayerWork>,
    pub head: DenseFacts,
    pub head_formats: FormatBytes,
    /// Every row of a window gives an output, whatever is asked for.
    pub wants_all_rows: bool,
}

/// Experts that a token calls, which no stage says.
pub type Used = u32;

/// Builds every layer from metadata and tensor table.
///
/// # Errors
/// The model cannot be run: what its own code says.
pub fn build(header: &ModelHeader, layers: u32, used: Used) -> Result<Built, ModelFactsError> {
    let not_built = |problem: String| ModelFactsError::Programs { problem };
    let files = header.to_model_files("the model").map_err(|e| not_built(e.to_string()))?;
    let model = Model::open(&files).map_err(|e| not_built(e.to_string()))?;
    let dims = model.dims();
    if dims.layers != layers {
        return Err(not_built(format!("it has {} layers, {layers} were expected", dims.layers)));
    }
    let builder = Builder { files: &files, model: &model };
    let mut built = Built {
        layers: Vec::with_capacity(layers as usize),
        work: vec![],
        head: DenseFacts::default(),
        head_formats: FormatBytes::default(),
        wants_all_rows: dims.pooling == Some(Pooling::Mean),
    };
    for layer in 0..layers {
        let facts = builder.layer(layer, used, &mut built).map_err(|e| not_built(e.to_string()))?;
        built.layers.push(facts);
    }
    Ok(built)
}

/// More cells than any block of an indexer has, and so few that no indexer leaves out any.
const MANY_CELLS: u32 = 1 << 30;
const ONE_CELL: u32 = 1;

struct Builder<'a> {
    files: &'a ModelFiles,
    model: &'a Model,
}

impl Builder<'_> {
    fn stage(&self, layers: Range<u32>, cells: u32, expert_slots: Option<Vec<u32>>) -> Result<Stage, ModelError> {
        let programs = vec![("window".to_string(), ShapeClass { max_rows: 1, max_outputs: 1 })];
        let options =
            StageOptions { layers, slots: 1, cells, kv: KvFormat::F16, versions: 1, programs, expert_slots, lent_slots: None };
        self.model.config.stage(&Tensors::new(self.files), &options)
    }

    fn layer(&self, layer: u32, used: Used, built: &mut Built) -> Result<BuiltLayer, ModelError> {
        let only = layer..layer + 1;
        let stage = self.stage(only.clone(), MANY_CELLS, None)?;
        let has_experts = stage.weights.iter().any(is_expert);
        let mut place = |whole: &Stage, cells: u32| -> Result<usize, ModelError> {
            let whole = buffers(whole);
            let partial = if has_experts { buffers(&self.stage(only.clone(), cells, Some(vec![1]))?) } else { whole.clone() };
            Ok(place_of(&mut built.work, LayerWork { product_floats: product_floats(&stage), whole, partial }))
        };
        let usual = place(&stage, MANY_CELLS)?;
        let short_stage = self.stage(only.clone(), ONE_CELL, None)?;
        let short = if buffers(&short_stage) == buffers(&stage) { usual } else { place(&short_stage, ONE_CELL)? };
        let prefix = format!("blk.{layer}.");
        let is_own = |w: &&WeightDecl| w.tensor.starts_with(&prefix) && !is_expert(w);
        let dense = DenseFacts::of(stage.weights.iter().filter(is_own));
        let index_bytes = dense.bytes - DenseFacts::of(short_stage.weights.iter().filter(is_own)).bytes.min(dense.bytes);
        if layer + 1 == self.model.dims().layers {
            let beside = || stage.weights.iter().filter(|w| !w.tensor.starts_with(&prefix));
            (built.head, built.head_formats) = (DenseFacts::of(beside()), FormatBytes::of(beside()));
        }
        Ok(BuiltLayer {
            work: WorkForms { usual, short },
            dense,
            dense_formats: FormatBytes::of(stage.weights.iter().filter(is_own)),
            index_bytes,
            experts: experts(&stage, used),
        })
    }
}

/// Where an equal one is, or the new last place.
pub fn place_of(all: &mut Vec<LayerWork>, work: LayerWork) -> usize {
    all.iter().position(|w| *w == work).unwrap_or_else(|| {
        all.push(work);
        all.len() - 1
    })
}

fn buffers(stage: &Stage) -> Vec<WorkBuffer> {
    let all = stage.programs.iter().flat_map(|p| &p.buffers).map(|b| WorkBuffer {
        row_bytes: b.bytes(1),
        per_output: b.rows == Rows::Outputs,
        carried: b.carried,
        first_step: b.first_step,
        last_step: b.last_step,
    });
    all.collect()
}

fn product_floats(stage: &Stage) -> u64 {
    let steps = stage.programs.iter().flat_map(|p| &p.steps);
    let rows = steps.filter_map(|step| match &step.op {
        Op::MatMul { x, .. } | Op::ExpertGated { x, .. } | Op::ExpertDown { x, .. } | Op::ExpertDownEach { x, .. } => {
            Some(x.width)
        }
        _ => None,
    });
    rows.max().unwrap_or(0).into()
}

fn is_expert(weight: &WeightDecl) -> bool {
    weight.tensor.ends_with("_exps.weight")
}

impl DenseFacts {
    fn of<'a>(weights: impl Iterator<Item = &'a WeightDecl>) -> DenseFacts {
        let mut facts = DenseFacts::default();
        for weight in weights {
            let bytes = weight.matrix_bytes();
            facts.bytes = facts.bytes.saturating_add(align_up(bytes, ARENA_ALIGN_BYTES));
            facts.largest_bytes = facts.largest_bytes.max(bytes);
            facts.params += u64::from(weight.cols) * u64::from(weight.rows);
        }
        facts
    }
}

impl FormatBytes {
    fn of<'a>(weights: impl Iterator<Item = &'a WeightDecl>) -> FormatBytes {
        let mut bytes = FormatBytes::default();
        weights.for_each(|w| bytes.add(w.format, w.matrix_bytes()));
        bytes
    }
}

fn experts(stage: &Stage, used: Used) -> Option<ExpertFacts> {
    let parts: Vec<&WeightDecl> = stage.weights.iter().filter(|w| is_expert(w)).collect();
    let first = parts.first()?;
    let formats = parts.iter().map(|w| w.format.name()).collect::<Vec<_>>().join("/");
    let params = parts.iter().map(|w| u64::from(w.cols) * u64::from(w.rows)).sum();
    let by_format = FormatBytes::of(parts.iter().copied());
    let (count, slab_bytes) = (first.experts, first.slab_bytes);
    Some(ExpertFacts { count, used: used.min(count), slab_bytes, params, formats, by_format })
}
