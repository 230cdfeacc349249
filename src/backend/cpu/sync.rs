//! What threads synchronise with: the standard library's. The model checker of `tests/loom` has a module of the same shape.

pub use std::hint::spin_loop;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
pub use std::sync::{Condvar, Mutex, MutexGuard};

/// Rounds of spinning before a thread parks: some tens of microseconds, longer than a step takes to even out.
pub const SPIN_ROUNDS: u32 = 2_000;
