//! Reads a header piece by piece, with every length checked against the bytes that remain before it is used.

use std::fmt;
use std::io::{self, BufRead};

use super::GgufError;

/// Headers of real models are below 20 MiB (the vocabulary and its merges). The limit keeps a hostile header of a
/// large file from filling the memory, and lets positions in text be 32 bits.
pub(super) const MAX_HEADER_BYTES: u64 = 256 << 20;
/// ggml allows 64 bytes for tensors; keys are below 100. Bounded so that an error that quotes a name stays readable.
pub(super) const MAX_NAME_BYTES: u64 = 1024;

/// What is being read, for errors. Made at each step, so it must not allocate.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Counts,
    /// The name of the key with this index.
    KeyName(u64),
    /// The value of the key.
    Value(&'a str),
    /// One string of the array under the key.
    Item(&'a str, u64),
    /// The name of the tensor with this index.
    TensorName(u64),
    /// Shape, type or offset of the tensor.
    Tensor(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Counts => f.write_str("the count of tensors and keys"),
            Place::KeyName(index) => write!(f, "the name of metadata key {index}"),
            Place::Value(key) => write!(f, "the value of metadata key {key:?}"),
            Place::Item(key, index) => write!(f, "string {index} of metadata key {key:?}"),
            Place::TensorName(index) => write!(f, "the name of tensor {index}"),
            Place::Tensor(name) => write!(f, "the description of tensor {name:?}"),
        }
    }
}

/// A number stored in little-endian order.
pub(super) trait Number: Copy {
    const BYTES: usize;
    /// `bytes` has exactly [`Number::BYTES`].
    fn from_le(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($type:ident)*) => {
        $(impl Number for $type {
            const BYTES: usize = size_of::<$type>();
            fn from_le(bytes: &[u8]) -> $type {
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                $type::from_le_bytes(array)
            }
        })*
    };
}

numbers!(u8 i8 u16 i16 u32 i32 f32 u64 i64 f64);

/// A position in a header. Invariant: `position <= end <= file_bytes`.
pub(super) struct Cursor<'a, R> {
    input: R,
    file: &'a str,
    position: u64,
    /// Where reading must stop: the end of the file or the largest header, whichever comes first.
    end: u64,
    file_bytes: u64,
}

impl<'a, R: BufRead> Cursor<'a, R> {
    pub fn new(file: &'a str, input: R, file_bytes: u64) -> Cursor<'a, R> {
        Cursor { input, file, position: 0, end: file_bytes.min(MAX_HEADER_BYTES), file_bytes }
    }

    pub fn file(&self) -> &'a str {
        self.file
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub fn remaining_bytes(&self) -> u64 {
        self.end - self.position
    }

    /// The bytes that come next, as many as are at hand; for guessing what a foreign file is.
    pub fn peek(&mut self) -> Result<&[u8], GgufError> {
        // Not `match`: a borrow that is returned from one arm would last through the others.
        while let Err(source) = self.input.fill_buf() {
            if source.kind() != io::ErrorKind::Interrupted {
                return Err(GgufError::Io { file: self.file.to_owned(), action: "read", source });
            }
        }
        self.input.fill_buf().map_err(|source| GgufError::Io { file: self.file.to_owned(), action: "read", source })
    }

    /// Checks that `count` items of at least `item_bytes` can still follow, before anything is reserved for them.
    pub fn check_room(&self, count: u64, item_bytes: u64, place: Place) -> Result<(), GgufError> {
        let needed_bytes = count.saturating_mul(item_bytes);
        if needed_bytes <= self.remaining_bytes() {
            return Ok(());
        }
        let file = self.file.to_owned();
        let place = place.to_string();
        let available_bytes = self.file_bytes - self.position;
        Err(if needed_bytes <= available_bytes {
            GgufError::HeaderTooLarge { file, place, limit_bytes: MAX_HEADER_BYTES }
        } else {
            GgufError::HeaderTruncated { file, place, offset: self.position, needed_bytes, available_bytes }
        })
    }

    /// Fills `buffer` from the input.
    pub fn fill(&mut self, buffer: &mut [u8], place: Place) -> Result<(), GgufError> {
        let length = buffer.len() as u64;
        self.check_room(length, 1, place)?;
        self.input.read_exact(buffer).map_err(|source| self.read_failure(source, length, place))?;
        self.position += length;
        Ok(())
    }

    pub fn number<T: Number>(&mut self, place: Place) -> Result<T, GgufError> {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..T::BYTES];
        self.fill(bytes, place)?;
        Ok(T::from_le(bytes))
    }

    /// Reads `count` numbers. The list is reserved once, after the check that the file can hold it.
    pub fn numbers<T: Number>(&mut self, count: u64, place: Place) -> Result<Vec<T>, GgufError> {
        self.check_room(count, T::BYTES as u64, place)?;
        // Cannot be cut: the bytes were found to be at most `MAX_HEADER_BYTES`.
        let mut left = count as usize;
        let mut items = Vec::with_capacity(left);
        let mut buffer = [0; 4096];
        while left > 0 {
            let batch = left.min(buffer.len() / T::BYTES);
            let bytes = &mut buffer[..batch * T::BYTES];
            self.fill(bytes, place)?;
            items.extend(bytes.chunks_exact(T::BYTES).map(T::from_le));
            left -= batch;
        }
        Ok(items)
    }

    /// Reads a string: a length of 8 bytes, then the text.
    pub fn string(&mut self, place: Place) -> Result<String, GgufError> {
        let length = self.number::<u64>(place)?;
        self.check_room(length, 1, place)?;
        self.text(length, place)
    }

    /// `length` must have been checked.
    fn text(&mut self, length: u64, place: Place) -> Result<String, GgufError> {
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, place)?;
        String::from_utf8(bytes).map_err(|_| self.not_utf8(place))
    }

    /// Reads the name of a key or tensor.
    pub fn name(&mut self, place: Place) -> Result<String, GgufError> {
        let length = self.number::<u64>(place)?;
        self.check_room(length, 1, place)?;
        let (file, limit) = (self.file, MAX_NAME_BYTES);
        match length {
            0 => Err(GgufError::EmptyName { file: file.to_owned(), place: place.to_string() }),
            found if found > limit => {
                Err(GgufError::NameTooLong { file: file.to_owned(), place: place.to_string(), found, limit })
            }
            _ => self.text(length, place),
        }
    }

    /// Reads a string to the end of `text`, and checks that it is valid UTF-8 by itself.
    ///
    /// `text` grows by doubling, but never to more than the bytes the header has, so that a long list cannot reserve
    /// more than the file's size.
    pub fn append_string(&mut self, text: &mut Vec<u8>, place: Place) -> Result<(), GgufError> {
        let length = self.number::<u64>(place)?;
        self.check_room(length, 1, place)?;
        let start = text.len();
        let end = start + length as usize;
        if end > text.capacity() {
            let most = start + self.remaining_bytes() as usize;
            text.reserve_exact((text.capacity() * 2).clamp(end, most) - start);
        }
        text.resize(end, 0);
        self.fill(&mut text[start..], place)?;
        match std::str::from_utf8(&text[start..]) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.not_utf8(place)),
        }
    }

    /// Passes over `length` bytes.
    pub fn skip(&mut self, length: u64, place: Place) -> Result<(), GgufError> {
        self.check_room(length, 1, place)?;
        let mut left = length;
        while left > 0 {
            let at_hand = self.peek()?.len() as u64;
            if at_hand == 0 {
                return Err(self.read_failure(io::ErrorKind::UnexpectedEof.into(), left, place));
            }
            let step = at_hand.min(left);
            self.input.consume(step as usize);
            self.position += step;
            left -= step;
        }
        Ok(())
    }

    /// A file that turns out shorter than its size said is reported as cut short, all else as what it is.
    fn read_failure(&self, source: io::Error, needed_bytes: u64, place: Place) -> GgufError {
        let file = self.file.to_owned();
        match source.kind() {
            io::ErrorKind::UnexpectedEof => GgufError::HeaderTruncated {
                file,
                place: place.to_string(),
                offset: self.position,
                needed_bytes,
                available_bytes: 0,
            },
            _ => GgufError::Io { file, action: "read", source },
        }
    }

    pub fn not_utf8(&self, place: Place) -> GgufError {
        GgufError::NotUtf8 { file: self.file.to_owned(), place: place.to_string() }
    }
}
