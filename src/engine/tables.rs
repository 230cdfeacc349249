//! Embedding tables that stay in the file: only the rows that tokens need are read.

use std::ops::Range;
use std::sync::Arc;

use crate::gguf::{GgufError, ModelFiles, TensorInfo};
use crate::model::{ModelError, NgramConfig};
use crate::units::TokenId;

/// Rows of a tensor, read by number.
#[derive(Debug)]
pub struct RowTable {
    files: Arc<ModelFiles>,
    tensor: TensorInfo,
    width: usize,
    row_bytes: u64,
    rows: Vec<u64>,
    bytes: Vec<u8>,
}

impl RowTable {
    /// # Errors
    /// The tensor is missing.
    pub fn new(files: Arc<ModelFiles>, tensor: &str) -> Result<RowTable, ModelError> {
        let missing = || ModelError::MissingTensor { tensor: tensor.to_string() };
        let tensor = files.tensor(tensor).ok_or_else(missing)?.clone();
        let width = tensor.row_len() as usize;
        let row_bytes = tensor.row_bytes();
        Ok(RowTable { bytes: vec![0; row_bytes as usize], files, tensor, width, row_bytes, rows: Vec::new() })
    }

    /// Writes the rows one after the other into `to`, each element times `scale`.
    ///
    /// # Errors
    /// A read error, naming file and tensor.
    pub fn gather(&mut self, rows: impl Iterator<Item = u64>, scale: f32, to: &mut [f32]) -> Result<(), GgufError> {
        for (row, out) in rows.zip(to.chunks_exact_mut(self.width)) {
            self.files.read_at(&self.tensor, row * self.row_bytes, &mut self.bytes)?;
            (self.tensor.format.info().decode)(&self.bytes, out);
            if scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= scale);
            }
        }
        Ok(())
    }

    /// The joined n-gram rows of `tokens[indices]`.
    ///
    /// # Errors
    /// A read error, naming file and tensor.
    pub fn gather_ngrams(
        &mut self,
        config: &NgramConfig,
        tokens: &[TokenId],
        indices: Range<usize>,
        to: &mut [f32],
    ) -> Result<(), GgufError> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        for index in indices {
            config.rows(tokens, index, &mut rows);
        }
        let result = self.gather(rows.iter().copied(), 1.0, to);
        self.rows = rows;
        result
    }
}
