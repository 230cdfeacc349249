//! Model sheets: metadata and tensor table of a model, without data. JSON with one tensor a line, so that two sheets can
//! be compared line by line. Long lists of texts (vocabulary, merges) are left out: no plan needs them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use thiserror::Error;

use super::model::{MetaValue, ModelHeader, TensorRow};
use crate::quant::FORMATS;

pub const SHEET_VERSION: u32 = 1;

#[derive(Debug, Error)]
pub enum SheetError {
    #[error("model sheet: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("model sheet is of version {found}; this program reads version {SHEET_VERSION}")]
    Version { found: u32 },
    #[error("model sheet: tensor '{tensor}' has the unknown format '{format}'")]
    Format { tensor: String, format: String },
    #[error("model sheet: tensor '{tensor}' {problem}")]
    Tensor { tensor: String, problem: &'static str },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SheetFile {
    strata_model_sheet: u32,
    metadata: BTreeMap<String, MetaValue>,
    /// Name, format, shape.
    tensors: Vec<(String, String, Vec<u64>)>,
}

/// Lists that are longer are vocabulary-sized and are left out.
const LONGEST_LIST: usize = 4096;

fn kept(value: &MetaValue) -> bool {
    match value {
        MetaValue::List(items) => items.len() <= LONGEST_LIST,
        MetaValue::Text(text) => text.len() <= LONGEST_LIST,
        _ => true,
    }
}

pub fn write_sheet(header: &ModelHeader) -> Result<String, SheetError> {
    let mut text = format!("{{\n\"strata_model_sheet\": {SHEET_VERSION},\n\"metadata\": {{");
    let lines = header.metadata.iter().filter(|(_, v)| kept(v));
    let lines = lines.map(|(k, v)| Ok(format!("{}: {}", serde_json::to_string(k)?, serde_json::to_string(v)?)));
    text += &join(lines.collect::<Result<Vec<_>, SheetError>>()?);
    text += "},\n\"tensors\": [";
    let lines = header.tensors.iter().map(|t| {
        let mut line = String::new();
        let shape = t.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let _ = write!(line, "[{}, \"{}\", [{shape}]]", serde_json::to_string(&t.name)?, t.format.name());
        Ok(line)
    });
    text += &join(lines.collect::<Result<Vec<_>, SheetError>>()?);
    text += "]\n}\n";
    Ok(text)
}

fn join(lines: Vec<String>) -> String {
    if lines.is_empty() { String::new() } else { format!("\n{}\n", lines.join(",\n")) }
}

pub fn read_sheet(text: &str) -> Result<ModelHeader, SheetError> {
    let file: SheetFile = serde_json::from_str(text)?;
    if file.strata_model_sheet != SHEET_VERSION {
        return Err(SheetError::Version { found: file.strata_model_sheet });
    }
    let tensors = file.tensors.into_iter().map(|(name, format, shape)| {
        let Some(info) = FORMATS.iter().find(|f| f.name == format) else {
            return Err(SheetError::Format { tensor: name, format });
        };
        if shape.is_empty() || shape.len() > 4 {
            return Err(SheetError::Tensor { tensor: name, problem: "must have 1 to 4 dimensions" });
        }
        Ok(TensorRow { name, format: info.format, shape })
    });
    Ok(ModelHeader { metadata: file.metadata, tensors: tensors.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Format;

    #[test]
    fn a_sheet_is_read_as_it_was_written() {
        let mut header = ModelHeader::default();
        header.metadata.insert("general.architecture".into(), MetaValue::Text("qwen4exp".into()));
        header.metadata.insert("a.list".into(), MetaValue::List(vec![MetaValue::Unsigned(u64::MAX), MetaValue::Signed(-1)]));
        header.metadata.insert("a.rate".into(), MetaValue::Float(1e-6));
        header.metadata.insert("a.flag".into(), MetaValue::Bool(true));
        header.tensors.push(TensorRow { name: "odd \"name\"".into(), format: Format::IQ3_S, shape: vec![256, 3] });
        let text = write_sheet(&header).unwrap();
        assert_eq!(read_sheet(&text).unwrap(), header);
        header.metadata.insert("tokens".into(), MetaValue::List(vec![MetaValue::Text("x".into()); 5000]));
        assert_eq!(write_sheet(&header).unwrap(), text);
        assert!(matches!(read_sheet(&text.replace("IQ3_S", "IQ9_X")), Err(SheetError::Format { .. })));
        assert!(matches!(read_sheet(&text.replace("sheet\": 1", "sheet\": 2")), Err(SheetError::Version { found: 2 })));
    }
}
