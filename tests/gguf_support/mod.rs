//! What the tests of the GGUF reader share: fixtures, a small file with everything in it, and a builder of files that
//! the writer would not write.
#![allow(dead_code)] // Each test binary uses a part.

use std::path::{Path, PathBuf};

use strata::gguf::{Array, GgufWriter, Strings, Value};
use strata::quant::Format;

pub const SHARD_1: &str = "tiny-flash-next-IQ2_XS-00001-of-00002.gguf";
pub const SHARD_2: &str = "tiny-flash-next-IQ2_XS-00002-of-00002.gguf";

/// Every GGUF file of the repository with its number of keys and tensors (of all its shards).
pub const FIXTURES: [(&str, usize, usize); 6] = [
    ("tests/fixtures/tiny-flash-next-Q8_0.gguf", 57, 214),
    ("tests/fixtures/tiny-flash-next-Q4_K_M.gguf", 57, 214),
    ("assets/tiny-flash-next-IQ3_XXS.gguf", 57, 214),
    ("tests/fixtures/tiny-flash-next-IQ2_XS-00001-of-00002.gguf", 60, 214),
    ("tests/fixtures/tiny-flash-next-MTP-Q5_0.gguf", 54, 32),
    ("tests/fixtures/tiny-random-BF16.gguf", 53, 113),
];

pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub fn fixture(name: &str) -> PathBuf {
    repository("tests/fixtures").join(name)
}

/// A small model with a value of every type and tensors of several formats.
pub fn everything() -> GgufWriter<'static> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama").set("general.name", "Grüße 🦀");
    writer.set("n.u8", 200u8).set("n.i8", -100i8).set("n.u16", 60_000u16).set("n.i16", -30_000i16);
    writer.set("n.u32", u32::MAX).set("n.i32", -7i32).set("n.f32", 1.5f32).set("n.f64", 0.1f64);
    writer.set("n.u64", u64::MAX).set("n.i64", i64::MIN).set("n.bool", true);
    writer.set("a.u8", vec![1u8, 2]).set("a.i8", vec![-1i8]).set("a.u16", vec![1u16, 2, 3]).set("a.i16", vec![-5i16]);
    writer.set("a.u32", vec![7u32; 5]).set("a.i32", vec![4i32, 0, -4]).set("a.u64", vec![1u64 << 60, 3]);
    writer.set("a.i64", vec![-1i64]).set("a.f32", vec![0.5f32, -0.5]).set("a.f64", vec![1e300f64]);
    writer.set("a.bool", vec![true, false, true]).set("a.empty", Vec::<u32>::new());
    writer.set("tokenizer.ggml.tokens", Strings::from_iter(["<s>", "", "Ġa", "é", "🦀"]));
    let inner = vec![Array::U32(vec![1, 2]), Array::String(Strings::from_iter(["x", "y"])), Array::Array(vec![])];
    writer.set("a.nested", Value::Array(Array::Array(inner)));
    let mut add = |name: &str, shape: &[u64], format: Format| {
        let blocks = shape.iter().product::<u64>() as usize / format.info().block_len;
        let data: Vec<u8> = (0..blocks * format.info().block_bytes).map(|i| (i * 7 + name.len()) as u8).collect();
        writer.tensor(name, shape, format, data).unwrap();
    };
    add("token_embd.weight", &[64, 5], Format::Q8_0);
    add("norm.weight", &[3], Format::F32);
    add("blk.0.ffn.weight", &[32, 2, 3], Format::Q4_0);
    add("blk.0.four.weight", &[4, 1, 2, 2], Format::F16);
    add("output.weight", &[256, 1], Format::Q4_K);
    writer
}

/// A GGUF file put together piece by piece, with any value anywhere.
#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// Magic, version and counts.
    pub fn start(version: u32, tensor_count: u64, key_count: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensor_count).u64(key_count)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u32(self, value: u32) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    pub fn string(self, text: impl AsRef<[u8]>) -> Raw {
        self.u64(text.as_ref().len() as u64).bytes(text.as_ref())
    }

    /// Name and type number of a key.
    pub fn key(self, name: &str, value_type: u32) -> Raw {
        self.string(name).u32(value_type)
    }

    pub fn key_u32(self, name: &str, value: u32) -> Raw {
        self.key(name, 4).u32(value)
    }

    pub fn tensor(self, name: &str, shape: &[u64], type_number: u32, offset: u64) -> Raw {
        let start = self.string(name).u32(shape.len() as u32);
        shape.iter().fold(start, |raw, &size| raw.u64(size)).u32(type_number).u64(offset)
    }

    /// Padding to 32 bytes, then `data_bytes` of data.
    pub fn data(mut self, data_bytes: usize) -> Raw {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + data_bytes, 0x55);
        self
    }
}
