//! Key-value metadata of a GGUF file, with typed look-ups whose errors name the key.

use thiserror::Error;

/// A metadata value as stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of one element type. Nested arrays are kept, since the format allows them.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

#[derive(Debug, Clone, PartialEq, Error)]
pub enum MetadataError {
    #[error("the file has no metadata key '{key}', which is needed")]
    Missing { key: String },
    #[error("metadata key '{key}' holds {found}, expected {expected}")]
    WrongType {
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("metadata key '{key}' is {found}, which is outside {expected}")]
    OutOfRange {
        key: String,
        expected: String,
        found: String,
    },
}

/// All metadata of a model, in file order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
}
