//! Opening a driver's library, and texts out of C.

use std::error::Error;
use std::ffi::c_char;
use std::path::Path;

use libloading::Library;
use thiserror::Error;

use super::{Unavailable, Vendor};

/// Why a library could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LibraryError {
    #[error("there is no {0}")]
    Absent(String),
    #[error("{library} cannot be opened: {reason}")]
    Damaged { library: String, reason: String },
}

/// Opens a library for good: drivers leave threads and exit handlers behind, so they are never closed.
///
/// # Errors
/// It is not there, or cannot be loaded.
pub fn leak_library(path: &Path) -> Result<&'static Library, LibraryError> {
    // SAFETY: the library's initialisers run, which is what a driver is installed for.
    match unsafe { Library::new(path) } {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => {
            let library = path.display().to_string();
            // The error itself says no more than that a call failed.
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Err(if is_absent(&library, &reason) {
                LibraryError::Absent(library)
            } else {
                LibraryError::Damaged { library, reason }
            })
        }
    }
}

/// Whether the system says that there is no such file, and not that one is damaged or lacks another one.
#[cfg(unix)]
fn is_absent(library: &str, reason: &str) -> bool {
    reason.contains("No such file") && reason.contains(&format!("{library}: "))
}

/// The system does not tell a missing file from one that lacks another; drivers lie in its own folder.
#[cfg(windows)]
fn is_absent(library: &str, _reason: &str) -> bool {
    let system = std::env::var_os("SystemRoot").map(|root| Path::new(&root).join("System32").join(library));
    !system.is_some_and(|file| file.is_file()) && !Path::new(library).is_file()
}

/// The driver behind the first of `names` that can be used. What is there and is no good is told if no other is any better.
///
/// # Errors
/// None is installed, or the reason why the first that is cannot be used.
pub fn open_first<D>(
    vendor: Vendor,
    names: &[impl AsRef<Path>],
    open: impl Fn(&'static Library) -> Result<D, Unavailable>,
) -> Result<D, Unavailable> {
    let mut first = None;
    for name in names {
        let why = match leak_library(name.as_ref()) {
            Ok(library) => match open(library) {
                Ok(driver) => return Ok(driver),
                // A driver that works has spoken: another version of it would say the same.
                Err(why @ (Unavailable::NoCards { .. } | Unavailable::Driver { .. })) => return Err(why),
                Err(why) => why,
            },
            Err(LibraryError::Absent(_)) => continue,
            Err(damaged) => Unavailable::Library { vendor, error: damaged },
        };
        first.get_or_insert(why);
    }
    Err(first.unwrap_or(Unavailable::NoLibrary { vendor }))
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
    fn a_library_that_is_not_there_is_told_from_one_that_is_damaged() {
        let absent = leak_library(Path::new("no-such-driver.so")).unwrap_err();
        assert_eq!(absent, LibraryError::Absent("no-such-driver.so".into()));
        let folder = tempfile::tempdir().unwrap();
        let damaged = folder.path().join("libdriver.so");
        std::fs::write(&damaged, "not a library").unwrap();
        let error = leak_library(&damaged).unwrap_err();
        assert!(matches!(&error, LibraryError::Damaged { reason, .. } if !reason.is_empty()), "{error}");
        assert!(error.to_string().contains("libdriver.so"), "{error}");
    }

    #[test]
    fn what_is_installed_and_no_good_is_told_rather_than_that_nothing_is_installed() {
        let vendor = Vendor::Amd;
        let folder = tempfile::tempdir().unwrap();
        let damaged = folder.path().join("libdriver.so.7");
        std::fs::write(&damaged, "not a library").unwrap();
        let open = |_: &'static Library| Ok::<(), Unavailable>(());
        let nothing = open_first(vendor, &["no-such-driver.so.7", "no-such-driver.so.6"], open).unwrap_err();
        assert_eq!(nothing, Unavailable::NoLibrary { vendor });
        let told = open_first(vendor, &[Path::new("no-such-driver.so.8"), &damaged, Path::new("no-such-driver.so.6")], open);
        let told = told.unwrap_err().to_string();
        assert!(told.contains("AMD HIP runtime") && told.contains("libdriver.so.7") && !told.contains('\n'), "{told}");
    }
}
