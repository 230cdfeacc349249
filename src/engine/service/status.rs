//! What the service tells about itself: plain data, copied out under a short lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::engine::{GenerationStats, MemoryUse};
use crate::picture::Preprocess;
use crate::plan::{CardCheck, Plan};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Loading,
    Ready,
    /// Could not be opened; the next request tries again.
    Down(String),
    Stopped,
}

impl State {
    pub fn name(&self) -> &'static str {
        match self {
            State::Loading => "loading",
            State::Ready => "ready",
            State::Down(_) => "down",
            State::Stopped => "stopped",
        }
    }
}

/// A breadcrumb: what the engine's thread began last, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    pub what: &'static str,
    pub request: Option<String>,
    pub since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    Idle,
    Prompt,
    Decode,
}

impl SlotState {
    pub fn name(self) -> &'static str {
        match self {
            SlotState::Idle => "idle",
            SlotState::Prompt => "reading the prompt",
            SlotState::Decode => "answering",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct SlotStatus {
    pub state: SlotState,
    pub request: Option<String>,
    /// Tokens that the slot's sequence holds; when idle, what a later prompt can reuse.
    pub held_tokens: usize,
    pub checkpoints: usize,
    pub checkpoint_bytes: usize,
    pub stats: GenerationStats,
}

impl SlotStatus {
    pub(super) fn idle() -> SlotStatus {
        SlotStatus {
            state: SlotState::Idle,
            request: None,
            held_tokens: 0,
            checkpoints: 0,
            checkpoint_bytes: 0,
            stats: GenerationStats::default(),
        }
    }
}

/// Counts since the start of the service; they survive a restart of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    pub requests: u64,
    pub done: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub refused: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    /// Time of the engine; a window that serves several answers counts once.
    pub prompt_time: Duration,
    /// Pictures that were looked at, and the time that took.
    pub pictures: u64,
    pub picture_time: Duration,
    pub decode_time: Duration,
    pub decode_steps: u64,
}

impl Totals {
    pub(super) fn add_time(&mut self, reading: bool, time: Duration) {
        *if reading { &mut self.prompt_time } else { &mut self.decode_time } += time;
    }
}

/// A request that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentRequest {
    pub id: String,
    pub ended: SystemTime,
    pub outcome: String,
    pub waited: Duration,
    pub stats: GenerationStats,
    pub label: Option<String>,
}

/// What is fixed while the engine is open.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineInfo {
    pub context: usize,
    pub slots: usize,
    pub prompt_rows: usize,
    pub vocab: usize,
    /// How pictures shall be that requests bring; `None` where the engine cannot see.
    pub pictures: Option<Preprocess>,
    pub devices: Vec<DeviceUse>,
    pub memory: MemoryUse,
    /// What the engine was opened by, where it was planned.
    pub plan: Option<Arc<Plan>>,
    /// What is gone of each card, against the plan.
    pub cards: Vec<CardCheck>,
}

/// A device and the bytes in use on it, as it counts them itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUse {
    /// `cpu`, `cuda:0`
    pub id: String,
    pub detail: String,
    pub arenas_bytes: u64,
    pub scratch_bytes: u64,
    pub late_allocations: u64,
}

#[derive(Debug, Clone)]
pub struct Status {
    pub state: State,
    pub restarts: u64,
    pub last_failure: Option<String>,
    pub activity: Activity,
    pub engine: Option<EngineInfo>,
    pub slots: Vec<SlotStatus>,
    pub waiting: usize,
    /// Conversations that lie in RAM, and what they take.
    pub parked: usize,
    pub parked_bytes: usize,
    pub totals: Totals,
    /// The newest last.
    pub recent: VecDeque<RecentRequest>,
}

impl Status {
    pub(super) fn new() -> Status {
        Status {
            state: State::Loading,
            restarts: 0,
            last_failure: None,
            activity: Activity { what: "starting", request: None, since: Instant::now() },
            engine: None,
            slots: Vec::new(),
            waiting: 0,
            parked: 0,
            parked_bytes: 0,
            totals: Totals::default(),
            recent: VecDeque::new(),
        }
    }

    /// Whether the engine is open and has been at one step for longer than `most`.
    pub fn is_stalled(&self, most: Duration) -> bool {
        let waits = self.activity.what.starts_with("waiting") || self.state != State::Ready;
        !waits && self.activity.since.elapsed() > most
    }

    pub(super) fn begin(&mut self, what: &'static str, request: Option<&str>) {
        self.activity = Activity { what, request: request.map(str::to_owned), since: Instant::now() };
    }
}
