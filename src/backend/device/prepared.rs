//! A program on a card: its kernel calls with their operands in place, and graphs of the windows that decoding is made of.

use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::arenas::{Arenas, Scratch, region};
use super::card::OpenCard;
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
pub struct Prepared {
    stage: Arc<Stage>,
    index: usize,
    lowered: Lowered,
    block: RunBlock,
    // Graphs are dropped before the scratch that they use.
    graphs: Vec<(Counts, Graph)>,
    calls: Vec<Call>,
    scratch: Arc<Scratch>,
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
        scratch: &Arc<Scratch>,
    ) -> Result<Prepared, (String, DriverError)> {
        let mut calls = Vec::with_capacity(lowered.launches.len());
        for launch in &lowered.launches {
            let at = Operand::ALL.map(|operand| match operand {
                Operand::Run => scratch.block_address().0,
                _ => launch.window(operand).map_or(0, |w| region(arenas, scratch, w.region).plus(w.offset_bytes).0),
            });
            let mut variants = vec![];
            for variant in launch.variants() {
                let name = variant.name();
                let function = card.function(&name).map_err(|error| (name, error))?;
                variants.push((variant, function));
            }
            calls.push(Call { launch: launch.clone(), operands: Operands { at }, variants });
        }
        let block = RunBlock::new(&lowered.run);
        let scratch = Arc::clone(scratch);
        Ok(Prepared { stage: Arc::clone(stage), index, lowered, block, graphs: vec![], calls, scratch })
    }

    pub fn program(&self) -> &Program {
        &self.stage.programs[self.index]
    }

    pub fn steps(&self) -> usize {
        self.lowered.steps.len()
    }

    /// The run block of the run at hand, and where it goes.
    pub fn block(&self) -> (&[u8], Option<DevicePiece>) {
        let bytes = self.block.bytes();
        (bytes, self.scratch.block(bytes.len() as u64))
    }

    /// Checks a run's parameters and writes its block.
    pub fn begin(&mut self, params: &RunParams<'_>) -> Result<Counts, String> {
        self.block.fill(&self.lowered.run, &self.lowered.limits, &self.stage, params)
    }

    /// Captures the windows that decoding is made of: up to [`GRAPH_ROWS`] rows of one sequence, all of them wanted.
    pub fn capture(&mut self, stream: &Stream) -> Result<(), DriverError> {
        let shape = self.program().shape;
        if shape.max_rows > GRAPH_ROWS {
            return Ok(());
        }
        for rows in 1..=shape.max_rows.min(shape.max_outputs) {
            let counts = Counts { rows, outputs: rows, spans: 1 };
            let graph = stream.capture(|| self.launch_all(stream, &counts))?;
            self.graphs.push((counts, graph));
        }
        Ok(())
    }

    /// Puts a run on the stream, with `finished` behind it.
    pub fn start(&self, stream: &Stream, counts: &Counts, finished: &Event) -> Result<(), DriverError> {
        match self.graphs.iter().find(|(captured, _)| captured == counts) {
            // SAFETY: arenas and modules live as long as the programs that use them.
            Some((_, graph)) => unsafe { stream.launch_graph(graph)? },
            None => self.launch_all(stream, counts)?,
        }
        stream.record(finished)
    }

    fn launch_all(&self, stream: &Stream, counts: &Counts) -> Result<(), DriverError> {
        self.calls.iter().try_for_each(|call| call.launch(stream, counts))
    }

    /// Puts the calls of one step on the stream.
    pub fn start_step(&self, step: usize, stream: &Stream, counts: &Counts, finished: &Event) -> Result<(), DriverError> {
        self.calls[self.lowered.steps[step].clone()].iter().try_for_each(|call| call.launch(stream, counts))?;
        stream.record(finished)
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
