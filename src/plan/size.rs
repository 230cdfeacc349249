//! Byte counts as people write them in machine files and flags: `22 GiB`, `512MiB`, `1538035200`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::units::HumanBytes;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Suffixes and their size. Decimal units are accepted because vendors print them.
const SUFFIXES: [(&str, u64); 10] = [
    ("KIB", KIB),
    ("MIB", MIB),
    ("GIB", GIB),
    ("TIB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("BYTES", 1),
    ("B", 1),
];

/// A number of bytes in a file or a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Size(pub u64);

/// No PC has more of anything, and sums and products of sizes below it stay inside 64 bits.
pub const MAX_SIZE_BYTES: u64 = 1 << 50;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("{text:?} is no size; write a whole number of bytes, or a number and a unit such as \"22 GiB\"")]
    Syntax { text: String },
    #[error("{text:?} is more than 1024 TiB, which no PC has")]
    TooLarge { text: String },
}

impl std::str::FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let fail = || SizeError::Syntax { text: text.to_string() };
        let large = || SizeError::TooLarge { text: text.to_string() };
        let upper = text.trim().to_ascii_uppercase();
        let (number, unit) = SUFFIXES
            .iter()
            .find_map(|(suffix, unit)| upper.strip_suffix(suffix).map(|rest| (rest.trim(), *unit)))
            .unwrap_or((upper.as_str(), 1));
        if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) {
            let bytes = number.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit));
            return bytes.filter(|bytes| *bytes <= MAX_SIZE_BYTES).map(Size).ok_or_else(large);
        }
        let value: f64 = number.parse().map_err(|_| fail())?;
        let bytes = value * unit as f64;
        if !bytes.is_finite() || bytes < 0.0 || unit == 1 {
            return Err(fail());
        }
        if bytes > MAX_SIZE_BYTES as f64 { Err(large()) } else { Ok(Size(bytes.round() as u64)) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact =
            [("TiB", 1u64 << 40), ("GiB", GIB), ("MiB", MIB)].into_iter().find(|(_, u)| self.0 > 0 && self.0.is_multiple_of(*u));
        match exact {
            Some((unit, size)) => write!(f, "{} {unit}", self.0 / size),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"22 GiB\" or a whole number of bytes")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Size, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Size, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Size, E> {
                v.parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// `1,538,035,200`
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1.43 GiB`
pub fn human(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in
            [("22 GiB", 22 * GIB), ("512mib", 512 * MIB), ("1.5 GiB", 3 * GIB / 2), ("7", 7), ("16 GB", 16_000_000_000)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "x", "-1", "1.5", "GiB", "nan GiB", "inf TiB", "-2 GiB"] {
            assert!(matches!(text.parse::<Size>(), Err(SizeError::Syntax { .. })), "{text}");
        }
        for text in ["99999999999 TiB", "18446744073709551615", "99999999999999999999999", "1125899906842625", "1e9 TiB"] {
            assert!(matches!(text.parse::<Size>(), Err(SizeError::TooLarge { .. })), "{text}");
        }
        assert_eq!("1024 TiB".parse(), Ok(Size(MAX_SIZE_BYTES)));
        assert_eq!(Size(22 * GIB).to_string(), "22 GiB");
        assert_eq!(Size(1).to_string(), "1");
        assert_eq!(grouped(1_538_035_200), "1,538,035,200");
        assert_eq!(grouped(12), "12");
    }
}
