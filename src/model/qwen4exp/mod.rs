//! `qwen4exp` (Qwen3.8-Flash-Next): gated delta net and sparse attention layers, hyper-connections, a mixture of experts
//! with a shared expert in every layer, and a hashed n-gram embedding on one layer. Section numbers refer to the
//! model specification.

mod build;
mod config;

use super::{Architecture, Dims, ModelError, NgramConfig, PicturePlaces, StageOptions, Tensors};
use crate::gguf::ModelFiles;
use crate::program::Stage;

pub(super) use config::Config;

pub(super) fn open(files: &ModelFiles) -> Result<Box<dyn Architecture>, ModelError> {
    let tensors = Tensors::new(files);
    Ok(Box::new(Config::read(files.metadata(), &tensors)?))
}

impl Architecture for Config {
    fn dims(&self) -> Dims {
        Dims {
            layers: self.layers.len() as u32,
            width: self.width,
            hand_off_width: self.wide(),
            vocab: self.vocab,
            context: self.context,
            pooling: None,
        }
    }

    fn ngram(&self) -> Option<&NgramConfig> {
        self.ple.as_ref().map(|ple| &ple.ngram)
    }

    fn pictures(&self) -> Option<PicturePlaces> {
        Some(PicturePlaces { token: self.ple.as_ref().map(|ple| ple.ngram.image) })
    }

    fn stage(&self, tensors: &Tensors<'_>, options: &StageOptions) -> Result<Stage, ModelError> {
        build::stage(self, tensors, options)
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn uses(&self, tensor: &str) -> bool {
        match tensor.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => {
                let ours = layer.parse::<usize>().is_ok_and(|n| n < self.layers.len());
                ours && ["attn_", "ssm_", "hc_", "ffn_", "ple_", "indexer."].iter().any(|p| rest.starts_with(p))
            }
            None => ["token_embd.", "output.", "output_hc_", "per_layer_token_embd."].iter().any(|p| tensor.starts_with(p)),
        }
    }
}
