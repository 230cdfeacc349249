//! Writes GGUF files, for tests and tools.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::header::ALIGNMENT_KEY;
use super::{Array, GgufError, Metadata, Value};
use crate::quant::Format;

/// Builds a GGUF file (version 3, little-endian) of metadata and tensors, whole or in shards.
///
/// It writes what it is given; the reader is the one that judges. Only what cannot be written at all is refused.
///
/// ```
/// use strata::gguf::{GgufWriter, ModelFiles};
/// use strata::quant::Format;
///
/// let mut writer = GgufWriter::new();
/// writer.set("general.architecture", "llama");
/// writer.tensor("x.weight", &[4, 1], Format::F32, vec![0; 16])?;
/// let model = ModelFiles::from_bytes("x.gguf", writer.to_bytes()?)?;
/// assert_eq!(model.tensor("x.weight").unwrap().rows(), 1);
/// # Ok::<(), strata::gguf::GgufError>(())
/// ```
#[derive(Debug, Clone)]
pub struct GgufWriter<'a> {
    metadata: Metadata,
    alignment_bytes: u64,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Debug, Clone)]
struct Tensor<'a> {
    name: String,
    shape: Vec<u64>,
    type_number: u32,
    bytes: u64,
    /// `None`: zeros.
    data: Option<Cow<'a, [u8]>>,
}

impl Default for GgufWriter<'_> {
    fn default() -> Self {
        GgufWriter::new()
    }
}

impl<'a> GgufWriter<'a> {
    pub fn new() -> GgufWriter<'a> {
        GgufWriter { metadata: Metadata::new(), alignment_bytes: 32, tensors: Vec::new() }
    }

    /// Sets a metadata key; keys are written in the order in which they were first set.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.metadata.insert(key, value.into());
        self
    }

    /// Takes over all keys of `metadata`.
    pub fn set_all(&mut self, metadata: &Metadata) -> &mut Self {
        for (key, value) in metadata.iter() {
            self.metadata.insert(key, value.clone());
        }
        self
    }

    /// Aligns the tensors to `bytes`, and writes the key that says so.
    ///
    /// # Errors
    /// `bytes` is not a power of two of at least 8.
    pub fn set_alignment(&mut self, bytes: u32) -> Result<&mut Self, GgufError> {
        if !bytes.is_power_of_two() || bytes < 8 {
            return Err(unwritable(format!("the alignment {bytes} is not a power of two of at least 8")));
        }
        self.alignment_bytes = bytes.into();
        Ok(self.set(ALIGNMENT_KEY, bytes))
    }

    /// Adds a tensor with its data. `shape` has the fastest dimension first.
    ///
    /// # Errors
    /// The data has not the size that shape and format ask for.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        format: Format,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self, GgufError> {
        let data = data.into();
        let bytes = data_bytes(name, shape, format)?;
        if data.len() as u64 != bytes {
            let reason = format!("tensor {name:?} of {format} {shape:?} has {bytes} bytes, not {}", data.len());
            return Err(unwritable(reason));
        }
        self.push(name, shape, format.info().ggml_type, bytes, Some(data));
        Ok(self)
    }

    /// Adds a tensor of zero bytes, which take no memory here and, in a file, no disk where the system supports holes.
    ///
    /// # Errors
    /// The shape is not possible for the format.
    pub fn zeros(&mut self, name: &str, shape: &[u64], format: Format) -> Result<&mut Self, GgufError> {
        let bytes = data_bytes(name, shape, format)?;
        self.push(name, shape, format.info().ggml_type, bytes, None);
        Ok(self)
    }

    fn push(&mut self, name: &str, shape: &[u64], type_number: u32, bytes: u64, data: Option<Cow<'a, [u8]>>) {
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), type_number, bytes, data });
    }

    /// The header alone, padded to where the data begins, and the size that the whole file would have.
    ///
    /// # Errors
    /// The tensors together are too large for the format.
    pub fn header(&self) -> Result<(Vec<u8>, u64), GgufError> {
        let header = encode_header(&self.metadata, &self.tensors, self.alignment_bytes)?;
        let data_bytes: u64 = self.tensors.iter().map(|tensor| tensor.bytes.next_multiple_of(self.alignment_bytes)).sum();
        let file_bytes = header.len() as u64 + data_bytes;
        Ok((header, file_bytes))
    }

    /// The whole file in memory.
    ///
    /// # Errors
    /// As [`GgufWriter::header`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, GgufError> {
        let mut bytes = encode_header(&self.metadata, &self.tensors, self.alignment_bytes)?;
        for tensor in &self.tensors {
            let end = bytes.len() + tensor.bytes as usize;
            bytes.extend_from_slice(tensor.data.as_deref().unwrap_or_default());
            bytes.resize(end.next_multiple_of(self.alignment_bytes as usize), 0);
        }
        Ok(bytes)
    }

    /// Writes the file, replacing one that is there.
    ///
    /// # Errors
    /// As [`GgufWriter::header`], or the system cannot write.
    pub fn write_file(&self, path: impl AsRef<Path>) -> Result<(), GgufError> {
        let path = path.as_ref();
        let header = encode_header(&self.metadata, &self.tensors, self.alignment_bytes)?;
        let failure = |source| GgufError::Io { file: path.display().to_string(), action: "write", source };
        let file = File::create(path).map_err(failure)?;
        write_with_holes(file, &header, &self.tensors, self.alignment_bytes).map_err(failure)
    }

    /// The model cut into shards of `tensors_per_shard`, each with its name `STEM-00001-of-0000N.gguf`. All keys go
    /// to the first shard; the others get the split keys only.
    ///
    /// # Errors
    /// `tensors_per_shard` is 0, or as [`GgufWriter::header`].
    pub fn to_shards(&self, stem: &str, tensors_per_shard: usize) -> Result<Vec<(String, Vec<u8>)>, GgufError> {
        let shards = self.split(stem, tensors_per_shard)?;
        shards.iter().map(|(name, writer)| Ok((name.clone(), writer.to_bytes()?))).collect()
    }

    /// Writes the shards of [`GgufWriter::to_shards`] into `folder`, and returns their paths.
    ///
    /// # Errors
    /// As [`GgufWriter::to_shards`], or the system cannot write.
    pub fn write_shards(
        &self,
        folder: impl AsRef<Path>,
        stem: &str,
        tensors_per_shard: usize,
    ) -> Result<Vec<PathBuf>, GgufError> {
        let mut paths = Vec::new();
        for (name, writer) in self.split(stem, tensors_per_shard)? {
            let path = folder.as_ref().join(name);
            writer.write_file(&path)?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn split(&self, stem: &str, tensors_per_shard: usize) -> Result<Vec<(String, GgufWriter<'_>)>, GgufError> {
        if tensors_per_shard == 0 {
            return Err(unwritable("a shard must hold at least one tensor".to_owned()));
        }
        let chunks: Vec<&[Tensor]> = self.tensors.chunks(tensors_per_shard).collect();
        let count = u16::try_from(chunks.len())
            .map_err(|_| unwritable(format!("{} shards are more than the format can count", chunks.len())))?;
        let mut shards = Vec::new();
        for (number, chunk) in chunks.into_iter().enumerate() {
            let mut shard = GgufWriter { alignment_bytes: self.alignment_bytes, ..GgufWriter::new() };
            if number == 0 {
                shard.metadata = self.metadata.clone();
            } else if let Some(alignment) = self.metadata.get(ALIGNMENT_KEY) {
                shard.set(ALIGNMENT_KEY, alignment.clone());
            }
            shard.set("split.no", number as u16);
            shard.set("split.tensors.count", self.tensors.len() as i32);
            shard.set("split.count", count);
            shard.tensors = chunk.iter().map(Tensor::borrowed).collect();
            shards.push((format!("{stem}-{:05}-of-{count:05}.gguf", number + 1), shard));
        }
        Ok(shards)
    }
}

impl Tensor<'_> {
    fn borrowed(&self) -> Tensor<'_> {
        Tensor {
            name: self.name.clone(),
            shape: self.shape.clone(),
            type_number: self.type_number,
            bytes: self.bytes,
            data: self.data.as_deref().map(Cow::Borrowed),
        }
    }
}

fn unwritable(reason: String) -> GgufError {
    GgufError::Unwritable { reason }
}

fn data_bytes(name: &str, shape: &[u64], format: Format) -> Result<u64, GgufError> {
    let (row_len, others) = shape.split_first().ok_or_else(|| unwritable(format!("tensor {name:?} has no shape")))?;
    let rows = others.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    format
        .row_bytes(*row_len)
        .zip(rows)
        .and_then(|(row_bytes, rows)| row_bytes.checked_mul(rows))
        .filter(|&bytes| bytes <= 1 << 48)
        .ok_or_else(|| unwritable(format!("tensor {name:?} cannot have the shape {shape:?} in {format}")))
}

fn write_with_holes(file: File, header: &[u8], tensors: &[Tensor], alignment_bytes: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom};
    let mut output = BufWriter::with_capacity(1 << 20, file);
    output.write_all(header)?;
    let mut start = header.len() as u64;
    for tensor in tensors {
        if let Some(data) = &tensor.data {
            output.seek(SeekFrom::Start(start))?;
            output.write_all(data)?;
        }
        start += tensor.bytes.next_multiple_of(alignment_bytes);
    }
    output.flush()?;
    // The padding, and zeros at the end.
    output.get_ref().set_len(start)
}

fn encode_header(metadata: &Metadata, tensors: &[Tensor], alignment_bytes: u64) -> Result<Vec<u8>, GgufError> {
    let mut out = Vec::new();
    out.extend_from_slice(b"GGUF");
    out.extend_from_slice(&3u32.to_le_bytes());
    out.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    out.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_string(&mut out, key);
        out.extend_from_slice(&value.value_type().number().to_le_bytes());
        put_value(&mut out, value);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        put_string(&mut out, &tensor.name);
        out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
        for size in &tensor.shape {
            out.extend_from_slice(&size.to_le_bytes());
        }
        out.extend_from_slice(&tensor.type_number.to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        offset = tensor
            .bytes
            .checked_next_multiple_of(alignment_bytes)
            .and_then(|padded| padded.checked_add(offset))
            .ok_or_else(|| unwritable("the tensors together are too large".to_owned()))?;
    }
    out.resize(out.len().next_multiple_of(alignment_bytes as usize), 0);
    Ok(out)
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::I8(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::U16(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::I16(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::U32(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::I32(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::F32(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::Bool(value) => out.push((*value).into()),
        Value::String(value) => put_string(out, value),
        Value::Array(value) => put_array(out, value),
        Value::U64(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::I64(value) => out.extend_from_slice(&value.to_le_bytes()),
        Value::F64(value) => out.extend_from_slice(&value.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend_from_slice(&array.item_type().number().to_le_bytes());
    out.extend_from_slice(&(array.len() as u64).to_le_bytes());
    match array {
        Array::U8(items) => out.extend_from_slice(items),
        Array::I8(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Array::U16(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Array::I16(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Array::U32(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Array::I32(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Array::F32(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Array::Bool(items) => items.iter().for_each(|&item| out.push(item.into())),
        Array::String(items) => items.iter().for_each(|item| put_string(out, item)),
        Array::Array(items) => items.iter().for_each(|item| put_array(out, item)),
        Array::U64(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Array::I64(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
        Array::F64(items) => items.iter().for_each(|item| out.extend_from_slice(&item.to_le_bytes())),
    }
}
