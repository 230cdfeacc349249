//! What the user wants: context, cache type, chunk, drafts, devices. Plain data, checked against model and machine by
//! the planner.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::size::{Size, SizeError};
use crate::program::KvFormat;

/// Element type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    F32,
    F16,
    /// 8 bit with a scale per 32 elements.
    Int8,
    /// Keys 8 bit, values 4 bit.
    K8v4,
    /// 4 bit with a scale per 32 elements.
    Q4_0,
}

impl KvType {
    /// From the largest to the smallest.
    pub const ALL: [KvType; 5] = [KvType::F32, KvType::F16, KvType::Int8, KvType::K8v4, KvType::Q4_0];

    /// What a stage is built with.
    pub fn format(self) -> KvFormat {
        match self {
            KvType::F32 => KvFormat::F32,
            KvType::F16 => KvFormat::F16,
            KvType::Int8 => KvFormat::Q8_0,
            KvType::K8v4 => KvFormat::K8V4,
            KvType::Q4_0 => KvFormat::Q4_0,
        }
    }

    pub fn name(self) -> &'static str {
        self.format().name()
    }

    /// Bytes of one cell: a key and a value of every KV head.
    pub fn cell_bytes(self, kv_heads: u32, head_dim: u32) -> u64 {
        let (key, value) = self.format().cell_bytes(head_dim);
        u64::from(kv_heads) * (key + value)
    }
}

/// Where experts live that are on no card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RamExperts {
    /// `All` where RAM and commit allow it, else `Complement`.
    Auto,
    /// Every expert has a copy in RAM, also those on a card: experts can be exchanged at any time. As a wish the same as
    /// `Auto`, but the report says when it could not be granted.
    All,
    /// RAM holds the experts that are on no card.
    Complement,
    /// RAM holds what fits; the others are read from disk when needed.
    Disk,
}

impl RamExperts {
    pub fn name(self) -> &'static str {
        match self {
            RamExperts::Auto => "auto",
            RamExperts::All => "all",
            RamExperts::Complement => "complement",
            RamExperts::Disk => "disk",
        }
    }
}

/// What to do when other programs hold much of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeldCards {
    /// Refuse if the plan is slower because it leaves the card out, or has only the smaller part of it.
    Refuse,
    /// Take what is free, or leave the card out.
    Use,
}

/// The load that splits are compared by: one prompt and one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    pub prompt_tokens: u32,
    pub answer_tokens: u32,
}

/// Half-open range of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerRange {
    pub start: u32,
    pub end: u32,
}

impl LayerRange {
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub fn indices(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Written as the user writes it: `0-23`, both ends included.
impl std::fmt::Display for LayerRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.start, self.end.saturating_sub(1))
    }
}

/// Arenas of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageArenas {
    pub weights_bytes: u64,
    pub state_bytes: u64,
    /// Buffers of all programs, and the slots that lie on them.
    pub work_bytes: u64,
    /// Buffers of prompts, and of decode windows alone.
    pub prompt_work_bytes: u64,
    pub decode_work_bytes: u64,
    /// What the card's kernels keep beside the arenas.
    pub scratch_bytes: u64,
    /// All experts of the stage are part of `weights_bytes`; otherwise slots are sized beside it.
    pub experts_inside: bool,
}

/// What the kernels of a built stage keep beside its arenas, in place of the planner's estimate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageScratch {
    /// Of the card's memory.
    pub card_bytes: u64,
    /// Of the host's: the scratch of the CPU's threads.
    pub host_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Tokens of one sequence; `None`: the trained context, at most [`DEFAULT_CONTEXT`].
    pub context: Option<u32>,
    pub kv: KvType,
    /// Rows of a prompt chunk; `None`: chosen with the split.
    pub prefill: Option<u32>,
    /// Sequences that may be in work at the same time.
    pub slots: u32,
    /// Whether the draft block is used, and how many tokens it drafts.
    pub draft: bool,
    pub draft_window: u32,
    pub vision: bool,
    /// Most tokens of one picture; larger ones are scaled down.
    pub vision_tokens: u32,
    /// Cards to use, all of them; `None`: chosen by the planner.
    pub devices: Option<Vec<String>>,
    /// Raises the floor of every card.
    pub reserve: Option<u64>,
    /// Most expert slots over all cards. A wish: never a way below the floor.
    pub expert_slots: Option<u32>,
    /// One range a card, in the order of `devices` (or of the machine).
    pub layer_split: Option<Vec<LayerRange>>,
    /// KV cells of each layer that stay on the card; the others lie in pinned RAM.
    pub resident_kv: Option<u32>,
    /// Conversation checkpoints kept in RAM.
    pub checkpoints: u32,
    /// RAM for conversations that had to leave their slots.
    pub cache_ram: u64,
    /// Most RAM for everything.
    pub ram_budget: Option<u64>,
    pub ram_experts: RamExperts,
    pub held_cards: HeldCards,
    pub workload: Workload,
    /// What the built vision encoder needs, in place of the planner's own figures.
    pub vision_arenas: Option<VisionArenas>,
    /// Rows of a decode window at least, whatever slots and drafts ask for.
    pub least_decode_rows: u32,
    /// Rows of a window whose scores are wanted, at most; `None`: those of every slot, all of them for embeddings that are a mean.
    pub outputs: Option<u32>,
    /// Newest tokens that can be taken back without a checkpoint.
    pub undo_tokens: u32,
    /// Every layer has a table of its experts, so that one sees which are chosen.
    pub watch_experts: bool,
    /// Scratch of the built stages, one a stage; only with an explicit split.
    pub scratch: Option<Vec<StageScratch>>,
}

/// Sizes of a vision encoder as its real program needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisionArenas {
    pub weights_bytes: u64,
    /// Buffers and the scratch of the CPU's threads.
    pub work_bytes: u64,
}

/// Tokens of the largest picture: about a million pixels, in which small print can be read.
pub const DEFAULT_VISION_TOKENS: u32 = 1024;

pub const DEFAULT_CONTEXT: u32 = 32_768;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            context: None,
            kv: KvType::F16,
            prefill: None,
            slots: 1,
            draft: false,
            draft_window: 3,
            vision: false,
            vision_tokens: DEFAULT_VISION_TOKENS,
            devices: None,
            reserve: None,
            expert_slots: None,
            layer_split: None,
            resident_kv: None,
            checkpoints: 0,
            cache_ram: 0,
            ram_budget: None,
            ram_experts: RamExperts::Auto,
            held_cards: HeldCards::Refuse,
            workload: Workload { prompt_tokens: 4096, answer_tokens: 512 },
            vision_arenas: None,
            least_decode_rows: 1,
            outputs: None,
            undo_tokens: 0,
            watch_experts: false,
            scratch: None,
        }
    }
}

/// Flags as text, for the command line.
#[derive(Debug, Clone, Default)]
pub struct PlanFlags {
    pub context: Option<u32>,
    pub kv: Option<String>,
    pub prefill: Option<u32>,
    pub slots: Option<u32>,
    pub draft: Option<String>,
    pub draft_window: Option<u32>,
    pub vision: Option<String>,
    pub vision_tokens: Option<u32>,
    /// Comma-separated ids.
    pub device: Option<String>,
    pub reserve: Option<String>,
    pub expert_slots: Option<u32>,
    /// `0-23,24-47`
    pub layer_split: Option<String>,
    pub resident_kv: Option<u32>,
    pub checkpoints: Option<u32>,
    pub cache_ram: Option<String>,
    pub ram_budget: Option<String>,
    pub ram_experts: Option<String>,
    pub held_cards: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FlagError {
    #[error("--{flag} {value}: expected one of {expected}")]
    Choice { flag: &'static str, value: String, expected: &'static str },
    #[error("--{flag}: {source}")]
    Size { flag: &'static str, source: SizeError },
    #[error("--layer-split {value}: expected ranges such as 0-23,24-47")]
    Split { value: String },
}

fn choose<T: Copy>(flag: &'static str, value: &str, choices: &[(&str, T)], expected: &'static str) -> Result<T, FlagError> {
    let found = choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice);
    found.ok_or_else(|| FlagError::Choice { flag, value: value.to_string(), expected })
}

fn size(flag: &'static str, value: &str) -> Result<u64, FlagError> {
    value.parse::<Size>().map(|s| s.0).map_err(|source| FlagError::Size { flag, source })
}

/// Reads `0-23,24-47`.
pub fn parse_layer_split(value: &str) -> Result<Vec<LayerRange>, FlagError> {
    let fail = || FlagError::Split { value: value.to_string() };
    let range = |part: &str| {
        let (first, last) = part.trim().split_once('-').ok_or_else(fail)?;
        let start: u32 = first.trim().parse().map_err(|_| fail())?;
        let last: u32 = last.trim().parse().map_err(|_| fail())?;
        let end = last.checked_add(1).filter(|end| *end > start).ok_or_else(fail)?;
        Ok(LayerRange { start, end })
    };
    value.split(',').map(range).collect()
}

const ON_OFF: &[(&str, bool)] = &[("on", true), ("off", false)];
const KV_CHOICES: &[(&str, KvType)] = &[
    ("f32", KvType::F32),
    ("f16", KvType::F16),
    ("int8", KvType::Int8),
    ("q8_0", KvType::Int8),
    ("k8v4", KvType::K8v4),
    ("q4_0", KvType::Q4_0),
];
const RAM_CHOICES: &[(&str, RamExperts)] =
    &[("auto", RamExperts::Auto), ("all", RamExperts::All), ("complement", RamExperts::Complement), ("disk", RamExperts::Disk)];

impl Limits {
    pub fn from_flags(flags: &PlanFlags) -> Result<Limits, FlagError> {
        let mut limits = Limits { context: flags.context, prefill: flags.prefill, ..Limits::default() };
        if let Some(kv) = &flags.kv {
            limits.kv = choose("kv", kv, KV_CHOICES, "f32, f16, int8, k8v4, q4_0")?;
        }
        if let Some(draft) = &flags.draft {
            limits.draft = choose("draft", draft, ON_OFF, "on, off")?;
        }
        if let Some(vision) = &flags.vision {
            limits.vision = choose("vision", vision, ON_OFF, "on, off")?;
        }
        if let Some(home) = &flags.ram_experts {
            limits.ram_experts = choose("ram-experts", home, RAM_CHOICES, "auto, all, complement, disk")?;
        }
        if let Some(held) = &flags.held_cards {
            let choices = [("refuse", HeldCards::Refuse), ("use", HeldCards::Use)];
            limits.held_cards = choose("held-cards", held, &choices, "refuse, use")?;
        }
        limits.reserve = flags.reserve.as_deref().map(|v| size("reserve", v)).transpose()?;
        let budget = flags.ram_budget.as_deref().filter(|v| *v != "none");
        limits.ram_budget = budget.map(|v| size("ram-budget", v)).transpose()?;
        limits.cache_ram = flags.cache_ram.as_deref().map(|v| size("cache-ram", v)).transpose()?.unwrap_or(limits.cache_ram);
        limits.layer_split = flags.layer_split.as_deref().filter(|v| *v != "auto").map(parse_layer_split).transpose()?;
        limits.devices =
            flags.device.as_deref().filter(|v| *v != "auto").map(|v| v.split(',').map(|id| id.trim().to_string()).collect());
        limits.vision_tokens = flags.vision_tokens.unwrap_or(limits.vision_tokens);
        limits.slots = flags.slots.unwrap_or(limits.slots);
        limits.draft_window = flags.draft_window.unwrap_or(limits.draft_window);
        limits.expert_slots = flags.expert_slots;
        limits.resident_kv = flags.resident_kv;
        limits.checkpoints = flags.checkpoints.unwrap_or(limits.checkpoints);
        Ok(limits)
    }

    /// Rows that decoding computes at once: one token, or a token and its drafts, for every slot.
    pub fn joint_rows(&self) -> u32 {
        self.slots.saturating_mul(self.window_rows())
    }

    /// Rows of a decode window.
    pub fn decode_rows(&self) -> u32 {
        self.joint_rows().max(self.least_decode_rows)
    }

    /// Rows of one sequence in a decode window.
    pub fn window_rows(&self) -> u32 {
        if self.draft { self.draft_window.saturating_add(1) } else { 1 }
    }

    /// Versions of recurrent state: one for each row that may be taken back, and the newest.
    pub fn versions(&self) -> u32 {
        self.window_rows().max(self.undo_tokens.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_limits() {
        let text = |s: &str| Some(s.to_string());
        let flags = PlanFlags {
            context: Some(204_800),
            kv: text("k8v4"),
            draft: text("on"),
            device: text("cuda:0, cuda:1"),
            reserve: text("1.5 GiB"),
            layer_split: text("0-23,24-47"),
            ram_experts: text("disk"),
            ..PlanFlags::default()
        };
        let limits = Limits::from_flags(&flags).unwrap();
        assert_eq!((limits.context, limits.kv, limits.draft), (Some(204_800), KvType::K8v4, true));
        assert_eq!(limits.devices, Some(vec!["cuda:0".into(), "cuda:1".into()]));
        assert_eq!(limits.reserve, Some(3 << 29));
        assert_eq!(limits.layer_split, Some(vec![LayerRange { start: 0, end: 24 }, LayerRange { start: 24, end: 48 }]));
        assert_eq!((limits.decode_rows(), limits.versions(), limits.ram_experts), (4, 4, RamExperts::Disk));
        assert_eq!(limits.layer_split.unwrap()[1].to_string(), "24-47");
    }

    #[test]
    fn wrong_flags_name_what_would_be_right() {
        let kv = Limits::from_flags(&PlanFlags { kv: Some("q5".into()), ..PlanFlags::default() }).unwrap_err();
        assert_eq!(kv.to_string(), "--kv q5: expected one of f32, f16, int8, k8v4, q4_0");
        for split in ["", "5", "3-2", "0-x", "0-4294967295"] {
            assert!(parse_layer_split(split).is_err(), "{split}");
        }
    }

    #[test]
    fn cells_have_the_bytes_of_the_specification() {
        let bytes = |kv: KvType| kv.cell_bytes(2, 256);
        assert_eq!((bytes(KvType::F16), bytes(KvType::Int8), bytes(KvType::Q4_0)), (2048, 1088, 576));
        assert_eq!(bytes(KvType::K8v4), 832);
    }
}
