//! Everything that takes bytes, each with its arena and its lifetime. To add a consumer: a line here, its bytes in
//! `stage.rs` (cards) or `host.rs`, its formula in `rows.rs`, and a rule of its own in `verify/`.

use serde::Serialize;

/// When the bytes are needed. Rows of one arena may lie on the same bytes if their lifetimes are disjoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifetime {
    Always,
    Load,
    Prompt,
    Decode,
}

impl Lifetime {
    pub fn name(self) -> &'static str {
        match self {
            Lifetime::Always => "always",
            Lifetime::Load => "load",
            Lifetime::Prompt => "prompt",
            Lifetime::Decode => "decode",
        }
    }

    pub fn overlaps(self, other: Lifetime) -> bool {
        self == other || self == Lifetime::Always || other == Lifetime::Always
    }
}

/// What is opened as one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arena {
    /// Taken by the driver, not by us.
    Driver,
    Weights,
    State,
    Work,
    /// What kernels keep beside the programs' buffers.
    Scratch,
    Experts,
    Host,
}

macro_rules! consumers {
    ($($variant:ident $id:literal $arena:ident $lifetime:ident $text:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Consumer { $($variant),* }

        impl Consumer {
            pub const ALL: &'static [Consumer] = &[$(Consumer::$variant),*];
            pub const COUNT: usize = Consumer::ALL.len();

            /// Part of a row's id.
            pub fn id(self) -> &'static str {
                match self { $(Consumer::$variant => $id),* }
            }

            pub fn arena(self) -> Arena {
                match self { $(Consumer::$variant => Arena::$arena),* }
            }

            pub fn lifetime(self) -> Lifetime {
                match self { $(Consumer::$variant => Lifetime::$lifetime),* }
            }

            /// For the report.
            pub fn text(self) -> &'static str {
                match self { $(Consumer::$variant => $text),* }
            }
        }
    };
}

consumers! {
    DriverContext    "driver-context"    Driver  Always "driver context";
    ModuleCode       "module-code"       Driver  Always "kernel code";
    LibraryWorkspace "library-workspace" Driver  Always "library handles and workspace";
    Graphs           "graphs"            Driver  Always "captured graphs";
    DenseWeights     "dense-weights"     Weights Always "dense weights";
    Head             "head"              Weights Always "output head";
    DraftWeights     "draft-weights"     Weights Always "draft block, dense and head";
    DraftExperts     "draft-experts"     Weights Always "draft block, experts";
    ExpertsInPlace   "experts-in-place"  Weights Always "experts, in place";
    KvCache          "kv-cache"          State   Always "keys and values";
    DraftKv          "draft-kv"          State   Always "keys and values of the draft block";
    IndexKeys        "index-keys"        State   Always "indexer keys";
    RecurrentState   "recurrent-state"   State   Always "delta state";
    ConvHistory      "conv-history"      State   Always "convolution history";
    HandOff          "hand-off"          Work    Prompt "rows that are handed on";
    SlotTables       "slot-tables"       State   Always "tables of expert slots";
    PromptWork       "prompt-work"       Work    Prompt "prompt buffers";
    KvWindow         "kv-window"         Work    Prompt "one layer's keys and values from RAM";
    LentSlots        "lent-slots"        Work    Decode "expert slots that prompt buffers lie on";
    DecodeWork       "decode-work"       Work    Decode "decode and verify buffers";
    KernelScratch    "kernel-scratch"    Scratch Always "scratch of the kernels";
    SelectionScores  "selection-scores"  Scratch Always "block scores of a prompt chunk";
    ExpertSlots      "expert-slots"      Experts Always "expert slots";
    Process          "process"           Host    Always "program, tokenizer, heap";
    HostScratch      "host-scratch"      Host    Always "scratch of the CPU's threads";
    DriverHost       "driver-host"       Host    Always "host memory of the drivers";
    EmbeddingCache   "embedding-cache"   Host    Always "embedding rows read from the file";
    NgramCache       "ngram-cache"       Host    Always "n-gram rows read from the file";
    Checkpoints      "checkpoints"       Host    Always "conversation checkpoints";
    Parked           "parked"            Host    Always "conversations whose slots others use";
    HostHandOff      "host-hand-off"     Host    Always "hand-off through the host";
    HostStaging      "host-staging"      Host    Always "pinned ring for experts and rows";
    LoadStaging      "load-staging"      Host    Load   "pinned buffers for loading";
    KvSpill          "kv-spill"          Host    Always "keys and values that are not resident";
    VisionWeights    "vision-weights"    Host    Always "vision encoder";
    VisionWork       "vision-work"       Host    Always "vision buffers";
    VisionRows       "vision-rows"       Host    Always "rows of the last pictures";
    ExpertBuffers    "expert-buffers"    Host    Always "buffers of experts that the processor computes";
    RamExperts       "ram-experts"       Host    Always "experts in RAM";
    CardsInRam       "cards-in-ram"      Host    Always "cards whose memory is RAM";
    CommitOfHost     "commit-of-host"    Host    Always "charge of RAM and pinned rows";
    CommitOfCards    "commit-of-cards"   Host    Always "charge of device memory";
}

impl Consumer {
    pub fn index(self) -> usize {
        self as usize
    }
}
