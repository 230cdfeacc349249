//! A host step from its beginning to the join.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::cost::{Rates, split};
use super::layer::{Geometry, Window};
use super::moves::Underway;
use super::{ExpertError, Experts, Home, Misses};
use crate::backend::{Backend, BackendError};
use crate::program::{NO_SLOT, Row};
use crate::units::TokenId;

/// Windows of so few rows are computed expert by expert as they come from disk: reading is what takes time.
const FEW_ROWS: usize = 8;

/// The host step at hand. All of its memory is taken at the start.
#[derive(Debug)]
pub(super) struct Work {
    layer: usize,
    program: usize,
    rows: Vec<Row>,
    x: Vec<f32>,
    ids: Vec<u32>,
    /// Experts that the card does not hold, with their rows: first those that go to the card, then the processor's.
    missed: Vec<(u32, u32)>,
    to_card: usize,
    /// Of these, how many have gone or are in the half of the ring that runs next, and which those are.
    gone: usize,
    next: Range<usize>,
    /// The slot of the ring that `next` begins at.
    next_slot: u32,
    /// Results of the processor, `[row][choice][width]`, and which of them there are.
    results: Vec<f32>,
    done: Vec<(u32, u32)>,
    /// Bytes of the experts that the card computes of itself, and the time that inputs and results of the processor took.
    held_bytes: u64,
    aside: Duration,
    /// What the processor had done before.
    before: (u64, Duration, Duration),
    /// Rows of each expert in this window.
    rows_of: Vec<u32>,
    table: Vec<u32>,
    underway: Vec<Underway>,
    ready: Vec<u32>,
}

impl Work {
    pub fn new(layers: &[Geometry]) -> Work {
        let rows = |g: &Geometry| g.ports.iter().map(|p| p.max_rows as usize).max().unwrap_or(0);
        let most = |of: &dyn Fn(&Geometry) -> usize| layers.iter().map(of).max().unwrap_or(0);
        let experts = most(&|g| g.experts as usize);
        Work {
            layer: 0,
            program: 0,
            rows: Vec::with_capacity(most(&rows)),
            x: Vec::with_capacity(most(&|g| rows(g) * g.width as usize)),
            ids: Vec::with_capacity(most(&|g| rows(g) * g.used as usize)),
            missed: Vec::with_capacity(experts),
            to_card: 0,
            gone: 0,
            next: 0..0,
            next_slot: 0,
            results: vec![0.0; most(&|g| rows(g) * g.used as usize * g.out_width as usize)],
            done: Vec::with_capacity(most(&|g| rows(g) * g.used as usize)),
            held_bytes: 0,
            aside: Duration::ZERO,
            before: (0, Duration::ZERO, Duration::ZERO),
            rows_of: vec![0; experts],
            table: Vec::with_capacity(experts),
            underway: Vec::with_capacity(experts),
            ready: Vec::with_capacity(experts),
        }
    }

    pub fn bytes(&self) -> u64 {
        let words = self.x.capacity() + self.ids.capacity() + self.results.capacity() + 2 * self.done.capacity();
        4 * words as u64
    }

    /// Makes a table in which the experts of `list` alone have slots.
    fn set_table(&mut self, experts: u32, list: impl Iterator<Item = (u32, u32)>) {
        self.table.clear();
        self.table.resize(experts as usize, NO_SLOT);
        for (expert, slot) in list {
            self.table[expert as usize] = slot;
        }
    }
}

impl Experts {
    /// The `nth` host step of a stage's window, before the held experts run: reads what was chosen and decides who does what.
    ///
    /// # Errors
    /// A device error, or a choice of an expert that does not exist.
    pub fn begin(
        &mut self,
        stage: usize,
        nth: usize,
        program: usize,
        rows: &[Row],
        device: &mut dyn Backend,
    ) -> Result<(), ExpertError> {
        let i = self.of_stage[stage].start + nth;
        let outcome = self.choices(i, program, rows, device);
        if outcome.is_err() {
            self.give_up(i);
        }
        outcome
    }

    fn choices(&mut self, i: usize, program: usize, rows: &[Row], device: &mut dyn Backend) -> Result<(), ExpertError> {
        let g = &self.layers[i];
        let ports = g.ports[program];
        let work = &mut self.work;
        (work.layer, work.program, work.to_card, work.gone, work.next) = (i, program, 0, 0, 0..0);
        work.rows.clear();
        work.rows.extend_from_slice(rows);
        work.done.clear();
        work.missed.clear();
        work.ids.resize(rows.len() * g.used as usize, 0);
        ports.ids.download(rows.len(), bytemuck::cast_slice_mut(&mut work.ids), device)?;
        if let Some(expert) = work.ids.iter().find(|id| **id >= g.experts) {
            return Err(ExpertError::NoSuchExpert { layer: g.layer, expert: *expert, experts: g.experts });
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.choices(i as u32, rows.len() as u32, &work.ids);
        }
        let residency = &mut self.residency[i];
        residency.popularity.observe(&work.ids, rows.len());
        work.rows_of[..g.experts as usize].fill(0);
        for id in &work.ids {
            work.rows_of[*id as usize] += 1;
            self.counts[i][*id as usize] += 1;
            *match residency.home(*id) {
                Home::Card => &mut self.stats.card_calls,
                Home::Ram => &mut self.stats.ram_calls,
                Home::Disk => &mut self.stats.disk_calls,
            } += 1;
        }
        let mut held = 0;
        for expert in (0..g.experts).filter(|e| work.rows_of[*e as usize] > 0) {
            if residency.card.holds(expert) {
                held += 1;
            } else {
                work.missed.push((expert, work.rows_of[expert as usize]));
            }
        }
        self.stats.card_bytes += held * g.slab_bytes;
        work.held_bytes = held * g.slab_bytes;
        work.aside = Duration::ZERO;
        work.before = (self.stats.processor_bytes, self.stats.processor_time, self.stats.disk_time);
        if self.options.verify {
            self.verify_held(i, device)?;
        }
        if self.stale[i] {
            self.write_table(i, device)?;
        }
        self.deal(i);
        let (g, work) = (&self.layers[i], &mut self.work);
        if work.missed.len() > work.to_card {
            let start = Instant::now();
            work.x.resize(rows.len() * g.width as usize, 0.0);
            ports.x.download(rows.len(), bytemuck::cast_slice_mut(&mut work.x), device)?;
            work.aside += start.elapsed();
        }
        Ok(())
    }

    /// Divides the missed experts between the card and the processor.
    fn deal(&mut self, i: usize) {
        let (ring, slab_bytes, work) = (self.residency[i].slots.ring, self.layers[i].slab_bytes, &mut self.work);
        let by_time = split(&mut work.missed, slab_bytes, &self.rates);
        work.to_card = match self.options.misses {
            _ if ring == 0 => 0,
            Misses::Auto => by_time,
            Misses::Processor => 0,
            Misses::Card => work.missed.len(),
        };
    }

    /// Compares every slot that the window is going to use with its expert.
    fn verify_held(&mut self, i: usize, device: &mut dyn Backend) -> Result<(), ExpertError> {
        let used = |e: u32| self.work.rows_of[e as usize] > 0;
        let held: Vec<(u32, u32)> = self.residency[i].card.held().filter(|(_, e)| used(*e)).collect();
        held.into_iter().try_for_each(|(slot, expert)| self.remember_sum(i, slot, expert, device))
    }

    /// While the card runs the held experts: the processor computes its share, from RAM first, then what comes from disk.
    ///
    /// # Errors
    /// An expert that cannot be read, or a failing processor. The request cannot go on; the tiers can.
    pub fn work(&mut self) -> Result<(), ExpertError> {
        let i = self.work.layer;
        if self.work.missed.len() == self.work.to_card {
            return Ok(());
        }
        let outcome = self.work_on(i);
        if outcome.is_err() {
            self.give_up(i);
        }
        outcome
    }

    fn work_on(&mut self, i: usize) -> Result<(), ExpertError> {
        let mut underway = std::mem::take(&mut self.work.underway);
        let mut ready = std::mem::take(&mut self.work.ready);
        underway.clear();
        ready.clear();
        for (expert, _) in &self.work.missed[self.work.to_card..] {
            match self.residency[i].ram.holds(*expert) {
                true => ready.push(*expert),
                false => underway.push(Experts::underway(*expert)),
            }
        }
        let outcome = self.work_through(i, &mut underway, &mut ready);
        (self.work.underway, self.work.ready) = (underway, ready);
        outcome
    }

    fn work_through(&mut self, i: usize, underway: &mut [Underway], ready: &mut Vec<u32>) -> Result<(), ExpertError> {
        let at_once = self.residency[i].ram.len().max(1);
        let mut first = underway.chunks_mut(at_once);
        let mut chunk = first.next();
        if let Some(chunk) = chunk.as_deref_mut() {
            self.ask(i, chunk)?;
        }
        self.compute(i, ready)?;
        while let Some(list) = chunk {
            self.fetch(i, list, ready)?;
            self.compute(i, ready)?;
            chunk = first.next();
        }
        Ok(())
    }

    /// Waits for the experts of `list`; small windows compute each as it comes. The others are in `ready` at the end.
    fn fetch(&mut self, i: usize, list: &mut [Underway], ready: &mut Vec<u32>) -> Result<(), ExpertError> {
        self.admit(i, list)?;
        let mut missing = list.len();
        while missing > 0 {
            self.ask(i, list)?;
            if let Some(n) = self.arrive(i, list)? {
                missing -= 1;
                ready.push(list[n].expert);
                if self.work.rows.len() <= FEW_ROWS {
                    self.ask(i, list)?;
                    self.compute(i, ready)?;
                }
            }
        }
        Ok(())
    }

    /// Computes the experts of `ready`, which are in RAM, and forgets them.
    fn compute(&mut self, i: usize, ready: &mut Vec<u32>) -> Result<(), ExpertError> {
        if ready.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let Experts { work, residency, host, layers, stats, .. } = self;
        let (g, ram) = (&layers[i], &residency[i].ram);
        work.set_table(g.experts, ready.iter().filter_map(|e| Some((*e, ram.slot_of(*e)?))));
        let (used, out_width) = (g.used as usize, g.out_width as usize);
        let Work { rows, x, ids, table, results, done, .. } = work;
        let window = Window { rows, width: g.width as usize, used, x, ids };
        host.compute(i, &window, table, &mut |row, j, values| {
            let at = (row * used + j) * out_width;
            results[at..at + out_width].copy_from_slice(values);
            done.push((row as u32, j as u32));
        })?;
        stats.processor_bytes += ready.len() as u64 * g.slab_bytes;
        stats.processor_time += start.elapsed();
        ready.clear();
        Ok(())
    }

    /// While the device runs: copies the experts that go there next into the half of the ring that it does not use, as far as RAM
    /// has them. A ring of one slot has no such half.
    ///
    /// # Errors
    /// A device error.
    pub fn bring_next(&mut self, device: &mut dyn Backend) -> Result<(), ExpertError> {
        let i = self.work.layer;
        let halves = self.residency[i].slots.ring > 1 || self.work.gone == 0;
        if !halves || !self.work.next.is_empty() {
            return Ok(());
        }
        let ram = &self.residency[i].ram;
        let batch = self.next_batch(i);
        let here = self.work.missed[batch.clone()].iter().take_while(|(expert, _)| ram.holds(*expert)).count();
        let outcome = self.bring(i, batch.start..batch.start + here, device);
        if outcome.is_err() {
            self.give_up(i);
        }
        outcome
    }

    /// When the device is done: lets it compute what lies in the ring, and brings something there first if need be. True: the
    /// segment is to run again.
    ///
    /// # Errors
    /// A device error, or an expert that cannot be read.
    pub fn pass(&mut self, device: &mut dyn Backend) -> Result<bool, ExpertError> {
        let i = self.work.layer;
        let outcome = self.use_ring(i, device);
        if outcome.is_err() {
            self.give_up(i);
        }
        outcome
    }

    /// The experts that fit into half of the ring after those that have gone.
    fn next_batch(&self, i: usize) -> Range<usize> {
        let (from, half) = (self.work.gone, (self.residency[i].slots.ring / 2).max(1));
        from..self.work.to_card.min(from + half as usize)
    }

    /// Brings experts into the next half of the ring.
    fn bring(&mut self, i: usize, batch: Range<usize>, device: &mut dyn Backend) -> Result<(), ExpertError> {
        if batch.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let ring = self.residency[i].slots.ring_slots();
        let half = (ring.len() as u32 / 2).max(1);
        // The halves take turns.
        let at_first = self.work.next_slot != ring.start;
        let first_slot = if at_first || ring.len() < 2 { ring.start } else { ring.start + half };
        for (slot, at) in (first_slot..).zip(batch.clone()) {
            let (expert, _) = self.work.missed[at];
            if !self.residency[i].ram.holds(expert) {
                let mut one = [Experts::underway(expert)];
                self.admit(i, &mut one)?;
                while self.arrive_one(i, &mut one)? {}
            }
            self.copy_to_ring(i, expert, slot, device)?;
        }
        (self.work.gone, self.work.next, self.work.next_slot) = (batch.end, batch, first_slot);
        self.stats.bus_time += start.elapsed();
        Ok(())
    }

    fn use_ring(&mut self, i: usize, device: &mut dyn Backend) -> Result<bool, ExpertError> {
        if self.work.next.is_empty() {
            self.bring(i, self.next_batch(i), device)?;
        }
        let batch = std::mem::replace(&mut self.work.next, 0..0);
        if batch.is_empty() {
            return Ok(false);
        }
        let (experts, work) = (self.layers[i].experts, &mut self.work);
        work.table.clear();
        work.table.resize(experts as usize, NO_SLOT);
        for (slot, at) in (work.next_slot..).zip(batch) {
            work.table[work.missed[at].0 as usize] = slot;
        }
        self.stale[i] = true;
        device.upload(self.layers[i].table, bytemuck::cast_slice(&self.work.table))?;
        Ok(true)
    }

    /// One part of an expert that is fetched alone; whether there are more to come.
    fn arrive_one(&mut self, i: usize, one: &mut [Underway; 1]) -> Result<bool, ExpertError> {
        self.ask(i, one)?;
        Ok(self.arrive(i, one)?.is_none())
    }

    /// After the last pass: puts the processor's results beside the card's.
    ///
    /// # Errors
    /// A device error.
    pub fn join(&mut self, device: &mut dyn Backend) -> Result<(), ExpertError> {
        let i = self.work.layer;
        if self.stale[i] {
            self.write_table(i, device)?;
        }
        let start = Instant::now();
        self.give_results(i, device)?;
        let (bytes, time, disk) = self.work.before;
        let bytes = self.stats.processor_bytes - bytes;
        // What was waited for is the disk's.
        if self.work.rows.len() == 1 && bytes > 0 && self.stats.disk_time == disk {
            let took = self.stats.processor_time - time + self.work.aside + start.elapsed();
            self.fits.processor.add(bytes as f64, took);
        }
        if self.work.rows.len() == 1 {
            self.fits.steps_s += (self.work.aside + start.elapsed()).as_secs_f64();
        }
        Ok(())
    }

    fn give_results(&mut self, i: usize, device: &mut dyn Backend) -> Result<(), ExpertError> {
        let (g, work) = (&self.layers[i], &mut self.work);
        if work.done.is_empty() {
            return Ok(());
        }
        let (used, width) = (g.used as usize, g.out_width as usize);
        let out = g.ports[work.program].out;
        let target = out.whole(work.rows.len()).and_then(|slice| device.host_bytes_mut(slice));
        if let Some(bytes) = target
            && let Ok(floats) = bytemuck::try_cast_slice_mut::<u8, f32>(bytes)
        {
            for (row, j) in &work.done {
                let at = (*row as usize * used + *j as usize) * width;
                floats[at..at + width].copy_from_slice(&work.results[at..at + width]);
            }
            return Ok(());
        }
        work.done.sort_unstable();
        for choices in neighbours(&work.done) {
            let (row, first) = choices[0];
            let (at, len) = ((row as usize * used + first as usize) * width, choices.len() * width);
            let slice = out.part(row as usize, first as usize * width, len);
            device.upload(slice, bytemuck::cast_slice(&work.results[at..at + len]))?;
        }
        Ok(())
    }

    /// The held experts have run: how long the host stood still for them, and how long it was from their start to their end.
    pub fn waited_for_card(&mut self, stood_still: Duration, span: Duration) {
        self.stats.card_time += stood_still;
        if self.work.rows.len() != 1 {
            return;
        }
        self.fits.steps_s += span.as_secs_f64();
        let held_bytes = self.work.held_bytes as f64;
        if !self.rates.overlaps {
            self.fits.card.add(held_bytes, stood_still);
        } else if stood_still * 20 > span {
            // It was not done before the processor.
            self.fits.card.add(held_bytes, span);
        }
    }

    /// A host step has failed: what was under way is forgotten, and the device's table is written anew before the next use.
    fn give_up(&mut self, i: usize) {
        if let Some(disk) = &mut self.disk {
            disk.forget();
        }
        self.residency[i].ram.abandon();
        self.stale[i] = true;
    }
}

/// Sorted choices `(row, choice)` as runs of neighbours in one row: their results lie side by side, and are one copy.
fn neighbours(done: &[(u32, u32)]) -> impl Iterator<Item = &[(u32, u32)]> {
    done.chunk_by(|(row, j), (next_row, next_j)| row == next_row && j + 1 == *next_j)
}

/// Runs that a rate is measured by.
const RUNS: usize = 5;
/// Rows of the window by which the arithmetic of the processor is measured.
const MANY_ROWS: usize = 64;

/// How fast the processor works through experts that are in RAM.
pub(super) fn measure_processor(experts: &mut Experts) -> Result<Rates, ExpertError> {
    let few = time_processor(experts, 1)?;
    let many = time_processor(experts, MANY_ROWS)?;
    let (Some((few_s, few_bytes, _)), Some((many_s, _, many_calls))) = (few, many) else { return Ok(experts.rates) };
    Ok(Rates {
        processor_bytes_s: few_bytes as f64 / few_s.max(1e-9),
        processor_row_s: many_s / many_calls.max(1) as f64,
        ..experts.rates
    })
}

/// Seconds, bytes of experts and calls of a window of so many rows; `None` where RAM holds nobody.
fn time_processor(experts: &mut Experts, rows: usize) -> Result<Option<(f64, u64, usize)>, ExpertError> {
    let Some(i) = experts.residency.iter().position(|r| !r.ram.is_empty()) else { return Ok(None) };
    let (g, ram) = (&experts.layers[i], &experts.residency[i].ram);
    let held: Vec<(u32, u32)> = ram.held().collect();
    if held.is_empty() {
        return Ok(None);
    }
    let rows = rows.min(g.ports.iter().map(|p| p.max_rows as usize).max().unwrap_or(1));
    let list: Vec<Row> = (0..rows).map(|r| Row::text(0, r as u32, TokenId(0))).collect();
    let (width, used) = (g.width as usize, g.used as usize);
    let x = vec![0.5; rows * width];
    let mut times = [0.0; RUNS];
    let mut bytes = 0;
    for (run, time) in times.iter_mut().enumerate() {
        // Another set each time, so that no cache holds it.
        let ids: Vec<u32> = (0..rows * used).map(|c| held[(c + run * rows * used) % held.len()].1).collect();
        let mut table = vec![NO_SLOT; g.experts as usize];
        held.iter().filter(|(_, e)| ids.contains(e)).for_each(|(slot, e)| table[*e as usize] = *slot);
        bytes = table.iter().filter(|slot| **slot != NO_SLOT).count() as u64 * g.slab_bytes;
        let window = Window { rows: &list, width, used, x: &x, ids: &ids };
        let start = Instant::now();
        experts.host.compute(i, &window, &table, &mut |_, _, _| ())?;
        *time = start.elapsed().as_secs_f64();
    }
    times.sort_by(f64::total_cmp);
    Ok(Some((times[RUNS / 2], bytes, rows * used)))
}

impl super::layer::Columns {
    /// Copies the columns of `rows` rows from the device.
    fn download(&self, rows: usize, to: &mut [u8], device: &mut dyn Backend) -> Result<(), BackendError> {
        if let Some(slice) = self.whole(rows) {
            return device.download(slice, to);
        }
        let width = self.width as usize;
        for (row, to) in to.chunks_exact_mut(width * 4).enumerate() {
            device.download(self.part(row, 0, width), to)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_lie_side_by_side_are_one_copy() {
        let done = [(0, 0), (0, 1), (0, 3), (1, 4), (2, 0), (2, 1), (2, 2)];
        let lengths: Vec<usize> = neighbours(&done).map(<[_]>::len).collect();
        assert_eq!(lengths, [2, 1, 1, 3]);
        assert_eq!(neighbours(&[]).count(), 0);
    }
}
