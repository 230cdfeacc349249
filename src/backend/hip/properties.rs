//! The one structure of HIP that has changed between versions, and what is read out of it.

use std::ffi::{c_char, c_int};

use libloading::Library;

use crate::backend::device::{DriverError, MissingFunction, find, text};

/// Larger than the structure of any version so far (HIP 7: 1472 bytes).
const STRUCTURE_BYTES: usize = 8192;
const NAME_BYTES: usize = 256;

type GetProperties = unsafe extern "C" fn(*mut c_char, c_int) -> u32;

/// Where a version keeps `gcnArchName` and `luid`.
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    call: &'static str,
    get: GetProperties,
    name_at: usize,
    luid_at: Option<usize>,
}

/// What the structure says of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Without its features: `gfx90a:sramecc+:xnack-` is `gfx90a`.
    pub architecture: String,
    /// Windows' number of the adapter, which no other system gives.
    pub luid: Option<u64>,
}

impl Properties {
    /// HIP 6 and later have the new structure under a name of its own; before, there was only the old one.
    pub fn find(library: &'static Library) -> Result<Properties, MissingFunction> {
        let of = |call: &'static str, name_at, luid_at| {
            // SAFETY: both functions write a structure to the first argument.
            unsafe { find(library, call) }.map(|get| Properties { call, get, name_at, luid_at })
        };
        of("hipGetDevicePropertiesR0600", 1160, Some(272)).or_else(|_| of("hipGetDeviceProperties", 396, None))
    }

    pub fn of_card(&self, ordinal: u32) -> Result<Described, DriverError> {
        let mut structure = [0 as c_char; STRUCTURE_BYTES];
        // SAFETY: the structure is no larger than the room for it.
        DriverError::check(self.call, unsafe { (self.get)(structure.as_mut_ptr(), ordinal as c_int) })?;
        let name = text(&structure[self.name_at..self.name_at + NAME_BYTES]);
        let luid = self.luid_at.and_then(|at| structure[at..].first_chunk::<8>());
        let luid = luid.map(|bytes| u64::from_le_bytes(bytes.map(|byte| byte as u8)));
        let architecture = name.split(':').next().unwrap_or_default().to_owned();
        Ok(Described { architecture, luid: luid.filter(|luid| *luid != 0) })
    }
}
