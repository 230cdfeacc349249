//! How fast the host is: reading memory, and products with quantised weights as the CPU backend does them. One buffer serves
//! all three measurements; together they take some 0.2 s for each number of
//! threads that is tried.

use std::sync::Barrier;
use std::time::Instant;

use memmap2::MmapMut;
use serde::{Deserialize, Serialize};

use crate::backend::cpu::kernels::{
    ActBlock, Acts, OutView, Rounding, Scratch, ScratchBlock, Simd, Tokens, Weights, blocks_per_row, floats, is_float, product,
    quantize_rows,
};
use crate::backend::cpu::{Topology, fastest, pin_this_thread};
use crate::plan::is_usable_rate;
use crate::quant::Format;

/// Measured speeds of the host with as many threads as are best.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSpeeds {
    /// GB/s (10^9) of reading memory that no cache holds: the roof of decoding.
    pub ram_read_gbs: f64,
    /// GB/s of weights that come from memory and are multiplied with one row of activations.
    pub cpu_weights_gbs: f64,
    /// Billions of multiply-adds a second with many rows of activations.
    pub cpu_gmacs: f64,
    /// Threads with which weights were multiplied fastest; 0 if that was not found out.
    #[serde(default)]
    pub workers: u32,
}

/// Far larger than the last-level cache of most PCs, small enough for any machine.
const LEAST_BYTES: usize = 128 << 20;
/// Times that every thread reads its part.
const PASSES: usize = 8;
/// Each thread's part begins and ends on a huge page.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Words summed in independent lanes, so that the additions do not hold up the reads.
const LANES: usize = 64;

/// Formats differ by a factor of three in speed; this one is in the middle, and what large models are often quantised to.
const FORMAT: Format = Format::IQ3_XXS;
const ROUNDING: Rounding = Rounding::Bits15;
/// Weights of a row: the width of a model.
const WIDTH: usize = 2048;
/// Rows of the matrix and tokens of a prompt; the matrix stays in the caches.
const PROMPT_ROWS: usize = 384;
const PROMPT_TOKENS: usize = 256;
/// A byte that makes numbers of ordinary size of every format, as an integer, a scale of any kind, or half a float.
const ORDINARY: u8 = 0x38;
/// Many short passes, each over weights that no earlier one has read: on a busy machine some go undisturbed.
const PRODUCT_PASSES: usize = 16;

impl HostSpeeds {
    /// The better of two measurements: whatever else the machine does can only make one too low.
    pub fn best(self, other: HostSpeeds) -> HostSpeeds {
        let faster = if other.cpu_weights_gbs > self.cpu_weights_gbs || self.workers == 0 { other } else { self };
        HostSpeeds {
            workers: faster.workers,
            ram_read_gbs: self.ram_read_gbs.max(other.ram_read_gbs),
            cpu_weights_gbs: self.cpu_weights_gbs.max(other.cpu_weights_gbs),
            cpu_gmacs: self.cpu_gmacs.max(other.cpu_gmacs),
        }
    }

    /// Measures with all numbers of threads that may be the best, and says which is. Takes 128 MiB (more where the cache is
    /// larger), which are given back; `None` where they cannot be had.
    pub fn measure(topology: &Topology) -> Option<HostSpeeds> {
        let order = topology.order();
        let with = |threads: usize| HostSpeeds::measure_with(&order[..threads.min(order.len())]);
        let found: Vec<HostSpeeds> = topology.candidates().into_iter().filter_map(with).collect();
        let rates: Vec<(usize, f64)> = found.iter().map(|s| (s.workers as usize, s.cpu_weights_gbs)).collect();
        let workers = fastest(&rates)? as u32;
        // Memory has one speed, however many threads it takes to see it.
        let ram_read_gbs = found.iter().map(|s| s.ram_read_gbs).fold(0.0, f64::max);
        let chosen = found.into_iter().find(|s| s.workers == workers)?;
        Some(HostSpeeds { ram_read_gbs, ..chosen })
    }

    /// Measures with a thread on each of some processors.
    fn measure_with(processors: &[usize]) -> Option<HostSpeeds> {
        let (part_bytes, times) = on_all(processors, measure_part)?;
        let weights_bytes = decode_rows(FORMAT, part_bytes) * row_bytes(FORMAT);
        let prompt = (PROMPT_ROWS * WIDTH * PROMPT_TOKENS) as f64;
        Some(HostSpeeds {
            ram_read_gbs: rate(&times, part_bytes as f64, |t| &t.read_s)?,
            cpu_weights_gbs: rate(&times, weights_bytes as f64, |t| &t.decode_s)?,
            cpu_gmacs: rate(&times, prompt, |t| &t.prompt_s)?,
            workers: processors.len().max(1) as u32,
        })
    }
}

/// GB/s (10^9) of weights of a format that come from memory and are multiplied with one row of activations, by a thread on each of
/// some processors. `None` where there is no memory to measure with.
pub fn format_gbs(format: Format, processors: &[usize]) -> Option<f64> {
    let measure = |part: &mut [u8], barrier: &Barrier| {
        part.fill(ORDINARY);
        decode_passes(format, part, barrier)
    };
    let (part_bytes, times) = on_all(processors, measure)?;
    rate(&times, (decode_rows(format, part_bytes) * row_bytes(format)) as f64, |t| t)
}

/// Lets a thread on each of some processors measure with its part of one buffer: bytes of a part, and what each measured.
fn on_all<T: Send>(processors: &[usize], measure: impl Fn(&mut [u8], &Barrier) -> T + Sync) -> Option<(usize, Vec<T>)> {
    let threads = processors.len().max(1);
    let bytes = LEAST_BYTES.max(3 * last_level_cache_bytes());
    let part_bytes = (bytes / threads).next_multiple_of(HUGE_PAGE_BYTES);
    let mut map = MmapMut::map_anon(part_bytes * threads + HUGE_PAGE_BYTES).ok()?;
    let skip = map.as_ptr().align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES);
    // Huge pages only change speed: a refusal is not an error.
    #[cfg(target_os = "linux")]
    let _ = map.advise_range(memmap2::Advice::HugePage, skip, part_bytes * threads);
    let parts = map[skip..skip + part_bytes * threads].chunks_exact_mut(part_bytes);
    let barrier = Barrier::new(threads);
    let measured: Vec<T> = std::thread::scope(|scope| {
        let (barrier, measure) = (&barrier, &measure);
        let on = |part, processor: Option<&usize>| {
            let processor = processor.copied();
            scope.spawn(move || {
                if let Some(processor) = processor {
                    pin_this_thread(processor);
                }
                measure(part, barrier)
            })
        };
        let readers: Vec<_> = parts.enumerate().map(|(i, part)| on(part, processors.get(i))).collect();
        readers.into_iter().filter_map(|r| r.join().ok()).collect()
    });
    Some((part_bytes, measured))
}

/// Billions of something a second, from the seconds that each thread took for `amount` of it in each pass. The threads start each pass
/// together, and it is over when the slowest is done.
fn rate<T>(times: &[T], amount: f64, of: impl Fn(&T) -> &[f64]) -> Option<f64> {
    let passes = times.iter().map(|t| of(t).len()).min().unwrap_or(0);
    let slowest = |pass: usize| times.iter().map(|t| of(t)[pass]).fold(0.0, f64::max);
    let best = (0..passes).map(slowest).fold(f64::INFINITY, f64::min);
    let rate = amount * times.len() as f64 / best / 1e9;
    is_usable_rate(rate).then_some(rate)
}

/// Seconds of each pass of one thread.
struct Times {
    read_s: [f64; PASSES],
    decode_s: [f64; PRODUCT_PASSES],
    prompt_s: [f64; PRODUCT_PASSES],
}

fn row_bytes(format: Format) -> usize {
    format.row_bytes(WIDTH as u64).map_or(1, |bytes| bytes as usize).max(1)
}

/// Rows of weights that a thread reads in one pass of decoding.
fn decode_rows(format: Format, part_bytes: usize) -> usize {
    part_bytes / row_bytes(format) / PRODUCT_PASSES
}

/// A pass over each piece of a part.
fn decode_passes(format: Format, part: &[u8], barrier: &Barrier) -> [f64; PRODUCT_PASSES] {
    let rows = decode_rows(format, part.len());
    products(format, part.chunks_exact(rows * row_bytes(format)), rows, 1, barrier)
}

fn measure_part(part: &mut [u8], barrier: &Barrier) -> Times {
    // Untouched pages are all the same page of zeros.
    part.fill(ORDINARY);
    let words: &[u64] = bytemuck::cast_slice(part);
    let read_s = passes(barrier, |_| {
        std::hint::black_box(sum(std::hint::black_box(words)));
    });
    let decode_s = decode_passes(FORMAT, part, barrier);
    let matrix = &part[..PROMPT_ROWS * row_bytes(FORMAT)];
    let prompt_s = products(FORMAT, std::iter::repeat(matrix), PROMPT_ROWS, PROMPT_TOKENS, barrier);
    Times { read_s, decode_s, prompt_s }
}

fn passes<const N: usize>(barrier: &Barrier, mut run: impl FnMut(usize)) -> [f64; N] {
    let mut seconds = [0.0; N];
    for (i, pass) in seconds.iter_mut().enumerate() {
        barrier.wait();
        let start = Instant::now();
        run(i);
        *pass = start.elapsed().as_secs_f64();
    }
    seconds
}

/// Multiplies matrices of `rows` rows, one a pass, with `tokens` rows of activations.
fn products<'a>(
    format: Format,
    matrices: impl Iterator<Item = &'a [u8]>,
    rows: usize,
    tokens: usize,
    barrier: &Barrier,
) -> [f64; PRODUCT_PASSES] {
    let simd = Simd::detect();
    let x: Vec<f32> = (0..tokens * WIDTH).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut blocks: Vec<ActBlock> = vec![bytemuck::Zeroable::zeroed(); tokens * blocks_per_row(WIDTH)];
    quantize_rows(simd, ROUNDING, &x, WIDTH, WIDTH, &mut blocks);
    let acts = Acts { blocks: &blocks, rounding: ROUNDING };
    let mut scratch: Vec<ScratchBlock> = vec![bytemuck::Zeroable::zeroed(); Scratch::BLOCKS];
    let mut out = vec![0.0f32; rows * tokens];
    let weights: Vec<_> = matrices.take(PRODUCT_PASSES).filter_map(|bytes| Weights::new(format, bytes, rows, WIDTH)).collect();
    passes(barrier, |pass| {
        let Some(&weights) = weights.get(pass) else { return };
        let view = OutView::new(&mut out, tokens, rows, rows);
        if is_float(format) {
            floats::product_f32(simd, weights, 0..rows, &x, WIDTH, tokens, view);
        } else {
            product(simd, weights, 0..rows, acts, Tokens::Rows(0..tokens), view, &mut Scratch::new(&mut scratch));
        }
        std::hint::black_box(&out);
    })
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
    use super::*;
    use crate::quant::FORMATS;

    #[test]
    fn speeds_are_believable() {
        let topology = Topology::here();
        let speeds = HostSpeeds::measure(&topology).unwrap();
        assert!(topology.candidates().contains(&(speeds.workers as usize)), "{speeds:?}");
        assert!((0.1..1e4).contains(&speeds.ram_read_gbs), "{speeds:?}");
        assert!((0.001..1e4).contains(&speeds.cpu_weights_gbs), "{speeds:?}");
        assert!((0.001..1e6).contains(&speeds.cpu_gmacs), "{speeds:?}");
    }

    #[test]
    fn formats_differ_in_speed_and_each_is_believable() {
        let order = Topology::here().order();
        for format in FORMATS.iter().map(|info| info.format) {
            let rate = format_gbs(format, &order).unwrap_or_else(|| panic!("{format}"));
            println!("{format}: {rate:.2} GB/s");
            assert!((0.001..1e4).contains(&rate), "{format}: {rate}");
        }
    }

    #[test]
    fn the_better_measurement_counts() {
        let a = HostSpeeds { ram_read_gbs: 1.0, cpu_weights_gbs: 5.0, cpu_gmacs: 2.0, workers: 4 };
        let b = HostSpeeds { ram_read_gbs: 2.0, cpu_weights_gbs: 4.0, cpu_gmacs: 2.0, workers: 8 };
        let best = HostSpeeds { ram_read_gbs: 2.0, cpu_weights_gbs: 5.0, cpu_gmacs: 2.0, workers: 4 };
        assert_eq!((a.best(b), b.best(a)), (best, best));
        // An entry from before workers were measured.
        assert_eq!(HostSpeeds { workers: 0, ..a }.best(b).workers, 8);
    }
}
