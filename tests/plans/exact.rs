//! Promise: the arenas of a plan are those of the stages that the model's own code builds for it, to the byte, and are known
//! before anything is built: for every fixture, every family, and the real model, whatever is asked for.

use super::random::Random;
use super::support::{QUANTS, machine, planned, root, sheet};
use strata::gguf::ModelFiles;
use strata::model::{Model, StageOptions, Tensors, VisionConfig};
use strata::plan::{
    BackendKind, Card, Consumer, DriverKind, KvType, LayerRange, Limits, Machine, ModelHeader, Plan, PlanModel, PlannedStage,
    RamExperts, Size, StageArenas, StageScratch, WorkBuffer, decide, verify,
};
use strata::program::{Piece, Row, ShapeClass, Stage, check_stage, pack};

const FIXTURES: [&str; 18] = [
    "assets/tiny-flash-next-IQ3_XXS.gguf",
    "tests/fixtures/tiny-flash-next-Q8_0.gguf",
    "tests/fixtures/tiny-flash-next-Q4_K_M.gguf",
    "tests/fixtures/tiny-flash-next-IQ2_XS-00001-of-00002.gguf",
    "tests/fixtures/tiny-random-BF16.gguf",
    "tests/fixtures/families/llama-gqa.gguf",
    "tests/fixtures/families/llama-tied.gguf",
    "tests/fixtures/families/llama-factors.gguf",
    "tests/fixtures/families/llama-linear.gguf",
    "tests/fixtures/families/llama-yarn.gguf",
    "tests/fixtures/families/llama-moe.gguf",
    "tests/fixtures/families/qwen2.gguf",
    "tests/fixtures/families/qwen2-mixed.gguf",
    "tests/fixtures/families/qwen3.gguf",
    "tests/fixtures/families/qwen3-yarn.gguf",
    "tests/fixtures/families/qwen3moe.gguf",
    "tests/fixtures/families/gemma3.gguf",
    "tests/fixtures/families/gemma3-local.gguf",
];

/// A model file and what the planner reads of it.
struct Subject {
    name: String,
    files: ModelFiles,
    model: Model,
    facts: PlanModel,
}

impl Subject {
    fn new(name: &str, files: ModelFiles) -> Subject {
        let facts = PlanModel::from_header(&ModelHeader::from(&files)).unwrap_or_else(|e| panic!("{name}: {e}"));
        Subject { name: name.into(), model: Model::open(&files).unwrap(), files, facts }
    }

    fn of_file(path: &str) -> Subject {
        Subject::new(path, ModelFiles::open(root().join(path)).unwrap())
    }

    fn of_sheet(quant: &str) -> Subject {
        Subject::new(quant, sheet(quant).to_model_files("sheet").unwrap())
    }

    /// The stages of a plan, built as a launch builds them.
    fn build(&self, plan: &Plan, limits: &Limits) -> Vec<Stage> {
        let s = &plan.settings;
        let programs = ShapeClass::of_programs(s.decode_rows, s.chunk, s.outputs);
        let lends = plan.stages.iter().any(|stage| stage.lent.iter().any(|n| *n > 0));
        let some = plan.stages.iter().any(|stage| !stage.all_held) || limits.watch_experts;
        let stages = plan.stages.iter().map(|stage| {
            let slots = stage.layers.indices().zip(stage.held.iter().zip(stage.kept())).map(|(layer, (held, kept))| {
                let experts = self.facts.layers[layer].experts.as_ref();
                if experts.is_some_and(|e| limits.watch_experts || kept < e.count) { *held } else { u32::MAX }
            });
            let options = StageOptions {
                layers: stage.layers.start..stage.layers.end,
                slots: s.slots,
                cells: s.cells as u32,
                kv: s.kv.format(),
                versions: s.versions,
                programs: programs.iter().map(|(name, shape)| (name.to_string(), *shape)).collect(),
                expert_slots: some.then(|| slots.collect()),
                lent_slots: lends.then(|| stage.lent.clone()),
            };
            self.model.config.stage(&Tensors::new(&self.files), &options).unwrap()
        });
        stages.collect()
    }

    /// Plans, builds, and compares every arena.
    fn check(&self, machine: &Machine, limits: &Limits) -> Option<Plan> {
        let plan = decide(&self.facts, machine, limits, false).ok()?;
        assert_eq!(verify(&plan, &self.facts, machine, limits), vec![], "{}: {limits:?}", self.name);
        for (planned, stage) in plan.stages.iter().zip(self.build(&plan, limits)) {
            let built = self.arenas(planned, &stage);
            assert_eq!(planned.arenas, built, "{}, layers {}: {limits:?}", self.name, planned.layers);
            let taken = stage.weights_bytes + stage.state_bytes + stage.work_bytes - stage.lent_bytes;
            let of_plan = planned.arenas.weights_bytes + planned.slot_arena_bytes;
            assert_eq!(taken, of_plan + planned.arenas.state_bytes + planned.arenas.work_bytes, "{}: {limits:?}", self.name);
        }
        Some(plan)
    }

    fn arenas(&self, planned: &PlannedStage, stage: &Stage) -> StageArenas {
        let layers = self.facts.layers[planned.layers.indices()].iter().zip(&planned.held);
        let slots: u64 = layers.map(|(l, n)| l.experts.as_ref().map_or(0, |e| e.slab_bytes * u64::from(*n))).sum();
        StageArenas {
            weights_bytes: stage.weights_bytes - if planned.all_held { 0 } else { slots },
            state_bytes: stage.state_bytes,
            work_bytes: stage.work_bytes,
            prompt_work_bytes: stage.work_parts().0,
            decode_work_bytes: stage.work_parts().1,
            ..planned.arenas
        }
    }
}

fn virtual_cards(cards: usize, bytes: u64) -> Machine {
    let mut pc = machine("linux-4-virtual-cards");
    let card = |i: usize| Card {
        memory_gbs: Some(20.0),
        ..Card::new(format!("virtual:{i}"), "v", BackendKind::Virtual, DriverKind::None, Size(bytes))
    };
    pc.cards = (0..cards).map(card).collect();
    (pc.host.ram_total, pc.host.ram_available) = (Size(1 << 40), Size(1 << 39));
    pc
}

fn split_at(ends: &[u32]) -> Vec<LayerRange> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends).map(|(start, end)| LayerRange { start, end: *end }).collect()
}

/// Every split in two, a long context and one that needs no indexer, one row and many.
#[test]
fn every_fixture_and_family_takes_what_was_planned() {
    for path in FIXTURES {
        let subject = Subject::of_file(path);
        let layers = subject.facts.layers.len() as u32;
        for context in [16, 1024] {
            for (kv, slots, chunk) in [(KvType::F16, 1, 256), (KvType::Q4_0, 3, 7), (KvType::F32, 2, 1)] {
                for cut in 1..=layers {
                    let ends = if cut == layers { vec![layers] } else { vec![cut, layers] };
                    let limits = Limits {
                        context: Some(context),
                        kv,
                        slots,
                        prefill: Some(chunk),
                        layer_split: Some(split_at(&ends)),
                        ..Limits::default()
                    };
                    assert!(subject.check(&virtual_cards(ends.len(), 1 << 30), &limits).is_some(), "{path}");
                }
            }
        }
    }
}

#[test]
fn the_real_model_takes_what_was_planned_on_real_machines() {
    let mut partial = 0;
    for quant in QUANTS {
        let subject = Subject::of_sheet(quant);
        for pc in ["linux-4x3090-24g-256g", "win-rtx5070-12g-64g", "win-5060ti-5070ti-64g-large-pagefile", "linux-4-mixed-128g"] {
            for (context, slots) in [(2_048, 1), (65_536, 1), (32_768, 4)] {
                let limits = Limits { context: Some(context), kv: KvType::Int8, slots, ..Limits::default() };
                let Some(plan) = subject.check(&machine(pc), &limits) else { continue };
                partial += usize::from(plan.held_experts < plan.experts);
            }
        }
    }
    assert!(partial > 12, "{partial} plans with some experts on cards");
}

fn any_limits(random: &mut Random, layers: u32, cards: usize) -> Limits {
    let most = cards.min(layers as usize) as u64;
    let mut ends: Vec<u32> = (1..layers).filter(|_| random.chance(40)).take(most as usize - 1).collect();
    ends.push(layers);
    Limits {
        context: Some(random.between(1, 3000) as u32),
        kv: random.of(&KvType::ALL),
        slots: random.between(1, 12) as u32,
        prefill: random.chance(80).then(|| random.between(1, 700) as u32),
        layer_split: random.chance(60).then(|| split_at(&ends)),
        least_decode_rows: random.between(1, 12) as u32,
        outputs: random.chance(60).then(|| random.of(&[0, 1, 5, 300, u32::MAX])),
        undo_tokens: random.of(&[0, 0, 1, 7]),
        watch_experts: random.chance(20),
        expert_slots: random.chance(20).then(|| random.between(0, 40) as u32),
        ram_experts: random.of(&[RamExperts::Auto, RamExperts::Complement, RamExperts::Disk]),
        ..Limits::default()
    }
}

#[test]
fn whatever_is_asked_for_takes_what_was_planned() {
    let subjects: Vec<Subject> = FIXTURES.iter().map(|path| Subject::of_file(path)).collect();
    let (mut plans, mut partial, mut lent, mut several) = (0, 0, 0, 0);
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let subject = &subjects[random.between(0, subjects.len() as u64 - 1) as usize];
        let cards = random.between(1, 4) as usize;
        let limits = any_limits(&mut random, subject.facts.layers.len() as u32, cards);
        // From too little for any expert to more than enough.
        let whole = subject.facts.dense_bytes() + subject.facts.experts_bytes();
        let bytes = whole / random.between(1, 6) + random.between(0, 8 << 20);
        let Some(plan) = subject.check(&virtual_cards(cards, bytes), &limits) else { continue };
        plans += 1;
        partial += u32::from(plan.held_experts < plan.experts);
        lent += u32::from(plan.stages.iter().any(|s| s.lent.iter().any(|n| *n > 0)));
        several += u32::from(plan.stages.len() > 1);
    }
    println!("{plans} plans, {partial} with some experts on cards, {lent} that lend slots, {several} over several cards");
    assert!(plans > 1000 && partial > 40 && lent > 20 && several > 200, "{plans} {partial} {lent} {several}");
}

#[test]
fn scratch_of_built_stages_replaces_the_estimate_and_nothing_else() {
    let model = Subject::of_file(FIXTURES[1]).facts;
    let pc = virtual_cards(2, 256 << 20);
    let limits = Limits { context: Some(512), layer_split: Some(split_at(&[3, 8])), ..Limits::default() };
    let first = decide(&model, &pc, &limits, false).unwrap();
    let scratch = vec![StageScratch { card_bytes: 12_800, host_bytes: 4096 }, StageScratch::default()];
    let fixed = first.fixed(&limits, Some(scratch));
    let plan = decide(&model, &pc, &fixed, false).unwrap();
    assert_eq!(verify(&plan, &model, &pc, &fixed), vec![]);
    let of = |plan: &Plan, id: &str| plan.row(id).map(|r| (r.consumer, r.bytes));
    assert_eq!(of(&plan, "virtual:0/kernel-scratch"), Some((Consumer::KernelScratch, 12_800)));
    assert_eq!(of(&plan, "virtual:1/kernel-scratch"), None);
    assert_eq!(of(&plan, "ram/host-scratch"), Some((Consumer::HostScratch, 4096)));
    for (a, b) in first.stages.iter().zip(&plan.stages) {
        assert_eq!(a.arenas, StageArenas { scratch_bytes: a.arenas.scratch_bytes, ..b.arenas });
    }
    // The driver may take a bounded amount more; a virtual card has no driver.
    let used = plan.pools[0].used;
    assert!(plan.unexplained("virtual:0", used).unwrap().explained);
    assert!(!plan.unexplained("virtual:0", used + 1).unwrap().explained);
    assert_eq!(plan.unexplained("virtual:7", used), None);
    // Scratch that does not fit is refused like anything else.
    let huge = Limits { scratch: Some(vec![StageScratch { card_bytes: 1 << 30, host_bytes: 0 }; 2]), ..fixed };
    let refusal = decide(&model, &pc, &huge, false).unwrap_err();
    assert!(refusal.short.iter().any(|p| p.name.starts_with("virtual:1")));
}

/// What is refused at the border is refused by a byte, not by an estimate.
#[test]
fn a_card_of_exactly_the_planned_bytes_fits_and_one_byte_less_does_not() {
    let subject = Subject::of_file("tests/fixtures/families/llama-gqa.gguf");
    let limits = Limits { context: Some(700), prefill: Some(100), ..Limits::default() };
    let plan = subject.check(&virtual_cards(1, 1 << 30), &limits).unwrap();
    let stage = &subject.build(&plan, &limits)[0];
    let needed = stage.weights_bytes + stage.state_bytes + stage.work_bytes;
    assert!(planned(&subject.facts, &virtual_cards(1, needed), &limits).is_ok());
    let refusal = decide(&subject.facts, &virtual_cards(1, needed - 1), &limits, false).unwrap_err();
    assert_eq!(refusal.short[0].short, 1);
}

/// The search of the largest context goes by halves: more rows never take less, for all that packing places the largest first.
#[test]
fn more_rows_never_take_less() {
    let sheets = ["IQ2_XS", "Q4_K"].map(Subject::of_sheet);
    for subject in FIXTURES.map(Subject::of_file).iter().chain(&sheets) {
        for buffers in subject.facts.work.iter().flat_map(|work| [&work.whole, &work.partial]) {
            for outputs in [1, 8] {
                let packed = |rows: u64| {
                    let piece = |b: &WorkBuffer| Piece {
                        bytes: (b.row_bytes * if b.per_output { rows.min(outputs) } else { rows }).next_multiple_of(256),
                        first_step: b.first_step,
                        last_step: b.last_step,
                        carried: b.carried,
                    };
                    pack(&buffers.iter().map(piece).collect::<Vec<_>>()).1.bytes
                };
                let bytes: Vec<u64> = (1..=512).map(packed).collect();
                assert!(bytes.is_sorted(), "{}: {buffers:?}", subject.name);
            }
        }
    }
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
    let tiny_model = Subject::of_file("tests/fixtures/tiny-random-BF16.gguf").facts;
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
