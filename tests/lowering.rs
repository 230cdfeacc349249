//! Promise: programs of every family lower to kernel calls whose windows lie inside the arenas and inside what a device shows to
//! a kernel, however little that is; scratch is sized exactly, and what a device cannot do is said with the step's name.

mod common;

use std::sync::Arc;

use common::*;
use strata::backend::ArenaSizes;
use strata::backend::gpu::{
    Activations, Counts, KERNELS, Lowered, NONE, Operand, Region, Target, Tiles, arena_of, lower, scratch_bytes, supports,
};
use strata::gguf::ModelFiles;
use strata::model::{Model, StageOptions, Tensors};
use strata::program::{KvFormat, Stage};

const TILES: Tiles =
    Tiles { vector_outs: 8, matrix_outs: 64, matrix_rows: 32, attention_rows: 1, attention_splits: 16, delta_channels: 16 };

fn target(max_binding_bytes: u64, activations: Activations) -> Target {
    Target {
        max_binding_bytes,
        cut_bytes: u64::MAX,
        cut_overlap_bytes: 0,
        max_groups_x: 65535,
        max_groups_yz: 65535,
        activations,
        tiles: TILES,
    }
}

fn stage_of(name: &str) -> Stage {
    let files = Arc::new(ModelFiles::open(model_path(name)).expect("the model opens"));
    let model = Model::open(&files).expect("the model is valid");
    let opts = strata::engine::OpenOptions { kv: KvFormat::F16, ..options(strata::backend::cpu::Mode::Fast, 560, 64) };
    let whole: StageOptions = opts.stage_options(0..model.config.dims().layers);
    model.config.stage(&Tensors::new(&files), &whole).expect("the stage is built")
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
        for activations in [Activations::Float, Activations::TwoBytes] {
            for max_binding_bytes in [u64::MAX, 128 << 20, 6 << 20] {
                let target = target(max_binding_bytes, activations);
                for (index, program) in stage.programs.iter().enumerate() {
                    let lowered = lower(&stage, index, ArenaSizes::of(&stage), &target).expect("the program lowers");
                    assert_eq!(lowered.steps.len(), program.steps.len());
                    assert_eq!(lowered.steps.last().map(|s| s.end), Some(lowered.launches.len()));
                    check_windows(&stage, &lowered, &target);
                }
                let beside = scratch_bytes(&stage, &target).expect("the stage lowers");
                assert!(beside >= stage.programs.len() as u64 * 256);
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
