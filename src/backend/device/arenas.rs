//! A card's memory in use: the three arenas of its stage, and scratch.

use std::sync::Arc;

use super::{Context, DeviceAddress, DeviceMemory, DevicePiece, DriverError};
use crate::backend::ArenaSizes;
use crate::backend::gpu::{Lowered, Region};
use crate::program::{ARENA_ALIGN_BYTES, ArenaKind, align_up};

#[derive(Debug)]
pub struct Arenas {
    pub sizes: ArenaSizes,
    weights: DeviceMemory,
    state: DeviceMemory,
    /// `None`: work begins before the end of the weights, and is one piece with them.
    work: Option<DeviceMemory>,
}

impl Arenas {
    /// # Errors
    /// The arena that the driver refused.
    pub fn open(context: &Arc<Context>, sizes: ArenaSizes) -> Result<Arenas, (ArenaKind, DriverError)> {
        let take = |arena, bytes| DeviceMemory::new(context, bytes).map_err(|error| (arena, error));
        let apart = sizes.lent_bytes == 0;
        let behind = if apart { 0 } else { sizes.own_work_bytes() };
        let weights = take(ArenaKind::Weights, sizes.weights_bytes.saturating_add(behind))?;
        let state = take(ArenaKind::State, sizes.state_bytes)?;
        let work = if apart { Some(take(ArenaKind::Work, sizes.work_bytes)?) } else { None };
        Ok(Arenas { sizes, weights, state, work })
    }

    /// The memory of an arena, and where in it the arena begins.
    fn memory(&self, arena: ArenaKind) -> (&DeviceMemory, u64) {
        match (arena, &self.work) {
            (ArenaKind::Weights, _) => (&self.weights, 0),
            (ArenaKind::State, _) => (&self.state, 0),
            (ArenaKind::Work, Some(work)) => (work, 0),
            (ArenaKind::Work, None) => (&self.weights, self.sizes.work_from_bytes()),
        }
    }

    pub fn piece(&self, arena: ArenaKind, offset_bytes: u64, len_bytes: u64) -> Option<DevicePiece> {
        offset_bytes.checked_add(len_bytes).filter(|end| *end <= self.sizes.get(arena))?;
        let (memory, from) = self.memory(arena);
        memory.piece(from + offset_bytes, len_bytes)
    }

    fn address(&self, arena: ArenaKind) -> DeviceAddress {
        let (memory, from) = self.memory(arena);
        memory.address().plus(from)
    }
}

/// How the programs of a stage share their scratch: the run block lies behind what the hungriest of them needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScratchLayout {
    block_at_bytes: u64,
    pub total_bytes: u64,
}

impl ScratchLayout {
    pub fn of(programs: &[Lowered]) -> ScratchLayout {
        let most = |bytes: fn(&Lowered) -> u64| align_up(programs.iter().map(bytes).max().unwrap_or(0), ARENA_ALIGN_BYTES);
        let block_at_bytes = most(|p| p.scratch_bytes);
        ScratchLayout { block_at_bytes, total_bytes: block_at_bytes + most(|p| p.run.bytes()) }
    }
}

/// Scratch of a stage's programs, and the run block.
#[derive(Debug)]
pub struct Scratch {
    memory: DeviceMemory,
}

impl Scratch {
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<Scratch, DriverError> {
        Ok(Scratch { memory: DeviceMemory::new(context, bytes)? })
    }

    pub fn holds(&self, layout: ScratchLayout) -> bool {
        layout.total_bytes <= self.memory.bytes()
    }

    pub fn size_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// The first bytes of the run block.
    pub fn block(&self, layout: ScratchLayout, len_bytes: u64) -> Option<DevicePiece> {
        self.memory.piece(layout.block_at_bytes, len_bytes)
    }

    pub fn block_address(&self, layout: ScratchLayout) -> DeviceAddress {
        self.memory.address().plus(layout.block_at_bytes)
    }
}

/// Where a region of a program begins.
pub fn region(arenas: &Arenas, scratch: &Scratch, region: Region) -> DeviceAddress {
    match region {
        Region::Weights => arenas.address(ArenaKind::Weights),
        Region::State => arenas.address(ArenaKind::State),
        Region::Work => arenas.address(ArenaKind::Work),
        Region::Scratch => scratch.memory.address(),
    }
}
