//! Files that appear only when they are complete.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file that gets its name when it is finished: whoever reads it sees the old one or the new one. Dropped before that, it
/// leaves nothing behind.
#[derive(Debug)]
pub struct WholeFile {
    target: PathBuf,
    /// `None` where the target is no regular file (a pipe, `/dev/null`), which is written directly.
    partial: Option<PathBuf>,
    file: Option<BufWriter<File>>,
}

impl WholeFile {
    /// # Errors
    /// A folder, or what the system says.
    pub fn create(target: &Path) -> io::Result<WholeFile> {
        let partial = match fs::metadata(target) {
            Ok(found) if found.is_dir() => return Err(io::Error::other("it is a folder; give the name of a file")),
            Ok(found) if !found.is_file() => None,
            _ => {
                // Beside the target, and under a name that no user gives.
                let name = target.file_name().ok_or_else(|| io::Error::other("the name of a file is missing"))?;
                let mut name = OsString::from(name);
                name.push(format!(".partial-{}", std::process::id()));
                Some(target.with_file_name(name))
            }
        };
        let file = File::create(partial.as_deref().unwrap_or(target))?;
        Ok(WholeFile { target: target.to_owned(), partial, file: Some(BufWriter::with_capacity(1 << 20, file)) })
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// What the system says; nothing is left behind then.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.file = None;
        // A file that could not be renamed is removed by the drop.
        if let Some(partial) = &self.partial {
            fs::rename(partial, &self.target)?;
        }
        self.partial = None;
        Ok(())
    }
}

impl Write for WholeFile {
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

impl Drop for WholeFile {
    fn drop(&mut self) {
        self.file = None;
        if let Some(partial) = self.partial.take() {
            let _ = fs::remove_file(partial);
        }
    }
}

/// Writes a small file whole or not at all.
///
/// # Errors
/// As [`WholeFile`].
pub fn write_whole(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = WholeFile::create(target)?;
    file.write_all(bytes)?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_of_the_user_is_touched_and_a_failure_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let names = || {
            let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        for name in ["p.json", "p.new", "p.partial", "p.json.partial"] {
            fs::write(at(name), name).unwrap();
        }
        let before = names();
        write_whole(&at("p.json"), b"anew").unwrap();
        assert_eq!((fs::read(at("p.json")).unwrap(), names()), (b"anew".to_vec(), before.clone()));
        assert_eq!(fs::read(at("p.new")).unwrap(), b"p.new");
        // The target becomes a folder while the file is written: the rename fails.
        let mut file = WholeFile::create(&at("late")).unwrap();
        file.write_all(b"text").unwrap();
        fs::create_dir(at("late")).unwrap();
        fs::write(at("late").join("inside"), "").unwrap();
        assert!(file.finish().is_err());
        fs::remove_dir_all(at("late")).unwrap();
        drop(WholeFile::create(&at("never finished")).unwrap());
        assert!(write_whole(folder.path(), b"").is_err());
        assert_eq!(names(), before);
    }
}
