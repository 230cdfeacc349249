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

/// Scratch that the programs of a stage share, and behind it the run block.
#[derive(Debug)]
pub struct Scratch {
    memory: DeviceMemory,
    block_at_bytes: u64,
}

impl Scratch {
    /// Bytes that all these programs need.
    pub fn bytes(programs: &[Lowered]) -> u64 {
        let block = programs.iter().map(|p| p.run.bytes()).max().unwrap_or(0);
        Scratch::block_at_bytes(programs) + align_up(block, ARENA_ALIGN_BYTES)
    }

    fn block_at_bytes(programs: &[Lowered]) -> u64 {
        align_up(programs.iter().map(|p| p.scratch_bytes).max().unwrap_or(0), ARENA_ALIGN_BYTES)
    }

    pub fn new(context: &Arc<Context>, programs: &[Lowered]) -> Result<Scratch, DriverError> {
        let memory = DeviceMemory::new(context, Scratch::bytes(programs))?;
        Ok(Scratch { memory, block_at_bytes: Scratch::block_at_bytes(programs) })
    }

    /// Whether the programs fit.
    pub fn holds(&self, programs: &[Lowered]) -> bool {
        let block = programs.iter().map(|p| p.run.bytes()).max().unwrap_or(0);
        Scratch::block_at_bytes(programs) <= self.block_at_bytes && self.block_at_bytes + block <= self.memory.bytes()
    }

    pub fn size_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    pub fn piece(&self, offset_bytes: u64, len_bytes: u64) -> Option<DevicePiece> {
        self.memory.piece(offset_bytes, len_bytes)
    }

    /// The first bytes of the run block.
    pub fn block(&self, len_bytes: u64) -> Option<DevicePiece> {
        self.memory.piece(self.block_at_bytes, len_bytes)
    }

    pub fn block_address(&self) -> DeviceAddress {
        self.memory.address().plus(self.block_at_bytes)
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
