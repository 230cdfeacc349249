//! A card whose free memory is still rising belongs to a process that is ending: it is waited for, with a message and a
//! limit. When to go on is a pure function of the readings.

use std::time::Duration;

use super::Audience;
use crate::plan::{BackendKind, Card, Limits, Machine, Size, held_bytes};
use crate::units::HumanBytes;

/// Free memory of a card at a time since the first reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub at: Duration,
    pub free_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettlePolicy {
    /// Time between two readings.
    pub step: Duration,
    /// A card that has not risen for so long has settled.
    pub still: Duration,
    /// The longest wait.
    pub limit: Duration,
    /// Less is noise: desktops take and give a little all the time.
    pub rise_bytes: u64,
}

impl Default for SettlePolicy {
    /// A driver gives gigabytes back within a second or two of a process's end; a page-locked process can take longer.
    fn default() -> SettlePolicy {
        SettlePolicy {
            step: Duration::from_millis(250),
            still: Duration::from_millis(1500),
            limit: Duration::from_secs(30),
            rise_bytes: 16 << 20,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Wait,
    Settled,
    /// It still rises, but the limit is reached: go on with what is free.
    OutOfTime,
}

/// Whether to go on, given the readings so far in order.
pub fn judge(readings: &[Reading], policy: &SettlePolicy) -> Verdict {
    let (Some(first), Some(now)) = (readings.first(), readings.last()) else { return Verdict::Wait };
    let mut risen = *first;
    for reading in readings {
        if reading.free_bytes >= risen.free_bytes.saturating_add(policy.rise_bytes) {
            risen = *reading;
        }
    }
    if now.at.saturating_sub(risen.at) >= policy.still {
        Verdict::Settled
    } else if now.at.saturating_sub(first.at) >= policy.limit {
        Verdict::OutOfTime
    } else {
        Verdict::Wait
    }
}

/// The drivers' side: what is free now, and the passing of time.
pub trait CardReader {
    /// `None` where nothing can be read.
    fn free_bytes(&mut self, card: &Card) -> Option<u64>;
    fn pause(&mut self, time: Duration);
}

/// Waits for cards of which other programs hold much, while they still give memory back; writes what is free in the end into
/// the machine.
pub fn wait_for_cards(
    machine: &mut Machine,
    limits: &Limits,
    policy: &SettlePolicy,
    reader: &mut dyn CardReader,
    audience: &mut dyn Audience,
) {
    let wanted = |card: &Card| limits.devices.as_ref().is_none_or(|ids| ids.contains(&card.id));
    let held = |card: &&mut Card| card.backend != BackendKind::Cpu && wanted(card) && held_bytes(card) > 0;
    for card in machine.cards.iter_mut().filter(held) {
        wait_for_card(card, policy, reader, audience);
    }
}

fn wait_for_card(card: &mut Card, policy: &SettlePolicy, reader: &mut dyn CardReader, audience: &mut dyn Audience) {
    let mut readings = Vec::new();
    let mut at = Duration::ZERO;
    let mut told = false;
    while let Some(free_bytes) = reader.free_bytes(card) {
        card.free = Size(free_bytes.min(card.total.0));
        readings.push(Reading { at, free_bytes });
        let verdict = judge(&readings, policy);
        let risen = readings.first().is_some_and(|first| free_bytes >= first.free_bytes.saturating_add(policy.rise_bytes));
        if risen && !told && verdict == Verdict::Wait {
            audience.waiting(&format!(
                "{} is being given back ({} free of {} so far); waiting for it, at most {} s",
                card.id,
                HumanBytes(free_bytes),
                HumanBytes(card.total.0),
                policy.limit.as_secs()
            ));
            told = true;
        }
        if verdict == Verdict::OutOfTime {
            audience.waiting(&format!(
                "{} still changes after {} s; going on with what is free",
                card.id,
                policy.limit.as_secs()
            ));
        }
        if verdict != Verdict::Wait || held_bytes(card) == 0 {
            return;
        }
        reader.pause(policy.step);
        at += policy.step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn readings(free_mib: &[u64]) -> Vec<Reading> {
        let at = |i: usize| SettlePolicy::default().step * i as u32;
        free_mib.iter().enumerate().map(|(i, mib)| Reading { at: at(i), free_bytes: mib * MIB }).collect()
    }

    #[test]
    fn verdicts_follow_the_readings() {
        let policy = SettlePolicy::default();
        let verdict = |free: &[u64]| judge(&readings(free), &policy);
        assert_eq!(verdict(&[]), Verdict::Wait);
        assert_eq!(verdict(&[2000; 6]), Verdict::Wait);
        assert_eq!(verdict(&[2000; 7]), Verdict::Settled);
        // Each rise begins the wait anew; noise does not.
        assert_eq!(verdict(&[2000, 2000, 2000, 2000, 2000, 9000, 9000, 9000]), Verdict::Wait);
        assert_eq!(verdict(&[2000, 9000, 9001, 9000, 8999, 9003, 9010, 9000]), Verdict::Settled);
        // Slow rises add up to one.
        assert_eq!(verdict(&[2000, 2005, 2010, 2015, 2020, 2025, 2030, 2035]), Verdict::Wait);
        // A card that only falls is not waited for longer than any other.
        assert_eq!(verdict(&[9000, 8000, 7000, 6000, 5000, 4000, 3000]), Verdict::Settled);
        let rising: Vec<u64> = (0..=120).map(|i| 1000 + 20 * i).collect();
        assert_eq!(verdict(&rising[..120]), Verdict::Wait);
        assert_eq!(verdict(&rising), Verdict::OutOfTime);
    }

    struct Fake {
        free_mib: Vec<u64>,
        pauses: usize,
    }

    impl CardReader for Fake {
        fn free_bytes(&mut self, _card: &Card) -> Option<u64> {
            let last = self.free_mib.len().checked_sub(1)?;
            Some(self.free_mib[self.pauses.min(last)] * MIB)
        }

        fn pause(&mut self, _time: Duration) {
            self.pauses += 1;
        }
    }

    #[derive(Default)]
    struct Heard(Vec<String>);

    impl Audience for Heard {
        fn waiting(&mut self, message: &str) {
            self.0.push(message.to_owned());
        }
    }

    fn machine(free_mib: u64) -> Machine {
        let text = include_str!("../../tests/machines/linux-rtx3090-24g-128g.toml");
        let mut machine = Machine::from_toml(text).unwrap();
        machine.cards[0].free = Size(free_mib * MIB);
        machine
    }

    fn wait(machine: &mut Machine, limits: &Limits, free_mib: Vec<u64>) -> (usize, Vec<String>) {
        let (mut fake, mut heard) = (Fake { free_mib, pauses: 0 }, Heard::default());
        wait_for_cards(machine, limits, &SettlePolicy::default(), &mut fake, &mut heard);
        (fake.pauses, heard.0)
    }

    #[test]
    fn a_dying_process_is_waited_for() {
        let mut pc = machine(2048);
        let total = pc.cards[0].total.0 / MIB;
        let (pauses, heard) = wait(&mut pc, &Limits::default(), vec![2048, 2048, 6000, 12000, total]);
        assert_eq!(pauses, 4, "an empty card is not waited for any longer");
        assert_eq!(heard.len(), 1);
        assert!(heard[0].contains(&pc.cards[0].id) && heard[0].contains("30 s"), "{heard:?}");
        assert_eq!(pc.cards[0].free.0 / MIB, total);
    }

    #[test]
    fn a_card_that_is_held_for_good_costs_a_moment_and_no_message() {
        let mut pc = machine(2048);
        assert_eq!(wait(&mut pc, &Limits::default(), vec![2048]), (6, vec![]));
        // An empty card, or one that is not wanted, is not even read.
        let mut pc = machine(24_000);
        assert_eq!(wait(&mut pc, &Limits::default(), vec![24_000]), (0, vec![]));
        let other = Limits { devices: Some(vec!["cpu".into()]), ..Limits::default() };
        assert_eq!(wait(&mut machine(2048), &other, vec![2048, 9000]), (0, vec![]));
        // Nothing can be read.
        assert_eq!(wait(&mut machine(2048), &Limits::default(), vec![]), (0, vec![]));
    }

    #[test]
    fn the_wait_has_a_limit() {
        let mut pc = machine(100);
        let (pauses, heard) = wait(&mut pc, &Limits::default(), (0..1000).map(|i| 100 + 20 * i).collect());
        assert_eq!(pauses, 120);
        assert_eq!(heard.len(), 2);
        assert!(heard[1].contains("still changes"), "{heard:?}");
    }
}
