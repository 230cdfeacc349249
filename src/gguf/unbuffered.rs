//! Reads past the system's page cache: whole sectors, into memory that begins at one.

use std::fs::File;
use std::io;
use std::path::Path;

/// What unbuffered reads must be multiples of: the largest sector of common disks.
pub const SECTOR_BYTES: usize = 4096;

/// Memory that begins at a multiple of a sector.
#[derive(Debug)]
pub struct SectorBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl SectorBuffer {
    pub fn new(len: usize) -> SectorBuffer {
        let bytes = vec![0; len + SECTOR_BYTES];
        let start = bytes.as_ptr().align_offset(SECTOR_BYTES).min(SECTOR_BYTES);
        SectorBuffer { bytes, start, len }
    }

    /// Bytes that it takes.
    pub fn taken_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// # Errors
/// A file that cannot be opened, or a system or file system that has no unbuffered reads.
#[cfg(target_os = "linux")]
pub fn open_unbuffered(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// # Errors
/// A file that cannot be opened, or a file system that has no unbuffered reads.
#[cfg(target_os = "macos")]
pub fn open_unbuffered(path: &Path) -> io::Result<File> {
    use std::os::fd::AsRawFd as _;
    let file = File::open(path)?;
    // SAFETY: the descriptor is open for the whole call, and F_NOCACHE takes a plain integer.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

/// # Errors
/// A file that cannot be opened, or a file system that has no unbuffered reads.
#[cfg(windows)]
pub fn open_unbuffered(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt as _;
    const FILE_FLAG_NO_BUFFERING: u32 = 0x2000_0000;
    File::options().read(true).custom_flags(FILE_FLAG_NO_BUFFERING).open(path)
}

/// # Errors
/// Always: this system has no unbuffered reads.
#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
pub fn open_unbuffered(_path: &Path) -> io::Result<File> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no unbuffered reads"))
}
