//! `.npy` files written row by row, and files that appear only when they are complete.

use std::io::{self, Write};
use std::path::Path;

use npyz::WriterBuilder as _;

use super::error::CliError;
use crate::gguf::{self, ModelFiles, WholeFile};

/// A [`WholeFile`] whose errors are those of the command line.
pub struct AtomicFile(WholeFile);

impl AtomicFile {
    pub fn create(target: &Path) -> Result<AtomicFile, CliError> {
        Ok(AtomicFile(WholeFile::create(target).map_err(|e| CliError::io("write", target, e))?))
    }

    pub fn target(&self) -> &Path {
        self.0.target()
    }

    /// The error of a write that failed.
    pub fn failed(&self, source: io::Error) -> CliError {
        CliError::io("write", self.target(), source)
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<(), CliError> {
        let target = self.target().to_owned();
        self.0.finish().map_err(|e| CliError::io("write", target, e))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes a small file whole or not at all.
pub fn write_whole(target: &Path, text: &str) -> Result<(), CliError> {
    gguf::write_whole(target, text.as_bytes()).map_err(|e| CliError::io("write", target, e))
}

/// An output must not take the place of the model it is made from.
pub fn not_the_model(files: &ModelFiles, output: &Path) -> Result<(), CliError> {
    let Ok(output) = output.canonicalize() else { return Ok(()) };
    let same = files.files().iter().any(|file| Path::new(&file.path).canonicalize().is_ok_and(|path| path == output));
    if same {
        return Err(CliError::Usage(format!("'{}' is a file of the model itself; choose another output", output.display())));
    }
    Ok(())
}

/// A matrix `[rows, width]` on its way to a `.npy` file.
pub struct NpyMatrix {
    file: AtomicFile,
    rows_left: u64,
    width: usize,
}

impl NpyMatrix {
    /// A matrix of `T`, which is `f32` or `u32`.
    pub fn create<T: npyz::AutoSerialize>(target: &Path, rows: u64, width: usize) -> Result<NpyMatrix, CliError> {
        let mut file = AtomicFile::create(target)?;
        let header = npyz::WriteOptions::<T>::new().default_dtype().shape(&[rows, width as u64]).writer(&mut file);
        header.write_header_only().map_err(|e| CliError::io("write", target, e))?;
        Ok(NpyMatrix { file, rows_left: rows, width })
    }

    /// Appends whole rows.
    pub fn push<T: bytemuck::Pod>(&mut self, rows: &[T]) -> Result<(), CliError> {
        let count = (rows.len() / self.width.max(1)) as u64;
        if !rows.len().is_multiple_of(self.width.max(1)) || count > self.rows_left {
            return Err(self.file.failed(io::Error::other("more rows than announced")));
        }
        self.rows_left -= count;
        self.file.write_all(bytemuck::cast_slice(rows)).map_err(|e| self.file.failed(e))
    }

    pub fn finish(self) -> Result<(), CliError> {
        match self.rows_left {
            0 => self.file.finish(),
            left => Err(self.file.failed(io::Error::other(format!("{left} rows are missing")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use npyz::NpyFile;

    #[test]
    fn a_matrix_can_be_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.npy");
        let mut m = NpyMatrix::create::<f32>(&path, 3, 2).unwrap();
        m.push(&[1f32, 2.0]).unwrap();
        assert!(!path.exists(), "nothing under the final name before the end");
        m.push(&[3f32, 4.0, 5.0, 6.0]).unwrap();
        m.finish().unwrap();
        let npy = NpyFile::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(npy.shape(), [3, 2]);
        assert_eq!(npy.into_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn an_unfinished_matrix_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut m = NpyMatrix::create::<f32>(&dir.path().join("m.npy"), 2, 1).unwrap();
        m.push(&[1f32]).unwrap();
        assert!(m.finish().is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
