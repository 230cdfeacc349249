//! Copies between the tiers: from disk to RAM, from RAM to the card, and exchanges between windows.

use std::io;
use std::time::Instant;

use super::disk::Arrived;
use super::residency::{LayerResidency, Swap};
use super::{ExpertError, Experts, Filling, exchange, refill};
use crate::backend::Backend;

/// An expert on its way from disk.
#[derive(Debug, Clone, Copy)]
pub struct Underway {
    pub expert: u32,
    /// Parts that have been asked for, and that have arrived.
    asked: u32,
    arrived: u32,
    filling: Option<Filling>,
}

/// What fills a slot before a copy when slots are verified: no expert has these bytes by chance.
const POISON: u8 = 0xA5;

impl Experts {
    /// Asks for parts of the experts of `list` from `from` on, as many as may be under way.
    pub(super) fn ask(&mut self, i: usize, list: &mut [Underway]) -> Result<(), ExpertError> {
        let parts = self.layers[i].parts.len() as u32;
        for (n, item) in list.iter_mut().enumerate() {
            while item.asked < parts {
                let stretch = self.stretch(i, item.asked as usize, item.expert)?;
                let tag = u64::from(item.asked) << 32 | n as u64;
                let Some(disk) = &mut self.disk else {
                    return Err(ExpertError::Defect { problem: "an expert is neither in RAM nor can it be read".into() });
                };
                if !disk.submit(tag, stretch) {
                    return Ok(());
                }
                item.asked += 1;
            }
        }
        Ok(())
    }

    pub(super) fn underway(expert: u32) -> Underway {
        Underway { expert, asked: 0, arrived: 0, filling: None }
    }

    /// Gives the experts of `list`, which are no more than RAM has slots, their slots. Who leaves does not depend on the order in
    /// which they arrive.
    pub(super) fn admit(&mut self, i: usize, list: &mut [Underway]) -> Result<(), ExpertError> {
        let ram = &mut self.residency[i];
        for item in list {
            let room = || ExpertError::Defect { problem: "all of RAM is in use by one window".into() };
            let admission = ram.admission().ok_or_else(room)?;
            item.filling = Some(ram.ram.begin(admission.slot, item.expert));
        }
        Ok(())
    }

    /// Takes the next part that arrives. Returns the place in `list` of an expert that is now complete.
    ///
    /// # Errors
    /// A part that cannot be read, or that does not come in time; everything under way is then forgotten.
    pub(super) fn arrive(&mut self, i: usize, list: &mut [Underway]) -> Result<Option<usize>, ExpertError> {
        let Some(disk) = &mut self.disk else {
            return Err(ExpertError::Defect { problem: "nothing is read from disk".into() });
        };
        let start = Instant::now();
        let arrived = disk.next();
        self.stats.disk_time += start.elapsed();
        let arrived = match arrived {
            Ok(arrived) => arrived,
            Err((tag, source)) => return Err(self.read_error(i, list, tag, source)),
        };
        let (n, part) = ((arrived.tag & 0xFFFF_FFFF) as usize, (arrived.tag >> 32) as usize);
        self.stats.disk_bytes += arrived.len_bytes as u64;
        let outcome = self.place(i, &list[n], part, &arrived);
        if let Some(disk) = &mut self.disk {
            disk.give_back(arrived);
        }
        outcome?;
        let item = &mut list[n];
        item.arrived += 1;
        if item.arrived < self.layers[i].parts.len() as u32 {
            return Ok(None);
        }
        if let Some(filling) = item.filling.take() {
            self.residency[i].ram.publish(filling);
        }
        Ok(Some(n))
    }

    fn place(&mut self, i: usize, item: &Underway, part: usize, arrived: &Arrived) -> Result<(), ExpertError> {
        let nowhere = || ExpertError::Defect { problem: "an expert arrives that has no slot".into() };
        let filling = item.filling.ok_or_else(nowhere)?;
        let at = self.layers[i].part_offset(part) as usize;
        let slab = self.host.slab(i, filling.slot)?;
        slab[at..at + arrived.len_bytes].copy_from_slice(arrived.bytes());
        Ok(())
    }

    fn read_error(&mut self, i: usize, list: &[Underway], tag: Option<u64>, source: io::Error) -> ExpertError {
        let Some(tag) = tag else { return ExpertError::Deadline { reason: source.to_string() } };
        let (n, part) = ((tag & 0xFFFF_FFFF) as usize, (tag >> 32) as usize);
        let g = &self.layers[i];
        let decl = &g.parts[part];
        let shard = self.files.tensor(&decl.tensor).map_or(0, |t| t.shard);
        let file = self.files.files().get(shard).map_or_else(String::new, |f| f.path.display().to_string());
        let source = match source.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(source.kind(), "the file ends before it"),
            _ => source,
        };
        ExpertError::Read { file, tensor: decl.tensor.clone(), layer: g.layer, expert: list[n].expert, source }
    }

    /// Copies an expert from RAM to a slot of the card's ring.
    pub(super) fn copy_to_ring(&mut self, i: usize, expert: u32, slot: u32, device: &mut dyn Backend) -> Result<(), ExpertError> {
        let gone = || ExpertError::Defect { problem: format!("expert {expert} is not in RAM") };
        let from = self.residency[i].ram.slot_of(expert).ok_or_else(gone)?;
        let to = self.layers[i].slab(slot);
        device.upload_beside(to, self.host.slab(i, from)?)?;
        self.stats.bus_bytes += to.len_bytes;
        Ok(())
    }

    /// Writes the device's table of a layer as it is now.
    pub(super) fn write_table(&mut self, i: usize, device: &mut dyn Backend) -> Result<(), ExpertError> {
        device.upload(self.layers[i].table, bytemuck::cast_slice(self.residency[i].card.table()))?;
        self.stale[i] = false;
        Ok(())
    }

    /// Before the inputs of a window are written: gives up the slots that buffers of its program lie on. Nothing runs on the
    /// device. The tables are written before their next use.
    ///
    /// # Errors
    /// A device error.
    pub fn lend(&mut self, stage: usize, program: usize, rows: usize, device: &mut dyn Backend) -> Result<(), ExpertError> {
        if !self.loans[stage].borrows(program) {
            return Ok(());
        }
        for i in self.of_stage[stage].clone() {
            let left = self.residency[i].lend(&self.loans[stage], program, rows as u32, &self.layers[i].lent);
            self.stats.lent += u64::from(left);
            self.stale[i] |= left > 0;
            if self.options.verify {
                let away: Vec<u32> = self.residency[i].slots.lent_slots().collect();
                let empty = away.into_iter().filter(|slot| self.residency[i].card.expert_in(*slot).is_none());
                empty.collect::<Vec<u32>>().into_iter().try_for_each(|slot| self.poison(i, slot, device))?;
            }
        }
        Ok(())
    }

    /// After a window of `rows` tokens on a stage: fills slots that prompts had borrowed, if this window borrowed none, and lets
    /// experts change places. Nothing runs on the device.
    ///
    /// # Errors
    /// A device error.
    pub fn settle(&mut self, stage: usize, program: usize, rows: usize, device: &mut dyn Backend) -> Result<(), ExpertError> {
        if let Some(recorder) = &mut self.recorder {
            recorder.window(stage as u32, rows as u32);
        }
        if stage == 0 {
            self.stats.tokens += rows as u64;
            self.counted_tokens += rows as u64;
        }
        let start = Instant::now();
        let range = self.of_stage[stage].clone();
        let (policy, first, keeps_loan) = (self.options.policy, range.start, self.loans[stage].borrows(program));
        let mut residency = std::mem::take(&mut self.residency);
        let mut found = std::mem::take(&mut self.found);
        let mut perform = |n: usize, layer: &mut LayerResidency, swap: &Swap| self.perform(first + n, layer, swap, device);
        let mut filled = Ok(0);
        if !keeps_loan {
            residency[range.clone()].iter_mut().for_each(LayerResidency::end_loan);
            filled = refill(&mut residency[range.clone()], &policy, &mut found, &mut perform);
        }
        let made =
            filled.and_then(|filled| Ok((filled, exchange(&mut residency[range], &policy, rows, &mut found, &mut perform)?)));
        (self.residency, self.found) = (residency, found);
        if made.is_err() {
            for i in self.of_stage[stage].clone() {
                self.residency[i].card.abandon();
                self.residency[i].ram.abandon();
            }
        }
        let (filled, swapped) = made?;
        self.stats.refills += filled as u64;
        self.stats.swaps += swapped as u64;
        for i in self.of_stage[stage].clone() {
            if self.stale[i] {
                self.write_table(i, device)?;
            }
        }
        self.stats.swap_time += start.elapsed();
        if rows == 1 {
            self.fits.moves.add((filled + swapped) as f64, start.elapsed());
            self.fits.windows += u64::from(stage == 0);
        }
        Ok(())
    }

    /// Copies what an exchange moves. The slot holds nobody until the copy is complete.
    fn perform(
        &mut self,
        i: usize,
        layer: &mut LayerResidency,
        swap: &Swap,
        device: &mut dyn Backend,
    ) -> Result<(), ExpertError> {
        let gone = || ExpertError::Defect { problem: format!("expert {} is not in RAM", swap.incoming) };
        let from = layer.ram.slot_of(swap.incoming).ok_or_else(gone)?;
        let slab = self.layers[i].slab(swap.slot);
        let leaving = swap.outgoing.filter(|out| !layer.ram.holds(*out));
        self.stale[i] = true;
        if leaving.is_some() {
            device.download(slab, &mut self.spare[..slab.len_bytes as usize])?;
            self.stats.swap_bytes += slab.len_bytes;
        }
        let filling = layer.card.begin(swap.slot, swap.incoming);
        if self.options.verify {
            self.poison(i, swap.slot, device)?;
        }
        device.upload(slab, self.host.slab(i, from)?)?;
        self.stats.swap_bytes += slab.len_bytes;
        if self.options.verify {
            self.remember_sum(i, swap.slot, swap.incoming, device)?;
        }
        layer.card.publish(filling);
        if let Some(out) = leaving {
            let filling = layer.ram.begin(from, out);
            self.host.slab(i, from)?.copy_from_slice(&self.spare[..slab.len_bytes as usize]);
            layer.ram.publish(filling);
        }
        Ok(())
    }

    /// Fills a slot of the card with noise.
    fn poison(&mut self, i: usize, slot: u32, device: &mut dyn Backend) -> Result<(), ExpertError> {
        let slab = self.layers[i].slab(slot);
        device.upload(slab, &vec![POISON; slab.len_bytes as usize])?;
        Ok(())
    }

    /// Compares what a slot holds with the expert's checksum, which is taken from the file the first time.
    pub(super) fn remember_sum(&mut self, i: usize, slot: u32, expert: u32, device: &mut dyn Backend) -> Result<(), ExpertError> {
        let slab = self.layers[i].slab(slot);
        let mut bytes = vec![0; slab.len_bytes as usize];
        device.download(slab, &mut bytes)?;
        let found = self.slab_sum(i, &bytes);
        let expected = match self.sums[i][expert as usize] {
            Some(sum) => sum,
            None => {
                let held = std::mem::take(&mut self.spare);
                self.spare = vec![0; held.len()];
                let read = self.read_slab(i, expert);
                let sum = self.slab_sum(i, &self.spare);
                self.spare = held;
                read?;
                self.sums[i][expert as usize] = Some(sum);
                sum
            }
        };
        if expected == found {
            return Ok(());
        }
        Err(ExpertError::WrongBytes { layer: self.layers[i].layer, slot, expert, expected, found })
    }

    /// FNV-1a by words of the parts of a slab, without what lies between them.
    fn slab_sum(&self, i: usize, slab: &[u8]) -> u64 {
        let g = &self.layers[i];
        let mut sum = 0xcbf2_9ce4_8422_2325u64;
        for (p, part) in g.parts.iter().enumerate() {
            let at = g.part_offset(p) as usize;
            let (words, rest) = slab[at..at + part.matrix_bytes() as usize].as_chunks::<8>();
            let rest = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            for word in words.iter().map(|word| u64::from_le_bytes(*word)).chain([rest]) {
                sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        sum
    }
}
