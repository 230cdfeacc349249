//! How fast this machine's memory can be read: the roof that decoding is measured against.

use std::sync::Barrier;
use std::time::Instant;

use memmap2::MmapMut;

/// Far larger than the last-level cache of most PCs, small enough for any machine.
const LEAST_BYTES: usize = 128 << 20;
/// Times that every thread reads its part.
const PASSES: usize = 8;
/// Each thread's part begins and ends on a huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Words summed in independent lanes, so that the additions do not hold up the reads.
const LANES: usize = 64;

/// Bytes a second that `threads` threads read from memory together: the best of several passes over a buffer that no cache
/// holds. Takes some 0.1 s and 128 MiB (more where the cache is larger), which are given back. `None` where that memory
/// cannot be had.
pub fn measure_read_bandwidth(threads: usize) -> Option<f64> {
    let threads = threads.max(1);
    let bytes = LEAST_BYTES.max(3 * last_level_cache_bytes());
    let part_bytes = (bytes / threads).next_multiple_of(HUGE_PAGE_BYTES);
    let mut map = MmapMut::map_anon(part_bytes * threads + HUGE_PAGE_BYTES).ok()?;
    let skip = map.as_ptr().align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES);
    // Huge pages only change speed: a refusal is not an error.
    #[cfg(target_os = "linux")]
    let _ = map.advise_range(memmap2::Advice::HugePage, skip, part_bytes * threads);
    let parts = map[skip..skip + part_bytes * threads].chunks_exact_mut(part_bytes);
    let barrier = Barrier::new(threads);
    let seconds: Vec<[f64; PASSES]> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let readers: Vec<_> = parts.map(|part| scope.spawn(move || read_passes(part, barrier))).collect();
        readers.into_iter().filter_map(|r| r.join().ok()).collect()
    });
    // The threads start each pass together, and it is over when the slowest is done.
    let slowest = |pass: usize| seconds.iter().map(|s| s[pass]).fold(0.0, f64::max);
    let best = (0..PASSES).map(slowest).fold(f64::INFINITY, f64::min);
    (best > 0.0 && best.is_finite()).then(|| (part_bytes * threads) as f64 / best)
}

/// Seconds of each pass of one thread.
fn read_passes(part: &mut [u8], barrier: &Barrier) -> [f64; PASSES] {
    // Untouched pages are all the same page of zeros.
    part.fill(1);
    let words: &[u64] = bytemuck::cast_slice(part);
    let mut seconds = [0.0; PASSES];
    for pass in &mut seconds {
        barrier.wait();
        let start = Instant::now();
        std::hint::black_box(sum(std::hint::black_box(words)));
        *pass = start.elapsed().as_secs_f64();
    }
    seconds
}

fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; LANES];
    for chunk in words.chunks_exact(LANES) {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(target_os = "linux")]
fn last_level_cache_bytes() -> usize {
    let size = |index: u32| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    (0..8).filter_map(size).max().unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
fn last_level_cache_bytes() -> usize {
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn memory_is_read_at_a_believable_rate() {
        let rate = super::measure_read_bandwidth(2).unwrap();
        assert!((1e8..1e13).contains(&rate), "{rate} bytes/s");
    }
}
