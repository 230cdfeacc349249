//! Times of single kernels, for benches.

use std::time::{Duration, Instant};

use wgpu::{CommandEncoderDescriptor, ComputePassDescriptor};

use super::device::Gpu;
use super::prepare::Prepared;
use crate::backend::BackendError;

/// How long a launch of a program takes when it runs alone, many times in a row.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchTime {
    /// The kernel's variant: `mat_vec_q8_0_b1`.
    pub name: String,
    /// Bytes of matrices that it reads; 0 for kernels without.
    pub weight_bytes: u64,
    pub each: Duration,
}

/// Times every launch of the window that a program has begun.
pub fn time_launches(gpu: &Gpu, prepared: &Prepared, times: u32) -> Result<Vec<LaunchTime>, BackendError> {
    let mut all = vec![];
    for (launch, (name, weight_bytes)) in prepared.kernels_at_hand() {
        gpu.drain("a timed kernel")?;
        let start = Instant::now();
        gpu.checked("a timed kernel", || {
            let mut encoder = gpu.device.create_command_encoder(&CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            (0..times).for_each(|_| prepared.record(&mut pass, launch..launch + 1));
            drop(pass);
            gpu.queue.submit([encoder.finish()])
        })?;
        gpu.drain("a timed kernel")?;
        all.push(LaunchTime { name, weight_bytes, each: start.elapsed() / times.max(1) });
    }
    Ok(all)
}
