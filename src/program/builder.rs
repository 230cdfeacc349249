//! How a model family writes stages and programs.

use std::collections::HashMap;

use super::decl::{
    BufferDecl, BufferId, Element, InputKind, OutputKind, Program, Rope, RopeId, Rows, ShapeClass, Stage, StateDecl, StateId,
    StateKind, WeightDecl, WeightId,
};
use super::op::{Op, Step, View};
use super::pack::{ARENA_ALIGN_BYTES, align_up, pack_buffers};
use crate::quant::Format;

/// Name, format and shape of a matrix in the model files.
#[derive(Debug, Clone, PartialEq)]
pub struct MatrixSpec {
    pub tensor: String,
    pub format: Format,
    pub cols: u32,
    pub rows: u32,
}

/// Collects the weights, state and programs of a stage and gives every one its place.
#[derive(Debug, Default)]
pub struct StageBuilder {
    name: String,
    weights: Vec<WeightDecl>,
    by_tensor: HashMap<String, WeightId>,
    weights_bytes: u64,
    states: Vec<StateDecl>,
    state_bytes: u64,
    ropes: Vec<Rope>,
    programs: Vec<Program>,
    /// Layers whose slots take turns at the end of the weights arena: the parts of their slabs.
    shared: Vec<Vec<WeightId>>,
}

/// Places for the experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRoom {
    pub slots: u32,
    /// `Some` if the stage lends slots to the buffers of its largest program: so many of the last ones of this layer.
    pub lent: Option<u32>,
}

impl StageBuilder {
    pub fn new(name: impl Into<String>) -> StageBuilder {
        StageBuilder { name: name.into(), ..StageBuilder::default() }
    }

    /// A matrix or vector; asking twice for a tensor gives the same weight.
    pub fn weight(&mut self, spec: MatrixSpec) -> WeightId {
        if let Some(id) = self.by_tensor.get(&spec.tensor) {
            return *id;
        }
        let offset_bytes = self.weights_bytes;
        let id = self.push_weight(spec, (1, 1), offset_bytes, 0);
        self.weights_bytes = align_up(offset_bytes.saturating_add(self.weights[id.0 as usize].matrix_bytes()), ARENA_ALIGN_BYTES);
        id
    }

    /// The parts of `experts` experts, each expert one slab: its parts follow one another, and slabs follow one another.
    pub fn expert_slabs(&mut self, parts: Vec<MatrixSpec>, experts: u32) -> Vec<WeightId> {
        self.expert_slots(parts, experts, SlotRoom { slots: experts, lent: None })
    }

    /// As [`StageBuilder::expert_slabs`], with room for some of the experts. Slots of layers that lend some of them lie at the
    /// end of the arena, the first of all layers before the second of all.
    pub fn expert_slots(&mut self, parts: Vec<MatrixSpec>, experts: u32, SlotRoom { slots, lent }: SlotRoom) -> Vec<WeightId> {
        let base = if lent.is_some() { 0 } else { self.weights_bytes };
        let mut ids = Vec::with_capacity(parts.len());
        let mut within = 0u64;
        for spec in parts {
            let id = self.push_weight(spec, (experts, slots), base.saturating_add(within), 0);
            within = align_up(within.saturating_add(self.weights[id.0 as usize].matrix_bytes()), ARENA_ALIGN_BYTES);
            ids.push(id);
        }
        for id in &ids {
            let weight = &mut self.weights[id.0 as usize];
            (weight.expert_stride_bytes, weight.slab_bytes, weight.lent) = (within, within, lent.unwrap_or(0).min(slots));
        }
        match lent {
            Some(_) => self.shared.push(ids.clone()),
            None => self.weights_bytes = base.saturating_add(within.saturating_mul(u64::from(slots))),
        }
        ids
    }

    fn push_weight(
        &mut self,
        spec: MatrixSpec,
        (experts, slots): (u32, u32),
        offset_bytes: u64,
        expert_stride_bytes: u64,
    ) -> WeightId {
        let id = WeightId(self.weights.len() as u32);
        self.by_tensor.insert(spec.tensor.clone(), id);
        self.weights.push(WeightDecl {
            tensor: spec.tensor,
            format: spec.format,
            cols: spec.cols,
            rows: spec.rows,
            experts,
            slots,
            lent: 0,
            offset_bytes,
            expert_stride_bytes,
            slab_bytes: 0,
        });
        let own = &mut self.weights[id.0 as usize];
        own.slab_bytes = own.matrix_bytes();
        id
    }

    pub fn weight_decl(&self, id: WeightId) -> &WeightDecl {
        &self.weights[id.0 as usize]
    }

    pub fn state(&mut self, name: impl Into<String>, kind: StateKind, slots: u32) -> StateId {
        let id = StateId(self.states.len() as u32);
        let slot_stride_bytes = align_up(kind.bytes_per_slot(), ARENA_ALIGN_BYTES);
        self.states.push(StateDecl { name: name.into(), kind, slots, offset_bytes: self.state_bytes, slot_stride_bytes });
        self.state_bytes = self.state_bytes.saturating_add(slot_stride_bytes.saturating_mul(u64::from(slots)));
        id
    }

    /// Equal ropes are kept once.
    pub fn rope(&mut self, rope: Rope) -> RopeId {
        let at = self.ropes.iter().position(|r| *r == rope).unwrap_or_else(|| {
            self.ropes.push(rope);
            self.ropes.len() - 1
        });
        RopeId(at as u32)
    }

    /// Packs the program's buffers and adds it.
    pub fn program(&mut self, builder: ProgramBuilder) {
        let mut program = builder.program;
        pack_buffers(&mut program);
        self.programs.push(program);
    }

    /// Gives slots that take turns their places, smaller slabs first, and says how many of the last bytes are lent.
    fn place_shared(&mut self) -> u64 {
        let mut order = std::mem::take(&mut self.shared);
        order.sort_by_key(|ids| ids.first().map_or(0, |id| self.weights[id.0 as usize].slab_bytes));
        let round = order.iter().flat_map(|ids| ids.first()).map(|id| self.weights[id.0 as usize].slab_bytes);
        let round = round.fold(0, u64::saturating_add);
        let (mut at, mut end, mut first_lent) = (self.weights_bytes, self.weights_bytes, u64::MAX);
        for ids in order {
            let mut slab_bytes = 0;
            for id in ids {
                let weight = &mut self.weights[id.0 as usize];
                weight.offset_bytes = weight.offset_bytes.saturating_add(at);
                weight.expert_stride_bytes = round;
                slab_bytes = weight.slab_bytes;
                let slot = |slot: u32| at.saturating_add(round.saturating_mul(slot.into()));
                if let Some(last) = weight.slots.checked_sub(1) {
                    end = end.max(slot(last).saturating_add(slab_bytes));
                }
                if weight.lent > 0 {
                    first_lent = first_lent.min(slot(weight.slots - weight.lent));
                }
            }
            at = at.saturating_add(slab_bytes);
        }
        self.weights_bytes = end;
        end.saturating_sub(first_lent)
    }

    pub fn finish(mut self) -> Stage {
        let lent_bytes = self.place_shared();
        // The program with the most rows borrows the slots; the buffers of the others lie behind them.
        let most = self.programs.iter().map(|p| p.shape.max_rows).max().unwrap_or(0);
        let alone = self.programs.len() == 1;
        for program in self.programs.iter_mut().filter(|p| lent_bytes > 0 && (alone || p.shape.max_rows < most)) {
            program.buffers.iter_mut().for_each(|b| b.offset_bytes = b.offset_bytes.saturating_add(lent_bytes));
            program.work_bytes = program.work_bytes.saturating_add(lent_bytes);
        }
        let work_bytes = self.programs.iter().map(|p| p.work_bytes).max().unwrap_or(0);
        Stage {
            name: self.name,
            weights: self.weights,
            states: self.states,
            ropes: self.ropes,
            programs: self.programs,
            weights_bytes: self.weights_bytes,
            state_bytes: self.state_bytes,
            work_bytes,
            lent_bytes,
        }
    }
}

/// Collects the buffers and steps of one program.
#[derive(Debug)]
pub struct ProgramBuilder {
    program: Program,
}

impl ProgramBuilder {
    pub fn new(name: impl Into<String>, shape: ShapeClass) -> ProgramBuilder {
        let program = Program { name: name.into(), shape, buffers: vec![], steps: vec![], work_bytes: 0 };
        ProgramBuilder { program }
    }

    /// A buffer of floats with one row per row of the window.
    pub fn buffer(&mut self, name: impl Into<String>, width: u32) -> View {
        self.declare(name, Rows::Batch, width, Element::F32, None, None)
    }

    /// A buffer of ids with one row per row of the window.
    pub fn ids(&mut self, name: impl Into<String>, width: u32) -> View {
        self.declare(name, Rows::Batch, width, Element::U32, None, None)
    }

    /// A buffer of floats with one row per wanted output.
    pub fn output_rows(&mut self, name: impl Into<String>, width: u32) -> View {
        self.declare(name, Rows::Outputs, width, Element::F32, None, None)
    }

    pub fn input(&mut self, name: impl Into<String>, width: u32, kind: InputKind) -> View {
        self.declare(name, Rows::Batch, width, Element::F32, Some(kind), None)
    }

    /// Ids that the host writes.
    pub fn id_input(&mut self, name: impl Into<String>, width: u32, kind: InputKind) -> View {
        self.declare(name, Rows::Batch, width, Element::U32, Some(kind), None)
    }

    pub fn output(&mut self, name: impl Into<String>, rows: Rows, width: u32, kind: OutputKind) -> View {
        self.declare(name, rows, width, Element::F32, None, Some(kind))
    }

    /// Lets the host read a buffer that is already there.
    pub fn mark_output(&mut self, view: View, kind: OutputKind) {
        self.program.buffers[view.buffer.0 as usize].output = Some(kind);
    }

    /// Marks a buffer that passes from layer to layer.
    pub fn carry(&mut self, view: View) {
        self.program.buffers[view.buffer.0 as usize].carried = true;
    }

    fn declare(
        &mut self,
        name: impl Into<String>,
        rows: Rows,
        width: u32,
        element: Element,
        input: Option<InputKind>,
        output: Option<OutputKind>,
    ) -> View {
        let buffer = BufferId(self.program.buffers.len() as u32);
        let name = name.into();
        self.program.buffers.push(BufferDecl {
            name,
            rows,
            width,
            element,
            input,
            output,
            carried: false,
            offset_bytes: 0,
            first_step: 0,
            last_step: 0,
        });
        View { buffer, offset: 0, width }
    }

    pub fn step(&mut self, name: impl Into<String>, op: Op) {
        self.program.steps.push(Step { name: name.into(), op });
    }
}
