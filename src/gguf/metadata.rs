//! Key-value metadata of a GGUF file.
//!
//! The typed look-ups (`metadata.u32("llama.block_count")`) are in `getters.rs`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, Serializer};
use thiserror::Error;

use super::Strings;

/// The type numbers of metadata values in a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    pub fn from_number(number: u32) -> Option<ValueType> {
        ValueType::ALL.get(usize::try_from(number).ok()?).copied()
    }

    pub fn number(self) -> u32 {
        self as u32
    }

    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// The fewest bytes that a value of this type takes in a file; exact for all but strings and arrays.
    pub(super) fn min_bytes(self) -> u64 {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 => 8,
            ValueType::String => 8,
            ValueType::Array => 12,
        }
    }
}

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
    String(Strings),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Evaluates `$body` with `$items` bound to the list inside an [`Array`], whatever its type.
macro_rules! with_items {
    ($array:expr, $items:ident => $body:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::F32($items) => $body,
            Array::Bool($items) => $body,
            Array::String($items) => $body,
            Array::Array($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F64($items) => $body,
        }
    };
}

impl Array {
    pub fn len(&self) -> usize {
        with_items!(self, items => items.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn item_type(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::F32(_) => ValueType::F32,
            Array::Bool(_) => ValueType::Bool,
            Array::String(_) => ValueType::String,
            Array::Array(_) => ValueType::Array,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F64(_) => ValueType::F64,
        }
    }
}

impl Value {
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// Type and value in a few words, for an error: `the string "abc"`, `an array of 4 i32`, `the u32 7`.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Array(array) => {
                format!("an array of {} {}", array.len(), array.item_type().name())
            }
            other => format!("the {} {other}", other.value_type().name()),
        }
    }
}

/// A preview of at most a few hundred characters in one line: long strings and arrays are cut and say how long they are.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(value) => write!(f, "{value}"),
            Value::I8(value) => write!(f, "{value}"),
            Value::U16(value) => write!(f, "{value}"),
            Value::I16(value) => write!(f, "{value}"),
            Value::U32(value) => write!(f, "{value}"),
            Value::I32(value) => write!(f, "{value}"),
            // `Debug` writes 1e300 where `Display` writes 300 digits.
            Value::F32(value) => write!(f, "{value:?}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::String(value) => write_quoted(f, value, 60),
            Value::Array(value) => write!(f, "{value}"),
            Value::U64(value) => write!(f, "{value}"),
            Value::I64(value) => write!(f, "{value}"),
            Value::F64(value) => write!(f, "{value:?}"),
        }
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        f.write_str("[")?;
        match self {
            Array::String(items) => {
                for (i, item) in items.iter().take(SHOWN).enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    write_quoted(f, item, 12)?;
                }
            }
            Array::Array(items) => {
                // One level is enough for a preview, and bounds the recursion.
                for (i, item) in items.iter().take(SHOWN).enumerate() {
                    let separator = if i == 0 { "" } else { ", " };
                    write!(f, "{separator}[{} {}]", item.len(), item.item_type().name())?;
                }
            }
            Array::U8(items) => write_some(f, items, SHOWN)?,
            Array::I8(items) => write_some(f, items, SHOWN)?,
            Array::U16(items) => write_some(f, items, SHOWN)?,
            Array::I16(items) => write_some(f, items, SHOWN)?,
            Array::U32(items) => write_some(f, items, SHOWN)?,
            Array::I32(items) => write_some(f, items, SHOWN)?,
            Array::F32(items) => write_some(f, items, SHOWN)?,
            Array::Bool(items) => write_some(f, items, SHOWN)?,
            Array::U64(items) => write_some(f, items, SHOWN)?,
            Array::I64(items) => write_some(f, items, SHOWN)?,
            Array::F64(items) => write_some(f, items, SHOWN)?,
        }
        match self.len() > SHOWN {
            true => write!(f, ", … {} {}]", self.len(), self.item_type().name()),
            false => f.write_str("]"),
        }
    }
}

fn write_some<T: fmt::Debug>(f: &mut fmt::Formatter<'_>, items: &[T], count: usize) -> fmt::Result {
    for (i, item) in items.iter().take(count).enumerate() {
        write!(f, "{}{item:?}", if i == 0 { "" } else { ", " })?;
    }
    Ok(())
}

/// Writes `text` in quotes, with control characters escaped: the text comes from a file and may go to a terminal.
fn write_quoted(f: &mut fmt::Formatter<'_>, text: &str, max_chars: usize) -> fmt::Result {
    match text.char_indices().nth(max_chars) {
        Some((cut, _)) => write!(f, "{:?}… ({} bytes)", &text[..cut], text.len()),
        None => write!(f, "{text:?}"),
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::U8(value) => value.serialize(serializer),
            Value::I8(value) => value.serialize(serializer),
            Value::U16(value) => value.serialize(serializer),
            Value::I16(value) => value.serialize(serializer),
            Value::U32(value) => value.serialize(serializer),
            Value::I32(value) => value.serialize(serializer),
            Value::F32(value) => value.serialize(serializer),
            Value::Bool(value) => value.serialize(serializer),
            Value::String(value) => value.serialize(serializer),
            Value::Array(value) => value.serialize(serializer),
            Value::U64(value) => value.serialize(serializer),
            Value::I64(value) => value.serialize(serializer),
            Value::F64(value) => value.serialize(serializer),
        }
    }
}

impl Serialize for Array {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        with_items!(self, items => serializer.collect_seq(items.iter()))
    }
}

/// Why a metadata look-up failed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MetadataError {
    #[error("the file has no metadata key '{key}', which is needed")]
    Missing { key: String },
    #[error("metadata key '{key}' holds {found}, expected {expected}")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error("metadata key '{key}' is {found}, which is outside {expected}")]
    OutOfRange { key: String, expected: String, found: String },
}

/// All metadata of a model, in file order. A look-up takes constant time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(Arc<str>, Value)>,
    /// From key to its place in `entries`; the text is shared with it.
    index: HashMap<Arc<str>, usize>,
}

impl Metadata {
    pub fn new() -> Metadata {
        Metadata::default()
    }

    /// Sets `key`. A key that was there keeps its place, and its old value is returned.
    pub fn insert(&mut self, key: &str, value: Value) -> Option<Value> {
        if let Some(&place) = self.index.get(key) {
            return Some(std::mem::replace(&mut self.entries[place].1, value));
        }
        let key: Arc<str> = key.into();
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// The value as stored; see also the typed look-ups.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&place| &self.entries[place].1)
    }

    pub fn contains_key(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + '_ {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// As a JSON object in file order. Non-finite numbers become `null`, since JSON has none.
impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

macro_rules! value_from {
    ($($type:ty => $variant:ident),* $(,)?) => {
        $(
            impl From<$type> for Value {
                fn from(value: $type) -> Value {
                    Value::$variant(value)
                }
            }
            impl From<Vec<$type>> for Value {
                fn from(items: Vec<$type>) -> Value {
                    Value::Array(Array::$variant(items))
                }
            }
        )*
    };
}

value_from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool, u64 => U64,
    i64 => I64, f64 => F64);

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text)
    }
}

impl From<Strings> for Value {
    fn from(items: Strings) -> Value {
        Value::Array(Array::String(items))
    }
}
