//! A program on a card: its kernel calls with their operands in place, and graphs of the windows that decoding is made of.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::arenas::{Arenas, Scratch, ScratchLayout, region};
use super::card::{NoKernel, OpenCard, entry_of};
use super::{DevicePiece, DriverError, Event, Function, Graph, LaunchShape, Stream};
use crate::backend::gpu::{Counts, Launch, Lowered, Operand, RunBlock, Variant};
use crate::program::{Program, RunParams, Stage};

/// Threads of a block, of every kernel.
const BLOCK_THREADS: u32 = 128;

/// Windows of up to so many rows are captured as graphs.
const GRAPH_ROWS: u32 = 8;

/// First parameter of every kernel: where the windows of its operands begin, in the order of [`Operand::ALL`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Operands {
    at: [u64; Operand::ALL.len()],
}

#[derive(Debug)]
struct Call {
    launch: Launch,
    operands: Operands,
    /// The code for each number of rows that a run may have.
    variants: Vec<(Variant, Function)>,
}

#[derive(Debug)]
struct Captured {
    segment: usize,
    counts: Counts,
    graph: Graph,
}

#[derive(Debug)]
pub struct Prepared {
    stage: Arc<Stage>,
    index: usize,
    lowered: Lowered,
    block: RunBlock,
    /// Of the run at hand.
    counts: Counts,
    /// Steps of each segment.
    segments: Vec<Range<usize>>,
    // Graphs are dropped before the scratch that they use.
    graphs: Vec<Captured>,
    calls: Vec<Call>,
    scratch: Arc<Scratch>,
    layout: ScratchLayout,
}

impl Prepared {
    /// Finds the code of every call and puts its operands in place.
    ///
    /// # Errors
    /// A kernel that the card's modules do not have, by its name.
    pub fn new(
        stage: &Arc<Stage>,
        index: usize,
        lowered: Lowered,
        card: &OpenCard,
        arenas: &Arenas,
        (scratch, layout): (Arc<Scratch>, ScratchLayout),
    ) -> Result<Prepared, (String, NoKernel)> {
        let mut calls = Vec::with_capacity(lowered.launches.len());
        for launch in &lowered.launches {
            let at = Operand::ALL.map(|operand| match operand {
                Operand::Run => scratch.block_address(layout).0,
                _ => launch.window(operand).map_or(0, |w| region(arenas, &scratch, w.region).plus(w.offset_bytes).0),
            });
            let mut variants = vec![];
            for variant in launch.variants() {
                let function = card.function(&variant).map_err(|why| (entry_of(&variant), why))?;
                variants.push((variant, function));
            }
            calls.push(Call { launch: launch.clone(), operands: Operands { at }, variants });
        }
        let block = RunBlock::new(&lowered.run);
        let counts = Counts { rows: 0, outputs: 0, spans: 0 };
        let segments = stage.programs[index].segments();
        let stage = Arc::clone(stage);
        Ok(Prepared { stage, index, lowered, block, counts, segments, graphs: vec![], calls, scratch, layout })
    }

    pub fn program(&self) -> &Program {
        &self.stage.programs[self.index]
    }

    /// Steps of a segment, if there is such a one.
    pub fn steps(&self, segment: usize) -> Option<Range<usize>> {
        self.segments.get(segment).cloned()
    }

    /// The run block of the run at hand, and where it goes.
    pub fn block(&self) -> (&[u8], Option<DevicePiece>) {
        let bytes = self.block.bytes();
        (bytes, self.scratch.block(self.layout, bytes.len() as u64))
    }

    /// Checks a run's parameters and writes its block.
    pub fn begin(&mut self, params: &RunParams<'_>) -> Result<(), String> {
        self.counts = self.block.fill(&self.lowered.run, &self.lowered.limits, &self.stage, params)?;
        Ok(())
    }

    /// Captures the windows that decoding is made of: up to [`GRAPH_ROWS`] rows of one sequence, all of them wanted.
    pub fn capture(&mut self, stream: &Stream) -> Result<(), DriverError> {
        let shape = self.program().shape;
        if shape.max_rows > GRAPH_ROWS {
            return Ok(());
        }
        for rows in 1..=shape.max_rows.min(shape.max_outputs) {
            let counts = Counts { rows, outputs: rows, spans: 1 };
            for segment in 0..self.segments.len() {
                let steps = self.segments[segment].clone();
                let graph = stream.capture(|| self.launch(steps, stream, &counts))?;
                self.graphs.push(Captured { segment, counts, graph });
            }
        }
        Ok(())
    }

    /// Puts a segment on the stream, with `finished` behind it.
    pub fn start(&self, segment: usize, stream: &Stream, finished: &Event) -> Result<(), DriverError> {
        match self.graphs.iter().find(|captured| captured.segment == segment && captured.counts == self.counts) {
            // SAFETY: arenas and modules live as long as the programs that use them.
            Some(captured) => unsafe { stream.launch_graph(&captured.graph)? },
            None => self.launch(self.segments[segment].clone(), stream, &self.counts)?,
        }
        stream.record(finished)
    }

    /// Puts one step on the stream, with `finished` behind it.
    pub fn start_step(&self, step: usize, stream: &Stream, finished: &Event) -> Result<(), DriverError> {
        self.launch(step..step + 1, stream, &self.counts)?;
        stream.record(finished)
    }

    fn launch(&self, steps: Range<usize>, stream: &Stream, counts: &Counts) -> Result<(), DriverError> {
        let calls = self.lowered.steps[steps].iter().flat_map(|calls| &self.calls[calls.clone()]);
        calls.into_iter().try_for_each(|call| call.launch(stream, counts))
    }
}

impl Call {
    fn launch(&self, stream: &Stream, counts: &Counts) -> Result<(), DriverError> {
        let Some(wanted) = self.launch.variant(counts) else { return Ok(()) };
        let Some((_, function)) = self.variants.iter().find(|(variant, _)| *variant == wanted) else { return Ok(()) };
        let grid = self.launch.grid.map(|extent| extent.get(counts));
        let shape = LaunchShape { grid, block: [BLOCK_THREADS, 1, 1] };
        let args = self.launch.args.words();
        let mut arguments = [(&raw const self.operands).cast_mut().cast::<c_void>(), args.as_ptr().cast_mut().cast()];
        // SAFETY: every kernel takes operands and its argument struct by value, which the driver copies now and does not change;
        // lowering keeps all offsets inside the windows of a checked program.
        unsafe { stream.launch(function, shape, &mut arguments) }
    }
}
