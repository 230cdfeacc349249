//! Where the threads of a team meet. All of its synchronisation comes from `super::sync`, so that a model checker can put its own
//! in place and try every order in which threads may run (`tests/loom`).

use std::sync::PoisonError;

use super::sync::{AtomicBool, AtomicU32, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, SPIN_ROUNDS, fence, spin_loop};

/// A member of the team has panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poisoned;

/// Where threads meet, again and again.
#[derive(Debug)]
pub struct Barrier {
    members: usize,
    arrived: AtomicUsize,
    generation: AtomicU32,
    poisoned: AtomicBool,
    /// Threads that are parked or about to park.
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Barrier {
    pub fn new(members: usize) -> Barrier {
        Barrier {
            members,
            arrived: AtomicUsize::new(0),
            generation: AtomicU32::new(0),
            poisoned: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    pub fn members(&self) -> usize {
        self.members
    }

    /// Waits until all members are here. The last to arrive calls `last` while the others still wait.
    pub fn wait(&self, last: impl FnOnce()) -> Result<(), Poisoned> {
        // No member can finish this generation before all have read it, so it cannot change in between.
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            last();
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::Release);
            self.wake_sleepers();
        } else {
            self.wait_for(generation);
        }
        if self.poisoned.load(Ordering::Acquire) { Err(Poisoned) } else { Ok(()) }
    }

    fn over(&self, generation: u32) -> bool {
        self.generation.load(Ordering::Acquire) != generation || self.poisoned.load(Ordering::Acquire)
    }

    fn wait_for(&self, generation: u32) {
        for _ in 0..SPIN_ROUNDS {
            if self.over(generation) {
                return;
            }
            spin_loop();
        }
        let mut guard = self.guard();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !self.over(generation) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Called after what sleepers look at has changed. The fences here and before the sleeper's last look see to it that either the
    /// sleeper sees the change, or this thread sees the sleeper.
    fn wake_sleepers(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            // Taking the lock waits for a thread between its last look and its sleep.
            drop(self.guard());
            self.wake.notify_all();
        }
    }

    /// The lock guards no data, so a panic elsewhere does not matter.
    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
        self.wake_sleepers();
    }
}
