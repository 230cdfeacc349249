//! Which expert of a layer lies in which slot. A slot that is being filled holds nobody until its copy is complete, and a
//! copy that was overtaken by another one is recognised by its generation.

use crate::program::NO_SLOT;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    expert: Option<u32>,
    /// A copy into it is under way.
    filling: bool,
    /// It serves something else at present: a ring, or the buffers of a prompt.
    away: bool,
    /// Counts how often the slot was taken.
    generation: u32,
}

/// A copy into a slot that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the expert is nowhere until the copy is published"]
pub struct Filling {
    pub slot: u32,
    pub expert: u32,
    pub generation: u32,
}

/// The slots of one layer in one place (a card, RAM).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    slots: Vec<Slot>,
    /// Slot of each expert, [`NO_SLOT`] for none: what the device's table holds.
    slot_of: Vec<u32>,
}

impl Slots {
    /// Empty slots for some of `experts` experts.
    pub fn new(experts: u32, slots: u32) -> Slots {
        Slots {
            slots: vec![Slot { expert: None, filling: false, away: false, generation: 0 }; slots as usize],
            slot_of: vec![NO_SLOT; experts as usize],
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn slot_of(&self, expert: u32) -> Option<u32> {
        self.slot_of.get(expert as usize).copied().filter(|slot| *slot != NO_SLOT)
    }

    pub fn holds(&self, expert: u32) -> bool {
        self.slot_of(expert).is_some()
    }

    pub fn expert_in(&self, slot: u32) -> Option<u32> {
        self.slots.get(slot as usize).and_then(|s| s.expert)
    }

    /// The table as the device reads it.
    pub fn table(&self) -> &[u32] {
        &self.slot_of
    }

    /// The experts that are held, by slot.
    pub fn held(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.slots.iter().enumerate().filter_map(|(slot, s)| Some((slot as u32, s.expert?)))
    }

    /// A slot that holds nobody and waits for nobody.
    pub fn free(&self) -> Option<u32> {
        self.slots.iter().position(|s| s.expert.is_none() && !s.filling && !s.away).map(|slot| slot as u32)
    }

    /// Gives a slot away: it holds nobody, and nobody is put there, until it comes back. Whether it held somebody.
    pub fn give_away(&mut self, slot: u32) -> bool {
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        (entry.filling, entry.away) = (false, true);
        let before = entry.expert.take();
        if let Some(before) = before {
            self.slot_of[before as usize] = NO_SLOT;
        }
        before.is_some()
    }

    /// A slot that was given away is free again.
    pub fn take_back(&mut self, slot: u32) {
        self.slots[slot as usize].away = false;
    }

    /// Empties a slot, so that `expert` can be copied into it.
    pub fn begin(&mut self, slot: u32, expert: u32) -> Filling {
        let entry = &mut self.slots[slot as usize];
        if let Some(before) = entry.expert.take() {
            self.slot_of[before as usize] = NO_SLOT;
        }
        entry.generation = entry.generation.wrapping_add(1);
        entry.filling = true;
        Filling { slot, expert, generation: entry.generation }
    }

    /// Copies that are under way will not be completed: their slots are free.
    pub fn abandon(&mut self) {
        for slot in self.slots.iter_mut().filter(|s| s.filling) {
            slot.filling = false;
            slot.generation = slot.generation.wrapping_add(1);
        }
    }

    /// Makes a complete copy visible; false if the slot was taken for something else meanwhile.
    pub fn publish(&mut self, filling: Filling) -> bool {
        let entry = &mut self.slots[filling.slot as usize];
        if entry.generation != filling.generation || entry.expert.is_some() {
            return false;
        }
        // An expert has one slot: an older copy of it elsewhere is given up.
        let before = std::mem::replace(&mut self.slot_of[filling.expert as usize], filling.slot);
        (entry.expert, entry.filling) = (Some(filling.expert), false);
        if before != NO_SLOT {
            self.slots[before as usize].expert = None;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(slots: &mut Slots, slot: u32, expert: u32) {
        let filling = slots.begin(slot, expert);
        assert!(slots.publish(filling));
    }

    #[test]
    fn a_slot_that_is_being_filled_holds_nobody() {
        let mut slots = Slots::new(8, 2);
        put(&mut slots, 0, 5);
        assert_eq!((slots.slot_of(5), slots.expert_in(0), slots.free()), (Some(0), Some(5), Some(1)));
        let filling = slots.begin(0, 6);
        assert_eq!((slots.slot_of(5), slots.slot_of(6), slots.expert_in(0)), (None, None, None));
        assert!(slots.publish(filling));
        assert_eq!((slots.slot_of(6), slots.table()[6]), (Some(0), 0));
    }

    #[test]
    fn a_copy_that_was_overtaken_is_not_published() {
        let mut slots = Slots::new(8, 1);
        let late = slots.begin(0, 1);
        let newer = slots.begin(0, 2);
        assert!(!slots.publish(late));
        assert!(slots.publish(newer) && slots.holds(2) && !slots.holds(1));
        assert!(!slots.publish(late) && slots.holds(2));
        let given_up = slots.begin(0, 3);
        assert_eq!(slots.free(), None, "it waits for somebody");
        slots.abandon();
        assert_eq!(slots.free(), Some(0));
        assert!(!slots.publish(given_up));
    }

    #[test]
    fn a_slot_that_was_given_away_holds_nobody_until_it_comes_back() {
        let mut slots = Slots::new(8, 2);
        put(&mut slots, 0, 3);
        put(&mut slots, 1, 5);
        assert!(slots.give_away(1) && !slots.holds(5) && slots.holds(3));
        assert_eq!((slots.free(), slots.expert_in(1)), (None, None));
        assert!(!slots.give_away(1), "it held nobody any more");
        slots.take_back(1);
        assert_eq!(slots.free(), Some(1));
        let under_way = slots.begin(1, 6);
        slots.give_away(1);
        assert!(!slots.publish(under_way) && !slots.holds(6), "a copy from before the loan is not published");
    }

    #[test]
    fn an_expert_is_in_one_slot() {
        let mut slots = Slots::new(4, 2);
        put(&mut slots, 0, 3);
        put(&mut slots, 1, 3);
        assert_eq!(slots.held().collect::<Vec<_>>(), [(1, 3)]);
        assert_eq!(slots.free(), Some(0));
    }
}
