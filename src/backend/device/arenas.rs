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
    work: DeviceMemory,
}

impl Arenas {
    /// # Errors
    /// The arena that the driver refused.
    pub fn open(context: &Arc<Context>, sizes: ArenaSizes) -> Result<Arenas, (ArenaKind, DriverError)> {
        let take = |arena| DeviceMemory::new(context, sizes.get(arena)).map_err(|error| (arena, error));
        let (weights, state, work) = (take(ArenaKind::Weights)?, take(ArenaKind::State)?, take(ArenaKind::Work)?);
        Ok(Arenas { sizes, weights, state, work })
    }

    fn memory(&self, arena: ArenaKind) -> &DeviceMemory {
        match arena {
            ArenaKind::Weights => &self.weights,
            ArenaKind::State => &self.state,
            ArenaKind::Work => &self.work,
        }
    }

    pub fn piece(&self, arena: ArenaKind, offset_bytes: u64, len_bytes: u64) -> Option<DevicePiece> {
        self.memory(arena).piece(offset_bytes, len_bytes)
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
        Region::Weights => arenas.weights.address(),
        Region::State => arenas.state.address(),
        Region::Work => arenas.work.address(),
        Region::Scratch => scratch.memory.address(),
    }
}
