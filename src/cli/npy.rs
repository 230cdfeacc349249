//! `.npy` files written row by row, and files that appear only when they are complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use npyz::WriterBuilder as _;

use super::error::CliError;
use crate::gguf::ModelFiles;

/// A file that gets its name when it is finished. Dropped before that, it leaves nothing behind.
pub struct AtomicFile {
    target: PathBuf,
    /// `None` where the target is no regular file (a pipe, `/dev/null`), which is written directly.
    partial: Option<PathBuf>,
    file: Option<BufWriter<File>>,
}

impl AtomicFile {
    pub fn create(target: &Path) -> Result<AtomicFile, CliError> {
        let fail = |e| CliError::io("write", target, e);
        let partial = match fs::metadata(target) {
            Ok(found) if found.is_dir() => return Err(fail(io::Error::other("it is a folder; give the name of a file"))),
            Ok(found) if !found.is_file() => None,
            _ => {
                let mut name =
                    target.file_name().ok_or_else(|| fail(io::Error::other("the name of a file is missing")))?.to_owned();
                name.push(format!(".partial-{}", std::process::id()));
                Some(target.with_file_name(name))
            }
        };
        let file = File::create(partial.as_deref().unwrap_or(target)).map_err(fail)?;
        Ok(AtomicFile { target: target.to_owned(), partial, file: Some(BufWriter::with_capacity(1 << 20, file)) })
    }

    /// Gives the file its name.
    pub fn finish(mut self) -> Result<(), CliError> {
        self.flush().map_err(|e| CliError::io("write", &self.target, e))?;
        self.file = None;
        match self.partial.take() {
            Some(partial) => fs::rename(&partial, &self.target).map_err(|e| {
                let _ = fs::remove_file(&partial);
                CliError::io("write", &self.target, e)
            }),
            None => Ok(()),
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        self.file = None;
        if let Some(partial) = self.partial.take() {
            let _ = fs::remove_file(partial);
        }
    }
}

/// Writes a small file whole or not at all.
pub fn write_whole(target: &Path, text: &str) -> Result<(), CliError> {
    let mut file = AtomicFile::create(target)?;
    file.write_all(text.as_bytes()).map_err(|e| CliError::io("write", target, e))?;
    file.finish()
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
            return Err(CliError::io("write", &self.file.target, io::Error::other("more rows than announced")));
        }
        self.rows_left -= count;
        self.file.write_all(bytemuck::cast_slice(rows)).map_err(|e| CliError::io("write", &self.file.target, e))
    }

    pub fn finish(self) -> Result<(), CliError> {
        match self.rows_left {
            0 => self.file.finish(),
            left => Err(CliError::io("write", &self.file.target, io::Error::other(format!("{left} rows are missing")))),
        }
    }
}

#[cfg(test)]
mod tests {
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
