//! From files to the weights arena: large reads by several threads straight to where the bytes stay.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::EngineError;
use crate::backend::{Backend, BackendError};
use crate::experts::{ExpertError, Experts, SlotPiece};
use crate::gguf::{GgufError, ModelFiles, TensorInfo};
use crate::model::{ModelError, Tensors};
use crate::program::{ArenaKind, Slice, Stage, WeightDecl};
use crate::quant::Format;

/// Bytes of one read.
const PIECE_BYTES: u64 = 4 << 20;
/// Readers at once: enough to keep an SSD busy, few enough to leave a small PC usable.
const READERS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// A stretch of a tensor and where it goes.
struct Piece<'a> {
    tensor: &'a TensorInfo,
    from_bytes: u64,
    to_bytes: u64,
    len_bytes: u64,
}

/// Bytes that [`load_stage`] reads for a stage, without alignment gaps.
pub fn load_bytes(stage: &Stage, tiered: &Tiered) -> u64 {
    stage.weights.iter().filter(|w| !tiered.contains(w)).map(|w| w.matrix_bytes() * u64::from(w.slots)).sum()
}

/// Tensors of experts that the tiers load slot by slot.
#[derive(Debug, Default)]
pub struct Tiered(HashSet<String>);

impl Tiered {
    pub fn of(experts: Option<&Experts>) -> Tiered {
        let layers = experts.into_iter().flat_map(Experts::layers);
        Tiered(layers.flat_map(|g| &g.parts).map(|w| w.tensor.clone()).collect())
    }

    fn contains(&self, weight: &WeightDecl) -> bool {
        self.0.contains(&weight.tensor)
    }
}

/// Bytes that [`load_ram`] reads, and [`load_card`] for all of so many stages.
pub fn experts_bytes(experts: &Experts, stages: usize) -> u64 {
    let sum = |pieces: Vec<SlotPiece>| pieces.iter().map(|p| p.to.len_bytes).sum::<u64>();
    sum(experts.ram_pieces()) + (0..stages).map(|i| sum(experts.card_pieces(i)) + experts.fill_bytes(i)).sum::<u64>()
}

/// Reads the experts that RAM holds at the start, straight to where they stay.
///
/// # Errors
/// As [`load_stage`].
pub fn load_ram(
    files: &ModelFiles,
    experts: &mut Experts,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), EngineError> {
    let tiered = Tiered::of(Some(experts));
    let stage = Arc::clone(experts.host_stage());
    let pieces = of_slots(files, experts.ram_pieces())?;
    load_stage(files, &stage, &tiered, experts.host_backend_mut(), cancel, &mut |_| ())?;
    read_pieces(files, &stage, pieces, experts.host_backend_mut(), cancel, progress)
}

/// Fills the slots of a stage's device: from RAM, and from the files what RAM does not hold.
///
/// # Errors
/// As [`load_stage`].
pub fn load_card(
    files: &ModelFiles,
    experts: &mut Experts,
    (index, stage): (usize, &Stage),
    backend: &mut dyn Backend,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), EngineError> {
    let pieces = of_slots(files, experts.card_pieces(index))?;
    let read_bytes: u64 = pieces.iter().map(|p| p.len_bytes).sum();
    let total_bytes = read_bytes + experts.fill_bytes(index);
    let mut advance = |p: LoadProgress| progress(LoadProgress { done_bytes: p.done_bytes, total_bytes });
    read_pieces(files, stage, pieces, backend, cancel, &mut advance)?;
    let mut done_bytes = read_bytes;
    let filled = experts.fill_card(index, backend, &mut |bytes| {
        done_bytes += bytes;
        progress(LoadProgress { done_bytes, total_bytes });
        !cancel.load(Ordering::Relaxed)
    });
    match filled {
        Err(ExpertError::Backend(BackendError::Interrupted { .. })) => Err(EngineError::Interrupted),
        other => Ok(other?),
    }
}

fn of_slots(files: &ModelFiles, wanted: Vec<SlotPiece>) -> Result<Vec<Piece<'_>>, EngineError> {
    let mut pieces = vec![];
    for piece in &wanted {
        cut(files.require_tensor(&piece.tensor)?, piece.from_bytes, piece.to, &mut pieces);
    }
    Ok(pieces)
}

/// Reads all weights of a stage into its device, but for those of `tiered`.
///
/// # Errors
/// Read errors name file and tensor; setting `cancel` ends in [`EngineError::Interrupted`].
pub fn load_stage(
    files: &ModelFiles,
    stage: &Stage,
    tiered: &Tiered,
    backend: &mut dyn Backend,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), EngineError> {
    let mut pieces = Vec::new();
    for weight in stage.weights.iter().filter(|w| !tiered.contains(w)) {
        let missing = || ModelError::MissingTensor { tensor: weight.tensor.clone() };
        let tensor = files.tensor(&weight.tensor).ok_or_else(missing)?;
        if tensor.format == weight.format {
            if weight.format == Format::F32 && weight.rows == 1 && weight.experts == 1 {
                read_floats(files, tensor)?;
            }
            split(weight, tensor, &mut pieces);
        } else {
            convert(files, weight, tensor, backend)?;
        }
    }
    read_pieces(files, stage, pieces, backend, cancel, progress)
}

fn read_pieces(
    files: &ModelFiles,
    stage: &Stage,
    mut pieces: Vec<Piece<'_>>,
    backend: &mut dyn Backend,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), EngineError> {
    pieces.sort_by_key(|p| p.to_bytes);
    let whole = Slice { arena: ArenaKind::Weights, offset_bytes: 0, len_bytes: stage.weights_bytes };
    match backend.host_bytes_mut(whole) {
        Some(arena) => read_in_place(files, pieces, arena, cancel, progress),
        None => read_and_upload(files, pieces, backend, cancel, progress),
    }
}

fn split<'a>(weight: &WeightDecl, tensor: &'a TensorInfo, pieces: &mut Vec<Piece<'a>>) {
    for expert in 0..weight.experts {
        cut(tensor, u64::from(expert) * weight.matrix_bytes(), weight.slice(expert), pieces);
    }
}

fn cut<'a>(tensor: &'a TensorInfo, from: u64, to: Slice, pieces: &mut Vec<Piece<'a>>) {
    let mut done = 0;
    while done < to.len_bytes {
        let len_bytes = PIECE_BYTES.min(to.len_bytes - done);
        pieces.push(Piece { tensor, from_bytes: from + done, to_bytes: to.offset_bytes + done, len_bytes });
        done += len_bytes;
    }
}

/// A small float tensor that the device holds in another float format.
fn convert(files: &ModelFiles, weight: &WeightDecl, tensor: &TensorInfo, backend: &mut dyn Backend) -> Result<(), EngineError> {
    backend.upload(weight.slice(0), bytemuck::cast_slice(&read_floats(files, tensor)?))?;
    Ok(())
}

/// A vector of a model: norms and biases. One that is not finite would make every answer senseless.
fn read_floats(files: &ModelFiles, tensor: &TensorInfo) -> Result<Vec<f32>, EngineError> {
    let floats = Tensors::new(files).read_floats(&tensor.name)?;
    match floats.iter().position(|x| !x.is_finite()) {
        Some(at) => {
            let problem = format!("element {at} is {}; the file is damaged or badly converted", floats[at]);
            Err(ModelError::Values { tensor: tensor.name.clone(), problem }.into())
        }
        None => Ok(floats),
    }
}

fn read_in_place(
    files: &ModelFiles,
    pieces: Vec<Piece<'_>>,
    arena: &mut [u8],
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), EngineError> {
    let total_bytes = pieces.iter().map(|p| p.len_bytes).sum();
    let done = AtomicU64::new(0);
    // The arena cut into one target a piece; gaps between them are alignment.
    let mut targets = Vec::with_capacity(pieces.len());
    let (mut rest, mut at) = (arena, 0);
    for piece in pieces {
        let (_, after) = rest.split_at_mut((piece.to_bytes - at) as usize);
        let (target, after) = after.split_at_mut(piece.len_bytes as usize);
        at = piece.to_bytes + piece.len_bytes;
        rest = after;
        targets.push((piece, target));
    }
    let queue = Mutex::new(targets.into_iter());
    let stop = AtomicBool::new(false);
    let read_all = || -> Result<(), GgufError> {
        while !stop.load(Ordering::Relaxed) && !cancel.load(Ordering::Relaxed) {
            let next = queue.lock().unwrap_or_else(|e| e.into_inner()).next();
            let Some((piece, target)) = next else { break };
            files.read_at(piece.tensor, piece.from_bytes, target).inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            done.fetch_add(piece.len_bytes, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read_all)).collect();
        while readers.iter().any(|r| !r.is_finished()) {
            progress(LoadProgress { done_bytes: done.load(Ordering::Relaxed), total_bytes });
            std::thread::sleep(Duration::from_millis(5));
        }
        for reader in readers {
            match reader.join() {
                Ok(result) => result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<(), EngineError>(())
    })?;
    if cancel.load(Ordering::Relaxed) {
        return Err(EngineError::Interrupted);
    }
    progress(LoadProgress { done_bytes: total_bytes, total_bytes });
    Ok(())
}

fn read_and_upload(
    files: &ModelFiles,
    pieces: Vec<Piece<'_>>,
    backend: &mut dyn Backend,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), EngineError> {
    let total_bytes = pieces.iter().map(|p| p.len_bytes).sum();
    let mut staging = vec![0; PIECE_BYTES as usize];
    let mut done_bytes = 0;
    for piece in pieces {
        if cancel.load(Ordering::Relaxed) {
            return Err(EngineError::Interrupted);
        }
        let bytes = &mut staging[..piece.len_bytes as usize];
        files.read_at(piece.tensor, piece.from_bytes, bytes)?;
        let to = Slice { arena: ArenaKind::Weights, offset_bytes: piece.to_bytes, len_bytes: piece.len_bytes };
        backend.upload(to, bytes)?;
        done_bytes += piece.len_bytes;
        progress(LoadProgress { done_bytes, total_bytes });
    }
    Ok(())
}
