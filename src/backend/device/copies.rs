//! Copies between the host and a card: on a stream of their own, through a few pieces of pinned memory, ordered against the
//! computing stream by events.

use std::sync::Arc;

use super::pins::{Lead, PinnedPieces};
use super::{Context, DevicePiece, DriverError, Event, HostMemory, Stream};

/// Pieces of host memory in turn: one is filled or emptied while the other is on its way.
const SLOTS: usize = 2;

#[derive(Debug)]
struct Slot {
    memory: HostMemory,
    /// The copy that uses the memory has been done.
    done: Event,
}

/// The copying half of a card.
#[derive(Debug)]
pub struct Copies {
    stream: Stream,
    slots: Vec<Slot>,
    next: usize,
    /// All copies so far have been done.
    arrived: Event,
    context: Arc<Context>,
    /// Memory of others that needs no detour.
    pinned: Arc<PinnedPieces>,
    /// Computing that later copies must wait for.
    behind_run: bool,
    /// Why host memory could not be pinned.
    unpinned: Option<DriverError>,
}

impl Copies {
    /// Without host memory yet: that is taken last, after the memory of all cards.
    pub fn new(context: &Arc<Context>) -> Result<Copies, DriverError> {
        Ok(Copies {
            stream: Stream::new(context)?,
            slots: vec![],
            next: 0,
            arrived: Event::new(context)?,
            context: Arc::clone(context),
            pinned: Arc::default(),
            behind_run: false,
            unpinned: None,
        })
    }

    /// Replaces the host memory by pieces of `slot_bytes`. What the system does not pin is pageable, and slower.
    pub fn provide(&mut self, slot_bytes: usize) -> Result<(), DriverError> {
        self.stream.synchronise()?;
        self.slots.clear();
        self.next = 0;
        let mut slots = Vec::with_capacity(SLOTS);
        for _ in 0..SLOTS {
            let done = Event::new(&self.context)?;
            let (memory, refusal) = HostMemory::new(&self.context, slot_bytes);
            self.unpinned = self.unpinned.or(refusal);
            slots.push(Slot { memory, done });
        }
        self.slots = slots;
        Ok(())
    }

    pub fn is_provided(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Why host memory could not be pinned, if it could not.
    pub fn unpinned(&self) -> Option<DriverError> {
        self.unpinned
    }

    pub fn pinned(&self) -> &Arc<PinnedPieces> {
        &self.pinned
    }

    /// A run was started that ends with `finished`; copies from here on come after it.
    pub fn follow(&mut self) {
        self.behind_run = true;
    }

    /// Lets a stream wait for all copies so far.
    pub fn hold_back(&self, computing: &Stream) -> Result<(), DriverError> {
        computing.wait_for(&self.arrived)
    }

    fn order(&mut self, finished: &Event) -> Result<(), DriverError> {
        if std::mem::take(&mut self.behind_run) {
            self.stream.wait_for(finished)?;
        }
        Ok(())
    }

    /// The next piece of host memory, no longer used by an older copy.
    fn slot(&mut self) -> Result<usize, DriverError> {
        let slot = self.next;
        self.next = (slot + 1) % self.slots.len();
        self.slots[slot].done.wait()?;
        Ok(slot)
    }

    /// Copies bytes to a card. They have left `from` when this returns, but may still be on their way.
    pub fn copy_in(&mut self, to: DevicePiece, from: &[u8], finished: &Event) -> Result<(), DriverError> {
        self.order(finished)?;
        self.copy_in_beside(to, from)
    }

    /// As [`Copies::copy_in`], without waiting for what the card computes: it does not touch these bytes.
    pub fn copy_in_beside(&mut self, to: DevicePiece, from: &[u8]) -> Result<(), DriverError> {
        assert_eq!(to.bytes(), from.len());
        let (mut done, mut in_place) = (0, false);
        while done < from.len() {
            done += match self.pinned.lead(&from[done..]) {
                Lead::Pinned(len) => {
                    in_place = true;
                    // SAFETY: `from` is borrowed until `arrived` has passed, below; memory of the card lives longer.
                    unsafe { self.stream.copy_in(to.part(done, len), &from[done..done + len])? };
                    len
                }
                Lead::Pageable(len) => self.copy_staged(to.part(done, len), &from[done..done + len])?,
            };
        }
        self.stream.record(&self.arrived)?;
        if in_place { self.arrived.wait() } else { Ok(()) }
    }

    /// Copies as many bytes as a piece of our own memory takes, and says how many.
    fn copy_staged(&mut self, to: DevicePiece, from: &[u8]) -> Result<usize, DriverError> {
        let slot = self.slot()?;
        let Slot { memory, done: mark } = &mut self.slots[slot];
        let len = memory.len_bytes().min(from.len());
        let staged = &mut memory.bytes_mut()[..len];
        staged.copy_from_slice(&from[..len]);
        // SAFETY: the staged bytes stay until `mark` has passed; memory of the card lives longer than its copies.
        unsafe { self.stream.copy_in(to.part(0, len), staged)? };
        self.stream.record(mark)?;
        Ok(len)
    }

    /// Copies bytes from a card and waits for them.
    pub fn copy_out(&mut self, to: &mut [u8], from: DevicePiece, finished: &Event) -> Result<(), DriverError> {
        assert_eq!(to.len(), from.bytes());
        self.order(finished)?;
        let mut done = 0;
        while done < to.len() {
            let slot = self.slot()?;
            let Slot { memory, done: mark } = &mut self.slots[slot];
            let len = memory.len_bytes().min(to.len() - done);
            // SAFETY: nobody looks at the staged bytes before `mark` has passed.
            unsafe { self.stream.copy_out(&mut memory.bytes_mut()[..len], from.part(done, len))? };
            self.stream.record(mark)?;
            mark.wait()?;
            to[done..done + len].copy_from_slice(&memory.bytes()[..len]);
            done += len;
        }
        Ok(())
    }

    pub fn fill(&mut self, to: DevicePiece, byte: u8, finished: &Event) -> Result<(), DriverError> {
        self.order(finished)?;
        // SAFETY: memory of the card lives longer than its copies.
        unsafe { self.stream.fill(to, byte)? };
        self.stream.record(&self.arrived)
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        // Host memory must not go while a copy uses it. A broken context has stopped copying.
        let _ = self.stream.synchronise();
    }
}
