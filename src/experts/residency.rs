//! Where the experts of a layer are, and which should change places. Pure: the engine performs the moves, a replay counts
//! them, and both decide alike.

use super::loan::{LentSlots, Loan};
use super::popularity::Popularity;
use super::slots::Slots;

/// Where an expert is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    Card,
    Ram,
    Disk,
}

/// When experts change places.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Policy {
    /// An expert takes a slot from another one if it is expected to be used so much more often, in uses a token. What a copy
    /// costs, spread over the tokens after which popularity is half forgotten, must be worth it.
    pub margin: f32,
    /// Most exchanges between two windows, for each token of the window: a bound on the time they take.
    pub swaps_per_token: u32,
    /// Most slots that are filled again after a window that lends none, where a prompt had borrowed them: a bound on the time that
    /// copying takes between two tokens.
    #[serde(default = "refills_per_window")]
    pub refills_per_window: u32,
}

/// Some tens of megabytes: a few milliseconds on a bus.
fn refills_per_window() -> u32 {
    16
}

impl Default for Policy {
    /// A margin of one use in 128 tokens lets chance swap little; two exchanges a token are some percent of a token's bytes.
    fn default() -> Policy {
        Policy { margin: 1.0 / 128.0, swaps_per_token: 2, refills_per_window: refills_per_window() }
    }
}

/// What the slots of a layer on its card serve: first experts that stay, then a ring for those that do not, then experts whose
/// slots prompts borrow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CardSlots {
    pub total: u32,
    pub ring: u32,
    pub lent: u32,
}

impl CardSlots {
    /// Slots without a ring and without a loan.
    pub fn all(total: u32) -> CardSlots {
        CardSlots { total, ..CardSlots::default() }
    }

    /// The slots whose experts stay.
    pub fn residents(&self) -> u32 {
        self.total.saturating_sub(self.ring).saturating_sub(self.lent)
    }

    pub fn ring_slots(&self) -> std::ops::Range<u32> {
        let first = self.residents();
        first..first + self.ring
    }

    pub fn lent_slots(&self) -> std::ops::Range<u32> {
        self.total - self.lent..self.total
    }
}

/// `incoming` (in RAM) takes the card's slot of `outgoing` (nobody's where a slot is free).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Swap {
    pub incoming: u32,
    pub outgoing: Option<u32>,
    pub slot: u32,
    /// Expected uses a token that move to the card.
    pub gain: f32,
}

/// A move of an expert into RAM: the slot, and who leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    pub slot: u32,
    pub evicted: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LayerResidency {
    pub card: Slots,
    pub ram: Slots,
    pub popularity: Popularity,
    pub slots: CardSlots,
}

impl LayerResidency {
    /// The most popular experts on the card, the next ones in RAM; of equals those with lower numbers. RAM that
    /// has room for all has every expert in the slot of its number. Slots that prompts borrow begin empty: the first one would
    /// take them anyway.
    pub fn new(popularity: Popularity, slots: CardSlots, ram_slots: u32) -> LayerResidency {
        let experts = popularity.experts();
        let mut order: Vec<u32> = (0..experts).collect();
        order.sort_by(|a, b| popularity.score(*b).total_cmp(&popularity.score(*a)).then(a.cmp(b)));
        let (mut card, mut ram) = (Slots::new(experts, slots.total), Slots::new(experts, ram_slots));
        for slot in slots.ring_slots().chain(slots.lent_slots()) {
            card.give_away(slot);
        }
        let (hot, rest) = order.split_at(slots.residents().min(experts) as usize);
        let put = |slots: &mut Slots, slot: u32, expert: u32| {
            let filling = slots.begin(slot, expert);
            slots.publish(filling);
        };
        for (slot, expert) in hot.iter().enumerate() {
            put(&mut card, slot as u32, *expert);
        }
        if ram_slots >= experts {
            (0..experts).for_each(|e| put(&mut ram, e, e));
        } else {
            // Where RAM has room for more than the rest, copies of the card's least popular experts fill it.
            let order = rest.iter().chain(hot.iter().rev());
            for (slot, expert) in order.take(ram_slots as usize).enumerate() {
                put(&mut ram, slot as u32, *expert);
            }
        }
        LayerResidency { card, ram, popularity, slots }
    }

    pub fn home(&self, expert: u32) -> Home {
        if self.card.holds(expert) {
            Home::Card
        } else if self.ram.holds(expert) {
            Home::Ram
        } else {
            Home::Disk
        }
    }

    /// Before a window of `rows` rows: the slots on which its buffers lie hold nobody from here on. How many experts left.
    pub fn lend(&mut self, loan: &Loan, program: usize, rows: u32, places: &LentSlots) -> u32 {
        let needed = self.slots.lent_slots().zip(0..).filter(|(_, nth)| loan.needs(program, rows, &places.bytes(*nth)));
        needed.map(|(slot, _)| u32::from(self.card.give_away(slot))).sum()
    }

    /// After a window that borrowed nothing: all slots may be filled.
    pub fn end_loan(&mut self) {
        self.slots.lent_slots().for_each(|slot| self.card.take_back(slot));
    }

    fn score(&self, expert: u32) -> f32 {
        self.popularity.score(expert)
    }

    /// The slot of RAM that an expert from disk takes: a free one, else that of an expert that is on the card as well, else of the
    /// least popular one. Slots that are being filled stay. `None` if all of them are.
    pub fn admission(&self) -> Option<Admission> {
        if let Some(slot) = self.ram.free() {
            return Some(Admission { slot, evicted: None });
        }
        let rank = |expert: u32| (!self.card.holds(expert), self.score(expert));
        let victim = self.ram.held().min_by(|(_, a), (_, b)| {
            let ((a_alone, a), (b_alone, b)) = (rank(*a), rank(*b));
            a_alone.cmp(&b_alone).then(a.total_cmp(&b))
        });
        victim.map(|(slot, expert)| Admission { slot, evicted: Some(expert) })
    }

    /// The expert of RAM that the card lacks and that is used most.
    fn hottest_elsewhere(&self) -> Option<(u32, f32)> {
        let elsewhere = (0..self.popularity.experts()).filter(|e| self.ram.holds(*e) && !self.card.holds(*e));
        elsewhere.fold(None, |best, e| better(best, (e, self.score(e)), 1.0))
    }

    /// Who takes a slot that came back from a loan.
    fn refill(&self) -> Option<Swap> {
        let slot = self.card.free()?;
        let (incoming, gain) = self.hottest_elsewhere()?;
        Some(Swap { incoming, outgoing: None, slot, gain })
    }

    /// The exchange that moves most use to the card, if one is worth it.
    pub fn best_swap(&self, policy: &Policy) -> Option<Swap> {
        let (incoming, hot) = self.hottest_elsewhere()?;
        if let Some(slot) = self.card.free() {
            return (hot > 0.0).then_some(Swap { incoming, outgoing: None, slot, gain: hot });
        }
        let (slot, cold) = self.card.held().fold(None, |best, (slot, e)| better(best, (slot, self.score(e)), -1.0))?;
        let gain = hot - cold;
        (gain > policy.margin).then(|| Swap { incoming, outgoing: self.card.expert_in(slot), slot, gain })
    }

    /// The bookkeeping of an exchange, begun and completed at once.
    pub fn apply(&mut self, swap: &Swap) {
        let ram_slot = self.ram.slot_of(swap.incoming);
        let filling = self.card.begin(swap.slot, swap.incoming);
        self.card.publish(filling);
        if let (Some(out), Some(slot)) = (swap.outgoing, ram_slot)
            && !self.ram.holds(out)
        {
            let filling = self.ram.begin(slot, out);
            self.ram.publish(filling);
        }
    }
}

fn better(best: Option<(u32, f32)>, (expert, score): (u32, f32), sign: f32) -> Option<(u32, f32)> {
    match best {
        Some((_, held)) if sign * score <= sign * held => best,
        _ => Some((expert, score)),
    }
}

/// Fills slots that came back from a loan, the most useful experts first, as many as the policy allows. As [`exchange`].
///
/// # Errors
/// The first of `perform`.
pub fn refill<E>(
    layers: &mut [LayerResidency],
    policy: &Policy,
    found: &mut Vec<(usize, Swap)>,
    perform: &mut dyn FnMut(usize, &mut LayerResidency, &Swap) -> Result<(), E>,
) -> Result<usize, E> {
    in_rounds(layers, policy.refills_per_window as usize, &LayerResidency::refill, found, perform)
}

/// Exchanges experts after a window of `rows` tokens, the most useful ones first and one a layer and round, as many as the policy
/// allows. `perform` copies the bytes, and calls [`LayerResidency::apply`] or [`Slots::begin`] and [`Slots::publish`]. `found` is
/// working memory. Returns how many there were.
///
/// # Errors
/// The first of `perform`.
pub fn exchange<E>(
    layers: &mut [LayerResidency],
    policy: &Policy,
    rows: usize,
    found: &mut Vec<(usize, Swap)>,
    perform: &mut dyn FnMut(usize, &mut LayerResidency, &Swap) -> Result<(), E>,
) -> Result<usize, E> {
    in_rounds(layers, policy.swaps_per_token as usize * rows, &|l| l.best_swap(policy), found, perform)
}

/// One move a layer and round, those with the most gain first, up to `most`.
fn in_rounds<E>(
    layers: &mut [LayerResidency],
    most: usize,
    find: &dyn Fn(&LayerResidency) -> Option<Swap>,
    found: &mut Vec<(usize, Swap)>,
    perform: &mut dyn FnMut(usize, &mut LayerResidency, &Swap) -> Result<(), E>,
) -> Result<usize, E> {
    let mut made = 0;
    while made < most {
        found.clear();
        found.extend(layers.iter().enumerate().filter_map(|(i, l)| Some((i, find(l)?))));
        found.sort_unstable_by(|(i, a), (j, b)| b.gain.total_cmp(&a.gain).then(i.cmp(j)));
        found.truncate(most - made);
        if found.is_empty() {
            break;
        }
        for (layer, swap) in found.iter() {
            perform(*layer, &mut layers[*layer], swap)?;
        }
        made += found.len();
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(_: usize, layer: &mut LayerResidency, swap: &Swap) -> Result<(), ()> {
        layer.apply(swap);
        Ok(())
    }

    fn layer(card: u32, ram: u32) -> LayerResidency {
        LayerResidency::new(Popularity::new(8), CardSlots::all(card), ram)
    }

    /// Every expert is somewhere, and the tables agree with the slots.
    fn assert_sound(l: &LayerResidency, everywhere: bool) {
        for slots in [&l.card, &l.ram] {
            assert_eq!(slots.held().count(), slots.table().iter().filter(|s| **s != crate::program::NO_SLOT).count());
            assert!(slots.held().all(|(slot, e)| slots.slot_of(e) == Some(slot)));
        }
        assert!(!everywhere || (0..8).all(|e| l.home(e) != Home::Disk));
    }

    #[test]
    fn a_start_without_a_profile_holds_the_first_and_one_with_a_profile_the_popular() {
        let plain = layer(2, 6);
        assert!(plain.card.holds(0) && plain.card.holds(1) && plain.ram.holds(2) && !plain.ram.holds(0));
        let popular = LayerResidency::new(Popularity::from_counts(&[0, 9, 0, 0, 0, 0, 7, 1], 20), CardSlots::all(2), 3);
        assert!(popular.card.holds(1) && popular.card.holds(6) && popular.home(7) == Home::Ram && popular.home(5) == Home::Disk);
        let full = layer(3, 8);
        assert!((0..8).all(|e| full.ram.slot_of(e) == Some(e)));
    }

    #[test]
    fn residency_follows_use_and_loses_nobody() {
        for ram in [8, 6] {
            let mut layers = vec![layer(2, ram)];
            let mut found = vec![];
            for _ in 0..200 {
                layers[0].popularity.observe(&[5, 7], 1);
                exchange(&mut layers, &Policy::default(), 1, &mut found, &mut apply).unwrap();
                assert_sound(&layers[0], true);
            }
            assert!(layers[0].card.holds(5) && layers[0].card.holds(7));
            // What is settled stays.
            layers[0].popularity.observe(&[5, 7], 1);
            assert_eq!(exchange(&mut layers, &Policy::default(), 1, &mut found, &mut apply), Ok(0));
        }
    }

    #[test]
    fn exchanges_are_bounded_and_the_best_come_first() {
        let mut layers = vec![layer(2, 8), layer(2, 8), layer(2, 8)];
        for (l, id) in layers.iter_mut().zip([3u32, 4, 5]) {
            (0..id).for_each(|_| l.popularity.observe(&[id], 1));
        }
        let mut order = vec![];
        let mut perform = |i: usize, l: &mut LayerResidency, swap: &Swap| {
            order.push(i);
            apply(i, l, swap)
        };
        let policy = Policy { margin: 0.0, ..Policy::default() };
        assert_eq!(exchange(&mut layers, &policy, 1, &mut vec![], &mut perform), Ok(2));
        assert_eq!(order, [2, 1]);
        let none = Policy { margin: 0.0, swaps_per_token: 0, ..Policy::default() };
        assert_eq!(exchange(&mut layers, &none, 100, &mut vec![], &mut apply), Ok(0));
        let shy = Policy { margin: 1.0, swaps_per_token: 9, ..Policy::default() };
        assert_eq!(exchange(&mut layers, &shy, 100, &mut vec![], &mut apply), Ok(0));
    }

    #[test]
    fn ram_gives_up_copies_first_then_the_least_popular_and_nobody_who_arrives() {
        let mut l = layer(2, 4);
        assert_eq!((l.home(0), l.home(5), l.home(6)), (Home::Card, Home::Ram, Home::Disk));
        l.popularity.observe(&[2, 3, 5], 1);
        let slot = |l: &LayerResidency, e| l.ram.slot_of(e).unwrap();
        assert_eq!(l.admission(), Some(Admission { slot: slot(&l, 4), evicted: Some(4) }));
        let filling = l.ram.begin(slot(&l, 5), 0);
        l.ram.publish(filling);
        assert_eq!(l.admission().unwrap().evicted, Some(0), "it is on the card as well");
        for expert in [1, 5, 6, 7] {
            let slot = l.admission().unwrap().slot;
            let _ = l.ram.begin(slot, expert);
        }
        assert_eq!(l.admission(), None);
    }
}
