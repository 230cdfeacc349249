//! One small program, run on several CPU backends at once: both modes, both roundings, all levels of vector instructions, one to
//! three threads. Results must have the same bits for any
//! number of threads, and the fast mode must stay within a bound of the reference.

use std::any::Any;
use std::num::NonZeroUsize;
use std::sync::Arc;

use strata::backend::cpu::kernels::Simd;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode, Rounding};
use strata::backend::gpu::kernels::MAX_VECTOR_ROWS;
use strata::backend::{ArenaSizes, Backend, BackendError, PreparedId};
use strata::program::{
    ExpertMatrix, InputKind, KvFormat, MatrixSpec, Op, OutputKind, ProgramBuilder, Row, RunParams, ShapeClass, Slice, SlotRoom,
    Stage, StageBuilder, StateId, StateKind, View, WeightDecl, WeightId, check_stage,
};
use strata::quant::Format;
use strata::units::TokenId;

use strata::backend::webgpu::{KERNEL_SETS, Tile, Tuning};

use crate::gpu::{open_card, software_card};

/// Deterministic noise.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut v = self.0;
        v = (v ^ (v >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        v = (v ^ (v >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        v ^ (v >> 31)
    }

    /// Between -1 and 1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

/// A matrix as the kernels see it, decoded.
#[derive(Debug, Clone)]
pub struct Decoded {
    pub values: Vec<f32>,
    pub cols: usize,
}

impl Decoded {
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }

    pub fn dot(&self, row: usize, x: &[f32]) -> f64 {
        assert_eq!(self.cols, x.len());
        self.row(row).iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    }
}

fn decoded(format: Format, rows: usize, cols: usize, bytes: &[u8]) -> Decoded {
    let mut values = vec![0.0; rows * cols];
    let row_bytes = format.row_bytes(cols as u64).unwrap() as usize;
    bytes.chunks(row_bytes).zip(values.chunks_mut(cols)).for_each(|(bytes, row)| format.decode_row(bytes, row).unwrap());
    Decoded { values, cols }
}

/// Collects weights and buffers of the program under test.
pub struct Bed {
    pub stage: StageBuilder,
    pub program: ProgramBuilder,
    pub noise: Noise,
    weights: Vec<(WeightId, u32, Vec<u8>)>,
}

impl Bed {
    pub fn new(max_rows: u32, max_outputs: u32) -> Bed {
        Bed {
            stage: StageBuilder::new("test"),
            program: ProgramBuilder::new("window", ShapeClass { max_rows, max_outputs }),
            noise: Noise::new(u64::from(max_rows)),
            weights: vec![],
        }
    }

    pub fn input(&mut self, name: &str, width: u32) -> View {
        self.program.input(name, width, InputKind::HandOff)
    }

    pub fn output(&mut self, name: &str, width: u32) -> View {
        let view = self.program.buffer(name, width);
        self.program.mark_output(view, OutputKind::HandOff);
        view
    }

    pub fn id_output(&mut self, name: &str, width: u32) -> View {
        let view = self.program.ids(name, width);
        self.program.mark_output(view, OutputKind::HandOff);
        view
    }

    /// A vector with the given values.
    pub fn vector(&mut self, name: &str, values: &[f32]) -> WeightId {
        let spec = MatrixSpec { tensor: name.into(), format: Format::F32, cols: values.len() as u32, rows: 1 };
        let id = self.stage.weight(spec);
        self.weights.push((id, 0, bytemuck::cast_slice(values).to_vec()));
        id
    }

    pub fn random_vector(&mut self, name: &str, len: usize) -> (WeightId, Vec<f32>) {
        let values = self.noise.floats(len);
        (self.vector(name, &values), values)
    }

    /// Random bytes of a format, with the values they stand for.
    fn random_matrix(&mut self, format: Format, rows: usize, cols: usize) -> (Vec<u8>, Decoded) {
        let row_bytes = format.row_bytes(cols as u64).unwrap() as usize;
        let mut bytes = vec![0; rows * row_bytes];
        let mut values = vec![0.0; rows * cols];
        for (bytes, values) in bytes.chunks_mut(row_bytes).zip(values.chunks_mut(cols)) {
            format.encode_row(&self.noise.floats(cols), bytes).unwrap();
            format.decode_row(bytes, values).unwrap();
        }
        (bytes, Decoded { values, cols })
    }

    pub fn matrix(&mut self, name: &str, format: Format, rows: usize, cols: usize) -> (WeightId, Decoded) {
        let (bytes, decoded) = self.random_matrix(format, rows, cols);
        let id = self.stage.weight(MatrixSpec { tensor: name.into(), format, cols: cols as u32, rows: rows as u32 });
        self.weights.push((id, 0, bytes));
        (id, decoded)
    }

    /// A matrix of given blocks.
    pub fn matrix_of(&mut self, name: &str, format: Format, rows: usize, cols: usize, bytes: Vec<u8>) -> (WeightId, Decoded) {
        let decoded = decoded(format, rows, cols, &bytes);
        let id = self.stage.weight(MatrixSpec { tensor: name.into(), format, cols: cols as u32, rows: rows as u32 });
        self.weights.push((id, 0, bytes));
        (id, decoded)
    }

    /// Matrices of several experts, in slabs; for each part the matrix of each expert.
    pub fn experts(&mut self, parts: &[(&str, Format, usize, usize)], experts: u32) -> Vec<(ExpertMatrix, Vec<Decoded>)> {
        self.experts_of(parts, experts, |format, rows, cols, seed| {
            let row_bytes = format.row_bytes(cols as u64).unwrap() as usize;
            let (mut noise, mut bytes) = (Noise::new(seed), vec![0; rows * row_bytes]);
            bytes.chunks_mut(row_bytes).for_each(|row| format.encode_row(&noise.floats(cols), row).unwrap());
            bytes
        })
    }

    /// As [`Bed::experts`], blocks made by `make(format, rows, cols, seed)`.
    pub fn experts_of(
        &mut self,
        parts: &[(&str, Format, usize, usize)],
        experts: u32,
        make: impl Fn(Format, usize, usize, u64) -> Vec<u8>,
    ) -> Vec<(ExpertMatrix, Vec<Decoded>)> {
        let specs = parts.iter().map(|(name, format, rows, cols)| MatrixSpec {
            tensor: (*name).into(),
            format: *format,
            cols: *cols as u32,
            rows: *rows as u32,
        });
        let ids = self.stage.expert_slabs(specs.collect(), experts);
        let mut made = vec![];
        for (id, (_, format, rows, cols)) in ids.into_iter().zip(parts) {
            let mut all = vec![];
            for expert in 0..experts {
                let bytes = make(*format, *rows, *cols, self.noise.next());
                all.push(decoded(*format, *rows, *cols, &bytes));
                self.weights.push((id, expert, bytes));
            }
            made.push((ExpertMatrix { weight: id, row_offset: 0, rows: *rows as u32, scale: None }, all));
        }
        made
    }

    /// The same experts once more, expert `e` in slot `slot_of[e]`; those without a slot are nowhere.
    pub fn experts_in_slots(&mut self, parts: &[ExpertMatrix], slots: u32, slot_of: &[u32]) -> Vec<ExpertMatrix> {
        let decl = |m: &ExpertMatrix| self.stage.weight_decl(m.weight).clone();
        let spec =
            |w: WeightDecl| MatrixSpec { tensor: format!("{} in slots", w.tensor), format: w.format, cols: w.cols, rows: w.rows };
        let specs: Vec<MatrixSpec> = parts.iter().map(|m| spec(decl(m))).collect();
        let ids = self.stage.expert_slots(specs, slot_of.len() as u32, SlotRoom { slots, lent: None });
        let mut copies = vec![];
        for (m, id) in parts.iter().zip(&ids) {
            let own = self.weights.iter().filter(|(weight, _, _)| weight == &m.weight);
            let held = own.filter(|(_, expert, _)| slot_of[*expert as usize] < slots);
            copies.extend(held.map(|(_, expert, bytes)| (*id, slot_of[*expert as usize], bytes.clone())));
        }
        self.weights.extend(copies);
        parts.iter().zip(ids).map(|(m, weight)| ExpertMatrix { weight, scale: None, ..*m }).collect()
    }

    pub fn step(&mut self, op: Op) {
        self.program.step(op.kind(), op);
    }

    /// Backends with the program prepared. `tolerance` bounds the relative L2 distance of the fast mode.
    pub fn finish(self, tolerance: f64) -> Rig {
        let Bed { mut stage, program, weights, .. } = self;
        stage.program(program);
        let stage = Arc::new(stage.finish());
        check_stage(&stage).unwrap();
        let mut groups = vec![];
        for (mode, rounding, simd, bound) in kinds(tolerance) {
            let mut devices = vec![];
            for threads in 1..=3 {
                let mut backend = open_backend_with(mode, rounding, simd, threads, &stage);
                for (id, expert, bytes) in &weights {
                    backend.upload(stage.weight(*id).slice(*expert), bytes).unwrap();
                }
                let id = backend.prepare(&stage, 0).unwrap();
                devices.push((Box::new(backend) as Box<dyn Backend>, id));
            }
            groups.push(Group { name: format!("{mode:?} {rounding:?} {simd:?}"), devices, bound });
        }
        groups.extend(gpu_groups(&stage, &weights));
        let (simulated, cards) = simulated_groups(&stage, &weights);
        groups.extend(simulated);
        Rig { stage, groups, _cards: cards }
    }
}

/// The software Vulkan card, where there is one: with each kind of kernels that the program would use.
fn gpu_groups(stage: &Arc<Stage>, weights: &[(WeightId, u32, Vec<u8>)]) -> Vec<Group> {
    let Some(card) = software_card() else { return vec![] };
    let open = |(name, tuning): &(&str, Tuning)| {
        let mut backend = open_card(&card, Some(*tuning));
        if is_beyond(&backend, stage) {
            return None;
        }
        backend.open(ArenaSizes::of(stage)).unwrap();
        for (id, slot, bytes) in weights {
            backend.upload(stage.weight(*id).slice(*slot), bytes).unwrap();
        }
        let id = backend.prepare(stage, 0).unwrap();
        let devices: Vec<(Box<dyn Backend>, PreparedId)> = vec![(Box::new(backend), id)];
        Some(Group {
            name: format!("WGSL, {name}"),
            devices,
            bound: if tuning.tile.rounds_inputs() { FINE_BOUND } else { GPU_BOUND },
        })
    };
    let has_products = |op: &Op| matches!(op, Op::MatMul { .. } | Op::ExpertGated { .. } | Op::ExpertDown { .. });
    let recurrent = |op: &Op| matches!(op, Op::DeltaRule { .. });
    let program = &stage.programs[0];
    let has = |found: &dyn Fn(&Op) -> bool| program.steps.iter().any(|step| found(&step.op));
    let rows = program.shape.max_rows;
    let differs = |i: usize, tuning: &Tuning| match tuning.tile {
        // Of the delta rule there are two kinds.
        Tile::None | Tile::Float => has(&has_products) || (i < 2 && has(&recurrent)),
        // Matrix kernels alone are others; a processor needs seconds for many rows of them.
        _ => has(&has_products) && rows > MAX_VECTOR_ROWS && rows <= MOST_ROWS_OF_TILES,
    };
    let wanted = |(i, (_, tuning)): &(usize, &(&str, Tuning))| *i == 0 || differs(*i, tuning);
    KERNEL_SETS.iter().enumerate().filter(wanted).filter_map(|(_, set)| open(set)).collect()
}

/// Simulated drivers run on Linux alone.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn simulated_groups(_: &Arc<Stage>, _: &[(WeightId, u32, Vec<u8>)]) -> (Vec<Group>, Box<dyn Any>) {
    (vec![], Box::new(()))
}

/// Simulated cards of each kind that CUDA and HIP kernels are made for, and what must outlive them.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn simulated_groups(stage: &Arc<Stage>, weights: &[(WeightId, u32, Vec<u8>)]) -> (Vec<Group>, Box<dyn Any>) {
    let zoo = crate::sim_support::Zoo::shared();
    let open = |(name, mut backend): (&str, Box<dyn Backend>)| {
        if is_beyond(backend.as_ref(), stage) {
            return None;
        }
        backend.open(ArenaSizes::of(stage)).unwrap();
        for (id, slot, bytes) in weights {
            backend.upload(stage.weight(*id).slice(*slot), bytes).unwrap();
        }
        let id = backend.prepare(stage, 0).unwrap();
        Some(Group { name: name.into(), devices: vec![(backend, id)], bound: FINE_BOUND })
    };
    let groups = zoo.kinds().into_iter().filter_map(open).collect();
    (groups, Box::new(zoo))
}

/// Whether a card has no kernels for the program, which is listed. Only caches of 8 and 4 bits may be missing.
fn is_beyond(backend: &dyn Backend, stage: &Stage) -> bool {
    let refused = stage.programs[0].steps.iter().find_map(|step| Some((step, backend.supports(stage, &step.op).err()?)));
    let Some((step, reason)) = refused else { return false };
    println!("skipped on {}: {}: {reason}", backend.facts().id, step.name);
    let full =
        |kind: &StateKind| !matches!(kind, StateKind::Kv { format, .. } if !matches!(format, KvFormat::F32 | KvFormat::F16));
    assert!(!stage.states.iter().all(|state| full(&state.kind)), "{}: {}: {reason}", backend.facts().id, step.name);
    true
}

/// Activations rounded to two bytes, as in the processor's fast mode.
const FINE_BOUND: f64 = 1e-4;

/// Windows in which every kind of tile is run.
const MOST_ROWS_OF_TILES: u32 = 64;

/// How far float32 sums in another order may be from the reference.
const GPU_BOUND: f64 = 2e-5;

/// Kinds of arithmetic and how far each may be from the reference, which comes first.
fn kinds(tolerance: f64) -> Vec<(Mode, Rounding, Option<Simd>, f64)> {
    let fine = tolerance.min(1e-4);
    let mut kinds = vec![(Mode::Reference, Rounding::Bits8, None, 0.0)];
    for (rounding, bound) in [(Rounding::Bits15, fine), (Rounding::Bits8, tolerance)] {
        kinds.extend(Simd::available().iter().map(|simd| (Mode::Fast, rounding, Some(*simd), bound)));
    }
    kinds
}

pub fn open_backend(mode: Mode, threads: usize, stage: &Stage) -> CpuBackend {
    open_backend_with(mode, Rounding::Bits8, None, threads, stage)
}

fn open_backend_with(mode: Mode, rounding: Rounding, simd: Option<Simd>, threads: usize, stage: &Stage) -> CpuBackend {
    let options = CpuOptions { pin_threads: false, huge_pages: false, rounding, simd, ..CpuOptions::new(mode) };
    let mut backend = CpuBackend::new(options.with_threads(NonZeroUsize::new(threads).unwrap())).unwrap();
    backend.open(ArenaSizes::of(stage)).unwrap();
    backend
}

/// Backends of one kind on one to three threads.
struct Group {
    name: String,
    devices: Vec<(Box<dyn Backend>, PreparedId)>,
    /// Largest relative distance from the reference.
    bound: f64,
}

pub struct Rig {
    pub stage: Arc<Stage>,
    groups: Vec<Group>,
    // Dropped after the devices on its cards.
    _cards: Box<dyn Any>,
}

/// Little-endian words.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// `|a - b| / |b|`
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |v: f64| v * v;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    if difference == 0.0 { 0.0 } else { (difference / size).sqrt() }
}

pub fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let expected: Vec<f32> = expected.iter().map(|v| *v as f32).collect();
    let d = distance(found, &expected);
    assert!(d <= tolerance, "{what}: relative distance {d:.3e} > {tolerance:.0e}\n{found:?}\n{expected:?}");
}

impl Rig {
    pub fn run(&mut self, rows: &[Row], outputs: &[u32], inputs: &[(View, &[f32])]) {
        self.try_run(rows, outputs, inputs).unwrap();
    }

    pub fn try_run(&mut self, rows: &[Row], outputs: &[u32], inputs: &[(View, &[f32])]) -> Result<(), BackendError> {
        let program = &self.stage.programs[0];
        let mut outcome = Ok(());
        for (backend, id) in self.groups.iter_mut().flat_map(|group| &mut group.devices) {
            for (view, values) in inputs {
                assert_eq!(program.buffer(view.buffer).width, view.width, "inputs fill whole buffers");
                let slice = program.buffer_slice(view.buffer, (values.len() / view.width as usize) as u32);
                backend.upload(slice, bytemuck::cast_slice(values)).unwrap();
            }
            outcome = backend.run(*id, 0, &RunParams { rows, outputs, earlier: &[] }).and_then(|ticket| backend.wait(ticket));
        }
        outcome
    }

    /// The words of a slice as each kind of backend has them; equal for all thread counts.
    fn read_all(&mut self, what: &str, slice: Slice) -> Vec<Vec<u32>> {
        let read = |(backend, _): &mut (Box<dyn Backend>, PreparedId)| {
            let mut bytes = vec![0; slice.len_bytes as usize];
            backend.download(slice, &mut bytes).unwrap();
            words(&bytes)
        };
        let mut all = vec![];
        for group in &mut self.groups {
            let bits: Vec<Vec<u32>> = group.devices.iter_mut().map(read).collect();
            assert!(bits.iter().all(|b| *b == bits[0]), "{what}: {} depends on the number of threads", group.name);
            all.push(bits[0].clone());
        }
        all
    }

    /// The reference's floats of a slice; compared between all devices.
    fn floats(&mut self, what: &str, slice: Slice) -> Vec<f32> {
        let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect::<Vec<f32>>();
        let all: Vec<Vec<f32>> = self.read_all(what, slice).into_iter().map(floats).collect();
        if !all[0].iter().any(|v| v.is_nan()) {
            for (values, group) in all.iter().zip(&self.groups) {
                let d = distance(values, &all[0]);
                assert!(d <= group.bound, "{what}: {} is {d:.3e} from the reference", group.name);
            }
        }
        all[0].clone()
    }

    /// A column range of the first `rows` rows.
    pub fn get(&mut self, view: View, rows: usize) -> Vec<f32> {
        let program = &self.stage.programs[0];
        let (width, name) = (program.buffer(view.buffer).width as usize, program.buffer(view.buffer).name.clone());
        let all = self.floats(&name, program.buffer_slice(view.buffer, rows as u32));
        let columns = view.offset as usize..(view.offset + view.width) as usize;
        all.chunks(width).flat_map(|row| row[columns.clone()].to_vec()).collect()
    }

    /// The words of the first `rows` rows of a buffer, for every kind of arithmetic by its name.
    pub fn all_bits(&mut self, view: View, rows: usize) -> Vec<(String, Vec<u32>)> {
        let slice = self.stage.programs[0].buffer_slice(view.buffer, rows as u32);
        let bits = self.read_all("bits", slice);
        self.groups.iter().map(|group| group.name.clone()).zip(bits).collect()
    }

    /// Whether two buffers hold the same bits on every device.
    pub fn same_bits(&mut self, a: View, b: View, rows: u32) -> bool {
        let slice = |rig: &Rig, view: View| rig.stage.programs[0].buffer_slice(view.buffer, rows);
        let (a, b) = (slice(self, a), slice(self, b));
        self.read_all("first", a) == self.read_all("second", b)
    }

    /// Writes the table of a layer's expert slots.
    pub fn set_slots(&mut self, id: StateId, slot_of: &[u32]) {
        let slice = self.stage.state(id).slice(0);
        for (backend, _) in self.groups.iter_mut().flat_map(|group| &mut group.devices) {
            backend.upload(slice, bytemuck::cast_slice(slot_of)).unwrap();
        }
    }

    pub fn get_ids(&mut self, view: View, rows: usize) -> Vec<u32> {
        let slice = self.stage.programs[0].buffer_slice(view.buffer, rows as u32);
        let all = self.read_all("ids", slice);
        assert!(all.iter().all(|ids| *ids == all[0]), "ids differ between devices");
        all[0].clone()
    }

    /// Floats of a slot's state.
    pub fn state(&mut self, id: StateId, slot: u32) -> Vec<f32> {
        let slice = self.stage.state(id).slice(slot);
        self.floats("state", slice)
    }

    pub fn set_state(&mut self, id: StateId, slot: u32, values: &[f32]) {
        let slice = self.stage.state(id).slice(slot);
        for (backend, _) in self.groups.iter_mut().flat_map(|group| &mut group.devices) {
            backend.upload(slice, bytemuck::cast_slice(values)).unwrap();
        }
    }
}

/// Text rows `first..first + len` of a slot.
pub fn rows(slot: u32, first: u32, len: u32) -> Vec<Row> {
    (first..first + len).map(|index| Row::text(slot, index, TokenId(0))).collect()
}
