//! Promise: threads of a team meet in every order in which they may run. Nobody passes a barrier early, nobody sleeps for ever,
//! what was written before a meeting is seen after it, and a failed member frees the others.

#[cfg(test)]
mod sync {
    //! The checker's synchronisation in the shape of `backend::cpu::sync`.
    pub use loom::hint::spin_loop;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
    pub use loom::sync::{Condvar, Mutex, MutexGuard};

    /// Threads park at once: spinning only repeats the same look.
    pub const SPIN_ROUNDS: u32 = 0;
}

#[cfg(test)]
#[path = "../../../src/backend/cpu/barrier.rs"]
mod barrier;

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    use super::barrier::{Barrier, Poisoned};

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        // Orders with more forced switches than that are too many to try, and find nothing new.
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    #[test]
    fn members_meet_again_and_again_and_see_each_others_writes() {
        check(|| {
            let (barrier, cells) = (Arc::new(Barrier::new(2)), Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]));
            let (other, seen) = (Arc::clone(&barrier), Arc::clone(&cells));
            let work = move |barrier: &Barrier, cells: &[AtomicUsize; 2], me: usize| {
                for round in 1..=2 {
                    cells[me].store(round, Ordering::Relaxed);
                    barrier.wait(|| ()).unwrap();
                    assert_eq!(cells[1 - me].load(Ordering::Relaxed), round);
                    barrier.wait(|| ()).unwrap();
                }
            };
            let thread = thread::spawn(move || work(&other, &seen, 1));
            work(&barrier, &cells, 0);
            thread.join().unwrap();
        });
    }

    #[test]
    fn the_last_to_arrive_acts_once_while_the_others_wait() {
        check(|| {
            let (barrier, acts) = (Arc::new(Barrier::new(3)), Arc::new(AtomicUsize::new(0)));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let (barrier, acts) = (Arc::clone(&barrier), Arc::clone(&acts));
                    thread::spawn(move || {
                        barrier.wait(|| _ = acts.fetch_add(1, Ordering::Relaxed)).unwrap();
                        assert_eq!(acts.load(Ordering::Relaxed), 1);
                    })
                })
                .collect();
            barrier.wait(|| _ = acts.fetch_add(1, Ordering::Relaxed)).unwrap();
            assert_eq!(acts.load(Ordering::Relaxed), 1);
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }

    #[test]
    fn a_failed_member_frees_whoever_waits() {
        check(|| {
            let barrier = Arc::new(Barrier::new(2));
            let other = Arc::clone(&barrier);
            let thread = thread::spawn(move || assert_eq!(other.wait(|| ()), Err(Poisoned)));
            barrier.poison();
            thread.join().unwrap();
        });
    }
}
