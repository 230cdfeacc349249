//! From a program to kernel calls: pure data, the same for all GPU backends.

mod attention;
mod experts;
mod matmul;
mod recurrent;
mod rowwise;

use super::args::{Args, NONE};
use super::kernels::{Kernel, MAX_VECTOR_ROWS, Operand};
use super::launch::{Count, Extent, Launch, Lowered, Region, Window};
use super::run_block::RunLayout;
use super::target::Target;
use crate::backend::ArenaSizes;
use crate::backend::params::Limits;
use crate::program::{
    ARENA_ALIGN_BYTES, Heads, KvFormat, Op, Program, Rows, Stage, StateDecl, StateId, View, WeightDecl, WeightId, align_up,
};
use crate::quant::Format;

type Outcome<T = ()> = Result<T, String>;

/// Columns of a workgroup of the kernels that work on single columns.
const COLUMNS: u32 = 256;

/// Lowers program `index` of a stage that has passed its checks.
///
/// # Errors
/// The name of the step that the device cannot run, and the reason.
pub fn lower(stage: &Stage, index: usize, sizes: ArenaSizes, target: &Target) -> Result<Lowered, (String, String)> {
    let Some(program) = stage.programs.get(index) else {
        return Err((format!("program {index}"), "the stage has no such program".into()));
    };
    let mut lowering = Lowering::new(stage, program, sizes, target);
    let mut steps = Vec::with_capacity(program.steps.len());
    for step in &program.steps {
        let first = lowering.launches.len();
        lowering.step(&step.op).map_err(|problem| (step.name.clone(), problem))?;
        steps.push(first..lowering.launches.len());
    }
    lowering.finish(steps).map_err(|problem| (program.name.clone(), problem))
}

/// Whether a device can run an op of a program.
///
/// # Errors
/// The reason why not.
pub fn supports(stage: &Stage, op: &Op, target: &Target) -> Result<(), String> {
    let Some(program) = stage.programs.iter().find(|p| p.steps.iter().any(|step| step.op == *op)) else {
        return Err("the op belongs to no program of the stage".into());
    };
    Lowering::new(stage, program, ArenaSizes::of(stage), target).step(op)
}

/// Rounded activations that the scratch holds.
#[derive(Debug, Clone, Copy)]
struct Quantised {
    x: View,
    at: u32,
    stride: u32,
}

/// The choices of a window, sorted by expert, that the scratch holds.
#[derive(Debug, Clone, Copy)]
struct Grouped {
    ids: View,
    choices_at: u32,
    tiles_at: u32,
}

/// A kernel call in the making.
struct Call {
    kernel: Kernel,
    format: Option<Format>,
    cache: Option<KvFormat>,
    gated: bool,
    batched: Option<(Count, u32)>,
    windows: [Option<Window>; 6],
    grid: [Extent; 3],
}

impl Call {
    fn new(kernel: Kernel, grid: [Extent; 3]) -> Call {
        Call { kernel, format: None, cache: None, gated: false, batched: None, windows: [None; 6], grid }
    }

    fn with(mut self, operand: Operand, window: Option<Window>) -> Call {
        if let Some(at) = Operand::ALL.iter().position(|o| *o == operand).and_then(|at| at.checked_sub(1)) {
            self.windows[at] = window;
        }
        self
    }

    fn work(self, work: &Work) -> Call {
        self.with(Operand::Work, Some(work.window))
    }
}

/// The window of the work arena that a call sees.
#[derive(Debug, Clone, Copy)]
struct Work {
    window: Window,
}

struct Lowering<'a> {
    stage: &'a Stage,
    program: &'a Program,
    sizes: ArenaSizes,
    target: &'a Target,
    run: RunLayout,
    launches: Vec<Launch>,
    /// Scratch that lives as long as the program, and where the scratch of steps begins.
    kept_bytes: u64,
    /// Largest end of any scratch.
    scratch_bytes: u64,
    /// Scratch in use by the step at hand.
    step_bytes: u64,
    quantised: Option<Quantised>,
    grouped: Option<Grouped>,
    /// Places of what the two above describe.
    quantised_at: u32,
    choices_at: u32,
    tiles_at: u32,
}

impl<'a> Lowering<'a> {
    fn new(stage: &'a Stage, program: &'a Program, sizes: ArenaSizes, target: &'a Target) -> Lowering<'a> {
        let mut lowering = Lowering {
            stage,
            program,
            sizes,
            target,
            run: RunLayout::new(stage, program),
            launches: vec![],
            kept_bytes: 0,
            scratch_bytes: 0,
            step_bytes: 0,
            quantised: None,
            grouped: None,
            quantised_at: 0,
            choices_at: 0,
            tiles_at: 0,
        };
        lowering.keep_shared_scratch();
        lowering.scratch_bytes = lowering.kept_bytes;
        lowering.step_bytes = lowering.kept_bytes;
        lowering
    }

    /// Room for rounded activations and sorted choices, which several steps may use.
    fn keep_shared_scratch(&mut self) {
        let (mut activations, mut choices, mut tiles) = (0u64, 0u64, 0u64);
        for step in &self.program.steps {
            let x = match &step.op {
                Op::MatMul { x, .. } => Some(*x),
                Op::ExpertGated { x, .. } | Op::ExpertDown { x, .. } | Op::ExpertDownEach { x, .. } => Some(*x),
                _ => None,
            };
            if let Some(x) = x.filter(|x| self.rounds_activations(*x)) {
                let rows = self.max_rows(x);
                activations = activations.max(u64::from(rows) * u64::from(quantised_stride(x.width)));
            }
            if let Op::ExpertGated { ids, gate, .. } = &step.op {
                let pairs = u64::from(self.max_rows(*ids)) * u64::from(ids.width);
                choices = choices.max(pairs);
                let experts = self.stage.weight(gate.weight).experts;
                tiles = tiles.max(1 + 3 * u64::from(experts::max_tiles(pairs, experts, self.target.tiles.matrix_rows)));
            }
        }
        let mut keep = |words: u64| {
            let at = self.kept_bytes / 4;
            self.kept_bytes = align_up(self.kept_bytes + words * 4, ARENA_ALIGN_BYTES);
            at as u32
        };
        (self.quantised_at, self.choices_at, self.tiles_at) = (keep(activations), keep(choices), keep(tiles));
    }

    fn finish(mut self, steps: Vec<std::ops::Range<usize>>) -> Outcome<Lowered> {
        let scratch_bytes = align_up(self.scratch_bytes, ARENA_ALIGN_BYTES);
        if scratch_bytes > self.target.max_binding_bytes.min(self.target.cut_bytes) {
            return Err(format!(
                "needs {scratch_bytes} bytes of scratch, more than a kernel of this device can see; use smaller chunks"
            ));
        }
        let scratch = Window { region: Region::Scratch, offset_bytes: 0, len_bytes: scratch_bytes };
        for launch in &mut self.launches {
            if launch.kernel.info().operands.contains(&Operand::Scratch) && scratch_bytes > 0 {
                launch.windows[Operand::ALL.len() - 2] = Some(scratch);
            }
        }
        let limits = Limits::of(self.stage, self.program);
        let Lowering { launches, run, .. } = self;
        Ok(Lowered { launches, steps, scratch_bytes, run, limits })
    }

    fn step(&mut self, op: &Op) -> Outcome {
        self.step_bytes = self.kept_bytes;
        match op {
            Op::Repeat { .. } | Op::Add { .. } | Op::GatherOutputs { .. } | Op::RmsNorm { .. } => self.rowwise(op)?,
            Op::HcGate { .. } | Op::HcCombine { .. } | Op::HeadNormRope { .. } | Op::NgramGate { .. } => self.rowwise(op)?,
            Op::MatMul { x, parts } => self.matmul(*x, parts)?,
            Op::KvAppend { .. } | Op::Attention { .. } => self.attention(op)?,
            Op::IndexAppend { .. } | Op::BlockSelect { .. } => self.indexer(op)?,
            Op::CausalConv { .. } | Op::DeltaRule { .. } => self.recurrent(op)?,
            Op::Router { .. } | Op::ExpertGated { .. } | Op::ExpertDown { .. } => self.experts(op)?,
            Op::ExpertDownEach { .. } | Op::ExpertSum { .. } => self.experts(op)?,
            Op::HostExperts { .. } | Op::HostJoin { .. } | Op::Pause => {}
            Op::LayerNorm { .. } | Op::WindowAttention { .. } | Op::JoinRows { .. } => {
                return Err(format!("'{}' is not supported on this backend", op.kind()));
            }
        }
        self.forget_stale(op);
        Ok(())
    }

    /// What was derived from a buffer is stale once the buffer is written. Nothing derived outlives a host step: the segment
    /// after it may run again when its own steps have put something else in the same place of the scratch.
    fn forget_stale(&mut self, op: &Op) {
        if op.is_host() {
            (self.quantised, self.grouped) = (None, None);
            return;
        }
        let writes = op.writes();
        let stale = |view: View| writes.iter().any(|w| w.buffer == view.buffer);
        self.quantised = self.quantised.filter(|q| !stale(q.x));
        self.grouped = self.grouped.filter(|g| !stale(g.ids));
    }

    fn push(&mut self, call: Call, args: impl Into<Args>) {
        let Call { kernel, format, cache, gated, batched, windows, grid } = call;
        let launch = Launch { kernel, format, cache, gated, batched, args: args.into(), windows, grid };
        debug_assert!(launch.is_sound(), "{launch:?}");
        self.launches.push(launch);
    }

    /// Words of scratch for the step at hand.
    fn scratch(&mut self, words: u64) -> Outcome<u32> {
        let at = self.step_bytes / 4;
        self.step_bytes = align_up(self.step_bytes.saturating_add(words.saturating_mul(4)), ARENA_ALIGN_BYTES);
        self.scratch_bytes = self.scratch_bytes.max(self.step_bytes);
        word(at)
    }

    fn rows_of(&self, view: View) -> Rows {
        self.program.buffer(view.buffer).rows
    }

    fn count_of(&self, view: View) -> Count {
        match self.rows_of(view) {
            Rows::Batch => Count::Rows,
            Rows::Outputs => Count::Outputs,
        }
    }

    fn max_rows(&self, view: View) -> u32 {
        self.program.shape.rows(self.rows_of(view))
    }

    /// Whether the program has so few of these rows that vector kernels are the right ones.
    fn few_rows(&self, view: View) -> bool {
        self.max_rows(view) <= MAX_VECTOR_ROWS
    }

    fn rows_extent(&self, view: View) -> Outcome<Extent> {
        let most = self.max_rows(view);
        self.check_groups_yz(most)?;
        Ok(Extent::of(self.count_of(view)))
    }

    fn check_groups_yz(&self, groups: u32) -> Outcome {
        let most = self.target.max_groups_yz;
        if groups > most { Err(format!("{groups} workgroups, the device takes {most}")) } else { Ok(()) }
    }

    /// One workgroup for 256 columns of each row.
    fn columns_by_rows(&self, width: u32, view: View) -> Outcome<[Extent; 3]> {
        Ok([Extent::Fixed(width.div_ceil(COLUMNS)), self.rows_extent(view)?, Extent::Fixed(1)])
    }

    /// A window over `start..end` of a region.
    fn window(&self, region: Region, start: u64, end: u64, what: &str) -> Outcome<Window> {
        let arena_bytes = match region {
            Region::Weights => self.sizes.weights_bytes,
            Region::State => self.sizes.state_bytes,
            Region::Work => self.sizes.work_bytes,
            Region::Scratch => u64::MAX,
        };
        if end > arena_bytes {
            return Err(format!("{what} reaches to byte {end} of an arena of {arena_bytes}"));
        }
        let offset_bytes = start / ARENA_ALIGN_BYTES * ARENA_ALIGN_BYTES;
        let window = Window { region, offset_bytes, len_bytes: (end - offset_bytes).next_multiple_of(4) };
        if window.len_bytes > self.target.max_binding_bytes {
            let most = self.target.max_binding_bytes;
            return Err(format!("{what} spans {} bytes; a kernel of this device sees {most} at once", window.len_bytes));
        }
        if end > self.visible_end(region, offset_bytes) {
            return Err(format!("{what} lies across two buffers of this device"));
        }
        Ok(window)
    }

    /// Where the buffer that holds a byte of a region ends.
    fn visible_end(&self, region: Region, offset_bytes: u64) -> u64 {
        let cut = self.target.cut_bytes;
        let overlap = if region == Region::Weights { self.target.cut_overlap_bytes } else { 0 };
        (offset_bytes / cut).saturating_add(1).saturating_mul(cut).saturating_add(overlap)
    }

    /// The work arena as a call sees it: all of it where the device can, else what the views need.
    fn work(&self, views: &[View]) -> Outcome<Work> {
        let all = self.sizes.work_bytes;
        if all <= self.target.max_binding_bytes && all <= self.target.cut_bytes {
            let window = Window { region: Region::Work, offset_bytes: 0, len_bytes: all.next_multiple_of(4) };
            return Ok(Work { window });
        }
        let range = |view: &View| {
            let buffer = self.program.buffer(view.buffer);
            (buffer.offset_bytes, buffer.offset_bytes + buffer.bytes(self.program.shape.rows(buffer.rows)))
        };
        let start = views.iter().map(|v| range(v).0).min().unwrap_or(0);
        let end = views.iter().map(|v| range(v).1).max().unwrap_or(0);
        let window = self.window(Region::Work, start, end, "the operands of a step")?;
        Ok(Work { window })
    }

    /// First word and row stride of a view.
    fn place(&self, view: View, work: &Work) -> Outcome<(u32, u32)> {
        let buffer = self.program.buffer(view.buffer);
        let start = buffer.offset_bytes - work.window.offset_bytes + u64::from(view.offset) * 4;
        let rows = u64::from(self.program.shape.rows(buffer.rows));
        // Kernels count words of the whole operand in 32 bits.
        word(start / 4 + rows * u64::from(buffer.width))?;
        Ok((word(start / 4)?, buffer.width))
    }

    fn heads_place(&self, heads: Heads, work: &Work) -> Outcome<(u32, u32, u32)> {
        let (at, stride) = self.place(heads.view(), work)?;
        Ok((at, stride, heads.stride))
    }

    fn weight(&self, id: WeightId) -> Outcome<&'a WeightDecl> {
        self.stage.weights.get(id.0 as usize).ok_or_else(|| "a weight does not exist".to_string())
    }

    /// A window over F32 vectors, and the word of each in it; `None` stays [`NONE`].
    fn vectors<const N: usize>(&self, ids: [Option<WeightId>; N]) -> Outcome<(Option<Window>, [u32; N])> {
        let mut range: Option<(u64, u64)> = None;
        for id in ids.into_iter().flatten() {
            let w = self.weight(id)?;
            if w.format != Format::F32 {
                return Err(format!("{} must be F32, it is {}", w.tensor, w.format));
            }
            let (start, end) = (w.offset_bytes, w.offset_bytes + w.matrix_bytes());
            range = Some(range.map_or((start, end), |(s, e)| (s.min(start), e.max(end))));
        }
        let Some((start, end)) = range else { return Ok((None, [NONE; N])) };
        let window = self.window(Region::Weights, start, end, "the vectors of a step")?;
        let mut at = [NONE; N];
        for (at, id) in at.iter_mut().zip(ids) {
            if let Some(id) = id {
                *at = word((self.weight(id)?.offset_bytes - window.offset_bytes) / 4)?;
            }
        }
        Ok((Some(window), at))
    }

    fn vector(&self, id: Option<WeightId>) -> Outcome<(Option<Window>, u32)> {
        let (window, [at]) = self.vectors([id])?;
        Ok((window, at))
    }

    /// A window over all slots of a state, and its first word and the words between slots.
    fn state(&self, id: StateId) -> Outcome<(&'a StateDecl, Window, u32, u32)> {
        let s = self.stage.states.get(id.0 as usize).ok_or("a state does not exist")?;
        let end = s.offset_bytes + s.slot_stride_bytes * u64::from(s.slots);
        let window = self.window(Region::State, s.offset_bytes, end, &s.name)?;
        word(window.len_bytes / 4)?;
        Ok((s, window, word((s.offset_bytes - window.offset_bytes) / 4)?, word(s.slot_stride_bytes / 4)?))
    }
}

/// Refuses more of something than a device's kernels have room for.
fn check_room(what: &str, number: u32, most: u32) -> Outcome {
    if number <= most { Ok(()) } else { Err(format!("{number} {what}; kernels of this device have room for {most}")) }
}

/// Words of a row of rounded activations.
fn quantised_stride(width: u32) -> u32 {
    width.div_ceil(32) * 20
}

/// A number of words that fits kernels' arithmetic.
fn word(value: u64) -> Outcome<u32> {
    u32::try_from(value).ok().filter(|v| *v != NONE).ok_or_else(|| format!("an offset of {value} words"))
}
