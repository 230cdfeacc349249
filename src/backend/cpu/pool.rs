//! A team of threads that run one function together and meet at barriers.
//!
//! The calling thread is member 0. Waiting spins for a moment and then parks, so a team that has more members than
//! there are free processors makes progress. A panic in a member poisons the barrier: all others leave instead of hanging,
//! the workers end, and the pool answers [`Poisoned`] from then on.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::affinity;
use super::barrier::Barrier;
pub use super::barrier::Poisoned;
use super::view::Member;

/// The function a team runs, seen by one member.
#[derive(Debug, Clone, Copy)]
pub struct Team<'a> {
    pub member: Member,
    barrier: &'a Barrier,
}

impl Team<'_> {
    /// Waits for the others; the last to arrive calls `last`.
    pub fn meet(&self, last: impl FnOnce()) -> Result<(), Poisoned> {
        self.barrier.wait(last)
    }
}

type Job = dyn Fn(Team<'_>) -> Result<(), Poisoned> + Sync;

/// The job of the moment. Workers read it between the barrier that starts a job and the one that ends it.
#[derive(Debug, Default)]
struct JobSlot(Mutex<Option<JobPointer>>);

#[derive(Debug, Clone, Copy)]
struct JobPointer(*const Job);

// SAFETY: the job is `Sync`, and `Pool::run` keeps it alive until no worker can use it any more.
unsafe impl Send for JobPointer {}

#[derive(Debug)]
struct Shared {
    barrier: Barrier,
    job: JobSlot,
}

#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    poisoned: bool,
}

/// Threads that several devices use one after the other. Devices that the processor plays never compute at the same time, and
/// a team of its own for each would wait for the others' processors: a waiting thread spins before it sleeps.
#[derive(Debug, Clone)]
pub struct SharedPool {
    pool: Arc<Mutex<Pool>>,
    threads: usize,
}

impl SharedPool {
    pub fn new(pool: Pool) -> SharedPool {
        SharedPool { threads: pool.threads(), pool: Arc::new(Mutex::new(pool)) }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The threads, once no other device uses them. A panic of a job poisons the pool itself, so that of the lock says nothing more.
    pub fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the first device puts its threads for the others.
#[derive(Debug, Clone, Default)]
pub struct SharedThreads(Arc<Mutex<Option<SharedPool>>>);

impl SharedThreads {
    /// The threads that are there, if they are so many; otherwise those that `start` gives.
    pub fn pool(&self, threads: NonZeroUsize, start: impl FnOnce() -> Result<Pool, String>) -> Result<SharedPool, String> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = held.as_ref().filter(|pool| pool.threads() == threads.get()) {
            return Ok(pool.clone());
        }
        Ok(held.insert(SharedPool::new(start()?)).clone())
    }
}

impl Pool {
    /// Starts `threads - 1` workers, each on its own processor of `processors`, where there are enough and the system allows it. The
    /// first one is left to the caller.
    pub fn new(threads: NonZeroUsize, processors: &[usize]) -> Result<Pool, String> {
        let members = threads.get();
        let shared = Arc::new(Shared { barrier: Barrier::new(members), job: JobSlot::default() });
        let mut pool = Pool { shared: shared.clone(), workers: Vec::with_capacity(members - 1), poisoned: false };
        for index in 1..members {
            let shared = shared.clone();
            let processor = processors.get(index).copied().filter(|_| processors.len() >= members);
            let work = move || {
                if let Some(processor) = processor {
                    affinity::pin_this_thread(processor);
                }
                work(&shared, Member { index, count: members });
            };
            match std::thread::Builder::new().name(format!("strata-cpu-{index}")).spawn(work) {
                Ok(handle) => pool.workers.push(handle),
                Err(e) => {
                    pool.stop();
                    return Err(format!("thread {index} of {members} could not be started: {e}"));
                }
            }
        }
        Ok(pool)
    }

    pub fn threads(&self) -> usize {
        self.shared.barrier.members()
    }

    /// Runs `job` on all members and waits for them. A job must leave as soon as `meet` fails.
    pub fn run<'j>(&mut self, job: &'j (dyn Fn(Team<'_>) -> Result<(), Poisoned> + Sync + 'j)) -> Result<(), Poisoned> {
        if self.poisoned {
            return Err(Poisoned);
        }
        // SAFETY: only the lifetime changes. Workers use the pointer between the two barriers of `execute`; if that fails, they are
        // joined before this function returns. Either way the job outlives their use.
        let job: &'static Job = unsafe { std::mem::transmute::<&'j (dyn Fn(_) -> _ + Sync + 'j), &'static Job>(job) };
        *self.shared.job.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(JobPointer(job));
        let member = Member { index: 0, count: self.threads() };
        let outcome = self.shared.barrier.wait(|| ()).and_then(|()| execute(&self.shared, job, member));
        if outcome.is_err() {
            self.stop();
        }
        outcome
    }

    /// Ends the workers.
    fn stop(&mut self) {
        self.poisoned = true;
        self.shared.barrier.poison();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its jobs.
            let _ = worker.join();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs a job as one member, up to the barrier that ends it.
fn execute(shared: &Shared, job: &Job, member: Member) -> Result<(), Poisoned> {
    let team = Team { member, barrier: &shared.barrier };
    let outcome = catch_unwind(AssertUnwindSafe(|| job(team))).unwrap_or(Err(Poisoned));
    if outcome.is_err() {
        shared.barrier.poison();
    }
    outcome.and_then(|()| shared.barrier.wait(|| ()))
}

fn work(shared: &Shared, member: Member) {
    while shared.barrier.wait(|| ()).is_ok() {
        let job = *shared.job.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(JobPointer(job)) = job else { return };
        // SAFETY: `Pool::run` keeps the job alive until this worker has passed the barrier that ends it or has ended.
        if execute(shared, unsafe { &*job }, member).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).unwrap(), &[]).unwrap()
    }

    #[test]
    fn members_meet_many_times() {
        for threads in [1, 2, 3, 7] {
            let mut pool = pool(threads);
            let counter = AtomicUsize::new(0);
            for round in 0..20 {
                let steps = 200;
                let start = counter.load(Ordering::Relaxed);
                pool.run(&|team| {
                    for step in 0..steps {
                        counter.fetch_add(1, Ordering::Relaxed);
                        team.meet(|| {
                            // Nobody runs ahead and nobody is late.
                            assert_eq!(counter.load(Ordering::Relaxed), start + (step + 1) * threads);
                        })?;
                    }
                    Ok(())
                })
                .unwrap();
                assert_eq!(counter.load(Ordering::Relaxed), start + steps * threads, "round {round}");
            }
        }
    }

    #[test]
    fn data_written_before_a_meeting_is_seen_after_it() {
        let mut pool = pool(4);
        let cells: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        pool.run(&|team| {
            for step in 1..2000 {
                cells[team.member.index].store(step, Ordering::Relaxed);
                team.meet(|| ())?;
                assert!(cells.iter().all(|c| c.load(Ordering::Relaxed) == step));
                team.meet(|| ())?;
            }
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn devices_share_threads_as_long_as_they_want_as_many() {
        let shared = SharedThreads::default();
        let of = |threads| {
            let threads = NonZeroUsize::new(threads).unwrap();
            shared.pool(threads, || Pool::new(threads, &[])).unwrap()
        };
        let (first, second, other) = (of(2), of(2), of(3));
        assert!(Arc::ptr_eq(&first.pool, &second.pool) && !Arc::ptr_eq(&first.pool, &other.pool));
        assert_eq!((second.threads(), other.threads()), (2, 3));
        for pool in [&first, &second, &first] {
            let members = AtomicUsize::new(0);
            pool.lock()
                .run(&|_| {
                    members.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })
                .unwrap();
            assert_eq!(members.into_inner(), 2);
        }
        let refused = SharedThreads::default().pool(NonZeroUsize::MIN, || Err("no threads left".into()));
        assert_eq!(refused.unwrap_err(), "no threads left");
    }

    #[test]
    fn sleepers_are_woken() {
        let mut pool = pool(3);
        for _ in 0..5 {
            pool.run(&|team| {
                if team.member.index == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                team.meet(|| ())
            })
            .unwrap();
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    #[test]
    fn a_panic_in_any_member_ends_the_run_and_poisons_the_pool() {
        for culprit in 0..3 {
            let mut pool = pool(3);
            let outcome = pool.run(&|team| {
                for step in 0..10 {
                    if step == 5 && team.member.index == culprit {
                        std::panic::resume_unwind(Box::new("a test"));
                    }
                    team.meet(|| ())?;
                }
                Ok(())
            });
            assert_eq!(outcome, Err(Poisoned));
            assert_eq!(pool.run(&|_| Ok(())), Err(Poisoned));
        }
    }
}
