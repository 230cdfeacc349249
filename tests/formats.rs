//! Every block format against the reference: see `tests/tools/make_format_vectors.py` for what the vectors hold.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use strata::quant::{DOT_LANES, FORMATS, Format, FormatInfo, QuantError};

fn vectors_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors")
}

/// Reads little-endian fields off the front of a file's bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }

    fn usize(&mut self) -> usize {
        self.u32() as usize
    }

    fn f32s(&mut self, count: usize) -> Vec<f32> {
        let bytes = self.bytes(4 * count).as_chunks().0;
        bytes.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    fn u64s(&mut self, count: usize) -> Vec<u64> {
        let bytes = self.bytes(8 * count).as_chunks().0;
        bytes.iter().map(|&b| u64::from_le_bytes(b)).collect()
    }
}

struct Vectors {
    blocks: Vec<u8>,
    block_count: usize,
    /// Weights of the last blocks.
    full: Vec<f32>,
    blocks_per_hash: usize,
    hashes: Vec<u64>,
}

fn read_vectors(info: &FormatInfo) -> Vectors {
    let path = vectors_dir().join(format!("{}.bin", info.name));
    let file = fs::read(&path)
        .unwrap_or_else(|e| panic!("{} has no vectors: {}: {e}", info.name, path.display()));
    let mut fields = Fields(&file);
    assert_eq!(fields.bytes(4), b"STRV");
    assert_eq!(fields.u32(), 1, "version");
    assert_eq!(fields.u32(), info.ggml_type);
    assert_eq!(fields.usize(), info.block_len);
    assert_eq!(fields.usize(), info.block_bytes);
    let [block_count, blocks_per_hash, full_blocks] = [(); 3].map(|()| fields.usize());
    let vectors = Vectors {
        blocks: fields.bytes(block_count * info.block_bytes).to_vec(),
        block_count,
        full: fields.f32s(full_blocks * info.block_len),
        blocks_per_hash,
        hashes: fields.u64s(block_count / blocks_per_hash),
    };
    assert!(fields.0.is_empty(), "{}: bytes left over", path.display());
    assert!(block_count >= 256);
    vectors
}

/// The bits, with one pattern for all NaNs.
fn bits(weight: f32) -> u32 {
    if weight.is_nan() {
        0x7fc0_0000
    } else {
        weight.to_bits()
    }
}

fn fnv1a(weights: &[f32]) -> u64 {
    let bytes = weights
        .iter()
        .flat_map(|&weight| bits(weight).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn decode(format: Format, bytes: &[u8]) -> Vec<f32> {
    let info = format.info();
    let mut out = vec![f32::NAN; bytes.len() / info.block_bytes * info.block_len];
    format.decode_row(bytes, &mut out).unwrap();
    out
}

fn encode(format: Format, weights: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xa5; format.row_bytes(weights.len() as u64).unwrap() as usize];
    format.encode_row(weights, &mut bytes).unwrap();
    bytes
}

#[test]
fn every_format_decodes_like_the_reference_bit_for_bit() {
    for info in FORMATS {
        let vectors = read_vectors(info);
        let weights = decode(info.format, &vectors.blocks);
        let first_full = weights.len() - vectors.full.len();
        for (i, (&got, &expected)) in weights[first_full..].iter().zip(&vectors.full).enumerate() {
            let (block, weight) = ((first_full + i) / info.block_len, i % info.block_len);
            assert_eq!(
                bits(got),
                bits(expected),
                "{} block {block} weight {weight}: {got} {expected}",
                info.name
            );
        }
        let group_len = vectors.blocks_per_hash * info.block_len;
        assert_eq!(vectors.block_count % vectors.blocks_per_hash, 0);
        for (group, (weights, &hash)) in weights.chunks(group_len).zip(&vectors.hashes).enumerate()
        {
            assert_eq!(fnv1a(weights), hash, "{}: hash group {group}", info.name);
        }
    }
}

/// A decode must not depend on where a row starts in memory, nor on the blocks around it.
#[test]
fn blocks_decode_alone_and_at_any_address() {
    for info in FORMATS {
        let blocks = &read_vectors(info).blocks[..32 * info.block_bytes];
        let together = decode(info.format, blocks);
        for shift in 1..4 {
            let moved = [&vec![0; shift], blocks].concat();
            let again = decode(info.format, &moved[shift..]);
            assert!(
                together
                    .iter()
                    .map(|&w| bits(w))
                    .eq(again.iter().map(|&w| bits(w))),
                "{}",
                info.name
            );
        }
        let alone = blocks
            .chunks(info.block_bytes)
            .flat_map(|block| decode(info.format, block));
        assert!(
            together.iter().map(|&w| bits(w)).eq(alone.map(bits)),
            "{}",
            info.name
        );
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for info in FORMATS {
        let (format, len, bytes) = (info.format, info.block_len, info.block_bytes);
        let mut out = vec![7.0; 3 * len];
        for wrong in [0, 1, 2 * bytes, 3 * bytes - 1, 3 * bytes + 1, 4 * bytes] {
            let result = format.decode_row(&vec![0; wrong], &mut out);
            let expected = 3 * bytes as u64;
            assert_eq!(
                result,
                Err(QuantError::RowBytes {
                    format,
                    weights: 3 * len,
                    bytes: wrong,
                    expected
                })
            );
        }
        assert!(
            out.iter().all(|&weight| weight == 7.0),
            "nothing is written on an error"
        );
        if len > 1 {
            let result = format.decode_row(&vec![0; 3 * bytes], &mut out[1..]);
            assert_eq!(
                result,
                Err(QuantError::PartialBlock {
                    format,
                    weights: 3 * len - 1,
                    block_len: len
                })
            );
        }
        assert_eq!(format.decode_row(&[], &mut []), Ok(()));
        assert_eq!(format.dot_row(&[], &[]), 0.0);

        let encoded = format.encode_row(&vec![0.0; len], &mut vec![0; bytes + 1]);
        match info.encode {
            None => assert_eq!(encoded, Err(QuantError::NoEncoder { format })),
            Some(_) => assert!(matches!(encoded, Err(QuantError::RowBytes { .. }))),
        }
    }
}

/// The order of sums of `dot_row`, written down a second time.
fn dot_by_definition(weights: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0.0f32; DOT_LANES];
    for (i, (weight, x)) in weights.iter().zip(x).enumerate() {
        sums[i % DOT_LANES] += weight * x;
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

#[test]
fn dot_rows_have_the_documented_order_of_sums() {
    for info in FORMATS {
        let vectors = read_vectors(info);
        // the last blocks have finite scales; odd counts leave a partial group of lanes in the formats of one weight
        for blocks in [1, 2, 3, 9, 100, 155] {
            let row = &vectors.blocks[vectors.blocks.len() - blocks * info.block_bytes..];
            let x: Vec<f32> = (0..blocks * info.block_len)
                .map(|i| (i as f32 * 0.7).sin())
                .collect();
            let expected = dot_by_definition(&decode(info.format, row), &x);
            assert_eq!(
                bits(info.format.dot_row(row, &x)),
                bits(expected),
                "{} {blocks}",
                info.name
            );
        }
    }
}

#[test]
fn encoders_write_the_bytes_of_the_reference() {
    let file = fs::read(vectors_dir().join("encode.bin")).unwrap();
    let mut fields = Fields(&file);
    assert_eq!(fields.bytes(4), b"STRE");
    assert_eq!(fields.u32(), 1, "version");
    let [formats, len] = [(); 2].map(|()| fields.usize());
    let weights = fields.f32s(len);
    for _ in 0..formats {
        let format = Format::from_ggml_type(fields.u32()).unwrap();
        let bytes = fields.usize();
        let expected = fields.bytes(bytes);
        let encoded = encode(format, &weights);
        let block_bytes = format.info().block_bytes;
        for (i, (got, expected)) in encoded
            .chunks(block_bytes)
            .zip(expected.chunks(block_bytes))
            .enumerate()
        {
            assert_eq!(got, expected, "{format} block {i}");
        }
    }
    assert!(fields.0.is_empty());
}

/// The largest error of a weight allowed after encode and decode, relative to the largest magnitude of its block:
/// half a step of the code, and what the rounding of the scales adds.
fn relative_bound(format: Format) -> Option<f32> {
    Some(match format {
        Format::F32 => 0.0,
        Format::F16 => 1.0 / 2048.0,
        Format::BF16 => 1.0 / 256.0,
        Format::Q8_0 => 0.5 / 127.0 + 0.001,
        // the code range is not symmetric: a weight of the opposite sign may miss a whole step
        Format::Q4_0 => 1.0 / 8.0 + 0.001,
        Format::Q5_0 => 1.0 / 16.0 + 0.001,
        // half a step of a range that is up to twice the magnitude
        Format::Q4_1 => 1.0 / 15.0 + 0.001,
        Format::Q5_1 => 1.0 / 31.0 + 0.001,
        Format::Q4_K => 1.0 / 15.0 + 2.0 / 63.0,
        Format::Q6_K => 1.0 / 32.0 + 1.0 / 128.0,
        // the widest gap of the table is 24, and it ends at 113 on the positive side
        Format::IQ4_NL => 14.0 / 127.0 + 0.001,
        // the largest magnitude is in [4, 8) of E2M1, whose last gap is 2 wide and ends at 6
        Format::MXFP4 => 2.0 / 8.0 + 0.001,
        Format::NVFP4 => 1.0 / 6.0 + 1.0 / 16.0,
        Format::Q2_0 | Format::TQ1_0 | Format::TQ2_0 => 0.5 + 0.001,
        _ => return None,
    })
}

/// What comes on top where a scale is so small that it is subnormal.
fn absolute_bound(format: Format) -> f32 {
    match format {
        Format::F32 | Format::BF16 => 0.0,
        // half a step of a subnormal E4M3 number, times the largest E2M1 number
        Format::NVFP4 => 6.0 / 1024.0,
        // the same for a half, times the largest code (127)
        _ => 127.0 / (1 << 25) as f32,
    }
}

#[test]
fn every_encoder_has_an_error_bound() {
    for info in FORMATS {
        assert_eq!(
            info.encode.is_some(),
            relative_bound(info.format).is_some(),
            "{}",
            info.name
        );
    }
}

/// Rows of one super-block: normal sizes of weights, also a row of one sign, of few values and of zeros.
fn weights() -> impl Strategy<Value = Vec<f32>> {
    let scale = (-6i32..7).prop_map(|exponent| 2.0f32.powi(exponent));
    let unit = prop_oneof![
        prop::collection::vec(-1.0f32..1.0, 256),
        prop::collection::vec(0.5f32..1.0, 256),
        prop::collection::vec(-1.0f32..-0.5, 256),
        prop::collection::vec(prop::sample::select(vec![-1.0f32, 0.0, 1.0]), 256),
        Just(vec![0.0; 256]),
    ];
    (unit, scale).prop_map(|(unit, scale)| unit.into_iter().map(|weight| weight * scale).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encoded_weights_come_back_within_the_bound(weights in weights()) {
        for info in FORMATS.iter().filter(|info| info.encode.is_some()) {
            let relative = relative_bound(info.format).unwrap();
            let absolute = absolute_bound(info.format);
            let decoded = decode(info.format, &encode(info.format, &weights));
            for (weights, decoded) in weights.chunks(info.block_len).zip(decoded.chunks(info.block_len)) {
                let magnitude = weights.iter().fold(0.0f32, |max, weight| weight.abs().max(max));
                for (weight, decoded) in weights.iter().zip(decoded) {
                    let error = (weight - decoded).abs();
                    prop_assert!(error <= relative * magnitude + absolute, "{}: {weight} became {decoded}", info.name);
                }
            }
        }
    }

    /// Scales under- and overflow here, so the weights do not come back; but a byte is written for each.
    #[test]
    fn encoding_any_finite_weights_never_panics(
        weights in prop::collection::vec(any::<f32>(), 256),
        scale in prop::sample::select(vec![1.0, 1e-20, 1e-38, 1e-44]),
    ) {
        let weights: Vec<f32> = weights.iter().map(|weight| weight * scale).collect();
        for info in FORMATS.iter().filter(|info| info.encode.is_some()) {
            encode(info.format, &weights);
        }
    }

    #[test]
    fn decoding_any_bytes_of_any_length_never_panics(
        format in prop::sample::select(FORMATS.iter().map(|info| info.format).collect::<Vec<_>>()),
        bytes in prop::collection::vec(any::<u8>(), 0..900),
        len in 0usize..1100,
    ) {
        let mut out = vec![0.0; len];
        let fits = format.row_bytes(len as u64) == Some(bytes.len() as u64);
        prop_assert_eq!(format.decode_row(&bytes, &mut out).is_ok(), fits);
    }
}
