//! The engine's thread: takes requests into slots and lets them take turns.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime};

use super::job::{Job, Step};
use super::parked::{Candidate, ParkingLot};
use super::{
    DeviceUse, EngineInfo, Event, OpenEngine, Opened, Queued, RecentRequest, ServiceError, Shared, SlotState, SlotStatus, State,
};
use crate::backend::Backend;
use crate::engine::{Engine, EngineError, GenerationStats, Parked};
use crate::picture::{Placed, Span};
use crate::state::{Sequence, Text, common_prefix};
use crate::tokenizer::Tokenizer;

/// How often an idle thread looks whether it shall stop.
const IDLE_LOOK: Duration = Duration::from_millis(200);

/// Opens the engine and serves until the service is stopped; after a failure, again.
pub(super) fn supervise(
    tokenizer: &Tokenizer,
    mut open: OpenEngine,
    shared: &Shared,
    queue: &Receiver<Queued>,
    waiting: &mut VecDeque<Queued>,
) {
    while !shared.stop.load(Ordering::SeqCst) {
        shared.status().state = State::Loading;
        shared.status().begin("opening the model", None);
        let opened = catch_unwind(AssertUnwindSafe(&mut open)).unwrap_or_else(|panic| Err(panic_text(&*panic)));
        let end = match opened {
            Ok(opened) => {
                let served = catch_unwind(AssertUnwindSafe(|| Worker::new(tokenizer, opened, shared)?.serve(queue, waiting)));
                match served {
                    Ok(Ok(())) => break,
                    Ok(Err(error)) => error,
                    Err(panic) => format!("a defect of the program: {}", panic_text(&*panic)),
                }
            }
            Err(reason) => {
                shared.status().state = State::Down(reason.clone());
                shared.status().begin("waiting after a failure to open the model", None);
                if !refuse_one(&reason, shared, queue, waiting) {
                    break;
                }
                continue;
            }
        };
        let mut status = shared.status();
        status.restarts += 1;
        let lost = status.slots.iter().filter(|slot| slot.state != SlotState::Idle).count() as u64;
        status.totals.failed += lost;
        status.last_failure = Some(end);
        status.slots.clear();
        status.engine = None;
    }
    shared.status().state = State::Stopped;
    for mut queued in waiting.drain(..).chain(queue.try_iter()) {
        shared.waiting.fetch_sub(1, Ordering::SeqCst);
        queued.reply.send(Event::Failed(ServiceError::Stopping));
    }
}

/// Without an engine: tells the next request so; false if there will be none.
fn refuse_one(reason: &str, shared: &Shared, queue: &Receiver<Queued>, waiting: &mut VecDeque<Queued>) -> bool {
    let next = loop {
        if let Some(queued) = waiting.pop_front() {
            break queued;
        }
        match queue.recv_timeout(IDLE_LOOK) {
            Ok(queued) => break queued,
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) if shared.stop.load(Ordering::SeqCst) => return false,
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    shared.waiting.fetch_sub(1, Ordering::SeqCst);
    let Queued { mut reply, .. } = next;
    reply.send(Event::Failed(ServiceError::Down { reason: reason.to_owned() }));
    true
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".into())
}

struct Slot<'t> {
    sequence: Sequence,
    last_used: Instant,
    job: Option<Job<'t>>,
}

struct Worker<'t> {
    tokenizer: &'t Tokenizer,
    engine: Engine,
    shared: &'t Shared,
    slots: Vec<Slot<'t>>,
    parked: ParkingLot,
}

/// Where a request is answered.
struct Place {
    slot: usize,
    goes_on: GoesOn,
}

/// What a request goes on from.
enum GoesOn {
    /// What the slot holds.
    Held,
    /// A parked conversation.
    Parked(usize),
    Nothing,
}

impl<'t> Worker<'t> {
    fn new(tokenizer: &'t Tokenizer, opened: Opened, shared: &'t Shared) -> Result<Worker<'t>, String> {
        let Opened { mut engine, plan, cards } = opened;
        let count = engine.options().slots as usize;
        let start = |_| Ok(Slot { sequence: engine.start()?, last_used: Instant::now(), job: None });
        let slots = (0..count).map(start).collect::<Result<Vec<_>, EngineError>>().map_err(|e| e.to_string())?;
        let mut status = shared.status();
        status.engine = Some(EngineInfo {
            context: engine.options().context as usize,
            slots: count,
            prompt_rows: engine.options().prompt_rows as usize,
            vocab: engine.dims().vocab as usize,
            pictures: engine.vision().cloned(),
            devices: engine.pipeline().stages.iter().map(|stage| device_use(stage.backend.as_ref())).collect(),
            memory: engine.memory(),
            plan,
            cards,
        });
        status.slots = vec![SlotStatus::idle(); count];
        (status.parked, status.parked_bytes) = (0, 0);
        status.state = State::Ready;
        drop(status);
        shared.slots.store(count, Ordering::SeqCst);
        let parked = ParkingLot::new(shared.options.parked_bytes);
        Ok(Worker { tokenizer, engine, shared, slots, parked })
    }

    /// Until the service is stopped. An error means that the engine must be opened again.
    fn serve(&mut self, queue: &Receiver<Queued>, waiting: &mut VecDeque<Queued>) -> Result<(), String> {
        loop {
            if self.shared.stop.load(Ordering::SeqCst) {
                self.slots.iter_mut().filter_map(|slot| slot.job.as_mut()).for_each(Job::stop);
                return Ok(());
            }
            if !self.receive(queue, waiting) {
                return Ok(());
            }
            self.drop_dead(waiting);
            while let Some(place) = self.place(waiting.front()) {
                let Some(queued) = waiting.pop_front() else { break };
                self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
                self.admit(place, queued)?;
            }
            self.turn()?;
        }
    }

    /// Takes what has arrived; waits if there is nothing else to do. False if nothing will come any more.
    fn receive(&mut self, queue: &Receiver<Queued>, waiting: &mut VecDeque<Queued>) -> bool {
        let idle = waiting.is_empty() && self.slots.iter().all(|slot| slot.job.is_none());
        if idle {
            self.shared.status().begin("waiting for a request", None);
        }
        loop {
            let next = if idle && waiting.is_empty() {
                queue.recv_timeout(IDLE_LOOK)
            } else {
                queue.try_recv().map_err(|e| match e {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                })
            };
            match next {
                Ok(queued) => waiting.push_back(queued),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return !idle,
            }
        }
    }

    /// Ends waiting requests that nobody wants any more.
    fn drop_dead(&mut self, waiting: &mut VecDeque<Queued>) {
        let now = Instant::now();
        waiting.retain_mut(|queued| {
            let error = match &queued.request {
                request if request.cancel.load(Ordering::Relaxed) => ServiceError::Cancelled,
                request if request.deadline.is_some_and(|deadline| now >= deadline) => ServiceError::Deadline,
                _ => return true,
            };
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
            self.shared.status().totals.cancelled += 1;
            queued.reply.send(Event::Failed(error));
            false
        });
    }

    /// A free slot for the next request: the one whose conversation spares it the most computing, or the one that was idle
    /// longest, with a parked conversation if that spares more.
    fn place(&self, next: Option<&Queued>) -> Option<Place> {
        let request = &next?.request;
        let spans: Vec<Span> = request.pictures.iter().map(Placed::span).collect();
        let prompt = Text { tokens: &request.prompt, pictures: &spans };
        let free = || self.slots.iter().enumerate().filter(|(_, slot)| slot.job.is_none());
        let stale = free().min_by_key(|(_, slot)| (!slot.sequence.is_empty(), slot.last_used))?.0;
        let candidate = |(index, slot): (usize, &Slot<'_>)| {
            let (common, reuse) = (common_prefix(slot.sequence.text(), prompt), reusable(&slot.sequence, prompt));
            Candidate { index, common, reuse, held: slot.sequence.len() }
        };
        let held = free().map(candidate).filter(|held| held.suits(prompt.tokens.len())).max_by_key(|held| held.reuse);
        let parked = self.parked.best(prompt, self.engine.is_recurrent());
        Some(match (held, parked) {
            (Some(held), parked) if parked.is_none_or(|parked| parked.reuse <= held.reuse) => {
                Place { slot: held.index, goes_on: GoesOn::Held }
            }
            (_, Some(parked)) => Place { slot: stale, goes_on: GoesOn::Parked(parked.index) },
            (_, None) => Place { slot: stale, goes_on: GoesOn::Nothing },
        })
    }

    /// Gets a slot's conversation out of the way of another, and that one into the slot.
    fn exchange(&mut self, place: &Place) -> Result<(), EngineError> {
        let wanted = match place.goes_on {
            GoesOn::Held => return Ok(()),
            GoesOn::Parked(index) => self.parked.take(index),
            GoesOn::Nothing => None,
        };
        let sequence = &mut self.slots[place.slot].sequence;
        // The one that comes back leaves RAM only after the other has come.
        let leaving = wanted.as_ref().map_or(0, Parked::bytes);
        if !sequence.is_empty() && self.parked.make_room(self.engine.parked_bytes(sequence) + leaving) {
            self.parked.put(self.engine.park(sequence)?);
        }
        if let Some(wanted) = wanted {
            self.engine.unpark(sequence, wanted)?;
        }
        let mut status = self.shared.status();
        (status.parked, status.parked_bytes) = (self.parked.len(), self.parked.bytes());
        Ok(())
    }

    fn admit(&mut self, place: Place, queued: Queued) -> Result<(), String> {
        let options = &self.shared.options;
        self.shared.status().totals.requests += 1;
        let id = queued.request.id.clone();
        let made = Job::new(self.tokenizer, &self.engine, queued, options.checkpoints, options.checkpoint_tokens);
        let Ok(mut job) = made else {
            self.shared.status().totals.failed += 1;
            return Ok(());
        };
        self.shared.status().begin("taking a sequence back", Some(&id));
        if let Err(error) = self.exchange(&place) {
            job.fail_engine(&error.to_string());
            return Err(error.to_string());
        }
        let slot = &mut self.slots[place.slot];
        let step = job.start(&mut self.engine, &mut slot.sequence, place.slot);
        slot.job = Some(job);
        slot.last_used = Instant::now();
        self.settle(place.slot, step)
    }

    /// Every answer goes on by a token, and the prompt that came first by a window.
    fn turn(&mut self) -> Result<(), String> {
        let reads = |slot: &Slot<'_>| slot.job.as_ref().is_some_and(Job::is_reading);
        let answering: Vec<usize> =
            (0..self.slots.len()).filter(|i| self.slots[*i].job.is_some() && !reads(&self.slots[*i])).collect();
        let reading = (0..self.slots.len()).filter(|i| reads(&self.slots[*i])).min_by_key(|i| self.slots[*i].last_used);
        self.compute_together()?;
        for index in answering.into_iter().chain(reading) {
            self.step(index)?;
        }
        Ok(())
    }

    /// What several answers need next, in one window.
    fn compute_together(&mut self) -> Result<(), String> {
        let Worker { engine, slots, shared, .. } = self;
        let (mut fed, mut jobs, mut feeds) = (Vec::new(), Vec::new(), Vec::new());
        for (index, Slot { sequence, job, .. }) in slots.iter_mut().enumerate() {
            if let Some(job) = job
                && let Some(token) = job.awaits(engine, sequence)
            {
                fed.push(index);
                jobs.push((sequence.len() + 1, job));
                feeds.push((sequence, token));
            }
        }
        if feeds.len() < 2 {
            return Ok(());
        }
        shared.status().begin("decoding several answers", None);
        let (start, before) = (Instant::now(), engine.tier_stats());
        let computed = engine.feed_each(&mut feeds, &mut |i, scores| {
            let (cells, job) = &mut jobs[i];
            job.computed(*cells, scores);
        });
        let Err(error) = computed else {
            let (time, tiers) = (start.elapsed(), engine.tier_stats().zip(before).map(|(now, before)| now - before));
            // An answer takes as long as the window, and the engine as well: not as long as all answers in it.
            jobs.into_iter().for_each(|(_, job)| job.took(time, tiers));
            shared.status().totals.add_time(false, time);
            return Ok(());
        };
        // The window's sequences are empty, so none of its answers can go on.
        for index in fed {
            let Some(job) = &mut self.slots[index].job else { continue };
            let step = job.failed(&error);
            self.settle(index, step)?;
        }
        Ok(())
    }

    fn step(&mut self, index: usize) -> Result<(), String> {
        let Slot { sequence, job, .. } = &mut self.slots[index];
        let Some(job) = job else { return Ok(()) };
        self.shared.status().begin(job.doing(&self.engine, sequence), Some(&job.id));
        if let Some(hook) = &self.shared.options.before_step {
            hook(&job.id);
        }
        let (start, reading, looked) = (Instant::now(), job.is_reading(), job.stats().picture_time);
        let step = job.step(&mut self.engine, sequence);
        let looked = job.stats().picture_time.saturating_sub(looked);
        let mut status = self.shared.status();
        status.totals.picture_time += looked;
        status.totals.add_time(reading, start.elapsed().saturating_sub(looked));
        drop(status);
        self.settle(index, step)
    }

    /// Writes down how a step left a slot.
    fn settle(&mut self, index: usize, step: Step) -> Result<(), String> {
        let slot = &mut self.slots[index];
        let word = match &step {
            Step::Going => None,
            Step::Ended(word) => Some(word.as_str()),
            Step::Broken(_) => Some("failed"),
        };
        if let Some(word) = word
            && let Some(job) = slot.job.take()
        {
            slot.last_used = Instant::now();
            record(self.shared, &job, word);
        }
        let held = &slot.sequence;
        let status = SlotStatus {
            state: match &slot.job {
                None => SlotState::Idle,
                Some(job) if job.is_reading() => SlotState::Prompt,
                Some(_) => SlotState::Decode,
            },
            request: slot.job.as_ref().map(|job| job.id.clone()),
            held_tokens: held.len(),
            checkpoints: held.checkpoints().len(),
            checkpoint_bytes: held.checkpoints().iter().map(crate::state::Checkpoint::bytes).sum(),
            stats: slot.job.as_ref().map_or(GenerationStats::default(), Job::stats),
        };
        if let Some(entry) = self.shared.status().slots.get_mut(index) {
            *entry = status;
        }
        match step {
            Step::Broken(reason) => Err(reason),
            Step::Going | Step::Ended(_) => Ok(()),
        }
    }
}

fn device_use(device: &dyn Backend) -> DeviceUse {
    let (facts, memory) = (device.facts(), device.memory());
    DeviceUse {
        id: facts.id.clone(),
        detail: facts.detail.clone(),
        arenas_bytes: memory.arenas_bytes,
        scratch_bytes: memory.scratch_bytes,
        late_allocations: memory.late_allocations,
    }
}

/// Tokens of `prompt` that the sequence can be taken back to without computing.
fn reusable(sequence: &Sequence, prompt: Text<'_>) -> usize {
    sequence.restorable(common_prefix(sequence.text(), prompt).min(prompt.tokens.len().saturating_sub(1))).0
}

fn record(shared: &Shared, job: &Job<'_>, word: &str) {
    let stats = job.stats();
    let mut status = shared.status();
    let totals = &mut status.totals;
    match word {
        "cancelled" | "timed out" => totals.cancelled += 1,
        "failed" => totals.failed += 1,
        _ => totals.done += 1,
    }
    totals.pictures += stats.pictures as u64;
    totals.prompt_tokens += stats.prompt_tokens as u64;
    totals.cached_tokens += stats.reused_tokens as u64;
    totals.generated_tokens += stats.generated_tokens as u64;
    totals.decode_steps += stats.decode_steps as u64;
    let entry = RecentRequest {
        id: job.id.clone(),
        ended: SystemTime::now(),
        outcome: word.to_owned(),
        waited: job.waited,
        stats,
        label: job.label.clone(),
    };
    status.recent.push_back(entry);
    while status.recent.len() > shared.options.recent {
        status.recent.pop_front();
    }
}
