//! From wishes to an engine that runs by a plan: wait for cards that are being given back, plan, take the cards' locks, build
//! the stages, plan again with their real arenas, have the second opinion look at it, open, and compare what the devices
//! say with what was planned. Nothing takes memory before the plan stands.

mod devices;
mod error;
mod lock;
mod settle;
mod tiers;

use std::path::PathBuf;
use std::sync::Arc;

pub use devices::{Drivers, within_this_pc};
pub use error::{LaunchError, cannot_run_yet};
pub use lock::{CardLock, default_lock_folder};
pub use settle::{CardReader, Reading, SettlePolicy, Verdict, judge, wait_for_cards};

use devices::Opener;

use crate::backend::cpu::CpuOptions;
use crate::backend::{ArenaSizes, CardUse, Faults, Finder};
use crate::engine::{BuiltStage, BuiltVision, Engine, EngineError, LoadProgress, OpenOptions, VisionOptions, VisionPlace};
use crate::experts::{ExpertOptions, PinOptions};
use crate::gguf::ModelFiles;
use crate::model::{MAX_PICTURE_TOKENS, MIN_PICTURE_TOKENS, Model, StageOptions, Tensors};
use crate::plan::{
    BackendKind, Capability, CardCheck, Consumer, KEPT_PICTURES, Limits, Machine, ModelHeader, Plan, PlanModel, PlannedStage,
    RamExperts, Refusal, Settings, Size, StageArenas, StageScratch, Violation, VisionArenas, plan, verify,
};
use crate::program::Stage;

// What the planner spreads over cards the scheduler has to run.
const _: () = assert!(crate::plan::MAX_STAGES == crate::schedule::MAX_STAGES);

/// What the engine of this version can execute of what the planner can plan.
pub const CAPABILITIES: [Capability; 6] = [
    Capability::SeveralStages,
    Capability::Checkpoints,
    Capability::QuantisedKv,
    Capability::ExpertSlots,
    Capability::DiskExperts,
    Capability::Vision,
];

/// What shall be opened, and how.
#[derive(Clone)]
pub struct Launch {
    pub files: Arc<ModelFiles>,
    pub model: Arc<Model>,
    /// The file of the vision encoder.
    pub vision: Option<Arc<ModelFiles>>,
    pub machine: Machine,
    pub limits: Limits,
    /// Context, chunk and cache type are those of the plan.
    pub options: OpenOptions,
    pub cpu: CpuOptions,
    /// Folder of the cards' lock files; `None` takes no locks.
    pub locks: Option<PathBuf>,
    /// The backends that cards are opened by.
    pub finders: &'static [&'static dyn Finder],
    /// For tests: allocations of virtual cards that fail, and the bytes they have in use.
    pub faults: Arc<Faults>,
    pub in_use: Arc<CardUse>,
}

/// Hears what happens on the way.
pub trait Audience {
    /// A card is waited for.
    fn waiting(&mut self, _message: &str) {}
    /// The plan that will be executed; nothing has been taken yet.
    fn planned(&mut self, _plan: &Plan) {}
    fn loading(&mut self, _progress: LoadProgress) {}
}

/// Hears nothing.
impl Audience for () {}

/// An engine and the plan it runs by.
pub struct Launched {
    pub engine: Engine,
    pub plan: Plan,
    pub cards: Vec<CardCheck>,
}

/// Opens a model by a plan.
///
/// # Errors
/// A refusal with its reasons before anything was taken, or an allocation that failed against the plan; then everything has
/// been given back.
pub fn open_planned(launch: Launch, audience: &mut dyn Audience) -> Result<Launched, LaunchError> {
    let Launch { files, model, vision, mut machine, limits, options, cpu, locks, finders, faults, in_use } = launch;
    let mut drivers = Drivers::of(&machine, finders);
    let facts = facts(&files, vision.as_deref())?;
    let limits = with_windows(limits, &options);
    wait_for_cards(&mut machine, &limits, &SettlePolicy::default(), &mut drivers, audience);
    let lock = |plan: &Plan| locks.as_ref().map_or(Ok(vec![]), |folder| lock_cards(plan, &machine, folder, &files.name()));
    let options = OpenOptions { host: cpu.clone(), ..options };
    let (limits, vision) = build_vision(&model, vision, limits, &cpu)?;
    let source = Source { facts: &facts, files: &files, model: &model, drivers: &drivers };
    let opener = Opener { cpu: &cpu, faults: &faults, in_use: &in_use, drivers: &drivers };
    let Settled { plan, options, built, locks, free_before } = settle(&source, &machine, &limits, &options, &opener, lock)?;
    audience.planned(&plan);
    let opened = Engine::open_built(files, model, (built, vision), options, &mut |p| audience.loading(p));
    let mut engine = opened.map_err(|e| LaunchError::of_open(e, &plan))?;
    locks.into_iter().for_each(|lock| engine.keep(Box::new(lock)));
    let cards = check_cards(&engine, &plan, &free_before);
    Ok(Launched { engine, plan, cards })
}

/// What the planner reads of the model's file and of the encoder's.
fn facts(files: &ModelFiles, vision: Option<&ModelFiles>) -> Result<PlanModel, LaunchError> {
    let wrong = |files: &ModelFiles, source| LaunchError::Facts { file: files.name(), source };
    let mut facts = PlanModel::from_header(&ModelHeader::from(files)).map_err(|e| wrong(files, e))?;
    if let Some(vision) = vision {
        facts.add_vision(&ModelHeader::from(vision)).map_err(|e| wrong(vision, e))?;
    }
    Ok(facts)
}

/// The vision encoder, if pictures shall be read, and the wishes with what it needs: that depends on no plan.
fn build_vision(
    model: &Model,
    files: Option<Arc<ModelFiles>>,
    limits: Limits,
    cpu: &CpuOptions,
) -> Result<(Limits, Option<BuiltVision>), LaunchError> {
    let asked = (MIN_PICTURE_TOKENS..=MAX_PICTURE_TOKENS).contains(&limits.vision_tokens) && limits.vision;
    // Wishes that cannot be are the planner's to refuse.
    let Some(files) = files.filter(|_| asked) else { return Ok((limits, None)) };
    let kept_tokens = limits.vision_tokens * KEPT_PICTURES;
    let options = VisionOptions { files, max_tokens: limits.vision_tokens, kept_tokens };
    let built = BuiltVision::new(options, model, VisionPlace::Processor(cpu.clone())).map_err(LaunchError::Engine)?;
    let failed = |e| LaunchError::Engine(EngineError::Backend(e));
    let work_bytes = built.work_bytes().map_err(failed)?;
    let arenas = VisionArenas { weights_bytes: built.weights_bytes(), work_bytes };
    Ok((Limits { vision_arenas: Some(arenas), ..limits }, Some(built)))
}

/// The wishes with what the verb wants of windows, which no flag says.
fn with_windows(limits: Limits, options: &OpenOptions) -> Limits {
    Limits {
        least_decode_rows: options.decode_rows.clamp(1, limits.prefill.unwrap_or(u32::MAX).max(1)),
        outputs: Some(options.max_outputs),
        undo_tokens: options.undo_tokens,
        watch_experts: options.experts.record,
        ..limits
    }
}

/// What stages are planned for and built from.
struct Source<'a> {
    facts: &'a PlanModel,
    files: &'a ModelFiles,
    model: &'a Model,
    drivers: &'a Drivers,
}

/// A plan with the scratch of its built stages, these on devices without memory yet, and the locks of its cards.
struct Settled {
    plan: Plan,
    options: OpenOptions,
    built: Vec<BuiltStage>,
    locks: Vec<CardLock>,
    /// What the driver of each stage's card said was free before the first arena; `None` where it does not tell.
    free_before: Vec<Option<u64>>,
}

/// Tries at a plan whose estimates of scratch hold.
const TRIES: usize = 4;

/// Plans, builds the stages, opens the devices without memory, and plans again with the scratch that their kernels need.
/// Where it turns out larger than estimated and no longer fits, the card is planned again with that much less room. Where the
/// room for experts turns out another, the stages are built anew with as many slots. What is free on a card is read again once it is
/// open with the code of its stage: from then on nothing but arenas, graphs and pinned memory is taken.
fn settle(
    source: &Source<'_>,
    machine: &Machine,
    limits: &Limits,
    options: &OpenOptions,
    opener: &Opener<'_>,
    lock: impl Fn(&Plan) -> Result<Vec<CardLock>, LaunchError>,
) -> Result<Settled, LaunchError> {
    let (mut room, mut machine) = (machine.clone(), machine.clone());
    let mut tries = 0;
    loop {
        tries += 1;
        let first = plan(source.facts, &room, limits).map_err(refused)?;
        check_capabilities(&first, &machine, source.drivers)?;
        let locks = lock(&first)?;
        match build_and_plan(source, &mut machine, limits, options, opener, first)? {
            Ok((plan, options, built)) => {
                let free_before = built.iter().map(|stage| stage.backend.free_bytes()).collect();
                return Ok(Settled { plan, options, built, locks, free_before });
            }
            Err((refusal, first, scratch)) => {
                let fallen = lower_to(&mut room, &machine);
                let shrunk = shrink(&mut room, &first, &scratch);
                if tries == TRIES || !(shrunk || fallen) {
                    return Err(refused(refusal));
                }
            }
        }
    }
}

/// A plan with its stages, or why it does not fit with the scratch that its stages need.
type Rebuilt = Result<(Plan, OpenOptions, Vec<BuiltStage>), (Box<Refusal>, Plan, Vec<StageScratch>)>;

/// Builds the stages of a plan and plans again, until the stages have the slots that the plan gives them.
fn build_and_plan(
    source: &Source<'_>,
    machine: &mut Machine,
    limits: &Limits,
    options: &OpenOptions,
    opener: &Opener<'_>,
    first: Plan,
) -> Result<Rebuilt, LaunchError> {
    let mut current = first;
    let held = |plan: &Plan| plan.stages.iter().map(|s| (s.held.clone(), s.lent.clone())).collect::<Vec<_>>();
    let mut built = vec![];
    for _ in 0..TRIES {
        let (options, stages) = build(&current, source, options)?;
        built = on_devices(&current, stages, machine, opener, built)?;
        read_free(&current, machine, &mut built)?;
        as_planned(&current, source.facts, &built)?;
        let scratch = scratch(&built)?;
        let fixed = current.fixed(limits, Some(scratch.clone()));
        let next = match plan(source.facts, machine, &fixed) {
            Ok(next) => next,
            Err(refusal) => return Ok(Err((refusal, current, scratch))),
        };
        if held(&next) == held(&current) {
            let violations = verify(&next, source.facts, machine, &fixed);
            if !violations.is_empty() {
                return Err(LaunchError::Unsound { violations });
            }
            // RAM is what this plan leaves, not what the one before it did.
            let ram_slots = Some(least_ram(&next, source.facts, machine, &fixed)?);
            let may_stay_on_disk = next.settings.ram_experts == RamExperts::Disk;
            let pin = PinOptions { most_bytes: tiers::pinned_bytes(&next), ..options.experts.pin };
            let options =
                OpenOptions { experts: ExpertOptions { ram_slots, may_stay_on_disk, pin, ..options.experts }, ..options };
            return Ok(Ok((next, options, built)));
        }
        current = next;
    }
    let what = "the number of expert slots does not settle".into();
    Err(LaunchError::Unsound { violations: vec![Violation { rule: "launch", what }] })
}

/// Slots of each layer in RAM.
///
/// # Errors
/// A layer that the cards hold partly and that RAM has no room for one expert of, with the budget that would do.
fn least_ram(plan: &Plan, facts: &PlanModel, machine: &Machine, fixed: &Limits) -> Result<Vec<u32>, LaunchError> {
    let slots = tiers::ram_slots(plan, facts);
    let Some(needed) = tiers::lacking_ram(plan, facts, &slots) else { return Ok(slots) };
    let room = tiers::ram_bytes(plan);
    // A remedy is planned before it is told.
    let budget = fixed.ram_budget.map(|b| b.saturating_add(needed.saturating_sub(room)));
    let fits = |budget: &u64| {
        let wider = Limits { ram_budget: Some(*budget), ..fixed.clone() };
        let planned = crate::plan::plan(facts, machine, &wider).ok();
        planned.is_some_and(|p| tiers::lacking_ram(&p, facts, &tiers::ram_slots(&p, facts)).is_none())
    };
    Err(LaunchError::NoRamForExperts { room, needed, budget: budget.filter(fits) })
}

/// Loads the code of the stages and reads what the cards then have free. Cards that do not tell stay as they are.
fn read_free(plan: &Plan, machine: &mut Machine, built: &mut [BuiltStage]) -> Result<(), LaunchError> {
    for (planned, BuiltStage { stage, backend, .. }) in plan.stages.iter().zip(built) {
        backend.load_code(stage).map_err(|e| LaunchError::Engine(EngineError::Backend(e)))?;
        if let Some(free_bytes) = backend.free_bytes() {
            let card = &mut machine.cards[planned.card.0];
            card.free = Size(free_bytes.min(card.total.0));
            card.opened = true;
        }
    }
    Ok(())
}

/// Lowers the room of each card to what has been read since; false if it was no more.
fn lower_to(room: &mut Machine, machine: &Machine) -> bool {
    let mut fallen = false;
    for (card, read) in room.cards.iter_mut().zip(&machine.cards).filter(|(card, read)| read.opened && !card.opened) {
        fallen |= read.free < card.free;
        (card.free, card.opened) = (card.free.min(read.free), true);
    }
    fallen
}

/// Takes from the room of each card and of the host what scratch needs beyond the estimate; false if there is no such thing.
fn shrink(room: &mut Machine, plan: &Plan, scratch: &[StageScratch]) -> bool {
    let planned = plan.rows.iter().filter(|r| r.consumer == Consumer::HostScratch).map(|r| r.bytes).sum::<u64>();
    let of_host = scratch.iter().map(|s| s.host_bytes).sum::<u64>().saturating_sub(planned);
    room.host.ram_available.0 = room.host.ram_available.0.saturating_sub(of_host);
    let mut shrunk = of_host > 0;
    for (planned, built) in plan.stages.iter().zip(scratch) {
        let beyond = built.card_bytes.saturating_sub(planned.arenas.scratch_bytes);
        let card = &mut room.cards[planned.card.0];
        card.free.0 = card.free.0.saturating_sub(beyond);
        if card.shares_host_memory || card.backend == BackendKind::Cpu {
            room.host.ram_available.0 = room.host.ram_available.0.saturating_sub(beyond);
        }
        shrunk |= beyond > 0;
    }
    shrunk
}

/// A refusal with the remedies that this version can run.
fn refused(mut refusal: Box<Refusal>) -> LaunchError {
    refusal.remedies.retain(|remedy| remedy.needs.iter().all(|need| CAPABILITIES.contains(need)));
    LaunchError::Refused(refusal)
}

/// Refuses what can be planned but not yet be executed.
fn check_capabilities(plan: &Plan, machine: &Machine, drivers: &Drivers) -> Result<(), LaunchError> {
    let cards = || plan.stages.iter().map(|stage| &machine.cards[stage.card.0]);
    if let Some(card) = cards().find(|card| !drivers.can_drive(card.backend)) {
        return Err(LaunchError::NoBackend { card: card.id.clone(), backend: card.backend });
    }
    let kv = plan.settings.kv.format();
    let can = |need: &Capability| {
        let cached = *need != Capability::QuantisedKv || cards().all(|card| drivers.can_cache(card.backend, kv));
        CAPABILITIES.contains(need) && cached
    };
    let missing: Vec<Capability> = plan.needs.iter().copied().filter(|need| !can(need)).collect();
    if missing.is_empty() { Ok(()) } else { Err(LaunchError::NotYet { missing }) }
}

/// Locks of all cards that have memory of their own; RAM is shared with everybody.
fn lock_cards(plan: &Plan, machine: &Machine, folder: &std::path::Path, model: &str) -> Result<Vec<CardLock>, LaunchError> {
    let cards = plan.stages.iter().map(|stage| &machine.cards[stage.card.0]);
    cards.filter(|card| card.backend != BackendKind::Cpu).map(|card| CardLock::take(folder, card, model)).collect()
}

/// The stages of a plan as the model's own code lays them out, and the options they are run with.
fn build(plan: &Plan, source: &Source<'_>, options: &OpenOptions) -> Result<(OpenOptions, Vec<Arc<Stage>>), LaunchError> {
    let Settings { context_tokens, cells, chunk, decode_rows, outputs, versions, slots, .. } = plan.settings;
    let kv = plan.settings.kv.format();
    let expert_slots = tiers::card_slots(plan, source.facts, options.experts.record);
    let lent_slots = tiers::lent_slots(plan);
    let options = OpenOptions {
        context: context_tokens,
        prompt_rows: chunk,
        decode_rows,
        max_outputs: outputs,
        undo_tokens: versions.saturating_sub(1),
        slots,
        kv,
        expert_slots,
        lent_slots,
        ..options.clone()
    };
    let tensors = Tensors::new(source.files);
    // Cells come in whole blocks of the indexer; the context is what was asked for.
    let cells = u32::try_from(cells).unwrap_or(context_tokens);
    let stage = |layers| {
        let stage = source.model.config.stage(&tensors, &StageOptions { cells, ..options.stage_options(layers) })?;
        Ok(Arc::new(stage))
    };
    let stages = plan.stages.iter().map(|s| stage(s.layers.start..s.layers.end)).collect::<Result<_, LaunchError>>()?;
    Ok((options, stages))
}

/// The stages on their devices, which have no memory yet. Devices that are open already are taken over.
fn on_devices(
    plan: &Plan,
    stages: Vec<Arc<Stage>>,
    machine: &Machine,
    opener: &Opener<'_>,
    open: Vec<BuiltStage>,
) -> Result<Vec<BuiltStage>, LaunchError> {
    let mut open = open.into_iter().map(|built| built.backend);
    let built = plan.stages.iter().zip(stages).map(|(planned, stage)| {
        let backend = open.next().map_or_else(|| opener.open(&machine.cards[planned.card.0]), Ok)?;
        Ok(BuiltStage { layers: planned.layers.start..planned.layers.end, stage, backend })
    });
    built.collect()
}

/// The scratch of built stages.
fn scratch(built: &[BuiltStage]) -> Result<Vec<StageScratch>, LaunchError> {
    let failed = |e| LaunchError::Engine(EngineError::Backend(e));
    let of_stage = |BuiltStage { stage, backend, .. }: &BuiltStage| {
        let card_bytes = backend.scratch_bytes(stage).map_err(failed)?;
        Ok(StageScratch { card_bytes, host_bytes: backend.host_scratch_bytes(stage).map_err(failed)? })
    };
    built.iter().map(of_stage).collect()
}

/// The arenas of a stage as it was built. Slots of partly held experts lie among the weights, and are planned apart.
fn built_arenas(planned: &PlannedStage, model: &PlanModel, stage: &Stage) -> StageArenas {
    let ArenaSizes { weights_bytes, state_bytes, work_bytes, .. } = ArenaSizes::of(stage);
    let layers = model.layers[planned.layers.indices()].iter().zip(&planned.held);
    let slots: u64 = layers.map(|(l, n)| l.experts.as_ref().map_or(0, |e| e.slab_bytes * u64::from(*n))).sum();
    let (prompt_work_bytes, decode_work_bytes) = stage.work_parts();
    StageArenas {
        weights_bytes: weights_bytes.saturating_sub(if planned.all_held { 0 } else { slots }),
        state_bytes,
        work_bytes,
        prompt_work_bytes,
        decode_work_bytes,
        ..planned.arenas
    }
}

/// # Errors
/// A built stage differs from its plan, by so much as a byte: a defect of the planner.
fn as_planned(plan: &Plan, model: &PlanModel, built: &[BuiltStage]) -> Result<(), LaunchError> {
    let differs = plan.stages.iter().zip(built).filter_map(|(planned, BuiltStage { stage, .. })| {
        let arenas = built_arenas(planned, model, stage);
        let what = format!("{}: {:?} planned, {arenas:?} built", planned.card_id, planned.arenas);
        (arenas != planned.arenas).then_some(Violation { rule: "arenas", what })
    });
    let violations: Vec<Violation> = differs.collect();
    if violations.is_empty() { Ok(()) } else { Err(LaunchError::Unsound { violations }) }
}

/// Compares what is gone from each card since the first arena with the plan; where its driver does not tell, what we took. Others may
/// take memory meanwhile, so this is told and no more.
fn check_cards(engine: &Engine, plan: &Plan, free_before: &[Option<u64>]) -> Vec<CardCheck> {
    let stages = engine.pipeline().stages.iter().zip(&plan.stages).zip(free_before);
    let checks = stages.filter_map(|((runner, planned), before)| {
        let gone = before.zip(runner.backend.free_bytes()).map(|(before, now)| before.saturating_sub(now));
        let used = gone.unwrap_or_else(|| runner.backend.memory().arenas_bytes);
        Some(CardCheck { card: planned.card_id.clone(), memory: plan.unexplained(&planned.card_id, used)? })
    });
    checks.collect()
}
