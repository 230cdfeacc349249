//! An arena as one buffer, or as several of the largest size where it does not fit one; and copies to and from it.

use wgpu::{Buffer, BufferDescriptor, BufferUsages, CommandEncoderDescriptor, MapMode};

use super::device::{CUT_OVERLAP_BYTES, Fault, Gpu};
use crate::backend::BackendError;
use crate::backend::gpu::Window;
use crate::program::ArenaKind;

/// Bytes behind an arena's buffers that kernels may read: they take 32 values at once and throw away those past a row.
pub const PADDING_BYTES: u64 = 128;
/// Bytes that the driver may hold for uploads under way.
const UPLOAD_BYTES: u64 = 32 << 20;
/// Size of the buffer that downloads go through.
const DOWNLOAD_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub struct Arena {
    kind: ArenaKind,
    bytes: u64,
    /// Bytes from the beginning of one buffer to the next.
    cut_bytes: u64,
    overlap_bytes: u64,
    buffers: Vec<Buffer>,
}

/// A piece of one buffer.
#[derive(Debug, Clone, Copy)]
struct Piece {
    buffer: usize,
    /// In the buffer, and in the whole copy.
    at: u64,
    from: u64,
    len: u64,
}

impl Arena {
    pub fn open(gpu: &Gpu, kind: ArenaKind, bytes: u64) -> Result<Arena, BackendError> {
        let no_memory = |reason| BackendError::OutOfMemory { device: gpu.id.clone(), arena: kind, bytes, reason };
        // Some drivers promise any amount and fail when it is used.
        if let Some(total) = gpu.total_bytes.filter(|total| bytes > *total) {
            return Err(no_memory(format!("the card has {total} bytes in all")));
        }
        let cut_bytes = gpu.target.cut_bytes;
        let overlap_bytes = if kind == ArenaKind::Weights { CUT_OVERLAP_BYTES } else { 0 };
        let mut buffers = vec![];
        let mut start = 0;
        while start < bytes || buffers.is_empty() {
            let rest = bytes - start;
            let len = if rest > cut_bytes { cut_bytes + overlap_bytes.min(rest - cut_bytes) } else { rest };
            let size = (len.next_multiple_of(256) + PADDING_BYTES).min(gpu.limits.max_buffer_size);
            let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
            let descriptor = BufferDescriptor { label: Some(arena_name(kind)), size, usage, mapped_at_creation: false };
            buffers.push(gpu.buffer(&descriptor).map_err(|fault| match fault {
                Fault::OutOfMemory(reason) | Fault::Other(reason) => no_memory(reason),
            })?);
            gpu.healthy("taking an arena")?;
            start += cut_bytes;
        }
        Ok(Arena { kind, bytes, cut_bytes, overlap_bytes, buffers })
    }

    /// The buffer of a window, and where it begins there. Lowering has seen to it that it lies in one.
    pub fn resolve(&self, window: &Window) -> Option<(&Buffer, u64)> {
        let index = (window.offset_bytes / self.cut_bytes) as usize;
        Some((self.buffers.get(index)?, window.offset_bytes % self.cut_bytes))
    }

    fn check(&self, gpu: &Gpu, offset: u64, len: u64) -> Result<(), BackendError> {
        if offset.checked_add(len).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        Err(BackendError::OutOfBounds {
            device: gpu.id.clone(),
            what: format!("a slice of {len} bytes at {offset}"),
            arena: self.kind,
            arena_bytes: self.bytes,
        })
    }

    /// The pieces of a range, those in overlaps twice.
    fn pieces(&self, offset: u64, len: u64) -> Vec<Piece> {
        let mut pieces = vec![];
        for buffer in 0..self.buffers.len() {
            let start = buffer as u64 * self.cut_bytes;
            let end = start.saturating_add(self.cut_bytes).saturating_add(self.overlap_bytes);
            let (from, to) = (offset.max(start), (offset + len).min(end));
            if from < to {
                pieces.push(Piece { buffer, at: from - start, from: from - offset, len: to - from });
            }
        }
        pieces
    }

    pub fn upload(&self, gpu: &Gpu, pending: &mut u64, offset: u64, bytes: &[u8]) -> Result<(), BackendError> {
        self.check(gpu, offset, bytes.len() as u64)?;
        for piece in self.pieces(offset, bytes.len() as u64) {
            let part = &bytes[piece.from as usize..(piece.from + piece.len) as usize];
            self.write(gpu, &piece, part)?;
            *pending += piece.len;
            if *pending >= UPLOAD_BYTES {
                gpu.queue.submit([]);
                gpu.drain("an upload")?;
                *pending = 0;
            }
        }
        Ok(())
    }

    /// Writes whole words; what a piece leaves of its first and last word is read before.
    fn write(&self, gpu: &Gpu, piece: &Piece, bytes: &[u8]) -> Result<(), BackendError> {
        let buffer = &self.buffers[piece.buffer];
        if piece.at.is_multiple_of(4) && piece.len.is_multiple_of(4) {
            gpu.queue.write_buffer(buffer, piece.at, bytes);
            return Ok(());
        }
        let start = piece.at / 4 * 4;
        let mut words = vec![0; ((piece.at - start) + piece.len).next_multiple_of(4) as usize];
        let last = words.len() - 4;
        self.read_words(gpu, buffer, start, &mut words[..4])?;
        self.read_words(gpu, buffer, start + last as u64, &mut words[last..])?;
        words[(piece.at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        gpu.queue.write_buffer(buffer, start, &words);
        Ok(())
    }

    fn read_words(&self, gpu: &Gpu, buffer: &Buffer, at: u64, words: &mut [u8]) -> Result<(), BackendError> {
        let staging = staging(gpu, words.len() as u64)?;
        copy_out(gpu, buffer, at, &staging, words)
    }

    pub fn download(&self, gpu: &Gpu, staging: &Buffer, offset: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.check(gpu, offset, bytes.len() as u64)?;
        let mut done = 0;
        for piece in self.pieces(offset, bytes.len() as u64) {
            // Overlaps hold the same bytes as the buffer after them.
            let (mut at, end) = (piece.at + done.max(piece.from) - piece.from, piece.at + piece.len);
            while at < end {
                let start = at / 4 * 4;
                let len = (end - start).min(staging.size()).min((end - start).next_multiple_of(4));
                let mut words = vec![0; len.next_multiple_of(4) as usize];
                copy_out(gpu, &self.buffers[piece.buffer], start, staging, &mut words)?;
                let take = (len - (at - start)) as usize;
                bytes[done as usize..done as usize + take].copy_from_slice(&words[(at - start) as usize..][..take]);
                done += take as u64;
                at += take as u64;
            }
        }
        Ok(())
    }

    pub fn clear(&self, gpu: &Gpu, offset: u64, len: u64) -> Result<(), BackendError> {
        self.check(gpu, offset, len)?;
        let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
        for piece in self.pieces(offset, len) {
            if !piece.at.is_multiple_of(4) || !piece.len.is_multiple_of(4) {
                self.write(gpu, &piece, &vec![0; piece.len as usize])?;
            } else if piece.len > 0 {
                encoder.clear_buffer(&self.buffers[piece.buffer], piece.at, Some(piece.len));
            }
        }
        gpu.checked("clearing", || gpu.queue.submit([encoder.finish()])).map(drop)
    }
}

fn arena_name(kind: ArenaKind) -> &'static str {
    match kind {
        ArenaKind::Weights => "weights",
        ArenaKind::State => "state",
        ArenaKind::Work => "work",
    }
}

/// A buffer that the host reads.
fn staging(gpu: &Gpu, size: u64) -> Result<Buffer, BackendError> {
    let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
    let descriptor = BufferDescriptor { label: Some("download"), size, usage, mapped_at_creation: false };
    gpu.scratch_buffer("staging", &descriptor)
}

pub fn download_staging(gpu: &Gpu) -> Result<Buffer, BackendError> {
    staging(gpu, DOWNLOAD_BYTES)
}

/// Copies words from a buffer through a staging buffer that is large enough.
fn copy_out(gpu: &Gpu, buffer: &Buffer, at: u64, staging: &Buffer, words: &mut [u8]) -> Result<(), BackendError> {
    let len = words.len() as u64;
    let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(buffer, at, staging, 0, len);
    gpu.checked("a download", || gpu.queue.submit([encoder.finish()]))?;
    read_staging(gpu, staging, words)
}

/// Maps a staging buffer once everything submitted is done, and reads its beginning.
pub fn read_staging(gpu: &Gpu, staging: &Buffer, words: &mut [u8]) -> Result<(), BackendError> {
    let len = words.len() as u64;
    let (tell, told) = std::sync::mpsc::channel();
    staging.map_async(MapMode::Read, ..len, move |outcome| drop(tell.send(outcome)));
    gpu.drain("a download")?;
    match told.try_recv() {
        Ok(Ok(())) => {}
        Ok(Err(e)) => return Err(gpu.rejected(format!("a download: {e}"))),
        Err(_) => return Err(gpu.rejected("a download was not finished")),
    }
    let view = staging.get_mapped_range(..len).map_err(|e| gpu.rejected(format!("a download: {e}")))?;
    words.copy_from_slice(&view);
    drop(view);
    staging.unmap();
    Ok(())
}
