//! Promise: programs of every family lower to kernel calls whose windows lie inside the arenas and inside what a device shows to
//! a kernel, however little that is; scratch is sized exactly, and what a device cannot do is said with the step's name.

mod common;

use std::sync::Arc;

use common::*;
use strata::backend::ArenaSizes;
use strata::backend::gpu::join::{MAX_PARTS, join};
use strata::backend::gpu::kernels::MAX_VECTOR_ROWS;
use strata::backend::gpu::{
    Activations, Counts, KERNELS, Launch, Lowered, NONE, Operand, Region, Room, Target, Tiles, lower, supports,
};
use strata::gguf::ModelFiles;
use strata::model::{Model, StageOptions, Tensors};
use strata::program::{ArenaKind, KvFormat, Op, Program, Stage, StateKind};

const TILES: Tiles = Tiles {
    vector_outs: 8,
    matrix_outs: 64,
    matrix_rows: 32,
    attention_splits: 16,
    delta_channels: 16,
    delta_chunk_channels: 32,
};
const ROOM: Room = Room { head_dim: 512, delta_keys: 256, delta_chunk_keys: 0, index_keys: 1024, experts: 4096 };

fn target(max_binding_bytes: u64, activations: Activations) -> Target {
    Target {
        max_binding_bytes,
        cut_bytes: u64::MAX,
        cut_overlap_bytes: 0,
        max_groups_x: 65535,
        max_groups_yz: 65535,
        activations,
        caches: &[KvFormat::F32, KvFormat::F16],
        tiles: TILES,
        room: ROOM,
    }
}

fn stage_of(name: &str) -> Stage {
    stage_with(name, None)
}

/// A stage with so many slots for the experts of each layer, or with all of them.
fn stage_with(name: &str, expert_slots: Option<u32>) -> Stage {
    let files = Arc::new(ModelFiles::open(model_path(name)).expect("the model opens"));
    let model = Model::open(&files).expect("the model is valid");
    let opts = strata::engine::OpenOptions { kv: KvFormat::F16, ..options(strata::backend::cpu::Mode::Fast, 560, 64) };
    let layers = model.config.dims().layers;
    let expert_slots = expert_slots.map(|slots| vec![slots; layers as usize]);
    let whole: StageOptions = strata::engine::OpenOptions { expert_slots, ..opts }.stage_options(0..layers);
    model.config.stage(&Tensors::new(&files), &whole).expect("the stage is built")
}

/// The arena that a region is.
fn arena_of(region: Region) -> Option<ArenaKind> {
    match region {
        Region::Weights => Some(ArenaKind::Weights),
        Region::State => Some(ArenaKind::State),
        Region::Work => Some(ArenaKind::Work),
        Region::Scratch => None,
    }
}

fn check_windows(stage: &Stage, lowered: &Lowered, target: &Target) {
    for launch in &lowered.launches {
        assert!(launch.is_sound(), "{launch:?}");
        for operand in launch.kernel.info().operands {
            let Some(window) = launch.window(*operand) else {
                continue;
            };
            let room = arena_of(window.region).map_or(lowered.scratch_bytes, |arena| stage.arena_bytes(arena));
            assert!(window.offset_bytes.is_multiple_of(256));
            assert!(window.offset_bytes + window.len_bytes <= room.next_multiple_of(4), "{operand:?} of {launch:?}");
            assert!(window.len_bytes <= target.max_binding_bytes);
            assert_eq!(window.region == Region::State, *operand == Operand::State);
        }
    }
}

#[test]
fn every_fixture_lowers_inside_its_arenas() {
    for name in TRAINED.into_iter().chain([RANDOM]) {
        let stage = stage_of(name);
        for activations in [Activations::Float, Activations::TwoBytes, Activations::TwoBytesOfMany] {
            for max_binding_bytes in [u64::MAX, 128 << 20, 6 << 20] {
                let target = target(max_binding_bytes, activations);
                for (index, program) in stage.programs.iter().enumerate() {
                    let lowered = lower(&stage, index, ArenaSizes::of(&stage), &target).expect("the program lowers");
                    assert_eq!(lowered.steps.len(), program.steps.len());
                    assert_eq!(lowered.steps.last().map(|s| s.end), Some(lowered.launches.len()));
                    check_windows(&stage, &lowered, &target);
                }
            }
        }
    }
}

#[test]
fn large_tensors_are_cut_into_launches_that_cover_every_output_once() {
    let stage = stage_of(TRAINED[0]);
    let sizes = ArenaSizes::of(&stage);
    let outs = |max_binding_bytes| {
        let lowered = lower(&stage, 0, sizes, &target(max_binding_bytes, Activations::Float)).expect("the program lowers");
        let of = |name: &str| lowered.launches.iter().filter_map(|l| l.args.get(name)).map(u64::from).sum::<u64>();
        (lowered.launches.len(), of("outs"), of("slots"))
    };
    let (whole, cut) = (outs(u64::MAX), outs(6 << 20));
    assert_eq!(whole.2, cut.2, "every slot belongs to one launch");
    assert!(cut.0 >= whole.0);
}

#[test]
fn what_cannot_be_shown_to_a_kernel_is_refused_with_the_steps_name() {
    let stage = stage_of(TRAINED[0]);
    let tiny = target(4096, Activations::Float);
    let (step, reason) = lower(&stage, 0, ArenaSizes::of(&stage), &tiny).expect_err("4 KiB are not enough");
    assert!(!step.is_empty() && reason.contains("sees 4096"), "{step}: {reason}");
    let op = &stage.programs[0].steps[0].op;
    assert!(supports(&stage, op, &target(u64::MAX, Activations::Float)).is_ok());
}

#[test]
fn a_run_of_nothing_launches_nothing_and_batches_follow_the_rows() {
    let stage = stage_of(TRAINED[1]);
    let lowered = lower(&stage, 0, ArenaSizes::of(&stage), &target(u64::MAX, Activations::Float)).expect("the program lowers");
    let max_rows = stage.programs[0].shape.max_rows;
    for rows in 1..=max_rows {
        let counts = Counts { rows, outputs: 0, spans: 1 };
        for launch in &lowered.launches {
            let Some(variant) = launch.variant(&counts) else { continue };
            assert!(variant.batch == 0 || variant.batch >= rows && variant.batch < 2 * rows.max(2));
            assert!(launch.variants().any(|v| v == variant));
            assert!(launch.grid.iter().all(|extent| extent.get(&counts) > 0));
        }
        let logits = lowered.launches.last().expect("launches");
        assert_eq!(logits.variant(&counts), None, "no logits are wanted");
    }
}

#[test]
fn arguments_leave_unused_operands_marked() {
    let stage = stage_of(RANDOM);
    let lowered = lower(&stage, 1, ArenaSizes::of(&stage), &target(u64::MAX, Activations::Float)).expect("the program lowers");
    let products = lowered.launches.iter().filter(|l| l.kernel.info().name == "mat_mul");
    assert!(products.filter_map(|l| l.args.get("q_at")).all(|at| at == NONE), "float activations are not rounded");
    let used: Vec<&str> =
        KERNELS.iter().filter(|k| lowered.launches.iter().any(|l| l.kernel == k.kernel)).map(|k| k.name).collect();
    for name in ["mat_mul", "attention", "delta_rule", "causal_conv", "expert_mul", "expert_sum", "router", "ngram_gate"] {
        assert!(used.contains(&name), "{name} is not used: {used:?}");
    }
}

#[test]
fn prompts_use_the_delta_rule_in_chunks_where_a_device_has_room_for_it() {
    let stage = stage_of(RANDOM);
    let uses = |index: usize, delta_chunk_keys: u32, name: &str| {
        let target = Target { room: Room { delta_chunk_keys, ..ROOM }, ..target(u64::MAX, Activations::TwoBytes) };
        let lowered = lower(&stage, index, ArenaSizes::of(&stage), &target).expect("the program lowers");
        lowered.launches.iter().any(|launch| launch.kernel.info().name == name)
    };
    let few = |index: usize| stage.programs[index].shape.max_rows <= MAX_VECTOR_ROWS;
    assert!((0..stage.programs.len()).any(few) && !(0..stage.programs.len()).all(few));
    for index in 0..stage.programs.len() {
        for (keys, chunks) in [(128, !few(index)), (4, false), (0, false)] {
            assert_eq!(uses(index, keys, "delta_chunks"), chunks, "program {index}, room for {keys} keys");
            assert_eq!(uses(index, keys, "delta_rule"), !chunks, "program {index}, room for {keys} keys");
        }
    }
}

#[test]
fn products_of_one_input_are_joined_and_none_is_lost() {
    for name in TRAINED.into_iter().chain([RANDOM]) {
        let stage = stage_of(name);
        for max_binding_bytes in [u64::MAX, 6 << 20] {
            let target = target(max_binding_bytes, Activations::TwoBytesOfMany);
            for index in 0..stage.programs.len() {
                let lowered = lower(&stage, index, ArenaSizes::of(&stage), &target).expect("the program lowers");
                let joined = join(&lowered, &target);
                assert_eq!(joined.steps.len(), lowered.steps.len());
                assert!(joined.launches.len() < lowered.launches.len(), "{name}: nothing is joined");
                // The address of every matrix and the place of every result, as before.
                let places = |words: &[u32], launch: &Launch| {
                    let word = |field: &str| launch.args.layout().fields.iter().position(|f| f.name == field).map(|i| words[i]);
                    let start = |operand| launch.window(operand).map_or(0, |window| window.offset_bytes);
                    let matrix = word("w0_at_bytes").map(|at| start(Operand::W0) + u64::from(at));
                    let bias = word("bias_at").filter(|at| *at != NONE).map(|at| start(Operand::W2) + 4 * u64::from(at));
                    (launch.kernel, matrix, bias, word("out_at"), word("outs"))
                };
                let before: Vec<_> = lowered.launches.iter().map(|launch| places(launch.args.words(), launch)).collect();
                let parts = joined.launches.iter().flat_map(|j| j.parts.iter().map(|part| places(part, &j.launch)));
                assert_eq!(parts.collect::<Vec<_>>(), before, "{name}");
                let groups = |launch: &Launch| launch.grid[0].get(&Counts { rows: 1, outputs: 1, spans: 1 });
                let all: u32 = lowered.launches.iter().map(groups).sum();
                assert_eq!(joined.launches.iter().map(|j| groups(&j.launch)).sum::<u32>(), all, "{name}: workgroups");
                assert!(joined.launches.iter().all(|j| j.parts.len() <= MAX_PARTS));
            }
        }
    }
}

#[test]
fn a_cache_that_a_device_cannot_read_is_refused_by_its_name() {
    let stage = stage_of(TRAINED[0]);
    let target = Target { caches: &[KvFormat::F32, KvFormat::Q8_0], ..target(u64::MAX, Activations::Float) };
    let (step, reason) = lower(&stage, 0, ArenaSizes::of(&stage), &target).expect_err("the stage caches halves");
    assert!(!step.is_empty() && reason.contains("cached as f16"), "{step}: {reason}");
}

/// Checks that every rounded product of a segment has its activations rounded, and every tiled product of experts its choices
/// sorted, in that segment. Returns how many of each there are.
fn check_segment(launches: &[Launch]) -> (usize, usize) {
    let used = |launch: &Launch, name: &str| launch.args.get(name).filter(|at| *at != NONE);
    let (mut rounded, mut sorted) = (None, None);
    let (mut products, mut tiled) = (0, 0);
    for launch in launches {
        match launch.kernel.info().name {
            "quantise" => rounded = used(launch, "x_at").zip(used(launch, "q_at")),
            "expert_group" => sorted = used(launch, "choices_at"),
            "mat_vec" | "mat_mul" | "expert_vec" | "expert_mul" => {
                if let Some(q_at) = used(launch, "q_at") {
                    assert_eq!(rounded, used(launch, "x_at").map(|x_at| (x_at, q_at)), "{launch:?}");
                    products += 1;
                }
                if let Some(choices_at) = used(launch, "choices_at") {
                    assert_eq!(sorted, Some(choices_at), "{launch:?}");
                    tiled += 1;
                }
            }
            _ => {}
        }
    }
    (products, tiled)
}

fn launches_of<'a>(program: &Program, lowered: &'a Lowered) -> Vec<&'a [Launch]> {
    let calls = |steps: &[std::ops::Range<usize>]| match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => &lowered.launches[first.start..last.end],
        _ => &lowered.launches[..0],
    };
    program.segments().into_iter().map(|steps| calls(&lowered.steps[steps])).collect()
}

#[test]
fn nothing_derived_from_a_buffer_outlives_a_host_step() {
    for name in TRAINED {
        let stage = stage_with(name, Some(2));
        for (index, program) in stage.programs.iter().enumerate() {
            let target = target(u64::MAX, Activations::TwoBytes);
            let lowered = lower(&stage, index, ArenaSizes::of(&stage), &target).expect("the program lowers");
            let starts: Vec<usize> = program.segments().iter().map(|steps| steps.start).collect();
            let mut repeated = 0;
            for (start, launches) in starts.into_iter().zip(launches_of(program, &lowered)) {
                let (products, tiled) = check_segment(launches);
                let again = start > 0 && matches!(program.steps[start - 1].op, Op::HostExperts { .. });
                if again {
                    assert!(products >= 2, "{name}: experts in and out are products of rounded activations");
                    assert_eq!(tiled > 0, program.name == "prompt", "{name}: only windows of many rows are sorted");
                    repeated += 1;
                }
            }
            assert!(repeated > 0, "{name} has host steps");
        }
    }
}

/// The least room that the kernels of a stage need.
fn room_of(stage: &Stage) -> Room {
    let mut room = Room { head_dim: 0, delta_keys: 0, delta_chunk_keys: 0, index_keys: 0, experts: 0 };
    for step in stage.programs.iter().flat_map(|program| &program.steps) {
        match &step.op {
            Op::Attention { q, .. } => room.head_dim = room.head_dim.max(q.dim),
            Op::DeltaRule { q, .. } => room.delta_keys = room.delta_keys.max(q.dim),
            Op::Router { logits, .. } => room.experts = room.experts.max(logits.width),
            Op::IndexAppend { cache, .. } => {
                let StateKind::IndexKeys { dim, .. } = stage.state(*cache).kind else { panic!("no keys: {cache:?}") };
                room.index_keys = room.index_keys.max(dim);
            }
            _ => {}
        }
    }
    room
}

/// Checks that a program lowers with room `most` and is refused with one less, in words that name number and limit.
fn check_limit(stage: &Stage, what: &str, most: u32, set: impl Fn(&mut Room, u32)) {
    assert!(most > 1, "the stage has {what}");
    let with = |limit| {
        let mut target = target(u64::MAX, Activations::TwoBytes);
        target.room = room_of(stage);
        set(&mut target.room, limit);
        target
    };
    for index in 0..stage.programs.len() {
        let sizes = ArenaSizes::of(stage);
        lower(stage, index, sizes, &with(most)).expect("the limit itself is taken");
        let (step, reason) = lower(stage, index, sizes, &with(most - 1)).expect_err("one more is not");
        let told = format!("{most} {what}; kernels of this device have room for {}", most - 1);
        assert_eq!(reason, told, "{step}");
        let op = stage.programs[index].steps.iter().find(|s| s.name == step).map(|s| &s.op).expect("the step's name");
        assert_eq!(supports(stage, op, &with(most - 1)), Err(told));
        assert_eq!(supports(stage, op, &with(most)), Ok(()));
    }
}

#[test]
fn what_kernels_have_no_room_for_is_refused_with_number_and_limit() {
    let stage = stage_of(RANDOM);
    let room = room_of(&stage);
    check_limit(&stage, "elements of an attention head", room.head_dim, |room, most| room.head_dim = most);
    check_limit(&stage, "key channels of a head of the delta rule", room.delta_keys, |room, most| room.delta_keys = most);
    check_limit(&stage, "elements of an indexer key", room.index_keys, |room, most| room.index_keys = most);
    check_limit(&stage, "experts of a layer", room.experts, |room, most| room.experts = most);
    // Where choices are sorted there is a limit of its own, even if the router's step is left out.
    let mut sorted = stage.clone();
    sorted.programs.retain(|program| program.name == "prompt");
    sorted.programs.iter_mut().for_each(|program| program.steps.retain(|step| !matches!(step.op, Op::Router { .. })));
    check_limit(&sorted, "experts of a layer", room.experts, |room, most| room.experts = most);
}
