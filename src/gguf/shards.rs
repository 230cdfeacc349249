//! Finds the other shards of a model that is split over several files.
//!
//! Shards are recognised by what they say of themselves (`split.no`, `split.count`, `split.tensors.count`), so renamed
//! files are found too. That is little: two models split alike cannot be told apart by it. Names then decide, in two
//! ways: among several candidates the one named like the first shard wins, and a file that is named as a shard of
//! another model (`OTHER-00002-of-00003.gguf`) is never taken for one of a model with such a name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::header::Peek;
use super::{GgufError, Metadata, MetadataError};

const MAX_SHARDS: u64 = 65_535;

/// What a shard says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// From 0.
    pub number: u64,
    /// At least 2.
    pub count: u64,
    /// Of all shards together.
    pub tensor_count: Option<u64>,
}

impl Split {
    /// Reads the split keys. `None` for a model in one file.
    ///
    /// # Errors
    /// The keys hold no numbers, or contradict each other.
    pub fn from_metadata(file: &str, metadata: &Metadata) -> Result<Option<Split>, GgufError> {
        let wrong = |source: MetadataError| GgufError::Metadata { file: file.to_owned(), source };
        let bad = |reason| Err(GgufError::BadSplit { file: file.to_owned(), reason });
        let count = metadata.opt_u64("split.count").map_err(wrong)?.unwrap_or(0);
        if count < 2 {
            return Ok(None);
        }
        if count > MAX_SHARDS {
            return bad(format!("split.count is {count}, and at most {MAX_SHARDS} shards can be read"));
        }
        let number = metadata.u64("split.no").map_err(wrong)?;
        if number >= count {
            return bad(format!("split.no is {number}, counted from 0, and split.count is {count}"));
        }
        let tensor_count = metadata.opt_u64("split.tensors.count").map_err(wrong)?;
        Ok(Some(Split { number, count, tensor_count }))
    }

    /// Whether two shards can belong to one model, apart from their numbers.
    pub fn agrees(&self, other: &Split) -> bool {
        let same_tensors = match (self.tensor_count, other.tensor_count) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => true,
        };
        self.count == other.count && same_tensors
    }
}

/// Whether what both files say of themselves is equal. Most writers give `general.*` to the first shard only.
fn same_identity(first: &Metadata, other: &Metadata) -> bool {
    ["general.architecture", "general.name", "general.file_type", "general.uuid"].iter().all(|key| {
        match (first.get(key), other.get(key)) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => true,
        }
    })
}

/// Paths of shards 1, 2, … of the model whose first shard is `first`.
///
/// # Errors
/// A shard is missing, or there are several candidates and nothing tells which is the right one.
pub(super) fn find_siblings(first: &Path, metadata: &Metadata, split: &Split) -> Result<Vec<PathBuf>, GgufError> {
    let mut scan = Scan::new(first, metadata, split)?;
    let mut paths = Vec::new();
    for number in 1..split.count {
        let candidates = scan.by_number.remove(&number).unwrap_or_default();
        match choose(first, candidates) {
            Choice::One(path) => paths.push(path),
            Choice::None => return Err(scan.missing(first, number, split.count)),
            Choice::Several(one, another) => {
                return Err(GgufError::AmbiguousShard {
                    file: first.display().to_string(),
                    number: number + 1,
                    count: split.count,
                    first: one.display().to_string(),
                    second: another.display().to_string(),
                });
            }
        }
    }
    Ok(paths)
}

/// The error for a model opened by a shard that is not its first; it names the first one where that can be found.
pub(super) fn not_first(path: &Path, metadata: &Metadata, split: &Split) -> GgufError {
    let first = Scan::new(path, metadata, split).map(|mut scan| choose(path, scan.by_number.remove(&0).unwrap_or_default()));
    let first = match first {
        Ok(Choice::One(first)) => format!("'{}'", first.display()),
        Ok(Choice::Several(one, another)) => {
            format!("'{}' or '{}'", one.display(), another.display())
        }
        Ok(Choice::None) | Err(_) => "it is not in the same folder, so get it first".to_owned(),
    };
    GgufError::NotFirstShard { file: path.display().to_string(), number: split.number + 1, count: split.count, first }
}

/// The GGUF files of a folder that may belong to a model.
struct Scan {
    by_number: BTreeMap<u64, Vec<PathBuf>>,
    /// Why files that could have been shards were not taken.
    rejected: Vec<String>,
}

impl Scan {
    fn new(known: &Path, metadata: &Metadata, split: &Split) -> Result<Scan, GgufError> {
        let mut scan = Scan { by_number: BTreeMap::new(), rejected: Vec::new() };
        for path in gguf_files_beside(known)? {
            let name = path.display().to_string();
            let found = peek(&path).and_then(|peek| Ok((Split::from_metadata(&name, &peek.metadata)?, peek)));
            match found {
                Err(error) => scan.rejected.push(error.to_string()),
                Ok((Some(other), peek)) if split.agrees(&other) && same_identity(metadata, &peek.metadata) => {
                    if stems_conflict(known, &path) {
                        scan.rejected.push(format!("'{name}' is named as a shard of another model"));
                    } else {
                        scan.by_number.entry(other.number).or_default().push(path);
                    }
                }
                Ok(_) => {}
            }
        }
        Ok(scan)
    }

    fn missing(&self, first: &Path, number: u64, count: u64) -> GgufError {
        let folder = folder_of(first);
        let mut found = format!("no GGUF file in '{}' says it is that shard; get it", folder.display());
        if let Some(reason) = self.rejected.first() {
            found.push_str(&format!(" (not usable: {reason}"));
            match self.rejected.len() - 1 {
                0 => found.push(')'),
                more => found.push_str(&format!("; and {more} more)")),
            }
        }
        GgufError::MissingShard { file: first.display().to_string(), number: number + 1, count, found }
    }
}

enum Choice {
    None,
    One(PathBuf),
    Several(PathBuf, PathBuf),
}

/// Chooses among files that all say they are the same shard: the one that shares the stem of `known`, or the only one.
fn choose(known: &Path, mut candidates: Vec<PathBuf>) -> Choice {
    if let Some(stem) = shard_stem(known) {
        let named_alike = |path: &PathBuf| shard_stem(path).as_ref() == Some(&stem);
        if candidates.iter().any(named_alike) {
            candidates.retain(named_alike);
        }
    }
    // The same file under two names (a link) is no contradiction.
    let mut real_paths = Vec::new();
    candidates.retain(|path| {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let new = !real_paths.contains(&real);
        real_paths.push(real);
        new
    });
    let mut candidates = candidates.into_iter();
    match (candidates.next(), candidates.next()) {
        (None, _) => Choice::None,
        (Some(path), None) => Choice::One(path),
        (Some(one), Some(another)) => Choice::Several(one, another),
    }
}

/// `NAME` of a path that ends in `NAME-00001-of-00003.gguf`.
fn shard_stem(path: &Path) -> Option<String> {
    fn number(text: &str) -> bool {
        text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())
    }
    let stem = path.file_stem()?.to_str()?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, index) = rest.rsplit_once('-')?;
    (number(count) && number(index)).then(|| name.to_owned())
}

fn stems_conflict(one: &Path, other: &Path) -> bool {
    matches!((shard_stem(one), shard_stem(other)), (Some(mine), Some(theirs)) if mine != theirs)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// All GGUF files in the folder of `known` but itself, in the order of their names.
fn gguf_files_beside(known: &Path) -> Result<Vec<PathBuf>, GgufError> {
    let folder = folder_of(known);
    let failure = |source| GgufError::Io { file: folder.display().to_string(), action: "list the folder", source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failure)? {
        let path = entry.map_err(failure)?.path();
        let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
        if is_gguf && path.is_file() && path.file_name() != known.file_name() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn peek(path: &Path) -> Result<Peek, GgufError> {
    let name = path.display().to_string();
    let failure = |source| GgufError::Io { file: name.clone(), action: "open", source };
    let file = File::open(path).map_err(failure)?;
    let file_bytes = file.metadata().map_err(failure)?.len();
    Peek::read(&name, BufReader::with_capacity(1 << 16, file), file_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stem_is_what_comes_before_the_shard_number() {
        let stem = |name| shard_stem(Path::new(name));
        assert_eq!(stem("dir/My-Model-Q4-00001-of-00003.gguf").as_deref(), Some("My-Model-Q4"));
        assert_eq!(stem("My-Model.gguf"), None);
        assert_eq!(stem("a-1-of-3.gguf"), None);
        assert_eq!(stem("00001-of-00003.gguf"), None);
    }

    #[test]
    fn shards_agree_by_counts() {
        let split = Split { number: 0, count: 3, tensor_count: Some(9) };
        assert!(split.agrees(&Split { number: 2, ..split }));
        assert!(split.agrees(&Split { tensor_count: None, ..split }));
        assert!(!split.agrees(&Split { tensor_count: Some(8), ..split }));
        assert!(!split.agrees(&Split { count: 4, ..split }));
    }
}
