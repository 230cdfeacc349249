//! How fast RAM is read with all cores: every thread sums a piece that no cache holds.

use std::hint::black_box;
use std::time::Instant;

/// Bytes each thread reads; all together they exceed every cache.
const PIECE_BYTES: usize = 64 << 20;
const ROUNDS: usize = 4;

/// GB/s (10^9), the best of a few rounds; `None` if the memory for it cannot be had.
pub fn ram_read_gbs(cores: usize) -> Option<f64> {
    let threads = cores.clamp(1, 64);
    let mut data: Vec<u64> = Vec::new();
    data.try_reserve_exact(threads * PIECE_BYTES / 8).ok()?;
    data.resize(threads * PIECE_BYTES / 8, 1);
    let best = (0..ROUNDS).map(|_| round_s(&data)).fold(f64::INFINITY, f64::min);
    let gbs = (data.len() * 8) as f64 / best / 1e9;
    gbs.is_finite().then_some((gbs * 10.0).round() / 10.0)
}

fn round_s(data: &[u64]) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for piece in data.chunks(PIECE_BYTES / 8) {
            scope.spawn(|| black_box(sum(piece)));
        }
    });
    start.elapsed().as_secs_f64()
}

/// Eight sums at a time, so that the processor waits for memory only.
fn sum(piece: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for eight in piece.chunks_exact(8) {
        for (s, v) in sums.iter_mut().zip(eight) {
            *s = s.wrapping_add(*v);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
