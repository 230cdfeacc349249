//! From an opened GGUF model to what the planner reads, and back to a header without data. No tensor data is touched.

use super::model::{MetaValue, ModelHeader, TensorRow};
use crate::gguf::{Array, GgufError, GgufWriter, ModelFiles, Value};

/// Vocabulary-sized lists are of no use to a plan.
const LONGEST_LIST: usize = 4096;

impl From<&ModelFiles> for ModelHeader {
    fn from(files: &ModelFiles) -> ModelHeader {
        let entries = files.metadata().iter();
        let metadata = entries.filter_map(|(key, value)| Some((key.to_string(), meta_value(value)?))).collect();
        let tensors = files
            .tensors()
            .iter()
            .map(|t| TensorRow { name: t.name.clone(), format: t.format, shape: t.shape.clone() })
            .collect();
        ModelHeader { metadata, tensors }
    }
}

fn meta_value(value: &Value) -> Option<MetaValue> {
    Some(match value {
        Value::U8(v) => MetaValue::Unsigned((*v).into()),
        Value::U16(v) => MetaValue::Unsigned((*v).into()),
        Value::U32(v) => MetaValue::Unsigned((*v).into()),
        Value::U64(v) => MetaValue::Unsigned(*v),
        Value::I8(v) => signed((*v).into()),
        Value::I16(v) => signed((*v).into()),
        Value::I32(v) => signed((*v).into()),
        Value::I64(v) => signed(*v),
        Value::F32(v) => short(*v)?,
        Value::F64(v) => finite(*v)?,
        Value::Bool(v) => MetaValue::Bool(*v),
        Value::String(v) => MetaValue::Text(v.clone()),
        Value::Array(array) => return list(array),
    })
}

/// A number that is not negative has one form, whatever its type in the file.
fn signed(v: i64) -> MetaValue {
    u64::try_from(v).map_or(MetaValue::Signed(v), MetaValue::Unsigned)
}

/// JSON has no infinities.
fn finite(v: f64) -> Option<MetaValue> {
    v.is_finite().then_some(MetaValue::Float(v))
}

/// The shortest decimal that stands for the 32-bit number.
fn short(v: f32) -> Option<MetaValue> {
    v.to_string().parse().ok().and_then(finite)
}

fn list(array: &Array) -> Option<MetaValue> {
    if array.len() > LONGEST_LIST {
        return None;
    }
    let items: Option<Vec<MetaValue>> = match array {
        Array::U8(v) => v.iter().map(|x| Some(MetaValue::Unsigned((*x).into()))).collect(),
        Array::U16(v) => v.iter().map(|x| Some(MetaValue::Unsigned((*x).into()))).collect(),
        Array::U32(v) => v.iter().map(|x| Some(MetaValue::Unsigned((*x).into()))).collect(),
        Array::U64(v) => v.iter().map(|x| Some(MetaValue::Unsigned(*x))).collect(),
        Array::I8(v) => v.iter().map(|x| Some(signed((*x).into()))).collect(),
        Array::I16(v) => v.iter().map(|x| Some(signed((*x).into()))).collect(),
        Array::I32(v) => v.iter().map(|x| Some(signed((*x).into()))).collect(),
        Array::I64(v) => v.iter().map(|x| Some(signed(*x))).collect(),
        Array::F32(v) => v.iter().map(|x| short(*x)).collect(),
        Array::F64(v) => v.iter().map(|x| finite(*x)).collect(),
        Array::Bool(v) => v.iter().map(|x| Some(MetaValue::Bool(*x))).collect(),
        Array::String(v) => v.iter().map(|x| Some(MetaValue::Text(x.to_string()))).collect(),
        Array::Array(v) => v.iter().map(list).collect(),
    };
    items.map(MetaValue::List)
}

impl ModelHeader {
    /// The model as an opened file of which only the header is there: with it the real programs of a sheet can be built.
    ///
    /// # Errors
    /// The tensors cannot be in a GGUF file.
    pub fn to_model_files(&self, name: &str) -> Result<ModelFiles, GgufError> {
        let mut writer = GgufWriter::new();
        // All tensors lie in this one file, however many it was cut into.
        for (key, value) in self.metadata.iter().filter(|(key, _)| !key.starts_with("split.")) {
            if let Some(value) = gguf_value(value) {
                writer.set(key, value);
            }
        }
        for tensor in &self.tensors {
            writer.zeros(&tensor.name, &tensor.shape, tensor.format)?;
        }
        let (header, file_bytes) = writer.header()?;
        ModelFiles::from_header(name, header.as_slice(), file_bytes)
    }
}

fn gguf_value(value: &MetaValue) -> Option<Value> {
    Some(match value {
        MetaValue::Bool(v) => Value::Bool(*v),
        MetaValue::Unsigned(v) => u32::try_from(*v).map_or(Value::U64(*v), Value::U32),
        MetaValue::Signed(v) => Value::I64(*v),
        MetaValue::Float(v) => Value::F32(*v as f32),
        MetaValue::Text(v) => Value::String(v.clone()),
        MetaValue::List(items) => Value::Array(gguf_list(items)?),
    })
}

/// Lists of one kind; whole numbers get 64 bits, which every look-up takes.
fn gguf_list(items: &[MetaValue]) -> Option<Array> {
    let all = |pick: fn(&MetaValue) -> bool| items.iter().all(pick);
    if all(|i| matches!(i, MetaValue::Unsigned(_))) {
        return items.iter().map(MetaValue::as_u64).collect::<Option<Vec<_>>>().map(Array::U64);
    }
    if all(|i| matches!(i, MetaValue::Bool(_))) {
        return Some(Array::Bool(items.iter().map(|i| *i == MetaValue::Bool(true)).collect()));
    }
    let floats = items.iter().map(|i| match i {
        MetaValue::Float(v) => Some(*v as f32),
        _ => None,
    });
    floats.collect::<Option<Vec<_>>>().map(Array::F32)
}
