//! A model as its files hold it: metadata, tensors by name, and reads.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::header::Header;
use super::shards::{Split, find_siblings, not_first};
use super::source::Source;
use super::{GgufError, Metadata, TensorInfo};

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// The path, or the name given to bytes in memory.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// GGUF version, 2 or 3.
    pub version: u32,
    /// Tensors begin at multiples of this many bytes.
    pub alignment_bytes: u64,
    /// Tensors in this file.
    pub tensor_count: usize,
    /// Bytes after the last tensor and its padding that nothing refers to. More than 0 is odd but harmless.
    pub trailing_bytes: u64,
}

/// A count and a size, as [`ModelFiles::totals_by`] adds them up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub tensors: u64,
    pub elements: u64,
    pub bytes: u64,
}

/// A model in one or several GGUF files, opened and checked. Only headers were read.
///
/// Every tensor lies inside its file, names are unique over all files, and the number of tensors is the one the first
/// shard promises. Reads take `&self` and may go on in many threads at once.
#[derive(Debug)]
pub struct ModelFiles {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// From name to place in `tensors`.
    index: HashMap<String, usize>,
    files: Vec<ModelFile>,
    /// One for each of `files`.
    sources: Vec<Source>,
}

/// A file that was opened and whose header was checked, on the way to a model.
struct Opened {
    path: PathBuf,
    bytes: u64,
    header: Header,
    source: Source,
}

impl ModelFiles {
    /// Opens a model by its only file or its first shard. The other shards are found in the same folder by their own
    /// metadata, whatever their names.
    ///
    /// # Errors
    /// The file cannot be read, is not a sound GGUF file (see [`GgufError`]), is not the first shard, or other shards
    /// are missing, ambiguous or do not fit.
    pub fn open(path: impl AsRef<Path>) -> Result<ModelFiles, GgufError> {
        let path = path.as_ref();
        let first = open_file(path)?;
        let name = path.display().to_string();
        let mut opened = vec![first];
        if let Some(split) = Split::from_metadata(&name, &opened[0].header.metadata)? {
            let metadata = &opened[0].header.metadata;
            if split.number != 0 {
                return Err(not_first(path, metadata, &split));
            }
            for sibling in find_siblings(path, metadata, &split)? {
                opened.push(open_file(&sibling)?);
            }
        }
        assemble(opened)
    }

    /// Opens a model that is part of the program. `name` stands for it in errors. The bytes are not copied.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<ModelFiles, GgufError> {
        let header = Header::read(name, bytes, bytes.len() as u64)?;
        let source = Source::Static(bytes);
        assemble(vec![Opened { path: name.into(), bytes: bytes.len() as u64, header, source }])
    }

    /// Opens a model in memory. `name` stands for it in errors.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<ModelFiles, GgufError> {
        ModelFiles::from_memory(vec![(name.to_owned(), bytes)])
    }

    /// Opens a model in memory, of one or several shards, in their order, each with a name for errors.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_memory(shards: Vec<(String, Vec<u8>)>) -> Result<ModelFiles, GgufError> {
        let mut opened = Vec::new();
        for (name, bytes) in shards {
            let header = Header::read(&name, bytes.as_slice(), bytes.len() as u64)?;
            let length = bytes.len() as u64;
            opened.push(Opened { path: name.into(), bytes: length, header, source: Source::Owned(bytes) });
        }
        assemble(opened)
    }

    /// Opens a model of which only the header is at hand, for inspection and planning: `header` gives at least the
    /// header's bytes, and `file_bytes` is the size that the whole file has. Reading a tensor is then an error.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn from_header(name: &str, header: impl BufRead, file_bytes: u64) -> Result<ModelFiles, GgufError> {
        let header = Header::read(name, header, file_bytes)?;
        assemble(vec![Opened { path: name.into(), bytes: file_bytes, header, source: Source::HeaderOnly }])
    }

    /// The metadata of the model: that of its first shard.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, shard by shard in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name, from whichever shard holds it.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&place| &self.tensors[place])
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn require_tensor(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensor(name).ok_or_else(|| GgufError::NoSuchTensor { file: self.name(), tensor: name.to_owned() })
    }

    /// The files of the model in the order of the shards. There is at least one.
    pub fn files(&self) -> &[ModelFile] {
        &self.files
    }

    /// Path of the first file, or the name given to bytes in memory: what the model is called in messages.
    pub fn name(&self) -> String {
        self.files[0].path.display().to_string()
    }

    /// Size of all files together, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Tensors, weights and bytes for each value of `key`, e.g. for each block format or each part of the model.
    pub fn totals_by<K: Ord>(&self, key: impl Fn(&TensorInfo) -> K) -> BTreeMap<K, Totals> {
        let mut totals: BTreeMap<K, Totals> = BTreeMap::new();
        for tensor in &self.tensors {
            let total = totals.entry(key(tensor)).or_default();
            total.tensors += 1;
            // Shapes are bounded one by one, but 65,536 huge ones could overflow a sum over shards.
            total.elements = total.elements.saturating_add(tensor.elements());
            total.bytes = total.bytes.saturating_add(tensor.bytes);
        }
        totals
    }

    /// Fills `buffer` with the bytes of `tensor` from byte `offset` of the tensor on. Any number of threads may read
    /// at once.
    ///
    /// # Errors
    /// The range goes past the tensor, the file was cut short meanwhile, or the system cannot read it.
    pub fn read_at(&self, tensor: &TensorInfo, offset: u64, buffer: &mut [u8]) -> Result<(), GgufError> {
        let length_bytes = buffer.len() as u64;
        let source = self.check_range(tensor, offset, length_bytes)?;
        if let Source::HeaderOnly = source {
            return Err(GgufError::NoData { file: self.file_name(tensor), tensor: tensor.name.clone() });
        }
        let position = tensor.offset + offset;
        source.read_exact_at(position, buffer).map_err(|source| {
            let (file, tensor) = (self.file_name(tensor), tensor.name.clone());
            match source.kind() {
                io::ErrorKind::UnexpectedEof => GgufError::ShortRead { file, tensor, offset: position },
                _ => GgufError::Read { file, tensor, offset: position, source },
            }
        })
    }

    /// All bytes of `tensor`, without copying, if the model is in memory.
    pub fn borrow(&self, tensor: &TensorInfo) -> Option<&[u8]> {
        let bytes = self.check_range(tensor, 0, tensor.bytes).ok()?.in_memory()?;
        let start = usize::try_from(tensor.offset).ok()?;
        bytes.get(start..start.checked_add(usize::try_from(tensor.bytes).ok()?)?)
    }

    /// The open file of a shard, for mapping it or reading it in other ways. `None` if the model is in memory.
    pub fn file_handle(&self, shard: usize) -> Option<&File> {
        match self.sources.get(shard) {
            Some(Source::File(file)) => Some(file),
            _ => None,
        }
    }

    /// Fills `buffer` with the bytes of a shard from `offset` on, whatever they mean.
    ///
    /// # Errors
    /// `UnexpectedEof` if there are fewer, or what the system says.
    pub fn read_shard(&self, shard: usize, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let source = self.sources.get(shard).ok_or(io::ErrorKind::NotFound)?;
        source.read_exact_at(offset, buffer)
    }

    /// Checks that a range lies inside the tensor, and the tensor inside its file: a caller may hold a `TensorInfo` of
    /// another model.
    fn check_range(&self, tensor: &TensorInfo, offset: u64, length_bytes: u64) -> Result<&Source, GgufError> {
        let inside = |start: u64, length: u64, all: u64| start.checked_add(length).is_some_and(|end| end <= all);
        let file_bytes = self.files.get(tensor.shard).map_or(0, |file| file.bytes);
        match self.sources.get(tensor.shard) {
            Some(source) if inside(offset, length_bytes, tensor.bytes) && inside(tensor.offset, tensor.bytes, file_bytes) => {
                Ok(source)
            }
            _ => Err(GgufError::OutsideTensor {
                file: self.file_name(tensor),
                tensor: tensor.name.clone(),
                offset,
                length_bytes,
                tensor_bytes: tensor.bytes,
            }),
        }
    }

    fn file_name(&self, tensor: &TensorInfo) -> String {
        match self.files.get(tensor.shard) {
            Some(file) => file.path.display().to_string(),
            None => format!("{} (shard {})", self.name(), tensor.shard + 1),
        }
    }
}

fn open_file(path: &Path) -> Result<Opened, GgufError> {
    let name = path.display().to_string();
    let failure = |source| GgufError::Io { file: name.clone(), action: "open", source };
    // Looked at before it is opened: opening a pipe would wait for a writer.
    let kind = std::fs::metadata(path).map_err(failure)?;
    if !kind.is_file() {
        let found = if kind.is_dir() { "it is a folder; give a file in it" } else { "it is not a regular file" };
        return Err(GgufError::NotGguf { file: name, found: found.to_owned() });
    }
    let file = File::open(path).map_err(failure)?;
    let bytes = file.metadata().map_err(failure)?.len();
    let header = Header::read(&name, BufReader::with_capacity(1 << 20, &file), bytes)?;
    Ok(Opened { path: path.to_owned(), bytes, header, source: Source::File(file) })
}

/// Joins files that were opened in the order of the shards, after checking that they belong together.
fn assemble(mut opened: Vec<Opened>) -> Result<ModelFiles, GgufError> {
    check_split(&opened)?;
    let metadata = opened.first_mut().map(|first| std::mem::take(&mut first.header.metadata)).unwrap_or_default();
    let tensor_count = opened.iter().map(|file| file.header.tensors.len()).sum();
    let mut model = ModelFiles {
        metadata,
        tensors: Vec::with_capacity(tensor_count),
        index: HashMap::with_capacity(tensor_count),
        files: Vec::new(),
        sources: Vec::new(),
    };
    for (shard, file) in opened.into_iter().enumerate() {
        model.files.push(ModelFile {
            path: file.path,
            bytes: file.bytes,
            version: file.header.version,
            alignment_bytes: file.header.alignment_bytes,
            tensor_count: file.header.tensors.len(),
            trailing_bytes: file.header.trailing_bytes,
        });
        model.sources.push(file.source);
        for tensor in file.header.tensors {
            add_tensor(&mut model, TensorInfo { shard, ..tensor })?;
        }
    }
    Ok(model)
}

fn add_tensor(model: &mut ModelFiles, tensor: TensorInfo) -> Result<(), GgufError> {
    if let Some(&place) = model.index.get(&tensor.name) {
        let first = &model.tensors[place];
        return Err(GgufError::DuplicateTensor {
            file: model.file_name(&tensor),
            first_file: model.file_name(first),
            advice: match first.shard == tensor.shard {
                true => "the file is damaged or was written by a faulty tool",
                false => "the files are not shards of one model",
            },
            tensor: tensor.name,
        });
    }
    model.index.insert(tensor.name.clone(), model.tensors.len());
    model.tensors.push(tensor);
    Ok(())
}

/// Checks that the files are all the shards of one model, in order.
fn check_split(opened: &[Opened]) -> Result<(), GgufError> {
    let Some(first) = opened.first() else {
        return Err(GgufError::NotGguf { file: String::new(), found: "no file was given".to_owned() });
    };
    let first_name = first.path.display().to_string();
    let Some(split) = Split::from_metadata(&first_name, &first.header.metadata)? else {
        return match opened.get(1) {
            None => Ok(()),
            Some(second) => Err(GgufError::BadSplit {
                file: second.path.display().to_string(),
                reason: format!("it was given as a shard of '{first_name}', which is in one file"),
            }),
        };
    };
    for (expected, file) in opened.iter().enumerate() {
        let name = file.path.display().to_string();
        let found = Split::from_metadata(&name, &file.header.metadata)?;
        if !found.is_some_and(|found| found.agrees(&split) && found.number == expected as u64) {
            let reason = format!("it should be shard {} of {} of '{first_name}'", expected + 1, split.count);
            return Err(GgufError::BadSplit { file: name, reason });
        }
    }
    if opened.len() as u64 != split.count {
        return Err(GgufError::MissingShard {
            file: first_name,
            number: opened.len() as u64 + 1,
            count: split.count,
            found: "it was not given".to_owned(),
        });
    }
    let found = opened.iter().map(|file| file.header.tensors.len() as u64).sum();
    match split.tensor_count {
        Some(expected) if expected != found => Err(GgufError::ShardTensorCount { file: first_name, found, expected }),
        _ => Ok(()),
    }
}
