//! A program is checked before it runs: a backend may rely on everything that is checked here.

use thiserror::Error;

use super::decl::{ArenaKind, BufferDecl, Element, Program, Rows, Stage, StateId, StateKind, WeightDecl, WeightId};
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

/// No arena is larger: offsets and sums inside one that is accepted cannot overflow.
const MAX_ARENA_BYTES: u64 = 1 << 60;

type Outcome = Result<(), String>;

fn require(condition: bool, problem: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(problem()) }
}

fn same(what: &str, found: impl Into<u64>, expected: impl Into<u64>) -> Outcome {
    let (found, expected) = (found.into(), expected.into());
    require(found == expected, || format!("{what} is {found}, expected {expected}"))
}

/// A product that cannot overflow.
fn product(a: u32, b: u32) -> u64 {
    u64::from(a) * u64::from(b)
}

/// Checks every program of a stage, and that weights and state lie apart from each other inside their arenas.
pub fn check_stage(stage: &Stage) -> Result<(), CheckError> {
    let fail =
        |name: &str, problem: String| Err(CheckError { program: stage.name.clone(), step: 0, name: name.to_string(), problem });
    for arena in ArenaKind::ALL {
        let bytes = stage.arena_bytes(arena);
        if bytes > MAX_ARENA_BYTES {
            return fail(&format!("{arena:?} arena"), format!("needs {bytes} bytes, more than any machine has"));
        }
    }
    for w in &stage.weights {
        if w.matrix_bytes() == 0 {
            return fail(&w.tensor, format!("{} columns are no whole number of {} blocks", w.cols, w.format));
        }
        let own_bytes = stage.weights_bytes.saturating_sub(stage.lent_bytes);
        if w.lent > w.slots || (w.lent > 0 && w.slice(w.kept()).offset_bytes < own_bytes) {
            return fail(&w.tensor, format!("lends {} of {} slots, of which some lie on no work buffer", w.lent, w.slots));
        }
        if w.end_of(w.kept()) > own_bytes {
            return fail(&w.tensor, "lies on bytes of the work arena without lending them".into());
        }
        if w.slots > w.experts {
            return fail(&w.tensor, format!("{} slots for {} matrices", w.slots, w.experts));
        }
        if w.end_bytes() > stage.weights_bytes {
            return fail(&w.tensor, "reaches past the end of the weights arena".into());
        }
    }
    if let Some((first, second)) = overlapping_weights(&stage.weights) {
        return fail(&first.tensor, format!("overlaps {}", second.tensor));
    }
    let keeps = |i: &usize| stage.programs.len() == 1 || stage.programs[*i].shape.max_rows < most_rows(stage);
    if let Some(i) = (0..stage.programs.len()).filter(keeps).find(|i| stage.borrows(*i)) {
        return fail(&stage.programs[i].name, "lies on slots of experts, which only the program with the most rows may".into());
    }
    for s in &stage.states {
        if s.offset_bytes + s.slot_stride_bytes * u64::from(s.slots) > stage.state_bytes {
            return fail(&s.name, "reaches past the end of the state arena".into());
        }
    }
    stage.programs.iter().try_for_each(|program| check_program(stage, program))
}

/// Two weights that share bytes. Weights of experts may interleave if they repeat at the same distance and the matrices of
/// one expert lie together; experts are not looked at one by one, since there may be very many.
fn overlapping_weights(weights: &[WeightDecl]) -> Option<(&WeightDecl, &WeightDecl)> {
    let mut order: Vec<&WeightDecl> = weights.iter().filter(|w| w.slots > 0).collect();
    order.sort_by_key(|w| w.offset_bytes);
    // The first weight of the present slab, and where the bytes in use end: of expert 0 and of all experts.
    let mut slab: Option<&WeightDecl> = None;
    let (mut end, mut all_end) = (0, 0);
    let mut before: Option<&WeightDecl> = None;
    for w in order {
        let w_end = w.offset_bytes + w.matrix_bytes();
        let joins = slab.is_some_and(|s| {
            let slab_end = s.offset_bytes + s.expert_stride_bytes;
            s.expert_stride_bytes == w.expert_stride_bytes && w.experts > 1 && w_end <= slab_end
        });
        let free_from = if joins { end } else { all_end };
        match before {
            Some(before) if w.offset_bytes < free_from => return Some((before, w)),
            _ => {}
        }
        if w.experts > 1 && w.matrix_bytes() > w.expert_stride_bytes {
            return Some((w, w));
        }
        if !joins {
            slab = Some(w);
        }
        end = w_end;
        all_end = all_end.max(w.end_bytes());
        before = Some(w);
    }
    None
}

fn most_rows(stage: &Stage) -> u32 {
    stage.programs.iter().map(|p| p.shape.max_rows).max().unwrap_or(0)
}

/// Checks shapes, formats, lifetimes and overlaps of one program.
pub fn check_program(stage: &Stage, program: &Program) -> Result<(), CheckError> {
    let checker = Checker { stage, program };
    let mut written: Vec<bool> = program.buffers.iter().map(|b| b.input.is_some()).collect();
    for (i, step) in program.steps.iter().enumerate() {
        let outcome = checker.step(&step.op, &mut written);
        outcome.map_err(|problem| CheckError { program: program.name.clone(), step: i, name: step.name.clone(), problem })?;
    }
    for i in program.host_steps() {
        let (step, outcome) = (&program.steps[i], checker.host_step(i));
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
            Op::GatherOutputs { .. } | Op::JoinRows { .. } => kinds == [Rows::Batch, Rows::Outputs],
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
        same(&format!("length of {}", w.tensor), product(w.cols, w.rows), len)
    }

    /// A norm weight repeats over the columns.
    fn repeated_vector(&self, id: WeightId, width: u32) -> Outcome {
        let w = self.stage.weight(id);
        require(w.format == Format::F32, || format!("{} must be F32, it is {}", w.tensor, w.format))?;
        let len = product(w.cols, w.rows);
        require(len > 0 && u64::from(width).is_multiple_of(len), || {
            format!("{} has {len} elements, which do not divide {width}", w.tensor)
        })
    }

    fn matrix(&self, id: WeightId, cols: u32, rows: u32) -> Outcome {
        let w = self.stage.weight(id);
        same(&format!("input width of {}", w.tensor), w.cols, cols)?;
        same(&format!("output width of {}", w.tensor), w.rows, rows)
    }

    fn expert(&self, m: &ExpertMatrix, cols: u32) -> Outcome {
        let w = self.stage.weight(m.weight);
        same(&format!("input width of {}", w.tensor), w.cols, cols)?;
        let end = u64::from(m.row_offset) + u64::from(m.rows);
        require(end <= u64::from(w.rows), || format!("rows {}..{end} lie outside {}", m.row_offset, w.tensor))?;
        m.scale.map_or(Ok(()), |s| self.vector(s, w.experts))
    }

    /// Experts that are found by a table; without one all must be held.
    fn held(&self, m: &ExpertMatrix, slots: Option<StateId>) -> Outcome {
        let w = self.stage.weight(m.weight);
        match slots {
            Some(id) => self.slot_table(id, w.experts),
            None => require(w.holds_all(), || format!("{} holds {} of {} experts without a table", w.tensor, w.slots, w.experts)),
        }
    }

    fn slot_table(&self, id: StateId, experts: u32) -> Outcome {
        match self.stage.state(id).kind {
            StateKind::ExpertSlots { experts: found, .. } => same("experts of the slot table", found, experts),
            _ => Err("the state is no table of expert slots".into()),
        }
    }

    /// `HostExperts`, the held experts with the same operands, `HostJoin`: in this order, with nothing else between, so that the
    /// device's part may run several times.
    fn host_step(&self, i: usize) -> Outcome {
        if self.program.steps[i].op == Op::Pause {
            return Ok(());
        }
        let Op::HostExperts { ids, slots, out, .. } = &self.program.steps[i].op else {
            let before = self.program.steps[..i].iter().rev().find(|step| step.op.is_host());
            return require(before.is_some_and(|step| matches!(step.op, Op::HostExperts { .. })), || {
                "the host joins what it never began".into()
            });
        };
        let after = &self.program.steps[i + 1..];
        let segment = after.iter().take_while(|step| !step.op.is_host());
        let mut count = 0;
        for step in segment {
            count += 1;
            let fits = match &step.op {
                Op::ExpertGated { ids: own, slots: table, .. } => own == ids && *table == Some(*slots),
                Op::ExpertDownEach { ids: own, slots: table, out: target, .. } => own == ids && table == slots && target == out,
                _ => false,
            };
            require(fits, || format!("'{}' cannot be run again while the host works on the same choices", step.name))?;
        }
        let joined = after.get(count).is_some_and(|step| step.op == Op::HostJoin { out: *out });
        require(count == 2 && joined, || "the held experts and the join do not follow".into())
    }

    fn kv(&self, cache: StateId, width: u32) -> Outcome {
        match self.stage.state(cache).kind {
            StateKind::Kv { kv_heads, head_dim, .. } => same("width of a cached key", width, product(kv_heads, head_dim)),
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
            Op::Repeat { x, out } => {
                require(x.width > 0 && out.width.is_multiple_of(x.width), || "output is no multiple of the input".into())
            }
            Op::RmsNorm { x, weight, out, group, .. } => {
                same("output width", out.width, x.width)?;
                require(*group > 0 && x.width.is_multiple_of(*group), || format!("{} columns in groups of {group}", x.width))?;
                weight.map_or(Ok(()), |w| self.repeated_vector(w, x.width))
            }
            Op::LayerNorm { x, weight, bias, out, .. } => {
                same("output width", out.width, x.width)?;
                [weight, bias].into_iter().try_for_each(|w| self.vector(*w, x.width))
            }
            Op::MatMul { x, parts } => parts.iter().try_for_each(|part| self.part(*x, part)),
            Op::HcGate { gates, normed, out, streams } => {
                same("width of the gates", gates.width, normed.width)?;
                same("width of the streams", normed.width, product(out.width, *streams))
            }
            Op::HcCombine { x, weights, y } => same("width of the streams", x.width, product(weights.width, y.width)),
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
                same("width of the selection", out.width, u64::from(*budget_blocks) + 1)
            }
            Op::Attention { q, cache, out, selection, gate, .. } => self.attention(q, *cache, out, *selection, *gate),
            Op::CausalConv { x, weight, history, out, dilation } => self.conv(*x, *weight, *history, *out, *dilation),
            Op::DeltaRule { .. } => self.delta(op),
            Op::Router { .. }
            | Op::ExpertGated { .. }
            | Op::ExpertDown { .. }
            | Op::ExpertDownEach { .. }
            | Op::ExpertSum { .. }
            | Op::HostExperts { .. } => self.expert_shapes(op),
            Op::HostJoin { .. } | Op::Pause => Ok(()),
            Op::WindowAttention { q, k, v, out, .. } => [k, v, out].into_iter().try_for_each(|heads| {
                same("number of heads", heads.count, q.count)?;
                same("head size", heads.dim, q.dim)
            }),
            Op::Add { x, y, scale } => {
                same("width of the addend", y.width, x.width)?;
                scale.map_or(Ok(()), |s| same("width of the scale", s.width, 1u32))
            }
            Op::NgramGate { x, key, value, norm_key, norm_query, norm_conv, streams, gated, normed, .. } => {
                same("width of the streams", x.width, product(value.width, *streams))?;
                for view in [key, gated, normed] {
                    same("width of an n-gram operand", view.width, x.width)?;
                }
                [norm_key, norm_query, norm_conv].into_iter().try_for_each(|w| self.vector(*w, x.width))
            }
            Op::GatherOutputs { x, out } => same("output width", out.width, x.width),
            Op::JoinRows { x, out } => {
                require(x.width > 0 && out.width.is_multiple_of(x.width), || "output is no multiple of the input".into())
            }
        }
    }

    /// Ops that choose experts, compute them or add their results.
    fn expert_shapes(&self, op: &Op) -> Outcome {
        match op {
            Op::Router { logits, ids, weights, .. } => {
                self.element(*ids, Element::U32)?;
                same("number of expert weights", weights.width, ids.width)?;
                require(ids.width <= logits.width, || "more experts used than there are".into())
            }
            Op::ExpertGated { x, ids, gate, up, slots, out, .. } => {
                self.element(*ids, Element::U32)?;
                self.expert(gate, x.width)?;
                self.expert(up, x.width)?;
                self.held(gate, *slots)?;
                self.held(up, *slots)?;
                same("rows of up", up.rows, gate.rows)?;
                same("output width", out.width, product(gate.rows, ids.width))
            }
            Op::ExpertDown { x, ids, weights, down, out } => {
                self.element(*ids, Element::U32)?;
                same("number of expert weights", weights.width, ids.width)?;
                self.expert(down, x.width / ids.width)?;
                self.held(down, None)?;
                same("output width", out.width, down.rows)
            }
            Op::ExpertDownEach { x, ids, down, slots, out } => {
                self.element(*ids, Element::U32)?;
                self.expert(down, x.width / ids.width)?;
                self.held(down, Some(*slots))?;
                same("output width", out.width, product(down.rows, ids.width))
            }
            Op::ExpertSum { x, ids, weights, scale, out } => {
                self.element(*ids, Element::U32)?;
                same("number of expert weights", weights.width, ids.width)?;
                same("width of the experts' results", x.width, product(out.width, ids.width))?;
                scale.map_or(Ok(()), |s| {
                    let w = self.stage.weight(s);
                    self.vector(s, w.cols.saturating_mul(w.rows))
                })
            }
            Op::HostExperts { ids, slots, .. } => {
                self.element(*ids, Element::U32)?;
                match self.stage.state(*slots).kind {
                    StateKind::ExpertSlots { .. } => Ok(()),
                    _ => Err("the state is no table of expert slots".into()),
                }
            }
            _ => Err("nothing is known of the shapes of its experts".into()),
        }
    }

    fn rope(&self, id: u32, dim: u32) -> Outcome {
        let rope = self.stage.ropes.get(id as usize).ok_or_else(|| format!("rope {id} does not exist"))?;
        same("number of rotary components", rope.component.len() as u64, rope.inv_freq.len() as u64)?;
        require(rope.component.iter().all(|c| *c < 3), || "a rotary component is not 0, 1 or 2".into())?;
        require(rope.inv_freq.len() as u64 * 2 <= u64::from(dim), || {
            format!("{} rotary pairs in a head of {dim}", rope.inv_freq.len())
        })
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
        let needed = product(w.cols.saturating_sub(1), dilation);
        require(u64::from(ring_rows) >= needed, || format!("the history keeps {ring_rows} rows, {needed} are needed"))
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
        same("gate width", gate.width, product(v.count, v.dim))?;
        same("output width", out.width, product(v.count, v.dim))?;
        self.vector(*norm, v.dim)
    }

    /// Buffers that are alive at the same step must not share bytes.
    fn overlaps(&self) -> Outcome {
        let shape = self.program.shape;
        let range = |b: &BufferDecl| (b.offset_bytes, b.offset_bytes.saturating_add(b.bytes(shape.rows(b.rows))));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(name: &str, offset_bytes: u64, rows: u32, experts: u32, expert_stride_bytes: u64) -> WeightDecl {
        // 64 bytes a row.
        WeightDecl {
            tensor: name.into(),
            format: Format::F32,
            cols: 16,
            rows,
            experts,
            slots: experts,
            lent: 0,
            offset_bytes,
            expert_stride_bytes,
            slab_bytes: expert_stride_bytes,
        }
    }

    fn overlap(weights: &[WeightDecl]) -> Option<(&str, &str)> {
        overlapping_weights(weights).map(|(a, b)| (a.tensor.as_str(), b.tensor.as_str()))
    }

    #[test]
    fn slabs_of_experts_interleave_and_nothing_else_does() {
        let slabs = |up_offset, up_rows, up_stride| {
            vec![
                weight("after", 256 + 4 * 512, 4, 1, 0),
                weight("up", up_offset, up_rows, 4, up_stride),
                weight("gate", 256, 4, 4, 512),
                weight("norm", 0, 4, 1, 0),
            ]
        };
        assert_eq!(overlap(&slabs(512, 4, 512)), None);
        assert_eq!(overlap(&slabs(448, 4, 512)), Some(("gate", "up")), "inside the slab");
        assert_eq!(overlap(&slabs(512, 5, 512)), Some(("gate", "up")), "into the next expert");
        assert_eq!(overlap(&slabs(512, 4, 256)), Some(("gate", "up")), "another distance");
        assert_eq!(overlap(&slabs(192, 4, 512)), Some(("norm", "up")), "before the slab");
        let longer = [weight("gate", 0, 4, 4, 256), weight("norm", 1000, 4, 1, 0)];
        assert_eq!(overlap(&longer), Some(("gate", "norm")), "into the last expert");
        assert_eq!(overlap(&[weight("gate", 0, 5, 4, 256)]), Some(("gate", "gate")), "an expert into the next");
    }
}
