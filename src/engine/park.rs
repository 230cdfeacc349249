//! Conversations that lie in RAM while others use their slots.

use super::{Engine, EngineError};
use crate::state::{Memory, Sequence, Text};

/// Everything that a sequence held, its slot apart.
#[derive(Debug)]
pub struct Parked {
    held: Memory,
    /// One buffer a stage.
    stages: Vec<Vec<u8>>,
}

impl Parked {
    pub fn text(&self) -> Text<'_> {
        self.held.text()
    }

    pub fn len(&self) -> usize {
        self.held.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.held.tokens.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.stages.iter().map(Vec::len).sum::<usize>() + self.held.bytes()
    }

    /// The longest prefix of at most `length` tokens that would need no computing once unparked.
    pub fn restorable(&self, length: usize, recurrent: bool) -> usize {
        self.held.restorable(length, recurrent)
    }
}

impl Engine {
    /// Bytes that parking the sequence would take.
    pub fn parked_bytes(&self, sequence: &Sequence) -> usize {
        self.pipeline.held_bytes(sequence.len()) as usize + sequence.host_bytes()
    }

    /// Moves what the sequence holds into RAM; it is empty afterwards.
    ///
    /// # Errors
    /// A device error. The sequence is then unchanged or empty.
    pub fn park(&mut self, sequence: &mut Sequence) -> Result<Parked, EngineError> {
        let stages = self.pipeline.save_held(sequence.slot, sequence.current_version(), sequence.len())?;
        let held = sequence.take();
        self.pipeline.clear(sequence.slot, 0)?;
        Ok(Parked { held, stages })
    }

    /// Moves a conversation back into a slot. What the sequence held before is forgotten.
    ///
    /// # Errors
    /// A device error. The sequence is then empty.
    pub fn unpark(&mut self, sequence: &mut Sequence, parked: Parked) -> Result<(), EngineError> {
        sequence.abandon();
        let restored = self.pipeline.restore_held(sequence.slot, 0, parked.len(), &parked.stages);
        if let Err(error) = restored {
            self.pipeline.clear(sequence.slot, 0)?;
            return Err(error.into());
        }
        sequence.put_back(parked.held);
        Ok(())
    }

    /// Whether a sequence can be shortened only to where its state was kept.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent
    }
}
