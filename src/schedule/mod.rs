//! Runs windows of rows through the stages of a model, one after the other, and hands the residual on.

use std::sync::Arc;

use thiserror::Error;

use crate::backend::{Backend, BackendError, PreparedId};
use crate::gguf::GgufError;
use crate::program::{BufferId, InputKind, OutputKind, Program, Row, Rows, RunParams, Slice, Stage};

#[derive(Debug, Error)]
pub enum ScheduleError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("a window of {rows} rows with {outputs} outputs fits none of the prepared programs")]
    NoProgram { rows: usize, outputs: usize },
    #[error(transparent)]
    Input(#[from] GgufError),
    #[error("interrupted")]
    Interrupted,
    #[error("{found} stages were given; 1 to {MAX_STAGES} are possible")]
    Stages { found: usize },
    #[error("a checkpoint of {found} bytes does not fit the state of {expected} bytes")]
    CheckpointSize { found: usize, expected: usize },
}

/// More cards than a PC has slots for.
pub const MAX_STAGES: usize = 16;

/// Buffers that the host fills and reads.
#[derive(Debug, Clone, Copy)]
struct Ports {
    embedding: Option<BufferId>,
    ngram: Option<BufferId>,
    hand_off_in: Option<BufferId>,
    hand_off_out: Option<BufferId>,
    logits: Option<BufferId>,
}

impl Ports {
    fn of(program: &Program) -> Ports {
        Ports {
            embedding: program.input(|k| matches!(k, InputKind::TokenEmbedding { .. })),
            ngram: program.input(|k| k == InputKind::NgramRows),
            hand_off_in: program.input(|k| k == InputKind::HandOff),
            hand_off_out: program.output(OutputKind::HandOff),
            logits: program.output(OutputKind::Logits),
        }
    }
}

/// A stage on its device, ready to run.
pub struct StageRunner {
    pub backend: Box<dyn Backend>,
    pub stage: Arc<Stage>,
    prepared: Vec<(PreparedId, Ports)>,
}

impl StageRunner {
    /// Prepares every program of the stage. The arenas are open.
    ///
    /// # Errors
    /// The device cannot run an op, or has no room for its scratch.
    pub fn new(mut backend: Box<dyn Backend>, stage: Arc<Stage>) -> Result<StageRunner, BackendError> {
        let prepare = |i| Ok((backend.prepare(&stage, i)?, Ports::of(&stage.programs[i])));
        let prepared = (0..stage.programs.len()).map(prepare).collect::<Result<_, BackendError>>()?;
        Ok(StageRunner { backend, stage, prepared })
    }

    fn slice(&self, program: usize, buffer: BufferId, rows: usize) -> Slice {
        self.stage.programs[program].buffer_slice(buffer, rows as u32)
    }

    /// Floats of the largest buffer of one kind over all programs.
    fn most_floats(&self, port: impl Fn(&Ports) -> Option<BufferId>) -> usize {
        let sizes = self.stage.programs.iter().zip(&self.prepared).filter_map(|(program, (_, ports))| {
            let buffer = port(ports)?;
            let rows = match program.buffer(buffer).rows {
                Rows::Batch => program.shape.max_rows,
                Rows::Outputs => program.shape.max_outputs,
            };
            Some(program.buffer_slice(buffer, rows).len_bytes as usize / 4)
        });
        sizes.max().unwrap_or(0)
    }

    /// Lets `fill` write the first `rows` rows of an input, in place where the device's memory is the host's.
    fn fill(
        &mut self,
        program: usize,
        buffer: BufferId,
        rows: usize,
        staging: &mut Vec<f32>,
        fill: &mut dyn FnMut(&mut [f32]),
    ) -> Result<(), BackendError> {
        let slice = self.slice(program, buffer, rows);
        if let Some(bytes) = self.backend.host_bytes_mut(slice)
            && let Ok(floats) = bytemuck::try_cast_slice_mut(bytes)
        {
            fill(floats);
            return Ok(());
        }
        staging.resize(slice.len_bytes as usize / 4, 0.0);
        fill(staging);
        self.backend.upload(slice, bytemuck::cast_slice(staging))
    }

    fn trace(&mut self, stage: usize, program: usize, params: &RunParams<'_>, watch: &mut Watch<'_>) -> Result<(), BackendError> {
        let prepared = self.prepared[program].0;
        let program = &self.stage.programs[program];
        let mut see = |step, buffer, values: &[f32]| watch(&TraceStep { stage, program, step, buffer, values });
        self.backend.trace(prepared, 0, params, &mut see)
    }

    /// What the state arena holds of a slot after `tokens` tokens, its recurrent state in `version`.
    fn held_slices(&self, slot: u32, version: u32, tokens: usize) -> Vec<Slice> {
        self.stage.states.iter().flat_map(|s| s.held(slot, version, tokens as u64)).collect()
    }

    /// State of a slot that cannot be shortened by counting: the current delta-rule versions and the convolution histories.
    fn recurrent_slices(&self, slot: u32, version: u32) -> Vec<Slice> {
        self.stage.states.iter().filter(|s| !s.kind.truncates()).flat_map(|s| s.held(slot, version, 0)).collect()
    }
}

/// Rows that go through the stages together.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    pub rows: &'a [Row],
    /// Rows (indices into `rows`) whose logits are wanted.
    pub outputs: &'a [u32],
}

/// What the host gathers for a window: each call fills `rows × width` floats. An error ends the run.
pub trait WindowInputs {
    fn embedding(&mut self, window: usize, to: &mut [f32]) -> Result<(), ScheduleError>;
    fn ngram(&mut self, window: usize, to: &mut [f32]) -> Result<(), ScheduleError>;
}

/// What one step of a traced run wrote into one buffer.
#[derive(Debug, Clone, Copy)]
pub struct TraceStep<'a> {
    pub stage: usize,
    pub program: &'a Program,
    /// Index into the program's steps.
    pub step: usize,
    pub buffer: BufferId,
    /// Row after row, as many as the window has. Ids arrive as numbers.
    pub values: &'a [f32],
}

/// Sees every step of a run.
pub type Watch<'a> = dyn FnMut(&TraceStep<'_>) + 'a;

/// The stages of a model in order.
pub struct Pipeline {
    pub stages: Vec<StageRunner>,
    staging: Vec<f32>,
    /// What each stage left for the next one.
    hand_off: Vec<Vec<f32>>,
    logits: Vec<f32>,
}

impl Pipeline {
    /// # Errors
    /// No stage, or more than [`MAX_STAGES`].
    pub fn new(stages: Vec<StageRunner>) -> Result<Pipeline, ScheduleError> {
        if stages.is_empty() || stages.len() > MAX_STAGES {
            return Err(ScheduleError::Stages { found: stages.len() });
        }
        let hand_off = stages.iter().map(|s| Vec::with_capacity(s.most_floats(|p| p.hand_off_out))).collect();
        let logits = stages.iter().map(|s| s.most_floats(|p| p.logits)).max().unwrap_or(0);
        Ok(Pipeline { stages, staging: Vec::new(), hand_off, logits: Vec::with_capacity(logits) })
    }

    /// From here on nothing allocates.
    pub fn freeze(&mut self) {
        self.stages.iter_mut().for_each(|s| s.backend.freeze());
    }

    /// The smallest program that takes the window. Programs are the same on every stage.
    fn choose(&self, window: &Window<'_>) -> Result<usize, ScheduleError> {
        let (rows, outputs) = (window.rows.len(), window.outputs.len());
        let programs = &self.stages[0].stage.programs;
        let fits = |p: &&Program| rows <= p.shape.max_rows as usize && outputs <= p.shape.max_outputs as usize;
        let best = programs.iter().enumerate().filter(|(_, p)| fits(p)).min_by_key(|(_, p)| p.shape.max_rows);
        best.map(|(i, _)| i).ok_or(ScheduleError::NoProgram { rows, outputs })
    }

    /// Runs windows one behind the other: while a stage works on a window, the stage before works on the next. `see` gets
    /// the window's index and the rows of logits it wanted. With a `watch` the steps run one by one, slowly, and show what
    /// each wrote.
    ///
    /// # Errors
    /// Any device error, or one of the inputs. The state of the windows' sequences is then unknown.
    pub fn run(
        &mut self,
        windows: &[Window<'_>],
        inputs: &mut dyn WindowInputs,
        see: &mut dyn FnMut(usize, &mut [f32]),
        mut watch: Option<&mut Watch<'_>>,
    ) -> Result<(), ScheduleError> {
        windows.iter().try_for_each(|w| self.choose(w).map(drop))?;
        let depth = self.stages.len();
        for beat in 0..windows.len() + depth - 1 {
            // The stages that have a window in this beat, the last one first: it must take the hand-off before it changes.
            let busy = || (0..depth).rev().filter_map(|s| Some((s, beat.checked_sub(s)?))).filter(|(_, w)| *w < windows.len());
            let mut tickets = [const { None }; MAX_STAGES];
            for (stage, w) in busy() {
                let program = self.choose(&windows[w])?;
                self.fill_inputs(stage, program, w, &windows[w], inputs)?;
                let params = RunParams { rows: windows[w].rows, outputs: windows[w].outputs };
                let runner = &mut self.stages[stage];
                match watch.as_deref_mut() {
                    Some(watch) => runner.trace(stage, program, &params, watch)?,
                    None => tickets[stage] = Some(runner.backend.run(runner.prepared[program].0, 0, &params)?),
                }
            }
            for (stage, w) in busy() {
                if let Some(ticket) = tickets[stage].take() {
                    self.stages[stage].backend.wait(ticket)?;
                }
                let program = self.choose(&windows[w])?;
                self.read_outputs(stage, program, w, &windows[w], see)?;
            }
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        stage: usize,
        program: usize,
        index: usize,
        window: &Window<'_>,
        inputs: &mut dyn WindowInputs,
    ) -> Result<(), ScheduleError> {
        let Pipeline { stages, staging, hand_off, .. } = self;
        let runner = &mut stages[stage];
        let (_, ports) = runner.prepared[program];
        let rows = window.rows.len();
        let mut outcome = Ok(());
        if let Some(buffer) = ports.embedding {
            runner.fill(program, buffer, rows, staging, &mut |to| outcome = inputs.embedding(index, to))?;
        }
        std::mem::replace(&mut outcome, Ok(()))?;
        if let Some(buffer) = ports.ngram {
            runner.fill(program, buffer, rows, staging, &mut |to| outcome = inputs.ngram(index, to))?;
        }
        outcome?;
        if let Some(buffer) = ports.hand_off_in {
            let from = &hand_off[stage - 1];
            runner.fill(program, buffer, rows, staging, &mut |to| to.copy_from_slice(&from[..to.len()]))?;
        }
        Ok(())
    }

    fn read_outputs(
        &mut self,
        stage: usize,
        program: usize,
        index: usize,
        window: &Window<'_>,
        see: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), ScheduleError> {
        let runner = &mut self.stages[stage];
        let (_, ports) = runner.prepared[program];
        if let Some(buffer) = ports.hand_off_out {
            let slice = runner.slice(program, buffer, window.rows.len());
            let to = &mut self.hand_off[stage];
            to.resize(slice.len_bytes as usize / 4, 0.0);
            runner.backend.download(slice, bytemuck::cast_slice_mut(to))?;
        }
        if let Some(buffer) = ports.logits
            && !window.outputs.is_empty()
        {
            let slice = runner.slice(program, buffer, window.outputs.len());
            self.logits.resize(slice.len_bytes as usize / 4, 0.0);
            runner.backend.download(slice, bytemuck::cast_slice_mut(&mut self.logits))?;
            see(index, &mut self.logits);
        }
        Ok(())
    }

    /// Sets the recurrent state of a slot to that of an empty sequence.
    pub fn clear(&mut self, slot: u32, version: u32) -> Result<(), ScheduleError> {
        for runner in &mut self.stages {
            for slice in runner.recurrent_slices(slot, version) {
                runner.backend.clear(slice)?;
            }
        }
        Ok(())
    }

    /// Copies the recurrent state of a slot out, one buffer a stage.
    pub fn save(&mut self, slot: u32, version: u32) -> Result<Vec<Vec<u8>>, ScheduleError> {
        self.stages.iter_mut().map(|runner| copy_out(runner, &runner.recurrent_slices(slot, version))).collect()
    }

    /// The reverse of [`Pipeline::save`].
    pub fn restore(&mut self, slot: u32, version: u32, stages: &[Vec<u8>]) -> Result<(), ScheduleError> {
        for (runner, bytes) in self.stages.iter_mut().zip(stages) {
            copy_in(runner, &runner.recurrent_slices(slot, version), bytes)?;
        }
        Ok(())
    }

    /// Bytes of [`Pipeline::save_held`].
    pub fn held_bytes(&self, tokens: usize) -> u64 {
        self.stages.iter().flat_map(|runner| runner.held_slices(0, 0, tokens)).map(|slice| slice.len_bytes).sum()
    }

    /// Copies out all that a slot holds after `tokens` tokens, one buffer a stage.
    pub fn save_held(&mut self, slot: u32, version: u32, tokens: usize) -> Result<Vec<Vec<u8>>, ScheduleError> {
        self.stages.iter_mut().map(|runner| copy_out(runner, &runner.held_slices(slot, version, tokens))).collect()
    }

    /// The reverse of [`Pipeline::save_held`].
    pub fn restore_held(&mut self, slot: u32, version: u32, tokens: usize, stages: &[Vec<u8>]) -> Result<(), ScheduleError> {
        for (runner, bytes) in self.stages.iter_mut().zip(stages) {
            copy_in(runner, &runner.held_slices(slot, version, tokens), bytes)?;
        }
        Ok(())
    }
}

fn copy_out(runner: &mut StageRunner, slices: &[Slice]) -> Result<Vec<u8>, ScheduleError> {
    let mut bytes = vec![0; slices.iter().map(|s| s.len_bytes as usize).sum()];
    let mut rest = bytes.as_mut_slice();
    for slice in slices {
        let (part, after) = rest.split_at_mut(slice.len_bytes as usize);
        runner.backend.download(*slice, part)?;
        rest = after;
    }
    Ok(bytes)
}

fn copy_in(runner: &mut StageRunner, slices: &[Slice], bytes: &[u8]) -> Result<(), ScheduleError> {
    let expected = slices.iter().map(|s| s.len_bytes as usize).sum();
    if expected != bytes.len() {
        return Err(ScheduleError::CheckpointSize { found: bytes.len(), expected });
    }
    let mut rest = bytes;
    for slice in slices {
        let (part, after) = rest.split_at(slice.len_bytes as usize);
        runner.backend.upload(*slice, part)?;
        rest = after;
    }
    Ok(())
}
