//! The backend around the ops: arenas, parameters, errors, cancelling, tracing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::backend::{ArenaSizes, Backend, BackendError, PreparedId, Ticket};
use strata::program::{ArenaKind, KvFormat, Op, RunParams, Slice, Stage, StateKind};

use crate::rig::{Bed, open_backend, rows, words};

/// A stage that adds its input to itself twice and keeps keys.
fn stage() -> Arc<Stage> {
    let mut bed = Bed::new(4, 2);
    let (x, y) = (bed.input("x", 8), bed.output("y", 8));
    let cache = bed.stage.state("kv", StateKind::Kv { format: KvFormat::F32, cells: 6, kv_heads: 2, head_dim: 4 }, 2);
    bed.step(Op::Repeat { x, out: y });
    bed.step(Op::Add { x: y, y: x, scale: None });
    bed.step(Op::KvAppend { k: x, v: y, cache });
    let Bed { mut stage, program, .. } = bed;
    stage.program(program);
    Arc::new(stage.finish())
}

fn prepared() -> (CpuBackend, PreparedId, Arc<Stage>) {
    let stage = stage();
    let mut backend = open_backend(Mode::Reference, 2, &stage);
    let id = backend.prepare(&stage, 0).unwrap();
    (backend, id, stage)
}

#[test]
fn slices_outside_an_arena_are_refused() {
    let (mut backend, _, stage) = prepared();
    let slice = |offset_bytes, len_bytes| Slice { arena: ArenaKind::Work, offset_bytes, len_bytes };
    let end = stage.work_bytes;
    for bad in [slice(end, 1), slice(u64::MAX, 8), slice(8, u64::MAX), slice(end - 4, 8)] {
        assert!(matches!(backend.clear(bad), Err(BackendError::OutOfBounds { .. })));
        assert!(backend.host_bytes_mut(bad).is_none());
    }
    assert!(backend.upload(slice(0, 8), &[0; 4]).is_err());
    assert!(backend.download(slice(0, 8), &mut [0; 9]).is_err());
    backend.upload(slice(end - 4, 4), &[1, 2, 3, 4]).unwrap();
    assert_eq!(backend.host_bytes_mut(slice(end - 4, 4)).unwrap(), [1, 2, 3, 4]);
    backend.clear(slice(end - 2, 2)).unwrap();
    let mut bytes = [9; 4];
    backend.download(slice(end - 4, 4), &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 0, 0]);
}

#[test]
fn memory_that_does_not_exist_is_an_error() {
    let mut backend = CpuBackend::new(CpuOptions::new(Mode::Reference)).unwrap();
    let sizes = ArenaSizes { weights_bytes: 1 << 60, state_bytes: 0, work_bytes: 0, scratch_bytes: 0, lent_bytes: 0 };
    assert!(matches!(backend.open(sizes), Err(BackendError::OutOfMemory { bytes, .. }) if bytes == 1 << 60));
    backend.open(ArenaSizes { weights_bytes: 256, ..sizes }).unwrap();
    assert!(backend.open(sizes).is_err(), "arenas are opened once");
}

#[test]
fn bad_parameters_are_refused_before_anything_runs() {
    let (mut backend, id, _) = prepared();
    let mut fails = |rows: &[_], outputs: &[u32]| {
        let outcome = backend.run(id, 0, &RunParams { rows, outputs, earlier: &[] });
        assert!(matches!(outcome, Err(BackendError::Rejected { .. })), "{outcome:?}");
    };
    fails(&[], &[]);
    fails(&rows(0, 0, 5), &[]);
    fails(&rows(0, 4, 3), &[]);
    fails(&rows(2, 0, 1), &[]);
    fails(&rows(0, 0, 1), &[1]);
    fails(&rows(0, 0, 1), &[0, 0, 0]);
    let good = rows(1, 2, 4);
    assert!(backend.run(PreparedId(7), 0, &RunParams { rows: &good, outputs: &[], earlier: &[] }).is_err());
    let ticket = backend.run(id, 0, &RunParams { rows: &good, outputs: &[3], earlier: &[] }).unwrap();
    backend.wait(ticket).unwrap();
    assert!(backend.wait(Ticket(ticket.0 + 1)).is_err());
}

#[test]
fn nothing_runs_without_arenas_or_in_arenas_that_are_too_small() {
    let stage = stage();
    let mut backend = CpuBackend::new(CpuOptions::new(Mode::Reference)).unwrap();
    assert!(backend.prepare(&stage, 0).is_err());
    let mut sizes = ArenaSizes::of(&stage);
    sizes.state_bytes -= 1;
    backend.open(sizes).unwrap();
    assert!(matches!(backend.prepare(&stage, 0), Err(BackendError::Unsupported { .. })));
    assert!(backend.prepare(&stage, 1).is_err());
}

#[test]
fn a_run_can_be_cancelled_and_the_next_one_works() {
    let stage = stage();
    let options = CpuOptions { pin_threads: false, ..CpuOptions::new(Mode::Reference) };
    let cancel = options.cancel.clone();
    let mut backend = CpuBackend::new(options).unwrap();
    backend.open(ArenaSizes::of(&stage)).unwrap();
    let id = backend.prepare(&stage, 0).unwrap();
    let window = rows(0, 0, 4);
    let params = RunParams { rows: &window, outputs: &[], earlier: &[] };
    cancel.store(true, Ordering::Relaxed);
    let ticket = backend.run(id, 0, &params).unwrap();
    assert!(matches!(backend.wait(ticket), Err(BackendError::Interrupted { .. })));
    cancel.store(false, Ordering::Relaxed);
    let ticket = backend.run(id, 0, &params).unwrap();
    backend.wait(ticket).unwrap();
}

#[test]
fn tracing_shows_every_result() {
    let (mut backend, id, stage) = prepared();
    let program = &stage.programs[0];
    let x: Vec<f32> = (0..16).map(|v| v as f32).collect();
    backend.upload(program.buffer_slice(strata::program::BufferId(0), 2), bytemuck::cast_slice(&x)).unwrap();
    let window = rows(0, 0, 2);
    let mut seen = vec![];
    let params = RunParams { rows: &window, outputs: &[], earlier: &[] };
    backend.trace(id, 0, &params, &mut |step, buffer, values| seen.push((step, buffer.0, values.to_vec()))).unwrap();
    let double: Vec<f32> = x.iter().map(|v| v * 2.0).collect();
    assert_eq!(seen, vec![(0, 1, x.clone()), (1, 1, double.clone())]);
    let cache = &stage.states[0];
    let mut bytes = vec![0; cache.kind.bytes_per_slot() as usize];
    backend.download(cache.slice(0), &mut bytes).unwrap();
    let kv: Vec<f32> = words(&bytes).into_iter().map(f32::from_bits).collect();
    // [K|V][kv_head][cell][head_dim]
    assert_eq!(kv[4..8], x[8..12]);
    assert_eq!(kv[6 * 4..6 * 4 + 4], x[4..8]);
    assert_eq!(kv[2 * 6 * 4..2 * 6 * 4 + 4], double[..4]);
}

#[test]
fn the_device_describes_itself_and_counts_its_memory() {
    let (backend, _, stage) = prepared();
    assert_eq!(backend.facts().id, "cpu");
    assert!(backend.facts().detail.ends_with("2 threads"), "{}", backend.facts().detail);
    assert_eq!(backend.memory().arenas_bytes, ArenaSizes::of(&stage).total_bytes());
    for op in stage.programs[0].steps.iter().map(|step| &step.op) {
        backend.supports(&stage, op).unwrap();
    }
}

#[test]
fn steps_that_write_what_they_read_are_refused() {
    let mut bed = Bed::new(4, 2);
    let x = bed.input("x", 16);
    bed.step(Op::Repeat { x: x.columns(0, 8), out: x.columns(4, 8) });
    let Bed { mut stage, program, .. } = bed;
    stage.program(program);
    let stage = Arc::new(stage.finish());
    let mut backend = open_backend(Mode::Reference, 1, &stage);
    assert!(matches!(backend.prepare(&stage, 0), Err(BackendError::Unsupported { .. })));
}
