//! The one error type of this room.

use std::io;

use thiserror::Error;

use super::MetadataError;

/// What is wrong with a GGUF file, or went wrong with reading or writing it.
///
/// Each names the file, the tensor or key, what was found and expected, and what to do about it. Names that come from
/// a file are quoted with control characters escaped, as they may go to a terminal.
#[derive(Debug, Error)]
pub enum GgufError {
    #[error("cannot {action} '{file}': {source}")]
    Io { file: String, action: &'static str, source: io::Error },
    #[error("'{file}' is not a GGUF file: {found}")]
    NotGguf { file: String, found: String },
    #[error(
        "'{file}' is a big-endian GGUF file, and only little-endian ones can be read; convert it \
         (gguf-py has gguf_convert_endian.py) or get the little-endian version"
    )]
    BigEndian { file: String },
    #[error("'{file}' has GGUF version {version}, and versions 2 and 3 can be read; {advice}")]
    UnsupportedVersion { file: String, version: u32, advice: &'static str },
    #[error(
        "the header of '{file}' is damaged or cut short: {place} needs {needed_bytes} bytes at byte {offset}, where \
         the file has {available_bytes} left; download or copy the file again"
    )]
    HeaderTruncated { file: String, place: String, offset: u64, needed_bytes: u64, available_bytes: u64 },
    #[error(
        "the header of '{file}' is larger than {limit_bytes} bytes at {place}, which no model needs; the file is \
         damaged: download or copy it again"
    )]
    HeaderTooLarge { file: String, place: String, limit_bytes: u64 },
    #[error("'{file}' declares {found} {what}, and at most {limit} can be read; the file is damaged or hostile")]
    TooMany { file: String, what: &'static str, found: u64, limit: u64 },
    #[error("in '{file}', {place} is not valid UTF-8; the file is damaged or was written by a faulty tool")]
    NotUtf8 { file: String, place: String },
    #[error("in '{file}', {place} is empty; the file is damaged or was written by a faulty tool")]
    EmptyName { file: String, place: String },
    #[error("in '{file}', {place} has {found} bytes, and at most {limit} can be read; the file is damaged or hostile")]
    NameTooLong { file: String, place: String, found: u64, limit: u64 },
    #[error(
        "in '{file}', metadata key {key:?} has value type {found}, and types 0 to 12 exist; the file is damaged or \
         newer than this program"
    )]
    UnknownValueType { file: String, key: String, found: u32 },
    #[error("in '{file}', metadata key {key:?} holds a bool of {found}, and only 0 and 1 are bools; the file is damaged")]
    NotABool { file: String, key: String, found: u8 },
    #[error("in '{file}', the arrays of metadata key {key:?} are nested deeper than {limit}; the file is damaged or hostile")]
    NestedTooDeep { file: String, key: String, limit: u32 },
    #[error("'{file}' has metadata key {key:?} twice; the file is damaged or was written by a faulty tool")]
    DuplicateKey { file: String, key: String },
    #[error("in '{file}', {source}")]
    Metadata { file: String, source: MetadataError },
    #[error("in '{file}', general.alignment is {found}, and must be a power of two from 8 to {limit}; the file is damaged")]
    BadAlignment { file: String, found: u64, limit: u64 },
    #[error("in '{file}', tensor {tensor:?} has {found} dimensions, and 1 to 4 are allowed; the file is damaged")]
    BadDimensionCount { file: String, tensor: String, found: u32 },
    #[error("in '{file}', tensor {tensor:?} has the impossible shape {shape:?}: {reason}; the file is damaged")]
    BadShape { file: String, tensor: String, shape: Vec<u64>, reason: &'static str },
    #[error(
        "in '{file}', tensor {tensor:?} has type number {number} ({name}), which cannot be read; get the model in \
         another quantisation"
    )]
    UnsupportedType { file: String, tensor: String, number: u32, name: &'static str },
    #[error(
        "in '{file}', tensor {tensor:?} has rows of {row_len} weights, which is not a whole number of {format} blocks \
         of {block_len}; the file is damaged or was written by a faulty tool"
    )]
    PartialBlock { file: String, tensor: String, row_len: u64, format: &'static str, block_len: usize },
    #[error(
        "in '{file}', tensor {tensor:?} starts at byte {offset} of the data, which is not a multiple of the \
         alignment {alignment_bytes}; the file is damaged or was written by a faulty tool"
    )]
    Misaligned { file: String, tensor: String, offset: u64, alignment_bytes: u64 },
    #[error(
        "'{file}' is damaged or cut short: tensor {tensor:?} needs {tensor_bytes} bytes from byte {start}, and the \
         file has {file_bytes} in all; download or copy the file again"
    )]
    OutsideFile { file: String, tensor: String, start: u64, tensor_bytes: u64, file_bytes: u64 },
    #[error("in '{file}', the data of tensors {first:?} and {second:?} overlap; the file is damaged or hostile")]
    Overlap { file: String, first: String, second: String },
    #[error("tensor {tensor:?} is in '{first_file}' and again in '{file}'; {advice}")]
    DuplicateTensor { file: String, tensor: String, first_file: String, advice: &'static str },
    #[error("'{file}' is one of several shards, but its metadata is contradictory: {reason}; get the shards again")]
    BadSplit { file: String, reason: String },
    #[error("'{file}' is shard {number} of {count}; give the first shard instead: {first}")]
    NotFirstShard { file: String, number: u64, count: u64, first: String },
    #[error("shard {number} of {count} of the model '{file}' is missing: {found}")]
    MissingShard { file: String, number: u64, count: u64, found: String },
    #[error(
        "'{first}' and '{second}' could both be shard {number} of {count} of the model '{file}'; keep the shards of \
         one model in a folder of their own, or give all of them its name (NAME-00001-of-{count:05}.gguf)"
    )]
    AmbiguousShard { file: String, number: u64, count: u64, first: String, second: String },
    #[error("the shards of '{file}' hold {found} tensors together, and the model has {expected}; get the shards again")]
    ShardTensorCount { file: String, found: u64, expected: u64 },
    #[error("the model '{file}' has no tensor {tensor:?}, which is needed")]
    NoSuchTensor { file: String, tensor: String },
    #[error(
        "a read of {length_bytes} bytes at byte {offset} of tensor {tensor:?} in '{file}' goes past its \
         {tensor_bytes} bytes; this is a defect of this program: please report it"
    )]
    OutsideTensor { file: String, tensor: String, offset: u64, length_bytes: u64, tensor_bytes: u64 },
    #[error("cannot read tensor {tensor:?} from '{file}' (byte {offset}): {source}")]
    Read { file: String, tensor: String, offset: u64, source: io::Error },
    #[error("'{file}' ends inside tensor {tensor:?} (byte {offset}); it was changed or cut short after it was opened")]
    ShortRead { file: String, tensor: String, offset: u64 },
    #[error("'{file}' was opened without its data, so tensor {tensor:?} cannot be read")]
    NoData { file: String, tensor: String },
    #[error("cannot write a GGUF file: {reason}")]
    Unwritable { reason: String },
}
