//! What every range of layers costs on every kind of card, for one chunk.

use crate::plan::context::Context;
use crate::plan::limits::LayerRange;
use crate::plan::stage::{self, PinnedShare, StageOption};

use super::groups::Groups;

/// The numbers of a stage that the search needs.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub decode_s: f64,
    pub prompt_s: [f64; 2],
    pub short: u64,
    pub headroom: u64,
    pub held: u64,
    pub held_bytes: u64,
    pub packed: u64,
    pub all_held: bool,
}

impl Entry {
    fn of(option: &StageOption) -> Entry {
        Entry {
            decode_s: option.times.decode_s,
            prompt_s: option.times.prompt_s,
            short: option.short_bytes,
            headroom: option.headroom,
            held: option.held.iter().map(|n| u64::from(*n)).sum(),
            held_bytes: option.kept_bytes,
            packed: option.bytes.packed(),
            all_held: option.all_held,
        }
    }
}

/// A range that no layout may have.
const BARRED: Entry = Entry {
    decode_s: f64::INFINITY,
    prompt_s: [f64::INFINITY; 2],
    short: Table::BARRED_BYTES,
    headroom: 0,
    held: 0,
    held_bytes: 0,
    packed: 0,
    all_held: false,
};

pub struct Table {
    pub layers: usize,
    pub chunk: u32,
    /// A list for each group of equal cards.
    groups: Vec<Vec<Entry>>,
}

impl Table {
    /// More bytes than any stage can be short of.
    pub const BARRED_BYTES: u64 = 1 << 62;

    /// A longer range needs more, so once one does not fit, the longer ones are only looked at if `all_numbers` of them matter.
    pub fn new(ctx: &Context<'_>, groups: &Groups, chunk: u32, pinned: PinnedShare, all_numbers: bool) -> Table {
        let layers = ctx.layers();
        let cards = groups.cards();
        let of_group = |g: usize| {
            let card = groups.members[g][0];
            let mut entries = Vec::with_capacity(layers * (layers + 1) / 2);
            for start in 0..layers {
                let mut too_long = false;
                for end in start + 1..=layers {
                    let range = LayerRange { start: start as u32, end: end as u32 };
                    if too_long || !can_occur(ctx, cards, range) {
                        entries.push(BARRED);
                        continue;
                    }
                    let entry = Entry::of(&stage::evaluate(ctx, card, range, chunk, pinned));
                    too_long = !all_numbers && entry.short > 0 && ctx.limits.scratch.is_none();
                    entries.push(entry);
                }
            }
            entries
        };
        Table { layers, chunk, groups: (0..groups.len()).map(of_group).collect() }
    }

    pub fn get(&self, group: usize, start: usize, end: usize) -> &Entry {
        // Ranges that begin before `start`: layers + (layers - 1) + ...
        let before = start * self.layers - start * start.saturating_sub(1) / 2;
        &self.groups[group][before + end - start - 1]
    }

    /// Whether a card of the group has room for any range.
    pub fn is_of_use(&self, group: usize) -> bool {
        self.groups[group].iter().any(|entry| entry.short == 0)
    }
}

/// With an explicit split only its ranges occur, with one card only the whole model, with two nothing that lies in the middle.
fn can_occur(ctx: &Context<'_>, cards: usize, range: LayerRange) -> bool {
    let (first, last) = (range.start == 0, range.end as usize == ctx.layers());
    match &ctx.limits.layer_split {
        Some(split) => split.contains(&range),
        None => match cards {
            0 | 1 => first && last,
            2 => first || last,
            _ => true,
        },
    }
}
