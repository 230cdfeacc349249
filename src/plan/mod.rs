//! The exact allocation planner: pure functions from a model's shapes, a machine's facts and a user's wishes to a plan
//! in which every byte is a row, or to a refusal with remedies that were each proven to fit. It knows no driver, asks no
//! clock and opens no file. `docs/PLANNER.md` explains rows, order of life, objective and how to add a consumer.

mod bounds;
mod consumer;
mod context;
mod formula;
mod from_gguf;
mod host;
mod limits;
mod machine;
mod model;
mod planner;
mod refusal;
mod remedy;
mod report;
mod rows;
mod rules;
mod search;
mod sheet;
mod size;
mod stage;
mod verify;
mod work;

pub use bounds::is_usable_rate;
pub use consumer::{Arena, Consumer, Lifetime};
pub use context::CardIndex;
pub use limits::{
    DEFAULT_CONTEXT, DEFAULT_VISION_TOKENS, FlagError, HeldCards, KvType, LayerRange, Limits, PlanFlags, RamExperts, StageArenas,
    StageScratch, VisionArenas, Workload, parse_layer_split,
};
pub use machine::{BackendKind, Card, Disk, DiskKind, DriverKind, Host, MACHINE_VERSION, Machine, MachineError, Os};
pub use model::{
    ConvFacts, DenseFacts, DraftFacts, ExpertFacts, FormatBytes, IndexFacts, LayerFacts, LayerWork, MetaValue, Mixer,
    ModelFactsError, ModelHeader, NgramFacts, PlanModel, TableFacts, TensorRow, VisionFacts, WorkBuffer, WorkForms,
};
pub use planner::{
    Alternative, Capability, CardCheck, Plan, PlannedStage, Prediction, Settings, Unexplained, decide, fits, plan,
};
pub use refusal::{HeldCard, Refusal, RefusalKind};
pub use remedy::{Remedy, largest_context};
pub use report::{render_refusal, render_report, render_short, why};
pub use rows::{Pool, PoolSheet, Row};
pub use rules::{Assumption, JOINT_ROWS, KEPT_PICTURES, MAX_STAGES, held_bytes};
pub use sheet::{SHEET_VERSION, SheetError, read_sheet, write_sheet};
pub use size::{MAX_SIZE_BYTES, Size, SizeError};
pub use verify::{Violation, verify};
