//! Opening a driver's library, and texts out of C.

use std::ffi::c_char;
use std::path::Path;

use libloading::Library;

use super::Unavailable;

/// Opens a library for good: drivers leave threads and exit handlers behind, so they are never closed.
///
/// # Errors
/// It is not there, or cannot be loaded.
pub fn leak_library(path: &Path) -> Result<&'static Library, Unavailable> {
    // SAFETY: the library's initialisers run, which is what a driver is installed for.
    match unsafe { Library::new(path) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => Err(Unavailable::Damaged { library: path.display().to_string(), reason: error.to_string() }),
    }
}

/// The text before the first zero.
pub fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// As the vendors' tools print it; `None` for one that is all zeroes, as drivers without one give.
pub fn uuid_text(bytes: [u8; 16]) -> Option<String> {
    if bytes == [0; 16] {
        return None;
    }
    // AMD's is a text already.
    if bytes.iter().all(u8::is_ascii_alphanumeric) {
        return Some(format!("GPU-{}", String::from_utf8_lossy(&bytes)));
    }
    let hex = |range: std::ops::Range<usize>| bytes[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
    Some(format!("GPU-{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_at_the_first_zero() {
        assert_eq!(text(&[b'a' as c_char, b' ' as c_char, 0, b'x' as c_char]), "a");
        assert_eq!(text(&[b'a' as c_char]), "a");
    }

    #[test]
    fn uuids_read_as_the_vendors_tools_show_them() {
        assert_eq!(uuid_text([0; 16]), None);
        assert_eq!(uuid_text(*b"6ad8f2c7e8a4d3f1").as_deref(), Some("GPU-6ad8f2c7e8a4d3f1"));
        let bytes = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(uuid_text(bytes).as_deref(), Some("GPU-12345678-9abc-def0-0102-030405060708"));
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = leak_library(Path::new("no-such-driver.so")).unwrap_err();
        assert!(error.to_string().contains("no-such-driver.so"), "{error}");
    }
}
