//! Products that do not depend on one another, joined to one launch: a device that pays for every launch pays once for the matrices
//! that read one input. Their workgroups follow one another in x, and each finds its arguments among those of all parts.

use std::ops::Range;

use super::args::NONE;
use super::kernels::{Kernel, Operand};
use super::launch::{Extent, Launch, Lowered, Region, Window};
use super::target::Target;

/// Most launches that are joined to one: there is code for every number.
pub const MAX_PARTS: usize = 8;

/// Arguments that count from the beginning of a window: operand, bytes of a unit, names.
const PLACES: [(Operand, u64, &[&str]); 3] = [
    (Operand::W0, 1, &["w0_at_bytes"]),
    (Operand::W1, 1, &["w1_at_bytes"]),
    (Operand::W2, 4, &["scale_at", "up_scale_at", "bias_at", "a_at", "dt_at"]),
];

/// One launch for several: windows that all of them see, and the sum of their grids.
#[derive(Debug, Clone, PartialEq)]
pub struct Joined {
    /// With the arguments of the first.
    pub launch: Launch,
    /// Words of the arguments of each.
    pub parts: Vec<Vec<u32>>,
}

/// A program's launches, joined where they can be, and which of them belong to each step.
#[derive(Debug, Clone, PartialEq)]
pub struct JoinedLaunches {
    pub launches: Vec<Joined>,
    pub steps: Vec<Range<usize>>,
}

/// Joins neighbouring launches of a step.
pub fn join(lowered: &Lowered, target: &Target) -> JoinedLaunches {
    let (mut launches, mut steps): (Vec<Joined>, Vec<Range<usize>>) = (vec![], vec![]);
    for step in &lowered.steps {
        let first = launches.len();
        for launch in &lowered.launches[step.clone()] {
            let before = if launches.len() > first { launches.last_mut() } else { None };
            match before.and_then(|before| Some((before.with(launch, target)?, before))) {
                Some((joined, before)) => *before = joined,
                None => launches.push(Joined { launch: launch.clone(), parts: vec![launch.args.words().to_vec()] }),
            }
        }
        steps.push(first..launches.len());
    }
    JoinedLaunches { launches, steps }
}

fn window_index(operand: Operand) -> usize {
    // The run block has no window.
    Operand::ALL.iter().position(|o| *o == operand).unwrap_or(0).saturating_sub(1)
}

/// A window over both, in one buffer and not too large to be seen.
fn both(a: Option<Window>, b: Option<Window>, target: &Target) -> Option<Option<Window>> {
    let (Some(a), Some(b)) = (a, b) else { return Some(a.or(b)) };
    let start = a.offset_bytes.min(b.offset_bytes);
    let end = (a.offset_bytes + a.len_bytes).max(b.offset_bytes + b.len_bytes);
    let overlap = if a.region == Region::Weights { target.cut_overlap_bytes } else { 0 };
    let visible = (start / target.cut_bytes).saturating_add(1).saturating_mul(target.cut_bytes).saturating_add(overlap);
    let fits = a.region == b.region && end <= visible && end - start <= target.max_binding_bytes;
    fits.then_some(Some(Window { region: a.region, offset_bytes: start, len_bytes: end - start }))
}

impl Joined {
    fn place(&self, name: &str) -> Option<usize> {
        self.launch.args.layout().fields.iter().position(|field| field.name == name)
    }

    /// Columns that a part writes; nothing where others may wait for them or where it waits itself.
    fn outputs(&self, words: &[u32]) -> Option<Range<u32>> {
        let word = |name| self.place(name).map(|i| words[i]);
        let independent = word("out_in_scratch")? == 0 && word("up_at")? == NONE;
        let first = word("out_at")?;
        independent.then_some(first..first.checked_add(word("outs")?)?)
    }

    /// The same with one more launch at the end, if it can be joined.
    fn with(&self, next: &Launch, target: &Target) -> Option<Joined> {
        let launch = &self.launch;
        let code = |l: &Launch| (l.kernel, l.format, l.cache, l.gated, l.batched, l.grid[1], l.grid[2]);
        let products = matches!(launch.kernel, Kernel::MatVec | Kernel::MatMul);
        if !products || code(launch) != code(next) || self.parts.len() == MAX_PARTS {
            return None;
        }
        let (Extent::Fixed(here), Extent::Fixed(more)) = (launch.grid[0], next.grid[0]) else { return None };
        let groups = here.checked_add(more).filter(|groups| *groups <= target.max_groups_x)?;
        let theirs = self.outputs(next.args.words())?;
        for part in &self.parts {
            let ours = self.outputs(part)?;
            if ours.start < theirs.end && theirs.start < ours.end {
                return None;
            }
        }
        let mut joined = self.clone();
        joined.launch.grid[0] = Extent::Fixed(groups);
        let mut last = next.args.words().to_vec();
        for (i, window) in joined.launch.windows.iter_mut().enumerate() {
            let shared = PLACES.iter().find(|(operand, _, _)| window_index(*operand) == i);
            let (old, new) = (*window, next.windows[i]);
            let Some((_, unit, names)) = shared else {
                if old != new {
                    return None;
                }
                continue;
            };
            *window = both(old, new, target)?;
            let start = window.map_or(0, |w| w.offset_bytes);
            let shift = |w: Option<Window>| w.map_or(0, |w| (w.offset_bytes - start) / unit);
            for place in names.iter().filter_map(|name| self.place(name)) {
                joined.parts.iter_mut().try_for_each(|part| move_by(&mut part[place], shift(old)))?;
                move_by(&mut last[place], shift(new))?;
            }
        }
        joined.parts.push(last);
        Some(joined)
    }
}

fn move_by(place: &mut u32, units: u64) -> Option<()> {
    if *place != NONE {
        let moved = u64::from(*place) + units;
        *place = u32::try_from(moved).ok().filter(|moved| *moved != NONE)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::gpu::{Activations, Room, Tiles};

    /// Sees everything.
    const WHOLE: Target = Target {
        max_binding_bytes: u64::MAX,
        cut_bytes: u64::MAX,
        cut_overlap_bytes: 0,
        max_groups_x: u32::MAX,
        max_groups_yz: u32::MAX,
        activations: Activations::Float,
        caches: &[],
        tiles: Tiles {
            vector_outs: 1,
            matrix_outs: 1,
            matrix_rows: 1,
            attention_splits: 1,
            delta_channels: 1,
            delta_chunk_channels: 0,
        },
        room: Room { head_dim: 0, delta_keys: 0, delta_chunk_keys: 0, index_keys: 0, experts: 0 },
    };

    fn window(region: Region, offset_bytes: u64, len_bytes: u64) -> Option<Window> {
        Some(Window { region, offset_bytes, len_bytes })
    }

    #[test]
    fn windows_are_joined_where_a_kernel_sees_both() {
        let whole = WHOLE;
        let (a, b) = (window(Region::Weights, 256, 100), window(Region::Weights, 1024, 512));
        assert_eq!(both(a, b, &whole), Some(window(Region::Weights, 256, 1280)));
        assert_eq!(both(None, b, &whole), Some(b));
        assert_eq!(both(a, window(Region::State, 1024, 512), &whole), None);
        assert_eq!(both(a, b, &Target { max_binding_bytes: 1024, ..whole }), None, "too large");
        assert_eq!(both(a, b, &Target { cut_bytes: 1024, ..whole }), None, "in two buffers");
        assert_eq!(
            both(a, b, &Target { cut_bytes: 1024, cut_overlap_bytes: 512, ..whole }),
            Some(window(Region::Weights, 256, 1280))
        );
    }

    #[test]
    fn places_move_with_their_window_and_absent_ones_stay() {
        let mut place = 7;
        assert_eq!((move_by(&mut place, 3), place), (Some(()), 10));
        let mut absent = NONE;
        assert_eq!((move_by(&mut absent, 3), absent), (Some(()), NONE));
        assert_eq!(move_by(&mut 7, u64::from(NONE)), None);
    }
}
