//! Conversations that lie in RAM while others use their slots.

use super::{Engine, EngineError};
use crate::state::{Checkpoint, Sequence};
use crate::units::TokenId;

/// Everything that a sequence held, its slot apart.
#[derive(Debug)]
pub struct Parked {
    tokens: Vec<TokenId>,
    checkpoints: Vec<Checkpoint>,
    /// One buffer a stage.
    stages: Vec<Vec<u8>>,
}

impl Parked {
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    pub fn bytes(&self) -> usize {
        let checkpoints: usize = self.checkpoints.iter().map(Checkpoint::bytes).sum();
        self.stages.iter().map(Vec::len).sum::<usize>() + checkpoints + size_of_val(self.tokens.as_slice())
    }

    /// The longest prefix of at most `length` tokens that would need no computing once unparked.
    pub fn restorable(&self, length: usize, recurrent: bool) -> usize {
        match length.min(self.tokens.len()) {
            whole if whole == self.tokens.len() || !recurrent => whole,
            shorter => self.checkpoints.iter().map(|c| c.length).filter(|l| *l <= shorter).max().unwrap_or(0),
        }
    }
}

impl Engine {
    /// Bytes that parking the sequence would take.
    pub fn parked_bytes(&self, sequence: &Sequence) -> usize {
        let state: u64 = self.pipeline.held_bytes(sequence.len());
        let checkpoints: usize = sequence.checkpoints().iter().map(Checkpoint::bytes).sum();
        state as usize + checkpoints + size_of_val(sequence.tokens())
    }

    /// Moves what the sequence holds into RAM; it is empty afterwards.
    ///
    /// # Errors
    /// A device error. The sequence is then unchanged or empty.
    pub fn park(&mut self, sequence: &mut Sequence) -> Result<Parked, EngineError> {
        let stages = self.pipeline.save_held(sequence.slot, sequence.current_version(), sequence.len())?;
        let (tokens, checkpoints) = sequence.take();
        self.pipeline.clear(sequence.slot, 0)?;
        Ok(Parked { tokens, checkpoints, stages })
    }

    /// Moves a conversation back into a slot. What the sequence held before is forgotten.
    ///
    /// # Errors
    /// A device error. The sequence is then empty.
    pub fn unpark(&mut self, sequence: &mut Sequence, parked: Parked) -> Result<(), EngineError> {
        sequence.abandon();
        let restored = self.pipeline.restore_held(sequence.slot, 0, parked.tokens.len(), &parked.stages);
        if let Err(error) = restored {
            self.pipeline.clear(sequence.slot, 0)?;
            return Err(error.into());
        }
        sequence.put_back(parked.tokens, parked.checkpoints);
        Ok(())
    }

    /// Whether a sequence can be shortened only to where its state was kept.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent
    }
}
