//! Random blocks of every format.

use strata::quant::Format;

/// A small generator: the tests need variety, not quality.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 32
    }

    pub fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 31) as f32 - 1.0
    }
}

/// Rows of random blocks. Every bit is random, except that scales are of ordinary size.
pub fn random_weights(format: Format, rows: usize, k: usize, random: &mut Random) -> Vec<u8> {
    let info = format.info();
    let mut bytes: Vec<u8> = (0..rows * k / info.block_len * info.block_bytes).map(|_| random.next() as u8).collect();
    for block in bytes.chunks_exact_mut(info.block_bytes) {
        let halves: &[usize] = match format {
            Format::F32 => {
                block.copy_from_slice(&random.unit().to_le_bytes());
                &[]
            }
            Format::BF16 => {
                block.copy_from_slice(&random.unit().to_le_bytes()[2..]);
                &[]
            }
            Format::MXFP4 => {
                block[0] = 118 + (random.next() % 8) as u8;
                &[]
            }
            Format::NVFP4 => {
                block[..4].iter_mut().for_each(|scale| *scale &= 0x7f);
                &[]
            }
            Format::IQ1_M => {
                // 0x2e66 is about 0.1.
                for (i, nibble) in [0x6, 0x6, 0xe, 0x2].into_iter().enumerate() {
                    block[49 + 2 * i] = block[49 + 2 * i] & 0x0f | nibble << 4;
                }
                &[]
            }
            Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
            Format::Q2_K => &[80, 82],
            Format::Q3_K => &[108],
            Format::Q6_K => &[208],
            Format::TQ1_0 => &[52],
            Format::TQ2_0 => &[64],
            _ => &[0],
        };
        for &at in halves {
            let scale = half::f16::from_f32(random.unit() * 0.1);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}
