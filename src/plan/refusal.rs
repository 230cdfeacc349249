//! A refusal says which pool is short of how many bytes, which rows are largest, and what would help (`remedy.rs`).

use std::fmt;

use serde::Serialize;

use super::remedy::Remedy;
use super::rows::{Pool, PoolSheet, Row};
use super::rules::Assumption;
use super::size::{grouped, human};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefusalKind {
    /// The request contradicts itself, the model or the machine: whoever asked can mend it.
    Invalid,
    /// No device of the machine can run anything.
    NoDevice,
    DoesNotFit,
    /// A card would have to be left out because other programs hold its memory.
    CardHeld,
}

/// A card whose free memory is far below its total.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldCard {
    pub card: String,
    pub name: String,
    pub total: u64,
    pub free: u64,
    /// Bytes beyond what a driver, a desktop and a small program take.
    pub held: u64,
}

impl fmt::Display for HeldCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.total - self.free;
        write!(
            f,
            "{} ({}) has only {} free of {}: other programs hold {} ({} bytes)",
            self.card,
            self.name,
            human(self.free),
            human(self.total),
            human(used),
            grouped(used)
        )
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub message: String,
    /// Pools that are short.
    pub short: Vec<PoolSheet>,
    /// The largest rows of these pools.
    pub largest: Vec<Row>,
    pub held: Vec<HeldCard>,
    /// The largest context that fits as things are; `None` if none does (or if the context is not the question).
    pub largest_context: Option<u32>,
    /// The same without the held cards, where there are any.
    pub largest_context_without_held: Option<u32>,
    pub remedies: Vec<Remedy>,
    pub assumptions: Vec<Assumption>,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::report::render_refusal(self))
    }
}

const LARGEST_ROWS: usize = 5;

impl Refusal {
    pub fn invalid(message: String) -> Refusal {
        Refusal {
            kind: RefusalKind::Invalid,
            message,
            short: vec![],
            largest: vec![],
            held: vec![],
            largest_context: None,
            largest_context_without_held: None,
            remedies: vec![],
            assumptions: vec![],
        }
    }

    pub fn no_device(message: String) -> Refusal {
        Refusal { kind: RefusalKind::NoDevice, ..Refusal::invalid(message) }
    }

    pub fn held(held: Vec<HeldCard>) -> Refusal {
        let cards = held.iter().map(|h| h.card.as_str()).collect::<Vec<_>>().join(", ");
        let message = format!("{cards}: held by other programs; a plan as things are would be slower for it");
        Refusal { kind: RefusalKind::CardHeld, held, ..Refusal::invalid(message) }
    }

    pub fn does_not_fit(
        rows: Vec<Row>,
        pools: Vec<PoolSheet>,
        held: Vec<HeldCard>,
        assumptions: &[Assumption],
        layout: String,
    ) -> Refusal {
        let short: Vec<PoolSheet> = pools.into_iter().filter(|p| p.short > 0).collect();
        let counts = |row: &Row| short.iter().any(|p| charges(p.pool, row.pool));
        let mut largest: Vec<Row> = rows.into_iter().filter(|r| counts(r)).collect();
        largest.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.id.cmp(&b.id)));
        largest.truncate(LARGEST_ROWS);
        let what = short.iter().map(|p| format!("{} is {} bytes short", p.name, grouped(p.short))).collect::<Vec<_>>().join(", ");
        let is_held = |p: &PoolSheet| held.iter().any(|h| p.name == h.card || p.name.starts_with(&format!("{} ", h.card)));
        let held_kind = short.iter().any(is_held);
        Refusal {
            kind: if held_kind { RefusalKind::CardHeld } else { RefusalKind::DoesNotFit },
            short,
            largest,
            held,
            assumptions: assumptions.to_vec(),
            ..Refusal::invalid(format!("it does not fit ({layout} comes closest): {what}"))
        }
    }
}

/// Whether rows of pool `row` count in pool `sheet`.
fn charges(sheet: Pool, row: Pool) -> bool {
    match sheet {
        Pool::Ram => matches!(row, Pool::Ram | Pool::Pinned),
        Pool::Commit => matches!(row, Pool::Ram | Pool::Pinned | Pool::Card(_)),
        other => other == row,
    }
}
