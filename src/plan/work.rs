//! Work arenas: the buffers of a stage's programs, packed by the code that packs them for the engine.
//!
//! Packing places what passes from layer to layer at the bottom of the arena, and the buffers of every layer above that, on the
//! same bytes. So a range of layers needs what its hungriest layer needs, and n-gram rows add to the layers that they pass by on
//! their way; every form of a layer is packed once for all ranges.

use std::cell::OnceCell;

use super::context::Context;
use super::limits::LayerRange;
use super::model::{LayerWork, PlanModel, WorkBuffer};
use crate::program::{ARENA_ALIGN_BYTES, PackReport, Piece, ShapeClass, align_up, pack};

/// What the buffers of a program take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packed {
    pub report: PackReport,
    /// The largest buffer: it cannot be cut.
    pub largest_bytes: u64,
    /// The layer that needs the most.
    pub layer: u32,
}

/// The programs of a stage: while a prompt is read, and while none is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageWork {
    pub prompt: Packed,
    pub decode: Packed,
}

/// Every form of a layer, with all of its experts and with some of them.
type Forms = Vec<[Packed; 2]>;

/// Layers packed for the windows of a plan, when they are asked for.
#[derive(Debug)]
pub struct WorkTable {
    shapes: Vec<(ShapeClass, OnceCell<Forms>)>,
}

impl WorkTable {
    pub fn new(shapes: impl Iterator<Item = ShapeClass>) -> WorkTable {
        let mut all: Vec<(ShapeClass, OnceCell<Forms>)> = Vec::new();
        for shape in shapes {
            if all.iter().all(|(known, _)| *known != shape) {
                all.push((shape, OnceCell::new()));
            }
        }
        WorkTable { shapes: all }
    }

    fn forms(&self, model: &PlanModel, shape: ShapeClass) -> &[[Packed; 2]] {
        let known = self.shapes.iter().find(|(known, _)| *known == shape);
        known.map_or(&[], |(_, forms)| forms.get_or_init(|| model.work.iter().map(|work| packed_forms(work, shape)).collect()))
    }
}

fn packed_forms(work: &LayerWork, shape: ShapeClass) -> [Packed; 2] {
    let whole = packed(&work.whole, shape);
    [whole, if work.partial == work.whole { whole } else { packed(&work.partial, shape) }]
}

fn packed(buffers: &[WorkBuffer], shape: ShapeClass) -> Packed {
    let piece = |b: &WorkBuffer| {
        let rows = if b.per_output { shape.max_outputs } else { shape.max_rows };
        let bytes = align_up(b.row_bytes.saturating_mul(rows.into()), ARENA_ALIGN_BYTES);
        Piece { bytes, first_step: b.first_step, last_step: b.last_step, carried: b.carried }
    };
    let pieces: Vec<Piece> = buffers.iter().map(piece).collect();
    let (_, report) = pack(&pieces);
    Packed { report, largest_bytes: pieces.iter().map(|p| p.bytes).max().unwrap_or(0), layer: 0 }
}

/// Rows and outputs of a stage's programs with a prompt chunk: the one with the most rows, and the one of decode windows.
pub fn shapes(ctx: &Context<'_>, chunk: u32) -> [ShapeClass; 2] {
    shapes_of(ctx.limits.decode_rows(), ctx.chunk_rows(chunk) as u32, ctx.outputs)
}

pub fn shapes_of(decode_rows: u32, prompt_rows: u32, outputs: u32) -> [ShapeClass; 2] {
    let programs = ShapeClass::of_programs(decode_rows, prompt_rows, outputs);
    let (first, last) = (programs.first(), programs.last());
    let of = |program: Option<&(&str, ShapeClass)>| program.map_or(ShapeClass { max_rows: 1, max_outputs: 1 }, |p| p.1);
    [of(last), of(first)]
}

/// What the programs of a range of layers take. `is_partial` tells of a layer whether its experts are found by a table.
pub fn stage_work(ctx: &Context<'_>, range: LayerRange, chunk: u32, is_partial: impl Fn(usize) -> bool) -> StageWork {
    let [prompt, decode] = shapes(ctx, chunk).map(|shape| program_work(ctx, range, shape, &is_partial));
    StageWork { prompt, decode }
}

fn program_work(ctx: &Context<'_>, range: LayerRange, shape: ShapeClass, is_partial: &impl Fn(usize) -> bool) -> Packed {
    let forms = ctx.work.forms(ctx.model, shape);
    let ngram = ctx.model.ngram.filter(|n| range.indices().contains(&(n.layer as usize)));
    let passing = |layer: usize| match ngram {
        Some(n) if layer < n.layer as usize => {
            align_up(u64::from(n.floats_per_token) * 4 * u64::from(shape.max_rows), ARENA_ALIGN_BYTES)
        }
        _ => 0,
    };
    let of_layer = |layer: usize| {
        let form = forms.get(ctx.model.layers[layer].work_at(ctx.cells))?;
        let mut packed = form[usize::from(is_partial(layer))];
        packed.report.bytes += passing(layer);
        packed.report.bound_bytes += passing(layer);
        Some(Packed { layer: layer as u32, ..packed })
    };
    let draft = ctx.model.draft.as_ref().filter(|_| ctx.limits.draft && range.end as usize == ctx.layers());
    let draft = draft.and_then(|d| forms.get(d.block.work_at(ctx.cells))).map(|form| Packed { layer: range.end, ..form[0] });
    let mut most = Packed::default();
    for packed in range.indices().filter_map(of_layer).chain(draft) {
        let (report, largest) = (packed.report, most.largest_bytes.max(packed.largest_bytes));
        let bound_bytes = most.report.bound_bytes.max(report.bound_bytes);
        if report.bytes > most.report.bytes {
            most = packed;
        }
        (most.report.bound_bytes, most.largest_bytes) = (bound_bytes, largest);
    }
    most
}

/// Floats of the widest row that a product with weights takes.
pub fn product_floats(ctx: &Context<'_>, range: LayerRange) -> u64 {
    let draft = ctx.model.draft.as_ref().filter(|_| ctx.limits.draft && range.end as usize == ctx.layers());
    let layers = ctx.model.layers[range.indices()].iter().chain(draft.map(|d| &d.block));
    layers.filter_map(|l| ctx.model.work.get(l.work_at(ctx.cells))).map(|w| w.product_floats).max().unwrap_or(0)
}
