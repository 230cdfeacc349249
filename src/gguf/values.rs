//! Reads metadata keys and values.

use std::io::BufRead;

use super::cursor::{Cursor, Number, Place};
use super::{Array, GgufError, Metadata, Strings, Value, ValueType};

/// Real models have below 200 keys.
pub(super) const MAX_KEYS: u64 = 16_384;
/// No model is known to nest arrays at all.
pub(super) const MAX_ARRAY_DEPTH: u32 = 4;
/// An empty inner array takes 12 bytes in the file and more in memory, so their number is bounded, for all keys
/// together.
pub(super) const MAX_INNER_ARRAYS: u64 = 65_536;
/// Name length, type and the smallest value.
pub(super) const MIN_KEY_BYTES: u64 = 8 + 4 + 1;

/// Reads `count` keys, and keeps the values of those that `keep` says.
///
/// # Errors
/// Anything that does not fit in the file, is not UTF-8, has an unknown type, or comes twice.
pub(super) fn read_metadata<R: BufRead>(
    cursor: &mut Cursor<R>,
    count: u64,
    keep: impl Fn(&str) -> bool,
) -> Result<Metadata, GgufError> {
    let mut metadata = Metadata::new();
    let mut reader = ValueReader { cursor, inner_arrays_left: MAX_INNER_ARRAYS };
    for index in 0..count {
        let key = reader.cursor.name(Place::KeyName(index))?;
        if metadata.contains_key(&key) {
            return Err(GgufError::DuplicateKey { file: reader.cursor.file().to_owned(), key });
        }
        let value_type = reader.value_type(&key)?;
        if keep(&key) {
            let value = reader.value(value_type, &key)?;
            metadata.insert(&key, value);
        } else {
            reader.skip(value_type, &key, 1)?;
        }
    }
    Ok(metadata)
}

struct ValueReader<'c, 'f, R> {
    cursor: &'c mut Cursor<'f, R>,
    inner_arrays_left: u64,
}

impl<R: BufRead> ValueReader<'_, '_, R> {
    fn value_type(&mut self, key: &str) -> Result<ValueType, GgufError> {
        let found = self.cursor.number::<u32>(Place::Value(key))?;
        ValueType::from_number(found).ok_or_else(|| GgufError::UnknownValueType {
            file: self.cursor.file().to_owned(),
            key: key.to_owned(),
            found,
        })
    }

    fn value(&mut self, value_type: ValueType, key: &str) -> Result<Value, GgufError> {
        let place = Place::Value(key);
        Ok(match value_type {
            ValueType::U8 => Value::U8(self.cursor.number(place)?),
            ValueType::I8 => Value::I8(self.cursor.number(place)?),
            ValueType::U16 => Value::U16(self.cursor.number(place)?),
            ValueType::I16 => Value::I16(self.cursor.number(place)?),
            ValueType::U32 => Value::U32(self.cursor.number(place)?),
            ValueType::I32 => Value::I32(self.cursor.number(place)?),
            ValueType::F32 => Value::F32(self.cursor.number(place)?),
            ValueType::Bool => {
                let byte = self.cursor.number(place)?;
                Value::Bool(self.bool(byte, key)?)
            }
            ValueType::String => Value::String(self.cursor.string(place)?),
            ValueType::Array => Value::Array(self.array(key, 1)?),
            ValueType::U64 => Value::U64(self.cursor.number(place)?),
            ValueType::I64 => Value::I64(self.cursor.number(place)?),
            ValueType::F64 => Value::F64(self.cursor.number(place)?),
        })
    }

    /// Element type and count of an array, the count checked against the bytes that remain.
    fn array_head(&mut self, key: &str, depth: u32) -> Result<(ValueType, u64), GgufError> {
        if depth > MAX_ARRAY_DEPTH {
            return Err(GgufError::NestedTooDeep {
                file: self.cursor.file().to_owned(),
                key: key.to_owned(),
                limit: MAX_ARRAY_DEPTH,
            });
        }
        let item_type = self.value_type(key)?;
        let count = self.cursor.number::<u64>(Place::Value(key))?;
        self.cursor.check_room(count, item_type.min_bytes(), Place::Value(key))?;
        if item_type == ValueType::Array {
            let found = (MAX_INNER_ARRAYS - self.inner_arrays_left).saturating_add(count);
            if found > MAX_INNER_ARRAYS {
                let (file, what) = (self.cursor.file().to_owned(), "arrays inside arrays");
                return Err(GgufError::TooMany { file, what, found, limit: MAX_INNER_ARRAYS });
            }
            self.inner_arrays_left -= count;
        }
        Ok((item_type, count))
    }

    fn array(&mut self, key: &str, depth: u32) -> Result<Array, GgufError> {
        let (item_type, count) = self.array_head(key, depth)?;
        Ok(match item_type {
            ValueType::U8 => Array::U8(self.numbers(count, key)?),
            ValueType::I8 => Array::I8(self.numbers(count, key)?),
            ValueType::U16 => Array::U16(self.numbers(count, key)?),
            ValueType::I16 => Array::I16(self.numbers(count, key)?),
            ValueType::U32 => Array::U32(self.numbers(count, key)?),
            ValueType::I32 => Array::I32(self.numbers(count, key)?),
            ValueType::F32 => Array::F32(self.numbers(count, key)?),
            ValueType::Bool => {
                let bytes: Vec<u8> = self.numbers(count, key)?;
                Array::Bool(bytes.into_iter().map(|byte| self.bool(byte, key)).collect::<Result<_, _>>()?)
            }
            ValueType::String => Array::String(self.strings(count, key)?),
            ValueType::Array => {
                let mut items = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    items.push(self.array(key, depth + 1)?);
                }
                Array::Array(items)
            }
            ValueType::U64 => Array::U64(self.numbers(count, key)?),
            ValueType::I64 => Array::I64(self.numbers(count, key)?),
            ValueType::F64 => Array::F64(self.numbers(count, key)?),
        })
    }

    fn numbers<T: Number>(&mut self, count: u64, key: &str) -> Result<Vec<T>, GgufError> {
        self.cursor.numbers(count, Place::Value(key))
    }

    /// Strings that are not valid UTF-8 are refused rather than repaired: the format asks for UTF-8, and a repair
    /// would make two different tokens the same without a word.
    fn strings(&mut self, count: u64, key: &str) -> Result<Strings, GgufError> {
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(count as usize);
        for index in 0..count {
            self.cursor.append_string(&mut text, Place::Item(key, index))?;
            ends.push(text.len() as u32); // At most MAX_HEADER_BYTES.
        }
        text.shrink_to_fit();
        let text = String::from_utf8(text).map_err(|_| self.cursor.not_utf8(Place::Value(key)))?;
        Strings::from_parts(text, ends).ok_or_else(|| self.cursor.not_utf8(Place::Value(key)))
    }

    fn bool(&self, byte: u8, key: &str) -> Result<bool, GgufError> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(GgufError::NotABool { file: self.cursor.file().to_owned(), key: key.to_owned(), found }),
        }
    }

    /// Passes over a value. Only lengths are checked.
    fn skip(&mut self, value_type: ValueType, key: &str, depth: u32) -> Result<(), GgufError> {
        let place = Place::Value(key);
        match value_type {
            ValueType::String => {
                let length = self.cursor.number::<u64>(place)?;
                self.cursor.skip(length, place)
            }
            ValueType::Array => {
                let (item_type, count) = self.array_head(key, depth)?;
                match item_type {
                    ValueType::String | ValueType::Array => (0..count).try_for_each(|_| self.skip(item_type, key, depth + 1)),
                    // Cannot overflow: `array_head` found room for that many.
                    plain => self.cursor.skip(count * plain.min_bytes(), place),
                }
            }
            plain => self.cursor.skip(plain.min_bytes(), place),
        }
    }
}
