//! Typed look-ups of metadata.
//!
//! Writers disagree about integer widths (`split.count` is u16 here and u32 there; `block_count` u32 or i32), so an
//! integer of any width and sign is taken where its value fits. Nothing else is converted silently: a string is not a
//! number, an integer is not a float, and 0/1 is not a bool.

use super::{Array, Metadata, MetadataError, Strings, Value};

type Found<T> = Result<T, MetadataError>;

/// Makes, for each line, the required and the optional look-up of one type.
macro_rules! getters {
    ($(#[$doc:meta])* $($get:ident $opt:ident $type:ty, $convert:expr;)*) => {
        impl Metadata {
            $(
                #[doc = concat!("The value of `key` as `", stringify!($type), "`.")]
                ///
                /// # Errors
                /// The key is missing, holds another type, or a number that does not fit.
                pub fn $get(&self, key: &str) -> Found<$type> {
                    self.$opt(key)?.ok_or_else(|| missing(key))
                }

                #[doc = concat!("The value of `key` as `", stringify!($type), "`, or `None` if the key is missing.")]
                ///
                /// # Errors
                /// The key holds another type, or a number that does not fit.
                pub fn $opt(&self, key: &str) -> Found<Option<$type>> {
                    self.get(key).map(|value| $convert(key, value)).transpose()
                }
            )*
        }
    };
}

getters! {
    u32 opt_u32 u32, integer;
    u64 opt_u64 u64, integer;
    i32 opt_i32 i32, integer;
    i64 opt_i64 i64, integer;
    usize opt_usize usize, integer;
    f32 opt_f32 f32, float;
    bool opt_bool bool, boolean;
    u32s opt_u32s Vec<u32>, integers;
    u64s opt_u64s Vec<u64>, integers;
    i32s opt_i32s Vec<i32>, integers;
    f32s opt_f32s Vec<f32>, floats;
    bools opt_bools Vec<bool>, booleans;
    str opt_str &str, string;
    strings opt_strings &Strings, strings;
    array opt_array &Array, array;
    u64s_exact opt_u64s_exact &[u64], integers_of_64_bits;
}

impl Metadata {
    /// A number for each of `count` layers: the file may hold an array of exactly `count` integers, or one integer
    /// that goes for all.
    ///
    /// # Errors
    /// The key is missing, is neither, has another length, or a number that does not fit.
    pub fn u32_per_layer(&self, key: &str, count: usize) -> Found<Vec<u32>> {
        self.opt_u32_per_layer(key, count)?.ok_or_else(|| missing(key))
    }

    /// As [`Metadata::u32_per_layer`], but `None` if the key is missing.
    ///
    /// # Errors
    /// The value is neither an integer nor an array of `count` integers, or a number does not fit.
    pub fn opt_u32_per_layer(&self, key: &str, count: usize) -> Found<Option<Vec<u32>>> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Array(_)) => {
                let items: Vec<u32> = integers(key, value)?;
                check_length(key, items.len(), count)?;
                Ok(Some(items))
            }
            Some(value) => Ok(Some(vec![integer(key, value)?; count])),
        }
    }

    /// A flag for each of `count` layers, or `None` if the key is missing.
    ///
    /// # Errors
    /// The value is not an array of exactly `count` bools.
    pub fn opt_bool_per_layer(&self, key: &str, count: usize) -> Found<Option<Vec<bool>>> {
        let Some(items) = self.opt_bools(key)? else {
            return Ok(None);
        };
        check_length(key, items.len(), count)?;
        Ok(Some(items))
    }
}

fn missing(key: &str) -> MetadataError {
    MetadataError::Missing { key: key.to_owned() }
}

fn wrong_type(key: &str, expected: &'static str, found: &Value) -> MetadataError {
    MetadataError::WrongType { key: key.to_owned(), expected, found: found.describe() }
}

fn check_length(key: &str, found: usize, expected: usize) -> Found<()> {
    if found == expected {
        return Ok(());
    }
    Err(MetadataError::OutOfRange {
        key: key.to_owned(),
        expected: format!("the expected length of exactly {expected}"),
        found: format!("an array of {found}"),
    })
}

/// A Rust integer that a look-up can return.
trait Integer: TryFrom<i128> + Copy {
    const RANGE: (i128, i128);
    const EXPECTED: &'static str;
    const EXPECTED_ARRAY: &'static str;
}

macro_rules! integers {
    ($($type:ident $expected:literal $array:literal;)*) => {
        $(impl Integer for $type {
            const RANGE: (i128, i128) = ($type::MIN as i128, $type::MAX as i128);
            const EXPECTED: &'static str = $expected;
            const EXPECTED_ARRAY: &'static str = $array;
        })*
    };
}

integers! {
    u32 "an integer (u32)" "an array of integers (u32)";
    u64 "an integer (u64)" "an array of integers (u64)";
    i32 "an integer (i32)" "an array of integers (i32)";
    i64 "an integer (i64)" "an array of integers (i64)";
    usize "an integer (u64)" "an array of integers (u64)";
}

fn fit<T: Integer>(key: &str, value: i128, index: Option<usize>) -> Found<T> {
    T::try_from(value).map_err(|_| MetadataError::OutOfRange {
        key: match index {
            Some(index) => format!("{key}[{index}]"),
            None => key.to_owned(),
        },
        expected: format!("{}..={}", T::RANGE.0, T::RANGE.1),
        found: value.to_string(),
    })
}

fn integer<T: Integer>(key: &str, value: &Value) -> Found<T> {
    let wide: i128 = match value {
        Value::U8(value) => (*value).into(),
        Value::I8(value) => (*value).into(),
        Value::U16(value) => (*value).into(),
        Value::I16(value) => (*value).into(),
        Value::U32(value) => (*value).into(),
        Value::I32(value) => (*value).into(),
        Value::U64(value) => (*value).into(),
        Value::I64(value) => (*value).into(),
        other => return Err(wrong_type(key, T::EXPECTED, other)),
    };
    fit(key, wide, None)
}

fn integers<T: Integer>(key: &str, value: &Value) -> Found<Vec<T>> {
    fn all<S: Copy + Into<i128>, T: Integer>(key: &str, items: &[S]) -> Found<Vec<T>> {
        items.iter().enumerate().map(|(i, &item)| fit(key, item.into(), Some(i))).collect()
    }
    match value {
        Value::Array(Array::U8(items)) => all(key, items),
        Value::Array(Array::I8(items)) => all(key, items),
        Value::Array(Array::U16(items)) => all(key, items),
        Value::Array(Array::I16(items)) => all(key, items),
        Value::Array(Array::U32(items)) => all(key, items),
        Value::Array(Array::I32(items)) => all(key, items),
        Value::Array(Array::U64(items)) => all(key, items),
        Value::Array(Array::I64(items)) => all(key, items),
        other => Err(wrong_type(key, T::EXPECTED_ARRAY, other)),
    }
}

fn integers_of_64_bits<'a>(key: &str, value: &'a Value) -> Found<&'a [u64]> {
    match value {
        Value::Array(Array::U64(items)) => Ok(items),
        other => Err(wrong_type(key, "an array of u64, stored with 64 bits", other)),
    }
}

fn float(key: &str, value: &Value) -> Found<f32> {
    match value {
        Value::F32(value) => Ok(*value),
        Value::F64(value) => narrow(key, *value),
        other => Err(wrong_type(key, "a number (f32)", other)),
    }
}

fn floats(key: &str, value: &Value) -> Found<Vec<f32>> {
    match value {
        Value::Array(Array::F32(items)) => Ok(items.clone()),
        Value::Array(Array::F64(items)) => items.iter().map(|&item| narrow(key, item)).collect(),
        other => Err(wrong_type(key, "an array of numbers (f32)", other)),
    }
}

/// Rounds to f32, but does not turn a finite number into an infinite one.
fn narrow(key: &str, value: f64) -> Found<f32> {
    let narrowed = value as f32;
    if narrowed.is_infinite() && value.is_finite() {
        return Err(MetadataError::OutOfRange {
            key: key.to_owned(),
            expected: "the range of an f32".to_owned(),
            found: format!("{value:?}"),
        });
    }
    Ok(narrowed)
}

fn boolean(key: &str, value: &Value) -> Found<bool> {
    match value {
        Value::Bool(value) => Ok(*value),
        other => Err(wrong_type(key, "a bool", other)),
    }
}

fn booleans(key: &str, value: &Value) -> Found<Vec<bool>> {
    match value {
        Value::Array(Array::Bool(items)) => Ok(items.clone()),
        other => Err(wrong_type(key, "an array of bools", other)),
    }
}

fn string<'a>(key: &str, value: &'a Value) -> Found<&'a str> {
    match value {
        Value::String(value) => Ok(value),
        other => Err(wrong_type(key, "a string", other)),
    }
}

fn strings<'a>(key: &str, value: &'a Value) -> Found<&'a Strings> {
    match value {
        Value::Array(Array::String(items)) => Ok(items),
        other => Err(wrong_type(key, "an array of strings", other)),
    }
}

fn array<'a>(key: &str, value: &'a Value) -> Found<&'a Array> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(wrong_type(key, "an array", other)),
    }
}
