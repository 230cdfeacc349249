//! Reads and checks the header of one file: version, metadata, tensor table.

use std::io::BufRead;

use super::cursor::{Cursor, Place};
use super::tensor::foreign_type_name;
use super::values::{MAX_KEYS, MIN_KEY_BYTES, read_metadata};
use super::{GgufError, Metadata, TensorInfo};
use crate::quant::Format;

const MAGIC: &[u8; 4] = b"GGUF";
/// The largest models have a few thousand tensors; with every expert a tensor of its own, 47,000.
pub(super) const MAX_TENSORS: u64 = 65_536;
/// Name length, dimension count, one dimension, type and offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;
const MAX_ALIGNMENT_BYTES: u64 = 1 << 20;
const DEFAULT_ALIGNMENT_BYTES: u64 = 32;
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";

/// The header of one file. Every tensor lies inside the file, and no two overlap.
#[derive(Debug)]
pub(super) struct Header {
    pub version: u32,
    pub metadata: Metadata,
    /// In file order, with `shard` 0.
    pub tensors: Vec<TensorInfo>,
    pub alignment_bytes: u64,
    /// Bytes after the last tensor and its padding.
    pub trailing_bytes: u64,
}

/// What must be known of a file to tell whether it is a shard of some model.
#[derive(Debug)]
pub(super) struct Peek {
    /// Only the keys `split.*` and `general.*`.
    pub metadata: Metadata,
}

impl Header {
    /// Reads a header of a file of `file_bytes` from `input`, which need not hold more than the header.
    ///
    /// # Errors
    /// Anything wrong with the header; see [`GgufError`].
    pub fn read(file: &str, input: impl BufRead, file_bytes: u64) -> Result<Header, GgufError> {
        let mut cursor = Cursor::new(file, input, file_bytes);
        let preamble = Preamble::read(&mut cursor)?;
        let metadata = read_metadata(&mut cursor, preamble.key_count, |_| true)?;
        let alignment_bytes = read_alignment(file, &metadata)?;
        let mut tensors = read_tensors(&mut cursor, preamble.tensor_count, alignment_bytes)?;
        let end = place_tensors(&cursor, &mut tensors, alignment_bytes)?;
        check_overlaps(file, &tensors)?;
        let trailing_bytes = file_bytes.saturating_sub(end.next_multiple_of(alignment_bytes));
        Ok(Header { version: preamble.version, metadata, tensors, alignment_bytes, trailing_bytes })
    }
}

impl Peek {
    /// Reads only what tells whether the file is a shard, without keeping the vocabulary.
    ///
    /// # Errors
    /// As [`Header::read`], as far as it was read.
    pub fn read(file: &str, input: impl BufRead, file_bytes: u64) -> Result<Peek, GgufError> {
        let mut cursor = Cursor::new(file, input, file_bytes);
        let preamble = Preamble::read(&mut cursor)?;
        let keep = |key: &str| key.starts_with("split.") || key.starts_with("general.");
        Ok(Peek { metadata: read_metadata(&mut cursor, preamble.key_count, keep)? })
    }
}

/// What comes before the metadata.
struct Preamble {
    version: u32,
    tensor_count: u64,
    key_count: u64,
}

impl Preamble {
    fn read<R: BufRead>(cursor: &mut Cursor<R>) -> Result<Preamble, GgufError> {
        let file = cursor.file();
        let start = cursor.peek()?;
        if !start.starts_with(MAGIC) {
            let found = describe_foreign(start).to_owned();
            return Err(GgufError::NotGguf { file: file.to_owned(), found });
        }
        cursor.skip(MAGIC.len() as u64, Place::Counts)?;
        let version = cursor.number::<u32>(Place::Counts)?;
        check_version(file, version)?;
        let tensor_count = cursor.number::<u64>(Place::Counts)?;
        let key_count = cursor.number::<u64>(Place::Counts)?;
        let too_many = |what, found, limit| GgufError::TooMany { file: file.to_owned(), what, found, limit };
        if tensor_count > MAX_TENSORS {
            return Err(too_many("tensors", tensor_count, MAX_TENSORS));
        }
        if key_count > MAX_KEYS {
            return Err(too_many("metadata keys", key_count, MAX_KEYS));
        }
        let least_bytes = key_count * MIN_KEY_BYTES + tensor_count * MIN_TENSOR_BYTES;
        cursor.check_room(least_bytes, 1, Place::Counts)?;
        Ok(Preamble { version, tensor_count, key_count })
    }
}

fn check_version(file: &str, version: u32) -> Result<(), GgufError> {
    let file = || file.to_owned();
    match version {
        2 | 3 => Ok(()),
        // The bytes of a small number, swapped.
        swapped if swapped != 0 && swapped & 0xFFFF == 0 => Err(GgufError::BigEndian { file: file() }),
        0 | 1 => Err(GgufError::UnsupportedVersion {
            file: file(),
            version,
            advice: "the file is from before September 2023: get a newer conversion of the model",
        }),
        _ => Err(GgufError::UnsupportedVersion {
            file: file(),
            version,
            advice: "the file is damaged, or newer than this program: update it",
        }),
    }
}

/// What a file that does not begin with the magic seems to be, with advice.
fn describe_foreign(start: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 10] = [
        (b"version https://git-lfs", "it is a git-lfs pointer; fetch the real file with `git lfs pull`"),
        (b"<", "it looks like a web page, so the download failed; download it again"),
        (b"lmgg", "it is a model in the GGML format of 2023; get the model as GGUF"),
        (b"fmgg", "it is a model in the GGMF format of 2023; get the model as GGUF"),
        (b"tjgg", "it is a model in the GGJT format of 2023; get the model as GGUF"),
        (b"algg", "it is an adapter in the GGLA format of 2023; get a model as GGUF"),
        (b"FUGG", "its magic is byte-swapped; get the little-endian version of the model"),
        (b"PK\x03\x04", "it is a zip archive, maybe of PyTorch weights; get the model as GGUF"),
        (b"\x1f\x8b", "it is compressed with gzip; unpack it first"),
        (b"\x28\xb5\x2f\xfd", "it is compressed with zstd; unpack it first"),
    ];
    if start.is_empty() {
        return "it is empty; download or copy it again";
    }
    if let Some((_, text)) = KNOWN.iter().find(|(magic, _)| start.starts_with(magic)) {
        return text;
    }
    if start.len() > 9 && start[8..10] == *b"{\"" {
        return "it looks like safetensors; get the model as GGUF or convert it";
    }
    if start.iter().take(64).all(|&byte| byte == 0) {
        return "it begins with zeros, so the download was not finished; download it again";
    }
    "it does not begin with 'GGUF'"
}

fn read_alignment(file: &str, metadata: &Metadata) -> Result<u64, GgufError> {
    let found = metadata
        .opt_u64(ALIGNMENT_KEY)
        .map_err(|source| GgufError::Metadata { file: file.to_owned(), source })?
        .unwrap_or(DEFAULT_ALIGNMENT_BYTES);
    if found.is_power_of_two() && (8..=MAX_ALIGNMENT_BYTES).contains(&found) {
        return Ok(found);
    }
    Err(GgufError::BadAlignment { file: file.to_owned(), found, limit: MAX_ALIGNMENT_BYTES })
}

/// Reads the tensor table. Offsets are still counted from the start of the data, as in the file.
fn read_tensors<R: BufRead>(cursor: &mut Cursor<R>, count: u64, alignment_bytes: u64) -> Result<Vec<TensorInfo>, GgufError> {
    // Not all at once: a table entry takes more memory than its fewest bytes in the file.
    let mut tensors = Vec::with_capacity(count.min(1024) as usize);
    for index in 0..count {
        let name = cursor.name(Place::TensorName(index))?;
        tensors.push(read_tensor(cursor, name, alignment_bytes)?);
    }
    Ok(tensors)
}

fn read_tensor<R: BufRead>(cursor: &mut Cursor<R>, name: String, alignment_bytes: u64) -> Result<TensorInfo, GgufError> {
    let file = cursor.file();
    let place = Place::Tensor(&name);
    let dimension_count = cursor.number::<u32>(place)?;
    if !(1..=4).contains(&dimension_count) {
        return Err(GgufError::BadDimensionCount { file: file.to_owned(), tensor: name, found: dimension_count });
    }
    let shape = cursor.numbers::<u64>(dimension_count.into(), place)?;
    let type_number = cursor.number::<u32>(place)?;
    let offset = cursor.number::<u64>(place)?;
    let Some(format) = Format::from_ggml_type(type_number) else {
        return Err(GgufError::UnsupportedType {
            file: file.to_owned(),
            tensor: name,
            number: type_number,
            name: foreign_type_name(type_number),
        });
    };
    let bytes = tensor_bytes(file, &name, &shape, format)?;
    if !offset.is_multiple_of(alignment_bytes) {
        return Err(GgufError::Misaligned { file: file.to_owned(), tensor: name, offset, alignment_bytes });
    }
    Ok(TensorInfo { name, shape, format, shard: 0, offset, bytes })
}

fn tensor_bytes(file: &str, name: &str, shape: &[u64], format: Format) -> Result<u64, GgufError> {
    let bad_shape =
        |reason| GgufError::BadShape { file: file.to_owned(), tensor: name.to_owned(), shape: shape.to_vec(), reason };
    if shape.contains(&0) {
        return Err(bad_shape("a dimension is zero"));
    }
    let too_large = || bad_shape("it has more weights than any file can hold");
    let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size)).ok_or_else(too_large)?;
    let row_len = shape[0];
    let block_len = format.info().block_len;
    if !row_len.is_multiple_of(block_len as u64) {
        return Err(GgufError::PartialBlock {
            file: file.to_owned(),
            tensor: name.to_owned(),
            row_len,
            format: format.name(),
            block_len,
        });
    }
    let bytes = format.row_bytes(row_len).and_then(|row_bytes| row_bytes.checked_mul(elements / row_len));
    bytes.filter(|&bytes| bytes <= i64::MAX as u64).ok_or_else(too_large)
}

/// Makes the offsets count from the start of the file, checks that all data lies inside it, and returns where the
/// last data ends.
fn place_tensors<R: BufRead>(cursor: &Cursor<R>, tensors: &mut [TensorInfo], alignment_bytes: u64) -> Result<u64, GgufError> {
    let file_bytes = cursor.file_bytes();
    let header_end = cursor.position();
    // Cannot overflow: the header is at most MAX_HEADER_BYTES, the alignment at most MAX_ALIGNMENT_BYTES.
    let data_start = header_end.next_multiple_of(alignment_bytes);
    let mut last_end = header_end;
    for tensor in tensors {
        let start = data_start.saturating_add(tensor.offset);
        let end = start.saturating_add(tensor.bytes);
        if end > file_bytes {
            return Err(GgufError::OutsideFile {
                file: cursor.file().to_owned(),
                tensor: tensor.name.clone(),
                start,
                tensor_bytes: tensor.bytes,
                file_bytes,
            });
        }
        tensor.offset = start;
        last_end = last_end.max(end);
    }
    Ok(last_end)
}

fn check_overlaps(file: &str, tensors: &[TensorInfo]) -> Result<(), GgufError> {
    let mut by_offset: Vec<u32> = (0..tensors.len() as u32).collect();
    by_offset.sort_unstable_by_key(|&index| tensors[index as usize].offset);
    for pair in by_offset.windows(2) {
        let (first, second) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        if first.offset + first.bytes > second.offset {
            return Err(GgufError::Overlap { file: file.to_owned(), first: first.name.clone(), second: second.name.clone() });
        }
    }
    Ok(())
}
