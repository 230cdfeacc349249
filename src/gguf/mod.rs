//! The GGUF file format: a bounds-checked reader, shards, typed metadata, and a writer for tests and tools.
//!
//! [`ModelFiles::open`] reads headers only, so a model of any size opens in milliseconds. What it returns is sound:
//! every count, length and offset of the file was checked before use, and the errors ([`GgufError`]) name the file and
//! the tensor or key.
//!
//! **Memory.** A header is read as a stream, at most 256 MiB of it, and nothing is reserved before the file is known
//! to hold as many bytes. Text and arrays take no more memory than in the file (a list of strings up to twice that,
//! for a moment, while it grows); what is kept for each key and tensor beside that is bounded by limits on their number
//! (16,384 keys, 65,536 tensors) and below 16 MiB.
//!
//! How files are read past the page cache (`unbuffered`) and written whole or not at all (`whole_file`) is here as well, for
//! the rooms above.
//!
//! This room knows nothing of models: what keys and tensors mean is for `model` to say.

mod cursor;
mod error;
mod getters;
mod header;
mod metadata;
mod model_files;
mod shards;
mod source;
mod strings;
mod tensor;
mod unbuffered;
mod values;
mod whole_file;
mod writer;

pub use error::GgufError;
pub use metadata::{Array, Metadata, MetadataError, Value, ValueType};
pub use model_files::{ModelFile, ModelFiles, Totals};
pub use source::{read_exact_at, read_some_at};
pub use strings::Strings;
pub use tensor::TensorInfo;
pub use unbuffered::{SECTOR_BYTES, SectorBuffer, open_unbuffered};
pub use whole_file::{WholeFile, write_whole};
pub use writer::GgufWriter;
