//! A program on a card: its kernel calls with their operands in place, and graphs of the windows that decoding is made of.

use std::ops::Range;
use std::sync::Arc;

use super::arenas::{Arenas, Scratch, ScratchLayout, region};
use super::call::{self, Operands};
use super::card::{NoKernel, OpenCard, entry_of};
use super::{DevicePiece, DriverError, Event, Function, Graph, Stream};
use crate::backend::gpu::{Counts, Launch, Lowered, Operand, RunBlock, Variant};
use crate::program::{Program, RunParams, Stage};

/// Windows of up to so many rows are captured as graphs.
const GRAPH_ROWS: u32 = 8;

#[derive(Debug)]
struct Call {
    launch: Launch,
    operands: Operands,
    /// The code for each number of rows that a run may have.
    variants: Vec<(Variant, Function)>,
}

/// The windows that decoding is made of, each as a graph for each segment.
#[derive(Debug, Default)]
struct Graphs {
    /// Windows of one sequence with 1 to so many rows, and of as many sequences as rows with 2 to so many.
    most_rows: usize,
    most_sequences: usize,
    /// Segment after segment, the windows of a segment in the order of [`Graphs::window`].
    graphs: Vec<Graph>,
}

impl Graphs {
    fn windows(&self) -> usize {
        self.most_rows + self.most_sequences.saturating_sub(1)
    }

    /// The counts of the nth window.
    fn counts(&self, nth: usize) -> Counts {
        match nth.checked_sub(self.most_rows) {
            None => Counts { rows: nth as u32 + 1, outputs: nth as u32 + 1, spans: 1 },
            Some(nth) => Counts { rows: nth as u32 + 2, outputs: nth as u32 + 2, spans: nth as u32 + 2 },
        }
    }

    /// Which window has these counts.
    fn window(&self, counts: &Counts) -> Option<usize> {
        let Counts { rows, outputs, spans } = *counts;
        let rows_before = (rows as usize).checked_sub(1)?;
        match spans {
            _ if outputs != rows => None,
            1 if rows_before < self.most_rows => Some(rows_before),
            _ if spans == rows && rows_before > 0 && rows_before < self.most_sequences => Some(self.most_rows + rows_before - 1),
            _ => None,
        }
    }

    fn find(&self, segment: usize, counts: &Counts) -> Option<&Graph> {
        self.graphs.get(segment * self.windows() + self.window(counts)?)
    }
}

#[derive(Debug)]
pub struct Prepared {
    stage: Arc<Stage>,
    index: usize,
    programs: Arc<[Lowered]>,
    block: RunBlock,
    /// Of the run at hand.
    counts: Counts,
    /// Steps of each segment.
    segments: Vec<Range<usize>>,
    // Graphs are dropped before the scratch that they use.
    graphs: Graphs,
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
        programs: Arc<[Lowered]>,
        card: &OpenCard,
        arenas: &Arenas,
        (scratch, layout): (Arc<Scratch>, ScratchLayout),
    ) -> Result<Prepared, (String, NoKernel)> {
        let lowered = &programs[index];
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
        Ok(Prepared { stage, index, programs, block, counts, segments, graphs: Graphs::default(), calls, scratch, layout })
    }

    fn lowered(&self) -> &Lowered {
        &self.programs[self.index]
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
        let lowered = &self.programs[self.index];
        self.counts = self.block.fill(&lowered.run, &lowered.limits, &self.stage, params)?;
        Ok(())
    }

    /// Captures the windows that decoding is made of: up to [`GRAPH_ROWS`] rows of one sequence, and one row each of several. All
    /// of their rows are wanted. Other windows are launched call by call.
    pub fn capture(&mut self, stream: &Stream) -> Result<(), DriverError> {
        let shape = self.program().shape;
        if shape.max_rows > GRAPH_ROWS {
            return Ok(());
        }
        let slots = self.stage.states.iter().map(|s| s.slots).max().unwrap_or(1);
        let most_rows = shape.max_rows.min(shape.max_outputs);
        self.graphs.most_rows = most_rows as usize;
        self.graphs.most_sequences = most_rows.min(slots) as usize;
        for segment in 0..self.segments.len() {
            for nth in 0..self.graphs.windows() {
                let (steps, counts) = (self.segments[segment].clone(), self.graphs.counts(nth));
                let graph = stream.capture(|| self.launch(steps, stream, &counts))?;
                self.graphs.graphs.push(graph);
            }
        }
        Ok(())
    }

    /// Puts a segment on the stream, with `finished` behind it.
    pub fn start(&self, segment: usize, stream: &Stream, finished: &Event) -> Result<(), DriverError> {
        match self.graphs.find(segment, &self.counts) {
            // SAFETY: arenas and modules live as long as the programs that use them.
            Some(graph) => unsafe { stream.launch_graph(graph)? },
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
        let calls = self.lowered().steps[steps].iter().flat_map(|calls| &self.calls[calls.clone()]);
        calls.into_iter().try_for_each(|call| call.launch(stream, counts))
    }
}

impl Call {
    fn launch(&self, stream: &Stream, counts: &Counts) -> Result<(), DriverError> {
        let Some(wanted) = self.launch.variant(counts) else { return Ok(()) };
        let Some((_, function)) = self.variants.iter().find(|(variant, _)| *variant == wanted) else { return Ok(()) };
        let grid = self.launch.grid.map(|extent| extent.get(counts));
        // SAFETY: lowering keeps all offsets inside the windows of a checked program, and these are alive.
        unsafe { call::start(stream, function, grid, &self.operands, &self.launch.args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_that_is_captured_is_found_by_its_counts_and_no_other_one_is() {
        for (most_rows, most_sequences) in [(1, 1), (4, 1), (8, 3), (8, 8)] {
            let graphs = Graphs { most_rows, most_sequences, graphs: vec![] };
            for nth in 0..graphs.windows() {
                assert_eq!(graphs.window(&graphs.counts(nth)), Some(nth), "{most_rows} {most_sequences} {nth}");
            }
            let of = |rows, outputs, spans| graphs.window(&Counts { rows, outputs, spans });
            let rows = most_rows as u32 + 1;
            assert_eq!((of(0, 0, 0), of(rows, rows, 1), of(rows, rows, rows)), (None, None, None));
            assert_eq!((of(3, 1, 1), of(3, 3, 2)), (None, None), "not all rows are wanted, or two sequences of three rows");
        }
    }
}
