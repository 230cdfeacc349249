//! What can go wrong with experts.

use std::io;

use thiserror::Error;

use crate::backend::BackendError;
use crate::gguf::GgufError;

#[derive(Debug, Error)]
pub enum ExpertError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(
        "expert {expert} of layer {layer} (tensor {tensor:?}) cannot be read from '{file}': {source}. This request has failed; \
         the model stays open. If it happens again, check the drive, or copy the file anew"
    )]
    Read { file: String, tensor: String, layer: u32, expert: u32, source: io::Error },
    #[error("no expert has arrived from the disk in time ({reason}). This request has failed; the model stays open")]
    Deadline { reason: String },
    #[error("the router of layer {layer} chose expert {expert} of {experts}; the model or the device is damaged")]
    NoSuchExpert { layer: u32, expert: u32, experts: u32 },
    #[error(
        "layer {layer}: with --reproducible every expert is computed on the card, so the card needs a slot for one in each layer; \
         a smaller context or a larger card gives one"
    )]
    NoSlotForReproducible { layer: u32 },
    #[error("layer {layer}: RAM has no room for one expert; a larger --ram-budget helps")]
    NoRam { layer: u32 },
    #[error(
        "layer {layer}: with --reproducible or --expert-misses card missed experts go through slots of the card that hold nobody, \
         and RAM has no room for the experts that would lie there instead. --ram-experts disk reads them from the model's files; \
         without these flags the processor computes them"
    )]
    NoRamForRing { layer: u32 },
    #[error(
        "layer {layer}: buffers of prompts lie on {lent} of its slots, and RAM has no room for a copy of the experts there; a larger \
         --ram-budget helps"
    )]
    NoRamForLoan { layer: u32, lent: u32 },
    #[error(
        "slot {slot} of layer {layer} does not hold what was copied to it: expert {expert} has checksum {expected:016x}, the \
             slot {found:016x}"
    )]
    WrongBytes { layer: u32, slot: u32, expert: u32, expected: u64, found: u64 },
    #[error("the readers could not be started: {reason}")]
    Threads { reason: String },
    #[error("the profile '{file}' is not one of this model: {reason}")]
    Profile { file: String, reason: String },
    #[error("the trace '{file}' cannot be used: {reason}")]
    Trace { file: String, reason: String },
    #[error("cannot {action} '{file}': {source}")]
    Io { file: String, action: &'static str, source: io::Error },
    /// A defect of ours.
    #[error("{problem}; please report this")]
    Defect { problem: String },
}
