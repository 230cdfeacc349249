//! Why a model was not opened.

use std::io;

use thiserror::Error;

use super::CAPABILITIES;
use crate::backend::BackendError;
use crate::engine::EngineError;
use crate::experts::ExpertError;
use crate::model::ModelError;
use crate::plan::{Arena, BackendKind, Capability, Consumer, ModelFactsError, Plan, Refusal, RefusalKind, Violation};
use crate::program::ArenaKind;
use crate::schedule::ScheduleError;

#[derive(Debug, Error)]
pub enum LaunchError {
    #[error("'{file}' cannot be planned: {source}")]
    Facts { file: String, source: ModelFactsError },
    #[error("{}\nNothing was loaded", told(.0))]
    Refused(Box<Refusal>),
    #[error("the plan needs {}, which this version cannot run yet. Nothing was loaded; {}", texts(.missing), ways_out(.missing))]
    NotYet { missing: Vec<Capability> },
    #[error(
        "the plan uses {card}, and this version has no backend for {} cards yet. Nothing was loaded; without --machine the \
         model runs on the processor of this PC",
        name(.backend)
    )]
    NoBackend { card: String, backend: BackendKind },
    #[error(
        "{card} of the plan is not in this PC (any more). Nothing was loaded; 'strata devices' lists the cards that are there"
    )]
    NoSuchCard { card: String },
    #[error("{card} is in use by {holder}. Nothing was loaded; end it, or choose other cards with --device")]
    CardInUse { card: String, holder: String },
    #[error("cannot make the lock file of {card} in '{folder}': {source}")]
    Lock { card: String, folder: String, source: io::Error },
    /// A defect of ours, found before it could do harm.
    #[error("the plan does not pass its second check; please report this: {violations:?}. Nothing was loaded")]
    Unsound { violations: Vec<Violation> },
    /// The device did not give what it had said was free.
    #[error(
        "{card} refused {bytes} bytes for {what} (planned: {}): {reason}. Everything was given back; \
         a larger --reserve or a smaller --context leaves more room",
        .rows.join(", ")
    )]
    Allocation { card: String, what: &'static str, bytes: u64, rows: Vec<String>, reason: String },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(
        "RAM has room for {room} bytes of experts, and one expert of each layer that a card holds partly, {needed} bytes, is the \
         least. Nothing was loaded; {}",
        budget_text(.budget)
    )]
    NoRamForExperts { room: u64, needed: u64, budget: Option<u64> },
    #[error(transparent)]
    Experts(ExpertError),
    #[error(transparent)]
    Engine(EngineError),
}

impl LaunchError {
    /// The wishes contradict each other, the model or the machine: whoever made them can mend them.
    pub fn is_usage(&self) -> bool {
        matches!(self, LaunchError::Refused(refusal) if refusal.kind == RefusalKind::Invalid)
    }

    /// The model does not fit, or not now: nothing is wrong with the arguments or the file.
    pub fn is_refusal(&self) -> bool {
        match self {
            LaunchError::Refused(_)
            | LaunchError::NotYet { .. }
            | LaunchError::NoBackend { .. }
            | LaunchError::NoSuchCard { .. }
            | LaunchError::CardInUse { .. }
            | LaunchError::NoRamForExperts { .. }
            | LaunchError::Allocation { .. } => true,
            LaunchError::Experts(error) => {
                use ExpertError::{NoRam, NoRamForRing, NoSlotForReproducible};
                matches!(error, NoRam { .. } | NoRamForRing { .. } | NoSlotForReproducible { .. })
            }
            LaunchError::Facts { .. }
            | LaunchError::Lock { .. }
            | LaunchError::Unsound { .. }
            | LaunchError::Model(_)
            | LaunchError::Engine(_) => false,
        }
    }

    /// An error while memory was taken and weights were read. The engine has given everything back.
    pub(super) fn of_open(error: EngineError, plan: &Plan) -> LaunchError {
        match error {
            EngineError::Backend(BackendError::OutOfMemory { device, arena, bytes, reason })
            | EngineError::Schedule(ScheduleError::Backend(BackendError::OutOfMemory { device, arena, bytes, reason })) => {
                let (kind, what) = match arena {
                    ArenaKind::Weights => (Arena::Weights, "weights"),
                    ArenaKind::State => (Arena::State, "state"),
                    ArenaKind::Work => (Arena::Work, "work buffers"),
                };
                let of_kind = |arena: Arena| arena == kind || (kind == Arena::Work && arena == Arena::Scratch);
                let own = plan.rows.iter().filter(|row| of_kind(row.arena) && row.id.starts_with(&format!("{device}/")));
                let rows = own.map(|row| format!("{} {} bytes", row.id, row.bytes)).collect();
                LaunchError::Allocation { card: device, what, bytes, rows, reason }
            }
            EngineError::Model(source) => LaunchError::Model(source),
            EngineError::Experts(ExpertError::Backend(BackendError::OutOfMemory { bytes, reason, .. })) => {
                let of_ram = [Consumer::RamExperts, Consumer::ExpertBuffers];
                let own = plan.rows.iter().filter(|row| of_ram.contains(&row.consumer));
                let rows = own.map(|row| format!("{} {} bytes", row.id, row.bytes)).collect();
                LaunchError::Allocation { card: "RAM".into(), what: "experts", bytes, rows, reason }
            }
            EngineError::Experts(source) => LaunchError::Experts(source),
            other => LaunchError::Engine(other),
        }
    }
}

/// One sentence on what of a plan this version cannot execute, and what does without; `None` if nothing of it. What a backend
/// lacks is found out when the plan is run.
pub fn cannot_run_yet(plan: &Plan) -> Option<String> {
    let missing: Vec<Capability> = plan.needs.iter().copied().filter(|need| !CAPABILITIES.contains(need)).collect();
    let told = || format!("this version cannot run {} yet; {}", texts(&missing), ways_out(&missing));
    (!missing.is_empty()).then(told)
}

/// The refusal without its first word, which the caller says.
fn told(refusal: &Refusal) -> String {
    let text = refusal.to_string();
    text.strip_prefix("Refused: ").unwrap_or(&text).trim_end().to_owned()
}

fn budget_text(budget: &Option<u64>) -> String {
    match budget {
        Some(bytes) => format!("--ram-budget {bytes}B was planned and fits"),
        None => "a smaller --context or --prefill leaves more, or a card that holds all experts".into(),
    }
}

fn texts(missing: &[Capability]) -> String {
    missing.iter().map(|c| c.text()).collect::<Vec<_>>().join(" and ")
}

fn ways_out(missing: &[Capability]) -> String {
    missing.iter().map(|c| way_out(*c)).collect::<Vec<_>>().join("; ")
}

fn way_out(missing: Capability) -> &'static str {
    match missing {
        Capability::SeveralStages => "one --device does without",
        Capability::ExpertSlots => "--device cpu, or cards that hold all experts, do without",
        Capability::QuantisedKv => "--kv f16 does without",
        Capability::KvSpill => "leave out --resident-kv",
        Capability::Vision => "--vision off does without",
        Capability::Draft => "--draft off does without",
        Capability::DiskExperts => "leave out --ram-experts disk",
        Capability::Checkpoints => "--checkpoints 0 does without",
    }
}

fn name(backend: &BackendKind) -> &'static str {
    match backend {
        BackendKind::Cuda => "CUDA",
        BackendKind::Hip => "HIP",
        BackendKind::Vulkan => "Vulkan",
        BackendKind::Dx12 => "Direct3D 12",
        BackendKind::Metal => "Metal",
        BackendKind::Cpu => "CPU",
        BackendKind::Virtual => "virtual",
    }
}
