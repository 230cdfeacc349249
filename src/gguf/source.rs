//! Where the bytes of a file come from: the disk, or memory.

use std::fs::File;
use std::io;

/// The bytes behind one shard. Reads take `&self` and go from any number of threads at once.
#[derive(Debug)]
pub(super) enum Source {
    File(File),
    /// Part of the program, as the embedded model is.
    Static(&'static [u8]),
    Owned(Vec<u8>),
    /// The header was read, and the data is not at hand.
    HeaderOnly,
}

impl Source {
    /// All bytes, if they are in memory.
    pub fn in_memory(&self) -> Option<&[u8]> {
        match self {
            Source::File(_) | Source::HeaderOnly => None,
            Source::Static(bytes) => Some(bytes),
            Source::Owned(bytes) => Some(bytes),
        }
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof` if there are fewer, or what the system says.
    pub fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if let Source::File(file) = self {
            return read_exact_at(file, offset, buffer);
        }
        let bytes = self.in_memory().unwrap_or_default();
        let wanted = usize::try_from(offset)
            .ok()
            .and_then(|start| bytes.get(start..start.checked_add(buffer.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(wanted);
        Ok(())
    }
}

/// Fills `buffer` with the bytes of a file from `offset` on.
///
/// # Errors
/// `UnexpectedEof` if there are fewer, or what the system says.
pub fn read_exact_at(file: &File, mut offset: u64, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match read_some_at(file, offset, buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads once: as many bytes as the system gives.
///
/// # Errors
/// What the system says.
#[cfg(unix)]
pub fn read_some_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

/// Reads once: as many bytes as the system gives. `seek_read` moves the file's own position as well, which nothing here uses.
///
/// # Errors
/// What the system says.
#[cfg(windows)]
pub fn read_some_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}
