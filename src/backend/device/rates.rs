//! How fast a card's memory and its way to the host are.

use std::sync::Arc;
use std::time::Instant;

use super::budget::memory_of;
use super::{Context, DeviceMemory, DriverError, HostMemory, Stream};
use crate::backend::discovery::CardRates;

/// Bytes of one copy within the card: far more than its caches hold.
const WITHIN_BYTES: u64 = 256 << 20;
/// Bytes of one copy from the host.
const BUS_BYTES: usize = 32 << 20;
/// Copies of each kind; the first is not counted.
const COPIES: usize = 9;

/// Measures a card with what is free on it; what there is no room for stays unknown.
pub fn measure(context: &Arc<Context>) -> Result<CardRates, DriverError> {
    let stream = Stream::new(context)?;
    let free_bytes = memory_of(context)?.free_bytes;
    let mut rates = CardRates::default();
    if free_bytes > 4 * WITHIN_BYTES {
        let (a, b) = (DeviceMemory::new(context, WITHIN_BYTES)?, DeviceMemory::new(context, WITHIN_BYTES)?);
        if let (Some(a), Some(b)) = (a.piece(0, WITHIN_BYTES), b.piece(0, WITHIN_BYTES)) {
            // SAFETY: both live until `timed` has waited for the stream.
            let times = timed(&stream, || unsafe { stream.copy_within(b, a) })?;
            // A copy reads and writes.
            rates.memory_gbs = Some(2.0 * WITHIN_BYTES as f64 / times[0] / 1e9);
        }
    }
    let (host, unpinned) = HostMemory::new(context, BUS_BYTES);
    if free_bytes > 4 * BUS_BYTES as u64 && unpinned.is_none() {
        let memory = DeviceMemory::new(context, BUS_BYTES as u64)?;
        if let Some(to) = memory.piece(0, BUS_BYTES as u64) {
            // SAFETY: both live, untouched, until `timed` has waited for the stream.
            let times = timed(&stream, || unsafe { stream.copy_in(to, host.bytes()) })?;
            rates.bus_gbs = Some(BUS_BYTES as f64 / times[0] / 1e9);
            rates.bus_median_gbs = Some(BUS_BYTES as f64 / times[times.len() / 2] / 1e9);
        }
    }
    Ok(rates)
}

/// Seconds of each copy, the shortest first.
fn timed(stream: &Stream, copy: impl Fn() -> Result<(), DriverError>) -> Result<Vec<f64>, DriverError> {
    let mut seconds = Vec::with_capacity(COPIES);
    for _ in 0..COPIES {
        let start = Instant::now();
        copy()?;
        stream.synchronise()?;
        seconds.push(start.elapsed().as_secs_f64().max(1e-9));
    }
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}
