//! Identifiers of answers and calls, and times.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// `prefix` and 24 letters that do not come again.
pub fn new(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // A hasher of its own has keys of its own, seeded by the system's random numbers.
    let words = [RandomState::new().hash_one(count), RandomState::new().hash_one(count ^ u64::MAX)];
    let letter = |i: usize| LETTERS[(words[i / 12] >> (5 * (i % 12))) as usize & 31] as char;
    (0..24).map(letter).fold(String::from(prefix), |mut id, c| {
        id.push(c);
        id
    })
}

pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub fn now() -> u64 {
    unix_seconds(SystemTime::now())
}
