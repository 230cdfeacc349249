//! Runs windows of rows through the stages of a model, one after the other, and hands the residual on.

use std::sync::Arc;
use std::time::Instant;

use thiserror::Error;

use crate::backend::{Backend, BackendError, PreparedId, Ticket};
use crate::experts::{ExpertError, Experts};
use crate::gguf::GgufError;
use crate::program::{BufferId, Earlier, InputKind, OutputKind, Program, Row, Rows, RunParams, Slice, Stage};

#[derive(Debug, Error)]
pub enum ScheduleError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("a window of {rows} rows with {outputs} outputs fits none of the prepared programs")]
    NoProgram { rows: usize, outputs: usize },
    #[error(transparent)]
    Input(#[from] GgufError),
    #[error(transparent)]
    Experts(#[from] ExpertError),
    #[error("a program has host steps, and no tiers were opened for them")]
    NoTiers,
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
    /// Scores, or the rows of an embedding model.
    wanted: Option<BufferId>,
}

impl Ports {
    fn of(program: &Program) -> Ports {
        Ports {
            embedding: program.input(|k| matches!(k, InputKind::TokenEmbedding { .. })),
            ngram: program.input(|k| k == InputKind::NgramRows),
            hand_off_in: program.input(|k| k == InputKind::HandOff),
            hand_off_out: program.output(OutputKind::HandOff),
            wanted: program.output(OutputKind::Logits).or_else(|| program.output(OutputKind::Embedding)),
        }
    }
}

/// A stage on its device, ready to run.
pub struct StageRunner {
    pub backend: Box<dyn Backend>,
    pub stage: Arc<Stage>,
    prepared: Vec<Prepared>,
}

/// A program of a stage, ready to run.
#[derive(Debug, Clone, Copy)]
struct Prepared {
    id: PreparedId,
    ports: Ports,
    segments: usize,
}

impl StageRunner {
    /// Prepares every program of the stage. The arenas are open.
    ///
    /// # Errors
    /// The device cannot run an op, or has no room for its scratch.
    pub fn new(mut backend: Box<dyn Backend>, stage: Arc<Stage>) -> Result<StageRunner, BackendError> {
        let prepare = |i: usize| {
            let program = &stage.programs[i];
            Ok(Prepared { id: backend.prepare(&stage, i)?, ports: Ports::of(program), segments: program.segments().len() })
        };
        let prepared = (0..stage.programs.len()).map(prepare).collect::<Result<_, BackendError>>()?;
        Ok(StageRunner { backend, stage, prepared })
    }

    fn slice(&self, program: usize, buffer: BufferId, rows: usize) -> Slice {
        self.stage.programs[program].buffer_slice(buffer, rows as u32)
    }

    /// Floats of the largest buffer of one kind over all programs.
    fn most_floats(&self, port: impl Fn(&Ports) -> Option<BufferId>) -> usize {
        let sizes = self.stage.programs.iter().zip(&self.prepared).filter_map(|(program, prepared)| {
            let buffer = port(&prepared.ports)?;
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
        fill_floats(self.backend.as_mut(), slice, staging, fill)
    }

    fn trace(&mut self, at: &Place<'_>, segment: usize, watch: &mut Watch<'_>) -> Result<(), BackendError> {
        let (stage, program) = (at.stage, &self.stage.programs[at.program]);
        let mut see = |step, buffer, values: &[f32]| watch(&TraceStep { stage, program, step, buffer, values });
        self.backend.trace(self.prepared[at.program].id, segment, &at.params, &mut see)
    }

    /// Starts a segment; with a watch it has ended already.
    fn start(&mut self, at: &Place<'_>, segment: usize, watch: Option<&mut Watch<'_>>) -> Result<Option<Ticket>, BackendError> {
        match watch {
            Some(watch) => self.trace(at, segment, watch).map(|()| None),
            None => self.backend.run(self.prepared[at.program].id, segment, &at.params).map(Some),
        }
    }

    fn wait(&mut self, ticket: Option<Ticket>) -> Result<(), BackendError> {
        ticket.map_or(Ok(()), |ticket| self.backend.wait(ticket))
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

/// Lets `fill` write floats to where a device has them: in place where its memory is the host's, else by way of `staging`.
///
/// # Errors
/// A device error while they are copied.
pub fn fill_floats(
    backend: &mut dyn Backend,
    slice: Slice,
    staging: &mut Vec<f32>,
    fill: &mut dyn FnMut(&mut [f32]),
) -> Result<(), BackendError> {
    if let Some(bytes) = backend.host_bytes_mut(slice)
        && let Ok(floats) = bytemuck::try_cast_slice_mut(bytes)
    {
        fill(floats);
        return Ok(());
    }
    staging.resize(slice.len_bytes as usize / 4, 0.0);
    fill(staging);
    backend.upload(slice, bytemuck::cast_slice(staging))
}

/// Rows that go through the stages together.
#[derive(Debug, Clone, Copy)]
pub struct Window<'a> {
    pub rows: &'a [Row],
    /// Rows (indices into `rows`) whose logits are wanted.
    pub outputs: &'a [u32],
    /// As of [`RunParams::earlier`].
    pub earlier: &'a [Earlier],
}

/// A window on a stage.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    stage: usize,
    program: usize,
    params: RunParams<'a>,
}

/// How far a stage is with its window.
#[derive(Debug, Clone, Copy)]
struct Progress {
    segment: usize,
    ticket: Option<Ticket>,
    done: bool,
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
    /// Sees to the experts that the stages hold partly.
    pub experts: Option<Experts>,
    staging: Vec<f32>,
    /// What each stage left for the next one.
    hand_off: Vec<Vec<f32>>,
    wanted: Vec<f32>,
}

impl Pipeline {
    /// # Errors
    /// No stage, or more than [`MAX_STAGES`].
    pub fn new(stages: Vec<StageRunner>, experts: Option<Experts>) -> Result<Pipeline, ScheduleError> {
        if stages.is_empty() || stages.len() > MAX_STAGES {
            return Err(ScheduleError::Stages { found: stages.len() });
        }
        if experts.is_none() && stages.iter().flat_map(|s| &s.prepared).any(|p| p.segments > 1) {
            return Err(ScheduleError::NoTiers);
        }
        let hand_off = stages.iter().map(|s| Vec::with_capacity(s.most_floats(|p| p.hand_off_out))).collect();
        let wanted = stages.iter().map(|s| s.most_floats(|p| p.wanted)).max().unwrap_or(0);
        Ok(Pipeline { stages, experts, staging: Vec::new(), hand_off, wanted: Vec::with_capacity(wanted) })
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
            let mut progress = [Progress { segment: 0, ticket: None, done: true }; MAX_STAGES];
            for (stage, w) in busy() {
                let at = self.place(stage, &windows[w])?;
                if let Some(experts) = &mut self.experts {
                    experts.lend(stage, at.program, windows[w].rows.len(), self.stages[stage].backend.as_mut())?;
                }
                self.fill_inputs(stage, at.program, w, &windows[w], inputs)?;
                let ticket = self.stages[stage].start(&at, 0, watch.as_deref_mut())?;
                progress[stage] = Progress { segment: 0, ticket, done: false };
            }
            // Stages take turns: while the host sees to the experts of one, the others run.
            while progress.iter().any(|p| !p.done) {
                for (stage, w) in busy() {
                    if progress[stage].done {
                        continue;
                    }
                    let at = self.place(stage, &windows[w])?;
                    self.turn(&at, &mut progress[stage], watch.as_deref_mut())?;
                }
            }
            for (stage, w) in busy() {
                let at = self.place(stage, &windows[w])?;
                self.read_outputs(stage, at.program, w, &windows[w], see)?;
                if let Some(experts) = &mut self.experts {
                    experts.settle(stage, at.program, windows[w].rows.len(), self.stages[stage].backend.as_mut())?;
                }
            }
        }
        Ok(())
    }

    fn place<'w>(&self, stage: usize, window: &Window<'w>) -> Result<Place<'w>, ScheduleError> {
        let params = RunParams { rows: window.rows, outputs: window.outputs, earlier: window.earlier };
        Ok(Place { stage, program: self.choose(window)?, params })
    }

    /// Waits for the stage's segment, takes the host steps after it, and starts the next long one.
    fn turn(&mut self, at: &Place<'_>, progress: &mut Progress, mut watch: Option<&mut Watch<'_>>) -> Result<(), ScheduleError> {
        let runner = &mut self.stages[at.stage];
        runner.wait(progress.ticket.take())?;
        // Segments in order: up to the choice of experts, the held experts, up to the next choice, ...
        let held = progress.segment + 1;
        if held == runner.prepared[at.program].segments {
            progress.done = true;
            return Ok(());
        }
        let experts = self.experts.as_mut().ok_or(ScheduleError::NoTiers)?;
        experts.begin(at.stage, held / 2, at.program, at.params.rows, runner.backend.as_mut())?;
        let start = Instant::now();
        let ticket = runner.start(at, held, watch.as_deref_mut())?;
        let started = start.elapsed();
        let outcome = experts.bring_next(runner.backend.as_mut()).and_then(|()| experts.work());
        // Whatever the host's part has come to, the device must be done before anything else happens to it.
        let waiting = Instant::now();
        runner.wait(ticket)?;
        experts.waited_for_card(started + waiting.elapsed(), start.elapsed());
        outcome?;
        while experts.pass(runner.backend.as_mut())? {
            let ticket = runner.start(at, held, watch.as_deref_mut())?;
            let outcome = experts.bring_next(runner.backend.as_mut());
            runner.wait(ticket)?;
            outcome?;
        }
        experts.join(runner.backend.as_mut())?;
        progress.segment = held + 1;
        progress.ticket = runner.start(at, progress.segment, watch)?;
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
        let Prepared { ports, .. } = runner.prepared[program];
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
        let Prepared { ports, .. } = runner.prepared[program];
        if let Some(buffer) = ports.hand_off_out {
            let slice = runner.slice(program, buffer, window.rows.len());
            let to = &mut self.hand_off[stage];
            to.resize(slice.len_bytes as usize / 4, 0.0);
            runner.backend.download(slice, bytemuck::cast_slice_mut(to))?;
        }
        if let Some(buffer) = ports.wanted
            && !window.outputs.is_empty()
        {
            let slice = runner.slice(program, buffer, window.outputs.len());
            self.wanted.resize(slice.len_bytes as usize / 4, 0.0);
            runner.backend.download(slice, bytemuck::cast_slice_mut(&mut self.wanted))?;
            see(index, &mut self.wanted);
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
