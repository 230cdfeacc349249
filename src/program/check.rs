//! A program is checked before it runs: a backend may rely on everything that is checked here.

use thiserror::Error;

use super::decl::{BufferDecl, Element, Program, Rows, Stage, StateId, StateKind, WeightId};
use super::op::{Epilogue, ExpertMatrix, Heads, MatMulPart, Op, PartWeights, View};
use crate::quant::Format;

/// A program that must not run: which one, which step, what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("program '{program}', step {step} ('{name}'): {problem}")]
pub struct CheckError {
    pub program: String,
    pub step: usize,
    pub name: String,
    pub problem: String,
}

type Outcome = Result<(), String>;

fn require(condition: bool, problem: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(problem()) }
}

fn same(what: &str, found: u32, expected: u32) -> Outcome {
    require(found == expected, || format!("{what} is {found}, expected {expected}"))
}

/// Checks every program of a stage, and that weights and state lie apart from each other inside their arenas.
pub fn check_stage(stage: &Stage) -> Result<(), CheckError> {
    let fail =
        |name: &str, problem: String| Err(CheckError { program: stage.name.clone(), step: 0, name: name.to_string(), problem });
    for w in &stage.weights {
        if w.matrix_bytes() == 0 {
            return fail(&w.tensor, format!("{} columns are no whole number of {} blocks", w.cols, w.format));
        }
        let end = w.slice(w.experts.saturating_sub(1));
        if end.offset_bytes + end.len_bytes > stage.weights_bytes {
            return fail(&w.tensor, "reaches past the end of the weights arena".into());
        }
    }
    let mut slices: Vec<(u64, u64, &str)> = Vec::new();
    for w in &stage.weights {
        slices.extend(
            (0..w.experts).map(|e| w.slice(e)).map(|s| (s.offset_bytes, s.offset_bytes + s.len_bytes, w.tensor.as_str())),
        );
    }
    slices.sort_unstable();
    if let Some(pair) = slices.windows(2).find(|p| p[0].1 > p[1].0) {
        return fail(pair[0].2, format!("overlaps {}", pair[1].2));
    }
    for s in &stage.states {
        if s.offset_bytes + s.slot_stride_bytes * u64::from(s.slots) > stage.state_bytes {
            return fail(&s.name, "reaches past the end of the state arena".into());
        }
    }
    stage.programs.iter().try_for_each(|program| check_program(stage, program))
}

/// Checks shapes, formats, lifetimes and overlaps of one program.
pub fn check_program(stage: &Stage, program: &Program) -> Result<(), CheckError> {
    let checker = Checker { stage, program };
    let mut written: Vec<bool> = program.buffers.iter().map(|b| b.input.is_some()).collect();
    for (i, step) in program.steps.iter().enumerate() {
        let outcome = checker.step(&step.op, &mut written);
        outcome.map_err(|problem| CheckError { program: program.name.clone(), step: i, name: step.name.clone(), problem })?;
    }
    checker.overlaps().map_err(|problem| CheckError { program: program.name.clone(), step: 0, name: "buffers".into(), problem })
}

struct Checker<'a> {
    stage: &'a Stage,
    program: &'a Program,
}

impl Checker<'_> {
    fn step(&self, op: &Op, written: &mut [bool]) -> Outcome {
        for id in op.weights() {
            require((id.0 as usize) < self.stage.weights.len(), || format!("weight {} does not exist", id.0))?;
        }
        if let Some(id) = op.state() {
            require((id.0 as usize) < self.stage.states.len(), || format!("state {} does not exist", id.0))?;
        }
        for view in op.reads().iter().chain(&op.writes()) {
            self.view(view)?;
        }
        for view in op.reads() {
            require(written[view.buffer.0 as usize], || {
                format!("buffer '{}' is read before it is written", self.buffer(view).name)
            })?;
        }
        for view in op.writes() {
            written[view.buffer.0 as usize] = true;
        }
        self.rows(op)?;
        self.shapes(op)
    }

    /// All buffers of an op have the same rows, but for the op that picks the outputs.
    fn rows(&self, op: &Op) -> Outcome {
        let kinds: Vec<Rows> = op.reads().iter().chain(&op.writes()).map(|v| self.buffer(*v).rows).collect();
        let fits = match op {
            Op::GatherOutputs { .. } => kinds == [Rows::Batch, Rows::Outputs],
            _ => kinds.windows(2).all(|pair| pair[0] == pair[1]),
        };
        require(fits, || "mixes rows of the window with wanted outputs".into())
    }

    fn buffer(&self, view: View) -> &BufferDecl {
        self.program.buffer(view.buffer)
    }

    fn view(&self, view: &View) -> Outcome {
        require((view.buffer.0 as usize) < self.program.buffers.len(), || format!("buffer {} does not exist", view.buffer.0))?;
        let buffer = self.buffer(*view);
        let end = u64::from(view.offset) + u64::from(view.width);
        require(view.width > 0 && end <= u64::from(buffer.width), || {
            format!("columns {}..{end} lie outside buffer '{}' of width {}", view.offset, buffer.name, buffer.width)
        })
    }

    fn element(&self, view: View, element: Element) -> Outcome {
        let buffer = self.buffer(view);
        require(buffer.element == element, || format!("buffer '{}' does not hold {element:?}", buffer.name))
    }

    fn vector(&self, id: WeightId, len: u32) -> Outcome {
        let w = self.stage.weight(id);
        require(w.format == Format::F32, || format!("{} must be F32, it is {}", w.tensor, w.format))?;
        same(&format!("length of {}", w.tensor), w.cols * w.rows, len)
    }

    /// A norm weight repeats over the columns.
    fn repeated_vector(&self, id: WeightId, width: u32) -> Outcome {
        let w = self.stage.weight(id);
        require(w.format == Format::F32, || format!("{} must be F32, it is {}", w.tensor, w.format))?;
        let len = w.cols * w.rows;
        require(len > 0 && width.is_multiple_of(len), || format!("{} has {len} elements, which do not divide {width}", w.tensor))
    }

    fn matrix(&self, id: WeightId, cols: u32, rows: u32) -> Outcome {
        let w = self.stage.weight(id);
        same(&format!("input width of {}", w.tensor), w.cols, cols)?;
        same(&format!("output width of {}", w.tensor), w.rows, rows)
    }

    fn expert(&self, m: &ExpertMatrix, cols: u32) -> Outcome {
        let w = self.stage.weight(m.weight);
        same(&format!("input width of {}", w.tensor), w.cols, cols)?;
        require(m.row_offset + m.rows <= w.rows, || {
            format!("rows {}..{} lie outside {}", m.row_offset, m.row_offset + m.rows, w.tensor)
        })?;
        m.scale.map_or(Ok(()), |s| self.vector(s, w.experts))
    }

    fn kv(&self, cache: StateId, width: u32) -> Outcome {
        match self.stage.state(cache).kind {
            StateKind::Kv { kv_heads, head_dim, .. } => same("width of a cached key", width, kv_heads * head_dim),
            _ => Err("the cache holds no keys and values".into()),
        }
    }

    fn index(&self, cache: StateId, width: u32) -> Outcome {
        match self.stage.state(cache).kind {
            StateKind::IndexKeys { dim, .. } => same("width of an indexer key", width, dim),
            _ => Err("the cache holds no indexer keys".into()),
        }
    }

    fn part(&self, x: View, part: &MatMulPart) -> Outcome {
        self.matrix(part.main_weight(), x.width, part.out.width)?;
        if let PartWeights::Gated { up, up_scale, .. } = part.weights {
            self.matrix(up, x.width, part.out.width)?;
            up_scale.map_or(Ok(()), |scale| self.vector(scale, 1))?;
        }
        if let Some(bias) = part.bias {
            self.vector(bias, part.out.width)?;
        }
        if let Some(scale) = part.scale {
            self.vector(scale, 1)?;
        }
        if let Epilogue::Decay { a, dt } = part.epilogue {
            self.vector(a, part.out.width)?;
            self.vector(dt, part.out.width)?;
        }
        require(part.out.buffer != x.buffer, || "a product writes into its own input".into())
    }

    fn shapes(&self, op: &Op) -> Outcome {
        match op {
            Op::Repeat { x, out } => require(out.width % x.width == 0, || "output is no multiple of the input".into()),
            Op::RmsNorm { x, weight, out, group, .. } => {
                same("output width", out.width, x.width)?;
                require(*group > 0 && x.width.is_multiple_of(*group), || format!("{} columns in groups of {group}", x.width))?;
                weight.map_or(Ok(()), |w| self.repeated_vector(w, x.width))
            }
            Op::MatMul { x, parts } => parts.iter().try_for_each(|part| self.part(*x, part)),
            Op::HcGate { gates, normed, out, streams } => {
                same("width of the gates", gates.width, normed.width)?;
                same("width of the streams", normed.width, out.width * streams)
            }
            Op::HcCombine { x, weights, y } => same("width of the streams", x.width, weights.width * y.width),
            Op::HeadNormRope { heads, weight, rope, .. } => {
                if let Some(w) = weight {
                    self.vector(*w, heads.dim)?;
                }
                rope.map_or(Ok(()), |id| self.rope(id.0, heads.dim))
            }
            Op::KvAppend { k, v, cache } => self.kv(*cache, k.width).and_then(|()| self.kv(*cache, v.width)),
            Op::IndexAppend { key, cache, weight, rope, .. } => {
                self.index(*cache, key.width)?;
                self.vector(*weight, key.width)?;
                self.rope(rope.0, key.width)
            }
            Op::BlockSelect { query, cache, budget_blocks, out } => {
                self.index(*cache, query.dim)?;
                self.element(*out, Element::U32)?;
                same("width of the selection", out.width, budget_blocks + 1)
            }
            Op::Attention { q, cache, out, selection, gate, .. } => self.attention(q, *cache, out, *selection, *gate),
            Op::CausalConv { x, weight, history, out, dilation } => self.conv(*x, *weight, *history, *out, *dilation),
            Op::DeltaRule { .. } => self.delta(op),
            Op::Router { logits, ids, weights, .. } => {
                self.element(*ids, Element::U32)?;
                same("number of expert weights", weights.width, ids.width)?;
                require(ids.width <= logits.width, || "more experts used than there are".into())
            }
            Op::ExpertGated { x, ids, gate, up, out, .. } => {
                self.element(*ids, Element::U32)?;
                self.expert(gate, x.width)?;
                self.expert(up, x.width)?;
                same("rows of up", up.rows, gate.rows)?;
                same("output width", out.width, gate.rows * ids.width)
            }
            Op::ExpertDown { x, ids, weights, down, out } => {
                self.element(*ids, Element::U32)?;
                same("number of expert weights", weights.width, ids.width)?;
                self.expert(down, x.width / ids.width)?;
                same("output width", out.width, down.rows)
            }
            Op::Add { x, y, scale } => {
                same("width of the addend", y.width, x.width)?;
                scale.map_or(Ok(()), |s| same("width of the scale", s.width, 1))
            }
            Op::NgramGate { x, key, value, norm_key, norm_query, norm_conv, streams, gated, normed, .. } => {
                same("width of the streams", x.width, value.width * streams)?;
                for view in [key, gated, normed] {
                    same("width of an n-gram operand", view.width, x.width)?;
                }
                [norm_key, norm_query, norm_conv].into_iter().try_for_each(|w| self.vector(*w, x.width))
            }
            Op::GatherOutputs { x, out } => same("output width", out.width, x.width),
        }
    }

    fn rope(&self, id: u32, dim: u32) -> Outcome {
        let rope = self.stage.ropes.get(id as usize).ok_or_else(|| format!("rope {id} does not exist"))?;
        same("number of rotary components", rope.component.len() as u32, rope.inv_freq.len() as u32)?;
        require(rope.component.iter().all(|c| *c < 3), || "a rotary component is not 0, 1 or 2".into())?;
        require(rope.inv_freq.len() as u32 * 2 <= dim, || format!("{} rotary pairs in a head of {dim}", rope.inv_freq.len()))
    }

    fn attention(&self, q: &Heads, cache: StateId, out: &Heads, selection: Option<(View, u32)>, gate: Option<Heads>) -> Outcome {
        let StateKind::Kv { kv_heads, head_dim, .. } = self.stage.state(cache).kind else {
            return Err("the cache holds no keys and values".into());
        };
        same("head size of the query", q.dim, head_dim)?;
        require(kv_heads > 0 && q.count.is_multiple_of(kv_heads), || format!("{} heads over {kv_heads} KV heads", q.count))?;
        for heads in [Some(*out), gate].into_iter().flatten() {
            same("number of heads", heads.count, q.count)?;
            same("head size", heads.dim, q.dim)?;
        }
        selection.map_or(Ok(()), |(view, ratio)| {
            require(ratio > 0, || "blocks of no tokens".into())?;
            self.element(view, Element::U32)
        })
    }

    fn conv(&self, x: View, weight: WeightId, history: StateId, out: View, dilation: u32) -> Outcome {
        same("output width", out.width, x.width)?;
        let w = self.stage.weight(weight);
        require(w.format == Format::F32, || format!("{} must be F32, it is {}", w.tensor, w.format))?;
        same("channels of the convolution", w.rows, x.width)?;
        let StateKind::ConvHistory { ring_rows, channels } = self.stage.state(history).kind else {
            return Err("the state is no convolution history".into());
        };
        same("channels of the history", channels, x.width)?;
        let needed = w.cols.saturating_sub(1) * dilation;
        require(ring_rows >= needed, || format!("the history keeps {ring_rows} rows, {needed} are needed"))
    }

    fn delta(&self, op: &Op) -> Outcome {
        let Op::DeltaRule { q, k, v, decay, beta, gate, norm, state, out, .. } = op else { return Ok(()) };
        let StateKind::Delta { heads, key_dim, value_dim, .. } = self.stage.state(*state).kind else {
            return Err("the state is no delta-rule state".into());
        };
        same("key heads", k.count, q.count)?;
        same("query head size", q.dim, key_dim)?;
        same("key head size", k.dim, key_dim)?;
        same("value head size", v.dim, value_dim)?;
        same("value heads", v.count, heads)?;
        require(v.count.is_multiple_of(q.count), || format!("{} value heads over {} key heads", v.count, q.count))?;
        same("decays", decay.width, v.count)?;
        same("betas", beta.width, v.count)?;
        same("gate width", gate.width, v.count * v.dim)?;
        same("output width", out.width, v.count * v.dim)?;
        self.vector(*norm, v.dim)
    }

    /// Buffers that are alive at the same step must not share bytes.
    fn overlaps(&self) -> Outcome {
        let shape = self.program.shape;
        let range = |b: &BufferDecl| (b.offset_bytes, b.offset_bytes + u64::from(shape.rows(b.rows)) * u64::from(b.width) * 4);
        for (i, a) in self.program.buffers.iter().enumerate() {
            let (start, end) = range(a);
            require(end <= self.program.work_bytes, || format!("buffer '{}' reaches past the work arena", a.name))?;
            for b in &self.program.buffers[i + 1..] {
                let together = a.first_step <= b.last_step && b.first_step <= a.last_step;
                let (other_start, other_end) = range(b);
                require(!together || end <= other_start || other_end <= start, || {
                    format!("buffers '{}' and '{}' share bytes while both are alive", a.name, b.name)
                })?;
            }
        }
        Ok(())
    }
}
