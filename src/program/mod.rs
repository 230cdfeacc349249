//! Work as plain data. A model family writes a [`Stage`]: the weights and the state of a range of layers, and one
//! [`Program`] per shape class (decode window, prompt chunk). A backend only executes programs; it knows no model.
//! Programs can be printed, checked, packed, compared step by step between backends, and replayed.

mod builder;
mod check;
mod decl;
mod op;
mod pack;
mod print;
mod traffic;

pub use builder::{MatrixSpec, ProgramBuilder, SlotRoom, StageBuilder};
pub use check::{CheckError, check_program, check_stage};
pub use decl::{
    ArenaKind, BufferDecl, BufferId, Element, InputKind, KvFormat, NO_SLOT, OutputKind, Program, Rope, RopeId, RopePairing, Rows,
    ShapeClass, Slice, Stage, StateDecl, StateId, StateKind, WeightDecl, WeightId,
};
pub use op::{Epilogue, ExpertMatrix, GateActivation, Heads, MatMulPart, Op, PartWeights, RouterScore, Step, View};
pub use pack::{ARENA_ALIGN_BYTES, PackReport, Piece, align_up, pack, pack_buffers};
pub use traffic::{RowTraffic, decode_row_bytes, decode_row_traffic};

use crate::units::TokenId;

/// One row of a window: which sequence it belongs to and where it stands. Shared by every backend, so it is plain data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Row {
    /// The sequence's slot in the state arena.
    pub slot: u32,
    /// Index of the token in its sequence, counted from 0. Numbers KV cells and indexer blocks.
    pub index: u32,
    /// Rotary position (time, height, width). Text has all three equal; they leave `index` behind after an image.
    pub position: [u32; 3],
    /// Version of the recurrent state this row reads ...
    pub state_read: u32,
    /// ... and the one it leaves behind. Equal versions update in place.
    pub state_write: u32,
    /// Token of this row, for reports and checks. Embedding rows arrive as inputs.
    pub token: u32,
}

impl Row {
    /// A text row that updates recurrent state in place.
    pub fn text(slot: u32, index: u32, token: TokenId) -> Row {
        Row { slot, index, position: [index; 3], state_read: 0, state_write: 0, token: token.0 }
    }
}

/// What changes from run to run. Rows of one slot are consecutive and in order.
#[derive(Debug, Clone, Copy)]
pub struct RunParams<'a> {
    pub rows: &'a [Row],
    /// Rows (indices into `rows`) whose logits are wanted.
    pub outputs: &'a [u32],
    /// Tokens before the rows whose position is not that of the slot's first row less their distance: those of a picture.
    pub earlier: &'a [Earlier],
}

/// Where a token stands that earlier windows have read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Earlier {
    pub slot: u32,
    pub index: u32,
    pub position: [u32; 3],
}

/// Most tokens of a block of [`StateKind::IndexKeys`]: the first of a block that a window completes is that near.
pub const MAX_BLOCK_TOKENS: u32 = 64;
