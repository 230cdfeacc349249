//! What the planner reads of a model: metadata and the table of tensors, from a GGUF file or from a model sheet.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ModelFactsError;
use crate::quant::Format;

/// A metadata value. Numbers keep sign and width only as far as a plan needs them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetaValue {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<MetaValue>),
}

impl MetaValue {
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            MetaValue::Unsigned(v) => Some(*v),
            MetaValue::Signed(v) => u64::try_from(*v).ok(),
            _ => None,
        }
    }
}

/// Name, format and shape of a tensor. `shape[0]` is the length of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorRow {
    pub name: String,
    pub format: Format,
    pub shape: Vec<u64>,
}

impl TensorRow {
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n))
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> Option<u64> {
        self.format.row_bytes(*self.shape.first()?)
    }

    pub fn bytes(&self) -> Option<u64> {
        self.shape.iter().skip(1).try_fold(self.row_bytes()?, |product, n| product.checked_mul(*n))
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelHeader {
    pub metadata: BTreeMap<String, MetaValue>,
    pub tensors: Vec<TensorRow>,
}

impl ModelHeader {
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(MetaValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A number, or the largest one of a list with a number per layer.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, ModelFactsError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        let number = match value {
            MetaValue::List(items) => {
                items.iter().map(MetaValue::as_u64).collect::<Option<Vec<_>>>().and_then(|v| v.into_iter().max())
            }
            other => other.as_u64(),
        };
        let wrong = || ModelFactsError::Metadata { key: key.to_string(), problem: "is not a whole number of 32 bits".into() };
        number.and_then(|n| u32::try_from(n).ok()).map(Some).ok_or_else(wrong)
    }

    pub fn u32(&self, key: &str) -> Result<u32, ModelFactsError> {
        let missing = || ModelFactsError::Metadata { key: key.to_string(), problem: "is missing".into() };
        self.opt_u32(key)?.ok_or_else(missing)
    }

    /// The number of `layer` in a list, or the one number for all layers.
    pub fn opt_u32_of_layer(&self, key: &str, layer: usize) -> Result<Option<u32>, ModelFactsError> {
        match self.metadata.get(key) {
            Some(MetaValue::List(items)) => {
                let wrong = || ModelFactsError::Metadata {
                    key: key.to_string(),
                    problem: format!("has no usable entry for layer {layer}"),
                };
                let number = items.get(layer).and_then(MetaValue::as_u64).and_then(|n| u32::try_from(n).ok());
                number.map(Some).ok_or_else(wrong)
            }
            _ => self.opt_u32(key),
        }
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorRow> {
        self.tensors.iter().find(|t| t.name == name)
    }
}
