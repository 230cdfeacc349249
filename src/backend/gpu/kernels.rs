//! The one table of kernels that all GPU backends share.

use super::args::*;

/// Memory that a kernel may touch. Every backend gives kernels the same order of operands: arguments, run block, `w0`, `w1`,
/// `w2`, state, work, scratch. A WGSL kernel binds only what it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The run block: what changes from run to run. Read only.
    Run,
    /// Main weights. Read only.
    W0,
    /// The second matrix of a gated product. Read only.
    W1,
    /// F32 vectors among the weights. Read only.
    W2,
    State,
    Work,
    Scratch,
}

impl Operand {
    pub const ALL: [Operand; 7] =
        [Operand::Run, Operand::W0, Operand::W1, Operand::W2, Operand::State, Operand::Work, Operand::Scratch];

    /// The operand's name in kernels.
    pub fn name(self) -> &'static str {
        match self {
            Operand::Run => "run",
            Operand::W0 => "w0",
            Operand::W1 => "w1",
            Operand::W2 => "w2",
            Operand::State => "state",
            Operand::Work => "work",
            Operand::Scratch => "scratch",
        }
    }

    pub fn is_read_only(self) -> bool {
        matches!(self, Operand::Run | Operand::W0 | Operand::W1 | Operand::W2)
    }
}

/// What kinds of a kernel there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    One,
    /// One for each block format of weights.
    PerFormat,
    /// One for each block format and number of window rows in [`BATCHES`].
    PerFormatAndBatch,
    /// One for each way to cache keys and values that the device reads.
    PerCache,
}

/// Window rows that a matrix–vector kernel works on at once: the smallest that is enough is chosen for each run.
pub const BATCHES: [u32; 4] = [1, 2, 4, 8];

/// Windows of more rows use tiled matrix kernels.
pub const MAX_VECTOR_ROWS: u32 = 8;

#[derive(Debug, Clone, Copy)]
pub struct KernelInfo {
    pub kernel: Kernel,
    /// Name of the entry point; with a block format or a cache's format after an underscore, in lower case, and `_bN` for a batch.
    pub name: &'static str,
    pub args: ArgsLayout,
    /// In the order of [`Operand::ALL`].
    pub operands: &'static [Operand],
    pub kinds: Kinds,
    /// Has a twin, `NAME_gated`, that multiplies two matrices of the same format.
    pub gated: bool,
}

macro_rules! kernels {
    ($($(#[doc = $doc:literal])* $kernel:ident $name:literal $args:ident [$($operand:ident)*] $kinds:ident $(gated $gated:literal)?;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kernel { $($(#[doc = $doc])* $kernel),* }

        /// Every kernel, in the order of [`Kernel`].
        pub const KERNELS: &[KernelInfo] = &[$(KernelInfo {
            kernel: Kernel::$kernel,
            name: $name,
            args: $args::LAYOUT,
            operands: &[$(Operand::$operand),*],
            kinds: Kinds::$kinds,
            gated: false $(|| $gated)?,
        }),*];
    };
}

// The grid that each kernel is launched with is in its comment: x, y, z.
kernels! {
    /// Columns / 256, rows.
    Repeat "repeat" RepeatArgs [Work] One;
    /// Columns / 256, rows.
    Add "add" AddArgs [Work] One;
    /// Columns / 256, outputs.
    Gather "gather" GatherArgs [Run Work] One;
    /// Groups, rows.
    RmsNorm "rms_norm" RmsNormArgs [W2 Work] One;
    /// Heads, rows.
    HeadNormRope "head_norm_rope" HeadNormRopeArgs [Run W2 Work] One;
    /// Columns / 256, rows.
    HcGate "hc_gate" HcGateArgs [Work] One;
    /// Columns / 256, rows.
    HcCombine "hc_combine" HcCombineArgs [Work] One;
    /// Columns / 256, rows.
    Quantise "quantise" QuantiseArgs [Work Scratch] One;
    /// Outputs / `Tiles::vector_outs`; all rows of the window (at most 8) in one workgroup.
    MatVec "mat_vec" MatArgs [Run W0 W1 W2 Work Scratch] PerFormatAndBatch gated true;
    /// Outputs / `Tiles::matrix_outs`, rows / `Tiles::matrix_rows`.
    MatMul "mat_mul" MatArgs [Run W0 W1 W2 Work Scratch] PerFormat gated true;
    /// Columns / 256 (with heads padded to whole blocks in caches of blocks), rows.
    KvAppend "kv_append" KvAppendArgs [Run State Work] PerCache;
    /// 1, rows.
    IndexAppend "index_append" IndexAppendArgs [Run W2 State Work] One;
    /// Blocks / 64, rows from `first_row`.
    IndexScores "index_scores" IndexScoresArgs [Run State Work Scratch] One;
    /// 1, rows from `first_row`.
    BlockSelect "block_select" BlockSelectArgs [Run Work Scratch] One;
    /// Heads, rows, splits.
    Attention "attention" AttentionArgs [Run State Work Scratch] PerCache;
    /// Heads, rows.
    AttentionMerge "attention_merge" AttentionArgs [Run Work Scratch] One;
    /// Channels / 64, spans.
    CausalConv "causal_conv" CausalConvArgs [Run W2 State Work] One;
    /// Value heads * value channels / `channels`, spans.
    DeltaRule "delta_rule" DeltaRuleArgs [Run State Work] One;
    /// Value heads * value channels / `channels`, spans. As `delta_rule`, many rows at once.
    DeltaChunks "delta_chunks" DeltaRuleArgs [Run State Work] One;
    /// Heads, rows.
    DeltaFinish "delta_finish" DeltaFinishArgs [W2 Work] One;
    /// 1, rows.
    Router "router" RouterArgs [Work] One;
    /// 1.
    ExpertGroup "expert_group" ExpertGroupArgs [Run Work Scratch] One;
    /// Outputs / `Tiles::vector_outs`, pairs.
    ExpertVec "expert_vec" ExpertArgs [W0 W2 State Work Scratch] PerFormat gated true;
    /// Outputs / `Tiles::matrix_outs`, tiles of choices (those past the count do nothing).
    ExpertMul "expert_mul" ExpertArgs [W0 W2 State Work Scratch] PerFormat gated true;
    /// Columns / 256, rows.
    ExpertSum "expert_sum" ExpertSumArgs [W2 Work Scratch] One;
    /// Streams, rows.
    NgramGate "ngram_gate" NgramGateArgs [W2 Work] One;
}

impl KernelInfo {
    /// Whether there is one for each block format of weights.
    pub fn is_per_format(&self) -> bool {
        matches!(self.kinds, Kinds::PerFormat | Kinds::PerFormatAndBatch)
    }
}

impl Kernel {
    pub fn info(self) -> &'static KernelInfo {
        &KERNELS[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_arguments_fit() {
        for (i, info) in KERNELS.iter().enumerate() {
            assert_eq!(info.kernel as usize, i);
            assert!(info.args.fields.len() <= MAX_ARG_WORDS, "{}", info.name);
            let position = |o: &Operand| Operand::ALL.iter().position(|p| p == o);
            assert!(info.operands.is_sorted_by_key(position), "{}: operands out of order", info.name);
        }
    }
}
