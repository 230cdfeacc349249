//! What a prepared program is made of, and how a team works through it.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pool::{Poisoned, Pool, Team};
use super::view::{Member, Memory};
pub use crate::backend::params::Span;
use crate::backend::rope::RopeTable;
use crate::program::{Earlier, Row};

/// Everything the threads of a run share.
#[derive(Debug)]
pub struct Run<'a> {
    pub weights: Memory<'a>,
    pub state: Memory<'a>,
    pub work: Memory<'a>,
    /// Scratch that threads of one step may share.
    pub shared: Memory<'a>,
    /// Scratch of the threads, one piece after the other.
    pub private: Memory<'a>,
    pub private_bytes: usize,
    pub rows: &'a [Row],
    pub outputs: &'a [u32],
    pub earlier: &'a [Earlier],
    pub spans: &'a [Span],
    pub ropes: &'a [RopeTable],
}

/// One thread in the middle of a step.
#[derive(Debug)]
pub struct Thread<'a> {
    pub run: &'a Run<'a>,
    pub team: Team<'a>,
    /// This thread's own scratch; its contents do not survive a step.
    pub scratch: &'a mut [u8],
}

impl Thread<'_> {
    pub fn member(&self) -> Member {
        self.team.member
    }
}

/// A step with its operands resolved. Every thread of the team calls `run`.
pub trait Kernel: Debug + Send + Sync {
    /// Bytes of scratch that each thread needs, for the largest window.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Bytes of scratch that the threads share, for the largest window.
    fn shared_bytes(&self) -> usize {
        0
    }

    fn run(&self, thread: &mut Thread<'_>) -> Result<(), Poisoned>;
}

/// How a run ended, if it did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Complete,
    Cancelled,
}

/// Runs kernels one after the other on the whole team. Looks at `cancel` between two of them.
pub fn run_kernels(pool: &mut Pool, run: &Run<'_>, kernels: &[Box<dyn Kernel>], cancel: &AtomicBool) -> Result<Ending, Poisoned> {
    let stopped = AtomicBool::new(cancel.load(Ordering::Relaxed));
    if stopped.load(Ordering::Relaxed) {
        return Ok(Ending::Cancelled);
    }
    pool.run(&|team| {
        for kernel in kernels {
            // SAFETY: each thread takes its own piece of the private scratch, once at a time.
            let scratch = unsafe { run.private.write(team.member.index * run.private_bytes, run.private_bytes) };
            kernel.run(&mut Thread { run, team, scratch })?;
            // The last to arrive decides for all, so that all leave after the same step.
            team.meet(|| {
                if cancel.load(Ordering::Relaxed) {
                    stopped.store(true, Ordering::Relaxed);
                }
            })?;
            if stopped.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    })?;
    Ok(if stopped.into_inner() { Ending::Cancelled } else { Ending::Complete })
}
