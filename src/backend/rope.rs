//! Rotary embedding: sines and cosines of a window's rows are computed once a run, on the host, and shared by all layers and
//! backends, so that angles have the same bits everywhere.

use crate::program::{Rope, RopePairing, Row};

/// Cosines and sines of every row for one rope: `[row][cosines of the pairs | sines of the pairs]`.
#[derive(Debug)]
pub struct RopeTable {
    pairs: usize,
    values: Vec<f32>,
}

impl RopeTable {
    pub fn new(rope: &Rope, max_rows: usize) -> RopeTable {
        let pairs = rope.inv_freq.len();
        RopeTable { pairs, values: vec![0.0; max_rows * pairs * 2] }
    }

    pub fn bytes(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }

    pub fn fill(&mut self, rope: &Rope, rows: &[Row]) {
        if self.pairs == 0 {
            return;
        }
        for (row, values) in rows.iter().zip(self.values.chunks_exact_mut(self.pairs * 2)) {
            angles(rope, row.position, values);
        }
    }

    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.pairs * 2..(row + 1) * self.pairs * 2]
    }
}

/// Writes the cosines, then the sines of all pairs at a position. Angles are exact to double precision.
pub fn angles(rope: &Rope, position: [u32; 3], out: &mut [f32]) {
    let (cosines, sines) = out.split_at_mut(rope.inv_freq.len());
    for (i, (inv_freq, component)) in rope.inv_freq.iter().zip(&rope.component).enumerate() {
        let angle = f64::from(position[usize::from(*component)]) * inv_freq;
        let (sine, cosine) = angle.sin_cos();
        cosines[i] = cosine as f32 * rope.magnitude;
        sines[i] = sine as f32 * rope.magnitude;
    }
}

/// Turns the first `2 * pairs` elements of a head by the angles of [`angles`].
pub fn rotate(head: &mut [f32], pairing: RopePairing, angles: &[f32]) {
    let pairs = angles.len() / 2;
    let (cosines, sines) = angles.split_at(pairs);
    match pairing {
        RopePairing::Half => {
            let (low, high) = head[..2 * pairs].split_at_mut(pairs);
            for (((a, b), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
                (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
            }
        }
        RopePairing::Adjacent => {
            let (pair, _) = head[..2 * pairs].as_chunks_mut::<2>();
            for (([a, b], cosine), sine) in pair.iter_mut().zip(cosines).zip(sines) {
                (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
            }
        }
    }
}
