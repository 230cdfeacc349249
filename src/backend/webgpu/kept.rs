//! Compiled kernels that a driver lets us keep between starts, and other findings about a card: one file each for a card and driver
//! in the user's cache folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wgpu::{AdapterInfo, Features, PipelineCache, PipelineCacheDescriptor};

use super::device::Gpu;
use crate::backend::BackendError;
use crate::gguf::write_whole;

/// What a file begins with: changes where the layout does.
const MAGIC: [u8; 8] = *b"strataK1";
/// Magic, checksum.
const HEADER_BYTES: usize = 16;

/// FNV-1a: finds damage, not malice. The folder is the user's own.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// What is kept of a card and its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Compiled kernels.
    Kernels,
    /// Which matrix kernels were the fastest.
    Tiles,
}

/// The file of a card and its driver.
pub fn file_of(folder: &Path, kept: Kept, info: &AdapterInfo) -> PathBuf {
    let driver = format!("{}/{}/{}", info.name, info.driver, info.driver_info);
    let kept = match kept {
        Kept::Kernels => "kernels",
        Kept::Tiles => "tiles",
    };
    folder.join(format!("{kept}-{}-{:04x}-{:04x}-{:016x}", info.backend, info.vendor, info.device, checksum(driver.as_bytes())))
}

/// The bytes in a file; `None` where there is no file.
///
/// # Errors
/// The file is damaged or cannot be read.
pub fn read(file: &Path) -> Result<Option<Vec<u8>>, String> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    match bytes.split_at_checked(HEADER_BYTES) {
        Some((header, data)) if header[..8] == MAGIC && header[8..] == checksum(data).to_le_bytes() => Ok(Some(data.to_vec())),
        _ => Err("it is damaged".into()),
    }
}

pub fn write(file: &Path, data: &[u8]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    write_whole(file, &[&MAGIC[..], &checksum(data).to_le_bytes(), data].concat())
}

/// The driver's store of compiled kernels, and the file that it came from.
#[derive(Debug)]
pub struct KeptKernels {
    pub cache: PipelineCache,
    file: PathBuf,
    /// What was read.
    data: Option<Vec<u8>>,
}

impl KeptKernels {
    /// Reads what earlier starts kept; `None` where the driver keeps nothing. The sentence says why a file was not used: then
    /// all is compiled anew.
    pub fn open(gpu: &Gpu, folder: &Path, info: &AdapterInfo) -> Result<(Option<KeptKernels>, Option<String>), BackendError> {
        if !gpu.device.features().contains(Features::PIPELINE_CACHE) {
            return Ok((None, None));
        }
        let file = file_of(folder, Kept::Kernels, info);
        let (data, problem) = match read(&file) {
            Ok(data) => (data, None),
            Err(problem) => (None, Some(format!("kernels are compiled anew: '{}': {problem}", file.display()))),
        };
        let cache = gpu.checked("the store of compiled kernels", || {
            let descriptor = PipelineCacheDescriptor { label: Some("kernels"), data: data.as_deref(), fallback: true };
            // SAFETY: the bytes are those that the driver gave to this program, as the checksum shows; wgpu compares its own header
            // in them with the card and the driver's version, and begins with an empty store where they differ.
            unsafe { gpu.device.create_pipeline_cache(&descriptor) }
        })?;
        Ok((Some(KeptKernels { cache, file, data }), problem))
    }

    /// Keeps what has been compiled since; nothing is written where nothing has. A folder that cannot be written costs the next
    /// start a second or two, no more.
    pub fn keep(&mut self) -> io::Result<()> {
        let data = self.cache.get_data();
        if data == self.data {
            return Ok(());
        }
        if let Some(data) = &data {
            write(&self.file, data)?;
        }
        self.data = data;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_or_damaged_and_never_half_believed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("below").join("kernels");
        assert_eq!(read(&file), Ok(None));
        write(&file, b"compiled").unwrap();
        assert_eq!(read(&file).unwrap().unwrap(), b"compiled");
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&file, bad).unwrap();
            assert!(read(&file).is_err(), "byte {at}");
            fs::write(&file, &good[..at]).unwrap();
            assert!(read(&file).is_err(), "the first {at} bytes");
        }
    }
}
