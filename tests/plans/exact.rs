//! Planned arenas are those that a `StageBuilder` lays out for the same tensors and state.

use super::support::{machine, planned, root, sheet};
use strata::gguf::ModelFiles;
use strata::model::{Model, StageOptions, Tensors, VisionConfig};
use strata::plan::{
    Consumer, KvType, LayerRange, Limits, Machine, ModelHeader, Plan, PlanModel, StageArenas, TensorRow, decide, verify,
};
use strata::program::{KvFormat, MatrixSpec, Row, ShapeClass, Stage, StageBuilder, StateKind, check_stage};
use strata::quant::Format;

fn tiny() -> (ModelHeader, PlanModel) {
    let files = ModelFiles::open(root().join("tests/fixtures/tiny-flash-next-Q8_0.gguf")).unwrap();
    let header = ModelHeader::from(&files);
    let model = PlanModel::from_header(&header).unwrap();
    (header, model)
}

fn virtual_machine(cards: usize, mib: u64) -> Machine {
    let mut text = String::from(
        "version = 1\nname = \"virtual\"\n[host]\nos = \"linux\"\nram_total = \"16 GiB\"\nram_available = \"12 GiB\"\ncores = 2\n",
    );
    for i in 0..cards {
        text += &format!(
            "[[card]]\nid = \"virtual:{i}\"\nname = \"v\"\nbackend = \"virtual\"\ndriver = \"none\"\ntotal = \"{mib} MiB\"\nfree = \"{mib} MiB\"\n"
        );
    }
    Machine::from_toml(&text).unwrap()
}

fn spec(tensor: &TensorRow, rows: u64) -> MatrixSpec {
    // The one small tensor of the fixture that devices hold in another float format than the file.
    let format = if tensor.name.ends_with("conv1d.weight") { Format::F32 } else { tensor.format };
    MatrixSpec { tensor: tensor.name.clone(), format, cols: tensor.shape[0] as u32, rows: rows as u32 }
}

/// The stage as an engine lays it out: every tensor of its layers, slabs of experts, state by layer.
fn build(header: &ModelHeader, range: LayerRange, layers: u32, cells: u32) -> Stage {
    let mut builder = StageBuilder::new("stage");
    for layer in range.start..range.end {
        let prefix = format!("blk.{layer}.");
        let of_layer = header.tensors.iter().filter(|t| t.name.starts_with(&prefix));
        let (experts, dense): (Vec<_>, Vec<_>) = of_layer.partition(|t| t.name.ends_with("_exps.weight"));
        for tensor in &dense {
            builder.weight(spec(tensor, tensor.shape.iter().skip(1).product()));
        }
        builder.expert_slabs(experts.iter().map(|t| spec(t, t.shape[1])).collect(), experts[0].shape[2] as u32);
        if dense.iter().any(|t| t.name.contains("ssm_")) {
            builder.state("delta", StateKind::Delta { versions: 1, heads: 4, key_dim: 64, value_dim: 64 }, 1);
            builder.state("conv", StateKind::ConvHistory { ring_rows: 3, channels: 2 * 2 * 64 + 4 * 64 }, 1);
        } else {
            builder.state("kv", StateKind::Kv { format: KvFormat::F16, cells, kv_heads: 2, head_dim: 64 }, 1);
            builder.state("keys", StateKind::IndexKeys { cells, dim: 64, ratio: 4 }, 1);
        }
        if dense.iter().any(|t| t.name.contains("ple_conv")) {
            builder.state("ngram", StateKind::ConvHistory { ring_rows: 9, channels: 4 * 256 }, 1);
        }
    }
    if range.end == layers {
        for name in ["output_hc_norm.weight", "output_hc_down.weight", "output_hc_up.weight", "output.weight"] {
            let tensor = header.tensors.iter().find(|t| t.name == name);
            let tensor = tensor.or_else(|| header.tensors.iter().find(|t| t.name == "token_embd.weight")).unwrap();
            builder.weight(spec(tensor, tensor.shape.iter().skip(1).product()));
        }
    }
    builder.finish()
}

#[test]
fn weights_and_state_arenas_are_exact_for_every_split() {
    let (header, model) = tiny();
    let layers = model.layers.len() as u32;
    for cut in 1..layers {
        let split = vec![LayerRange { start: 0, end: cut }, LayerRange { start: cut, end: layers }];
        let limits = Limits {
            context: Some(1024),
            kv: KvType::F16,
            layer_split: Some(split.clone()),
            prefill: Some(256),
            ..Limits::default()
        };
        let machine = virtual_machine(2, 256);
        let plan = decide(&model, &machine, &limits, false).unwrap();
        assert_eq!(verify(&plan, &model, &machine, &limits), vec![]);
        for (stage, range) in plan.stages.iter().zip(split) {
            let built = build(&header, range, layers, 1024);
            assert!(stage.all_held && stage.slot_arena_bytes == 0);
            assert_eq!(stage.arenas.weights_bytes, built.weights_bytes, "layers {range}");
            assert_eq!(stage.arenas.state_bytes, built.state_bytes, "layers {range}");
        }
    }
}

#[test]
fn measured_arenas_replace_the_estimates_byte_by_byte() {
    let (_, model) = tiny();
    let machine = virtual_machine(2, 256);
    let split = vec![LayerRange { start: 0, end: 3 }, LayerRange { start: 3, end: model.layers.len() as u32 }];
    let first = Limits { context: Some(512), layer_split: Some(split), ..Limits::default() };
    let estimate = decide(&model, &machine, &first, false).unwrap();
    let mut arenas: Vec<_> = estimate.stages.iter().map(|s| s.arenas).collect();
    for a in &mut arenas {
        a.work_bytes += 12_800;
        a.state_bytes += 256;
    }
    let measured = estimate.fixed(&first, Some(arenas.clone()));
    let plan = decide(&model, &machine, &measured, false).unwrap();
    assert_eq!(verify(&plan, &model, &machine, &measured), vec![]);
    assert_eq!(plan.stages.iter().map(|s| s.arenas).collect::<Vec<_>>(), arenas);
    let row = plan.row("virtual:0/measured-prompt").unwrap();
    assert_eq!((row.consumer, row.bytes), (Consumer::MeasuredPrompt, arenas[0].work_bytes));
    // The driver may take a bounded amount more; a virtual card has no driver.
    let used = plan.pools[0].used;
    assert!(plan.unexplained("virtual:0", used).unwrap().explained);
    assert!(!plan.unexplained("virtual:0", used + 1).unwrap().explained);
    assert_eq!(plan.unexplained("virtual:7", used), None);
    // Arenas that do not fit are refused like anything else.
    let mut huge = measured.clone();
    huge.stage_arenas.as_mut().unwrap()[1].work_bytes = 1 << 30;
    let refusal = decide(&model, &machine, &huge, false).unwrap_err();
    assert!(refusal.short.iter().any(|p| p.name.starts_with("virtual:1")));
}

#[test]
fn slots_are_sized_beside_a_built_stage_that_holds_no_experts() {
    let (_, model) = tiny();
    let machine = virtual_machine(1, 13);
    let limits = Limits { context: Some(256), prefill: Some(16), ..Limits::default() };
    let estimate = decide(&model, &machine, &limits, false).unwrap();
    assert!(!estimate.stages[0].all_held && estimate.held_experts > 0, "{} experts", estimate.held_experts);
    let mut arenas = estimate.stages[0].arenas;
    arenas.work_bytes += 1 << 20;
    arenas.decode_work_bytes += 1 << 20;
    let measured = estimate.fixed(&limits, Some(vec![arenas]));
    let plan = decide(&model, &machine, &measured, false).unwrap();
    assert_eq!(verify(&plan, &model, &machine, &measured), vec![]);
    assert!(plan.held_experts < estimate.held_experts);
    assert_eq!(plan.stages[0].arenas.weights_bytes, arenas.weights_bytes);
}

/// The stages of a plan, built by the model's own code.
fn real_stages(files: &ModelFiles, plan: &Plan) -> Vec<Stage> {
    let model = Model::open(files).unwrap();
    let s = &plan.settings;
    let shape = |rows: u32, outputs: u32| ShapeClass { max_rows: rows, max_outputs: outputs };
    let stages = plan.stages.iter().map(|stage| {
        let options = StageOptions {
            layers: stage.layers.start..stage.layers.end,
            slots: s.slots,
            cells: s.cells as u32,
            kv: KvFormat::F16,
            versions: if s.draft { s.draft_window + 1 } else { 1 },
            expert_slots: None,
            lent_slots: None,
            programs: vec![("decode".into(), shape(s.decode_rows, s.decode_rows)), ("prompt".into(), shape(s.chunk, s.slots))],
        };
        model.config.stage(&Tensors::new(files), &options).unwrap()
    });
    stages.collect()
}

/// Weights and state as the model's own code lays them out are what the planner says, byte for byte; its work buffers are
/// near the estimate, and with them given the plan still fits.
#[test]
fn the_real_model_builds_the_stages_that_were_planned() {
    let header = sheet("IQ3_S");
    let files = header.to_model_files("sheet").unwrap();
    let model = PlanModel::from_header(&header).unwrap();
    let mut machine = machine("linux-4x3090-24g-256g");
    for card in &mut machine.cards {
        card.total.0 += 8 << 30;
        card.free.0 += 8 << 30;
    }
    let limits = Limits { context: Some(16_384), prefill: Some(512), ..Limits::default() };
    let plan = planned(&model, &machine, &limits).unwrap();
    let mut built = Vec::new();
    for (planned, stage) in plan.stages.iter().zip(real_stages(&files, &plan)) {
        assert!(planned.all_held);
        assert_eq!(planned.arenas.weights_bytes, stage.weights_bytes, "weights of layers {}", planned.layers);
        assert_eq!(planned.arenas.state_bytes, stage.state_bytes, "state of layers {}", planned.layers);
        println!("layers {}: work {} planned, {} built", planned.layers, planned.arenas.work_bytes, stage.work_bytes);
        assert!(planned.arenas.work_bytes >= stage.work_bytes && planned.arenas.work_bytes < 2 * stage.work_bytes);
        built.push(StageArenas {
            weights_bytes: stage.weights_bytes,
            state_bytes: stage.state_bytes,
            work_bytes: stage.work_parts().0,
            decode_work_bytes: stage.work_parts().1,
            scratch_bytes: planned.arenas.scratch_bytes,
            host_scratch_bytes: 12_345,
            experts_inside: true,
        });
    }
    let exact = planned(&model, &machine, &plan.fixed(&limits, Some(built.clone()))).unwrap();
    assert_eq!(exact.stages.iter().map(|s| s.arenas).collect::<Vec<_>>(), built);
}

/// The encoder of the real model, with the keys that its sheet has no values of.
fn real_encoder() -> (ModelFiles, VisionConfig) {
    let config = VisionConfig {
        width: 1152,
        inner: 4304,
        layers: 27,
        heads: 16,
        eps: 1e-6,
        patch_size: 16,
        merge: 2,
        table_side: 48,
        output_width: 2560,
        mean: [0.5; 3],
        std: [0.5; 3],
    };
    (sheet("vision").to_model_files("vision").unwrap(), config)
}

#[test]
fn a_vision_encoder_is_planned_as_its_program_is_built() {
    let tiny_files = ModelFiles::open(root().join("tests/fixtures/vision/tiny-vision.gguf")).unwrap();
    let tiny_config = VisionConfig::open(&tiny_files).unwrap();
    let (real_files, real_config) = real_encoder();
    let (_, tiny_model) = tiny();
    let real_model = PlanModel::from_header(&sheet("IQ3_XXS")).unwrap();
    for (files, config, mut model) in [(tiny_files, tiny_config, tiny_model), (real_files, real_config, real_model)] {
        model.add_vision(&ModelHeader::from(&files)).unwrap();
        let facts = model.vision.unwrap();
        for tokens in [8, 100, 1024, 4096] {
            let stage = config.stage(&Tensors::new(&files), tokens).unwrap();
            check_stage(&stage).unwrap();
            let places = u64::from(config.table_side).pow(2) * u64::from(config.width) * 4;
            assert_eq!(facts.weights_bytes(), stage.weights_bytes + places);
            let lists = u64::from(tokens) * (4 * size_of::<Row>() as u64 + 4);
            assert_eq!(facts.work_bytes(tokens), stage.work_bytes + lists, "{tokens} tokens");
            assert_eq!(facts.kept_bytes(tokens, model.width), u64::from(4 * tokens * config.output_width * 4));
        }
    }
}
