//! The GGUF file format: a bounds-checked reader, shards, typed metadata, and a writer for tests and tools.

mod metadata;

pub use metadata::{Array, Metadata, MetadataError, Value};
