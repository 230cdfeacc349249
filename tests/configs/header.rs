//! Headers of models that tests change.

use std::path::Path;

use strata::engine::OpenOptions;
use strata::gguf::{GgufWriter, Metadata, ModelFiles, Value};
use strata::model::{Model, StageOptions, Tensors};
use strata::quant::Format;

use crate::common::*;

/// A model's header as it can be changed: its keys, and its tensors without data.
#[derive(Debug, Clone)]
pub struct Header {
    pub keys: Vec<(String, Value)>,
    pub tensors: Vec<(String, Vec<u64>, Format)>,
}

impl Header {
    pub fn of(path: &Path) -> Header {
        let files = ModelFiles::open(path).expect("the fixture opens");
        Header {
            keys: files.metadata().iter().map(|(k, v)| (k.to_string(), v.clone())).collect(),
            tensors: files.tensors().iter().map(|t| (t.name.clone(), t.shape.clone(), t.format)).collect(),
        }
    }

    pub fn random() -> Header {
        Header::of(&model_path(RANDOM))
    }

    pub fn family(name: &str) -> Header {
        Header::of(&fixture(&format!("families/{name}.gguf")))
    }

    pub fn arch(&self) -> String {
        match self.keys.iter().find(|(k, _)| k == "general.architecture") {
            Some((_, Value::String(arch))) => arch.clone(),
            other => panic!("no architecture: {other:?}"),
        }
    }

    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Header {
        let value = value.into();
        match self.keys.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.keys.push((key.to_string(), value)),
        }
        self
    }

    pub fn remove(mut self, key: &str) -> Header {
        self.keys.retain(|(k, _)| k != key);
        self
    }

    pub fn drop_tensor(mut self, name: &str) -> Header {
        self.tensors.retain(|(n, _, _)| n != name);
        self
    }

    pub fn tensor(mut self, name: &str, shape: &[u64], format: Format) -> Header {
        match self.tensors.iter_mut().find(|(n, _, _)| n == name) {
            Some(entry) => *entry = (name.to_string(), shape.to_vec(), format),
            None => self.tensors.push((name.to_string(), shape.to_vec(), format)),
        }
        self
    }

    pub fn shape(&self, name: &str) -> Vec<u64> {
        self.tensors.iter().find(|(n, _, _)| n == name).map(|(_, shape, _)| shape.clone()).expect("a tensor of that name")
    }

    /// The files, as far as a header says; `None` where not even that can be written.
    fn files(&self) -> Option<ModelFiles> {
        let mut metadata = Metadata::new();
        for (key, value) in &self.keys {
            metadata.insert(key, value.clone());
        }
        let mut writer = GgufWriter::new();
        writer.set_all(&metadata);
        for (name, shape, format) in &self.tensors {
            writer.zeros(name, shape, *format).ok()?;
        }
        let (header, file_bytes) = writer.header().ok()?;
        ModelFiles::from_header("changed.gguf", header.as_slice(), file_bytes).ok()
    }

    /// Opens the model and builds all of it: its warnings, or the error.
    pub fn build_with(&self, options: &OpenOptions) -> Result<Vec<String>, String> {
        let files = self.files().ok_or("unwritable")?;
        let model = Model::open(&files).map_err(|e| e.to_string())?;
        let options: StageOptions = options.stage_options(0..model.dims().layers);
        model.config.stage(&Tensors::new(&files), &options).map_err(|e| e.to_string())?;
        Ok(model.warnings)
    }

    pub fn build(&self) -> Result<Vec<String>, String> {
        self.build_with(&OpenOptions { context: 128, ..OpenOptions::default() })
    }

    #[track_caller]
    pub fn refused(&self, needles: &[&str]) {
        let error = self.build().expect_err(&format!("no error with {needles:?}"));
        for needle in needles {
            assert!(error.contains(needle), "the error says nothing of {needle:?}: {error}");
        }
    }
}

/// A key of the flagship's family.
pub fn key(name: &str) -> String {
    format!("qwen4exp.{name}")
}
