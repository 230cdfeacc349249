//! What drivers answer, as types of ours. CUDA and HIP number their codes alike.

use std::fmt;

use thiserror::Error;

use super::Vendor;
use super::images::ImageError;
use super::library::LibraryError;

/// What a driver's code means to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    InvalidValue,
    OutOfMemory,
    NotReady,
    NoDevice,
    /// The image is damaged or of a kind that the driver does not know.
    BadImage,
    /// The image holds no code for this card.
    NoCode,
    /// PTX that is newer than the driver.
    NewerPtx,
    NotFound,
    NotSupported,
    DriverMismatch,
    /// The context is broken from here on: every later call fails too.
    Broken(&'static str),
    Other,
}

/// One line a code; a code that is not here is [`Cause::Other`], whatever a newer driver means by it.
const CODES: [(u32, Cause); 26] = [
    (1, Cause::InvalidValue),
    (2, Cause::OutOfMemory),
    (35, Cause::DriverMismatch),
    (46, Cause::Broken("the card is not available")),
    (98, Cause::NoCode),
    (100, Cause::NoDevice),
    (101, Cause::NoDevice),
    (200, Cause::BadImage),
    (209, Cause::NoCode),
    (214, Cause::Broken("an uncorrectable memory error")),
    (218, Cause::BadImage),
    (222, Cause::NewerPtx),
    (500, Cause::NotFound),
    (600, Cause::NotReady),
    (700, Cause::Broken("a kernel used an address that is not its own")),
    (702, Cause::Broken("a kernel ran longer than the system allows")),
    (709, Cause::Broken("its context is gone")),
    (710, Cause::Broken("a kernel's assertion failed")),
    (714, Cause::Broken("a hardware stack error")),
    (715, Cause::Broken("an instruction that the card does not know")),
    (716, Cause::Broken("a misaligned address")),
    (717, Cause::Broken("an instruction used an address of the wrong kind of memory")),
    (718, Cause::Broken("a program counter outside the code")),
    (719, Cause::Broken("a kernel failed, or the card was lost")),
    (801, Cause::NotSupported),
    (803, Cause::DriverMismatch),
];

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::InvalidValue => "an argument was refused",
            Cause::OutOfMemory => "out of memory",
            Cause::NotReady => "not ready",
            Cause::NoDevice => "no such card",
            Cause::BadImage => "the kernels' image was refused",
            Cause::NoCode => "the image holds no code for this card",
            Cause::NewerPtx => "the driver is older than the kernels' PTX",
            Cause::NotFound => "not found",
            Cause::NotSupported => "not supported",
            Cause::DriverMismatch => "the driver's parts do not fit each other; reinstall it or restart",
            Cause::Broken(what) => what,
            Cause::Other => "an error",
        })
    }
}

/// A call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{cause} ({call}, code {code})")]
pub struct DriverError {
    pub call: &'static str,
    pub code: u32,
    pub cause: Cause,
}

impl DriverError {
    pub fn check(call: &'static str, code: u32) -> Result<(), DriverError> {
        if code == 0 { Ok(()) } else { Err(DriverError::new(call, code)) }
    }

    pub fn new(call: &'static str, code: u32) -> DriverError {
        let cause = CODES.iter().find(|(known, _)| *known == code).map_or(Cause::Other, |(_, cause)| *cause);
        DriverError { call, code, cause }
    }

    /// Whether the context is broken from here on.
    pub fn is_sticky(&self) -> bool {
        matches!(self.cause, Cause::Broken(_))
    }
}

/// Why a vendor's cards cannot be used. Each is one sentence, and the next backend takes over.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// The usual case on a PC without such cards.
    #[error("no {} is installed", .vendor.driver())]
    NoLibrary { vendor: Vendor },
    #[error("the installed {} cannot be used: {error}", .vendor.driver())]
    Library { vendor: Vendor, error: LibraryError },
    #[error("the installed {} is too old: it lacks the function '{function}'; a newer one can be used", .vendor.driver())]
    MissingFunction { vendor: Vendor, function: &'static str },
    #[error("the installed {} has version {found}, at least {needed} is needed; a newer one can be used", .vendor.driver())]
    TooOld { vendor: Vendor, found: String, needed: String },
    #[error("the {} finds no card", .vendor.driver())]
    NoCards { vendor: Vendor },
    #[error("the {} cannot be used: {error}", .vendor.driver())]
    Driver { vendor: Vendor, error: DriverError },
    #[error("the {} kernels cannot be used: {error}", .vendor.name())]
    Images { vendor: Vendor, error: ImageError },
    #[error("this program has no {} kernels for {card} ({architecture})", .vendor.name())]
    NoCode { vendor: Vendor, card: String, architecture: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_mapped_and_unknown_ones_stay_numbers() {
        assert_eq!(DriverError::check("f", 0), Ok(()));
        let error = DriverError::new("cuMemAlloc", 2);
        assert_eq!((error.cause, error.is_sticky()), (Cause::OutOfMemory, false));
        assert!([700, 709, 717].iter().all(|code| DriverError::new("f", *code).is_sticky()));
        let unknown = DriverError::new("f", 4_000_000_000);
        assert_eq!(unknown.cause, Cause::Other);
        assert!(unknown.to_string().contains("4000000000") && !unknown.is_sticky());
        assert!(CODES.is_sorted_by_key(|(code, _)| *code));
    }

    #[test]
    fn each_absence_is_one_sentence() {
        let vendor = Vendor::Nvidia;
        for (absence, word) in [
            (Unavailable::NoLibrary { vendor }, "NVIDIA driver"),
            (Unavailable::MissingFunction { vendor, function: "cuInit" }, "'cuInit'"),
            (Unavailable::TooOld { vendor, found: "11.2".into(), needed: "11.4".into() }, "11.2"),
            (Unavailable::NoCards { vendor }, "no card"),
            (Unavailable::Driver { vendor, error: DriverError::new("cuInit", 999) }, "999"),
            (Unavailable::NoCode { vendor, card: "GTX 1080".into(), architecture: "sm_61".into() }, "sm_61"),
        ] {
            let text = absence.to_string();
            assert!(text.contains(word) && !text.contains('\n') && !text.contains(". "), "{text}");
        }
    }
}
