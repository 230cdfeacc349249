//! What a lowered program consists of.

use std::ops::Range;

use super::args::Args;
use super::kernels::{BATCHES, Kernel, Kinds, Operand};
use super::run_block::RunLayout;
use crate::backend::params::Limits;
use crate::program::KvFormat;
use crate::quant::Format;

/// Where the bytes of an operand lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Region {
    Weights,
    State,
    Work,
    /// Beside the arenas: rounded activations, partial results, lists, tables. Sized by [`Lowered::scratch_bytes`].
    Scratch,
}

/// The bytes that a launch sees of an operand. Offsets in its arguments count from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    pub region: Region,
    /// A multiple of [`ARENA_ALIGN_BYTES`](crate::program::ARENA_ALIGN_BYTES).
    pub offset_bytes: u64,
    pub len_bytes: u64,
}

/// Which of a run's counts an extent depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    Rows,
    Outputs,
    Spans,
}

/// What is known of a run when it is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub rows: u32,
    pub outputs: u32,
    pub spans: u32,
}

impl Counts {
    pub fn get(&self, count: Count) -> u32 {
        match count {
            Count::Rows => self.rows,
            Count::Outputs => self.outputs,
            Count::Spans => self.spans,
        }
    }
}

/// Workgroups in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Fixed(u32),
    /// `ceil(clamp(count - first, 0, most) * times / per) + extra`, and 0 for no rows.
    Counted {
        count: Count,
        first: u32,
        most: u32,
        times: u32,
        per: u32,
        extra: u32,
    },
}

impl Extent {
    pub fn of(count: Count) -> Extent {
        Extent::Counted { count, first: 0, most: u32::MAX, times: 1, per: 1, extra: 0 }
    }

    pub fn get(&self, counts: &Counts) -> u32 {
        match *self {
            Extent::Fixed(n) => n,
            Extent::Counted { count, first, most, times, per, extra } => {
                let rows = counts.get(count).saturating_sub(first).min(most);
                if rows == 0 { 0 } else { (rows * times).div_ceil(per) + extra }
            }
        }
    }
}

/// Code to run: a kernel and its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Variant {
    pub kernel: Kernel,
    /// Block format of the weights.
    pub format: Option<Format>,
    /// How keys and values are cached.
    pub cache: Option<KvFormat>,
    pub gated: bool,
    /// Window rows at once; 0 for kernels of one kind.
    pub batch: u32,
}

impl Variant {
    /// Entry point: `mat_vec_gated_q4_k_b2`.
    pub fn name(&self) -> String {
        let mut name = self.kernel.info().name.to_string();
        if self.gated {
            name += "_gated";
        }
        if let Some(format) = self.format {
            name += &format!("_{}", format.name().to_lowercase());
        }
        if let Some(cache) = self.cache {
            name += &format!("_{}", cache.name());
        }
        if self.batch > 0 {
            name += &format!("_b{}", self.batch);
        }
        name
    }
}

/// One kernel call.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    pub kernel: Kernel,
    pub format: Option<Format>,
    pub cache: Option<KvFormat>,
    pub gated: bool,
    /// What decides the batch of kernels that have several, and its largest value.
    pub batched: Option<(Count, u32)>,
    pub args: Args,
    /// Windows of `w0`, `w1`, `w2`, state, work and scratch, in the order of [`Operand::ALL`] without the run block.
    pub windows: [Option<Window>; 6],
    pub grid: [Extent; 3],
}

impl Launch {
    pub fn window(&self, operand: Operand) -> Option<Window> {
        let at = Operand::ALL.iter().position(|o| *o == operand).unwrap_or(0);
        at.checked_sub(1).and_then(|i| self.windows[i])
    }

    /// Which of [`Launch::variants`] a run needs; `None` where there is nothing to do.
    pub fn choice(&self, counts: &Counts) -> Option<usize> {
        let some = self.grid.iter().all(|extent| extent.get(counts) > 0);
        match self.batched {
            Some((count, _)) => {
                let rows = counts.get(count);
                BATCHES.iter().position(|batch| *batch >= rows).filter(|_| some && rows > 0)
            }
            None => some.then_some(0),
        }
    }

    /// The code for a run; `None` where there is nothing to do.
    pub fn variant(&self, counts: &Counts) -> Option<Variant> {
        self.variants().nth(self.choice(counts)?)
    }

    /// All code that runs of this launch may need.
    pub fn variants(&self) -> impl Iterator<Item = Variant> {
        let batches: &[u32] = match self.batched {
            Some((_, most)) => {
                let last = BATCHES.iter().position(|b| *b >= most).unwrap_or(BATCHES.len() - 1);
                &BATCHES[..=last]
            }
            None => &[0],
        };
        batches.iter().map(|batch| self.of_batch(*batch))
    }

    fn of_batch(&self, batch: u32) -> Variant {
        let Launch { kernel, format, cache, gated, .. } = *self;
        Variant { kernel, format, cache, gated, batch }
    }

    /// Whether the kernel's kinds and this launch agree.
    pub fn is_sound(&self) -> bool {
        let info = self.kernel.info();
        let kind = match info.kinds {
            Kinds::One => self.format.is_none() && self.batched.is_none(),
            Kinds::PerFormat => self.format.is_some() && self.batched.is_none(),
            Kinds::PerFormatAndBatch => self.format.is_some() && self.batched.is_some(),
            Kinds::PerCache => self.cache.is_some() && self.format.is_none(),
        };
        kind && info.args == self.args.layout() && (info.gated || !self.gated)
    }
}

/// A program as kernel calls.
#[derive(Debug, Clone)]
pub struct Lowered {
    pub launches: Vec<Launch>,
    /// Launches of each step of the program; none for steps that the host takes.
    pub steps: Vec<Range<usize>>,
    /// Bytes beside the arenas.
    pub scratch_bytes: u64,
    pub run: RunLayout,
    pub limits: Limits,
}
