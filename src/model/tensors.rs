//! The tensor table as a family sees it: look-ups that check the shape.

use super::ModelError;
use crate::gguf::{ModelFiles, TensorInfo};
use crate::program::{Epilogue, ExpertMatrix};
use crate::program::{MatMulPart, MatrixSpec, PartWeights, SlotRoom, StageBuilder, StateId, StateKind, View, WeightId};
use crate::quant::Format;

/// Checked look-ups in a model's tensor table.
#[derive(Clone, Copy)]
pub struct Tensors<'a> {
    files: &'a ModelFiles,
}

/// A matrix with its optional companions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Linear {
    pub weight: WeightId,
    pub scale: Option<WeightId>,
    pub bias: Option<WeightId>,
}

impl Linear {
    pub fn part(&self, out: View, epilogue: Epilogue) -> MatMulPart {
        MatMulPart { weights: PartWeights::One(self.weight), bias: self.bias, scale: self.scale, epilogue, out }
    }
}

impl<'a> Tensors<'a> {
    pub fn new(files: &'a ModelFiles) -> Tensors<'a> {
        Tensors { files }
    }

    pub fn has(&self, name: &str) -> bool {
        self.files.tensor(name).is_some()
    }

    fn find(&self, name: &str) -> Result<&'a TensorInfo, ModelError> {
        self.files.tensor(name).ok_or_else(|| ModelError::MissingTensor { tensor: name.to_string() })
    }

    /// The tensor if its shape is `shape`; trailing dimensions of 1 do not count.
    pub fn shaped(&self, name: &str, shape: &[u32]) -> Result<&'a TensorInfo, ModelError> {
        let tensor = self.find(name)?;
        let trim = |s: &[u64]| {
            let len = s.iter().rposition(|d| *d != 1).map_or(1, |i| i + 1);
            s[..len.min(s.len())].to_vec()
        };
        let wanted: Vec<u64> = shape.iter().map(|d| u64::from(*d)).collect();
        if trim(&tensor.shape) == trim(&wanted) {
            return Ok(tensor);
        }
        let show = |s: &[u64]| format!("[{}]", s.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
        Err(ModelError::Shape { tensor: name.to_string(), expected: show(&wanted), found: show(&tensor.shape) })
    }

    /// Number of rows (second dimension) of a matrix.
    pub fn rows_of(&self, name: &str) -> Result<u64, ModelError> {
        Ok(self.find(name)?.shape.get(1).copied().unwrap_or(1))
    }

    pub fn matrix(&self, name: &str, cols: u32, rows: u32) -> Result<MatrixSpec, ModelError> {
        let tensor = self.shaped(name, &[cols, rows])?;
        Ok(MatrixSpec { tensor: name.to_string(), format: tensor.format, cols, rows })
    }

    /// A small tensor that is held as F32, whatever float format the file has.
    pub fn floats(&self, name: &str, cols: u32, rows: u32) -> Result<MatrixSpec, ModelError> {
        let tensor = self.find(name)?;
        // A vector may be split: [D, S] and [S*D] are both seen for grouped norms.
        if rows != 1 || tensor.elements() != u64::from(cols) {
            self.shaped(name, &[cols, rows])?;
        }
        match tensor.format {
            Format::F32 | Format::F16 | Format::BF16 => {
                Ok(MatrixSpec { tensor: name.to_string(), format: Format::F32, cols, rows })
            }
            other => Err(ModelError::Format {
                tensor: name.to_string(),
                format: other.name(),
                reason: "norms, biases and convolutions must be F32, F16 or BF16".into(),
            }),
        }
    }

    /// All elements of a small float tensor.
    ///
    /// # Errors
    /// It is missing, is in a block format, or cannot be read.
    pub fn read_floats(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let tensor = self.find(name)?;
        let mut stored = vec![0; tensor.bytes as usize];
        self.files.read_at(tensor, 0, &mut stored)?;
        let mut floats = vec![0f32; tensor.elements() as usize];
        let refused = |reason: String| ModelError::Format { tensor: name.to_string(), format: tensor.format.name(), reason };
        tensor.format.decode_row(&stored, &mut floats).map_err(|e| refused(e.to_string()))?;
        Ok(floats)
    }

    pub(super) fn vector(&self, stage: &mut StageBuilder, name: &str, len: u32) -> Result<WeightId, ModelError> {
        Ok(stage.weight(self.floats(name, len, 1)?))
    }

    fn opt_vector(&self, stage: &mut StageBuilder, name: &str, len: u32) -> Result<Option<WeightId>, ModelError> {
        if self.has(name) { self.vector(stage, name, len).map(Some) } else { Ok(None) }
    }

    /// `{base}.weight` with `{base}.bias` and `{base}.scale` where the file has them.
    pub(super) fn linear(&self, stage: &mut StageBuilder, base: &str, cols: u32, rows: u32) -> Result<Linear, ModelError> {
        let weight = stage.weight(self.matrix(&format!("{base}.weight"), cols, rows)?);
        let bias = self.opt_vector(stage, &format!("{base}.bias"), rows)?;
        let scale = self.opt_vector(stage, &format!("{base}.scale"), 1)?;
        Ok(Linear { weight, scale, bias })
    }

    /// As [`Tensors::linear`], for a matrix whose product is not a step of its own: it can have no bias.
    pub(super) fn linear_without_bias(
        &self,
        stage: &mut StageBuilder,
        base: &str,
        cols: u32,
        rows: u32,
    ) -> Result<Linear, ModelError> {
        let bias = format!("{base}.bias");
        if self.has(&bias) {
            let problem = "a bias of a gated feed-forward layer is not supported".into();
            return Err(ModelError::Values { tensor: bias, problem });
        }
        self.linear(stage, base, cols, rows)
    }

    fn expert_spec(&self, name: &str, cols: u32, rows: u32, experts: u32) -> Result<MatrixSpec, ModelError> {
        let tensor = self.shaped(name, &[cols, rows, experts])?;
        Ok(MatrixSpec { tensor: name.to_string(), format: tensor.format, cols, rows })
    }

    /// Gate, up and down of a layer's experts, each expert one slab. `hidden` is the width inside an expert. A file with
    /// fused `ffn_gate_up_exps` is read as such. With `slots` the arena has room for so many of the experts.
    pub(super) fn experts(
        &self,
        stage: &mut StageBuilder,
        layer: u32,
        width: u32,
        hidden: u32,
        (experts, slots): (u32, Option<SlotRoom>),
    ) -> Result<Experts, ModelError> {
        let held = slots.map_or(SlotRoom { slots: experts, lent: None }, |r| SlotRoom { slots: r.slots.min(experts), ..r });
        let base = |part: &str| format!("blk.{layer}.ffn_{part}_exps");
        let spec = |part: &str, cols, rows| self.expert_spec(&format!("{}.weight", base(part)), cols, rows, experts);
        let down = spec("down", hidden, width)?;
        let fused = self.has(&format!("{}.weight", base("gate_up")));
        let mut matrices = if fused {
            let ids = stage.expert_slots(vec![spec("gate_up", width, 2 * hidden)?, down], experts, held);
            let part = |row_offset| ExpertMatrix { weight: ids[0], row_offset, rows: hidden, scale: None };
            [part(0), part(hidden), ExpertMatrix { weight: ids[1], row_offset: 0, rows: width, scale: None }]
        } else {
            let ids = stage.expert_slots(vec![spec("gate", width, hidden)?, spec("up", width, hidden)?, down], experts, held);
            let part = |i: usize, rows| ExpertMatrix { weight: ids[i], row_offset: 0, rows, scale: None };
            [part(0, hidden), part(1, hidden), part(2, width)]
        };
        let names = if fused { ["gate_up", "gate_up", "down"] } else { ["gate", "up", "down"] };
        for (matrix, name) in matrices.iter_mut().zip(names) {
            matrix.scale = self.opt_vector(stage, &format!("{}.scale", base(name)), experts)?;
        }
        let [gate, up, down] = matrices;
        let kind = StateKind::ExpertSlots { layer, experts };
        let slots = slots.map(|_| stage.state(format!("L{layer} expert slots"), kind, 1));
        Ok(Experts { gate, up, down, slots })
    }
}

/// The experts of a layer.
pub(super) struct Experts {
    pub gate: ExpertMatrix,
    pub up: ExpertMatrix,
    pub down: ExpertMatrix,
    /// The table that tells which of them lie in the arena, where not all have their place.
    pub slots: Option<StateId>,
}
