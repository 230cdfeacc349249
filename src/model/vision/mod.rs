//! Vision encoders (mmproj files): metadata and tensors → validated configuration → a [`Stage`] that turns patches of one picture
//! into rows in place of token embeddings. The kind of Qwen3-VL, without deepstack (specification 5).

mod build;
mod places;

pub use places::PlaceTable;

use super::{Dims, ModelError, Tensors, check_head_dim, check_layers, row_len};
use crate::gguf::{Metadata, ModelFiles};
use crate::picture::{Grid, Patches, Preprocess};
use crate::program::Stage;

/// A validated vision encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    pub width: u32,
    /// Width inside a feed-forward layer.
    pub inner: u32,
    pub layers: u32,
    pub heads: u32,
    pub eps: f32,
    /// Side of a patch in pixels.
    pub patch_size: u32,
    /// Side in patches of what becomes one token.
    pub merge: u32,
    /// Side of the square of learned places.
    pub table_side: u32,
    /// Width of the rows it gives.
    pub output_width: u32,
    pub mean: [f32; 3],
    pub std: [f32; 3],
}

/// Fewest tokens of a picture; smaller ones are scaled up (specification 5, as llama.cpp has it).
pub const MIN_PICTURE_TOKENS: u32 = 8;
/// Most that can be asked for.
pub const MAX_PICTURE_TOKENS: u32 = 4096;

const PLACES: &str = "v.position_embd.weight";
const PROJECTOR: &str = "qwen3vl_merger";

fn key(name: &str) -> String {
    format!("clip.vision.{name}")
}

fn positive(metadata: &Metadata, name: &str) -> Result<u32, ModelError> {
    match metadata.u32(&key(name))? {
        0 => Err(ModelError::invalid(key(name), 0, "it must be above 0")),
        value => Ok(value),
    }
}

/// Three numbers, one a colour.
fn colours(metadata: &Metadata, name: &str, allowed: impl Fn(f32) -> bool, problem: &str) -> Result<[f32; 3], ModelError> {
    let values = metadata.f32s(&key(name))?;
    match <[f32; 3]>::try_from(values.as_slice()) {
        Ok(values) if values.iter().all(|v| v.is_finite() && allowed(*v)) => Ok(values),
        _ => Err(ModelError::invalid(key(name), format!("{values:?}"), problem)),
    }
}

impl VisionConfig {
    /// Reads and validates an mmproj file. No tensor data is read.
    ///
    /// # Errors
    /// Another kind of file or encoder, a missing or invalid key, a missing or misshapen tensor.
    pub fn open(files: &ModelFiles) -> Result<VisionConfig, ModelError> {
        let (metadata, tensors) = (files.metadata(), Tensors::new(files));
        let architecture = metadata.str("general.architecture")?;
        if architecture != "clip" {
            let problem = "a vision encoder (mmproj file) has 'clip'; this file is of another kind";
            return Err(ModelError::invalid("general.architecture", format!("'{architecture}'"), problem));
        }
        let projector = metadata.str("clip.projector_type")?;
        if projector != PROJECTOR {
            let problem = format!("vision encoders of the kind '{PROJECTOR}' are supported");
            return Err(ModelError::invalid("clip.projector_type", format!("'{projector}'"), problem));
        }
        if metadata.opt_bool("clip.use_gelu")? != Some(true) {
            return Err(ModelError::invalid("clip.use_gelu", "not true", "only encoders with GELU are supported"));
        }
        let deep = metadata.opt_bools(&key("is_deepstack_layers"))?.unwrap_or_default();
        if let Some(layer) = deep.iter().position(|deep| *deep) {
            let found = format!("true for layer {layer}");
            return Err(ModelError::invalid(key("is_deepstack_layers"), found, "deepstack is not supported"));
        }
        let config = VisionConfig::read(metadata, &tensors)?;
        config.stage(&tensors, MIN_PICTURE_TOKENS)?;
        Ok(config)
    }

    fn read(metadata: &Metadata, tensors: &Tensors<'_>) -> Result<VisionConfig, ModelError> {
        let width = positive(metadata, "embedding_length")?;
        let inner = positive(metadata, "feed_forward_length")?;
        let layers = positive(metadata, "block_count")?;
        check_layers(key("block_count"), layers)?;
        let heads = positive(metadata, "attention.head_count")?;
        // Both axes turn pairs of a head, and each pair is two elements.
        if !width.is_multiple_of(heads) || !(width / heads).is_multiple_of(4) {
            let problem = format!("{width} elements must make heads of a multiple of 4");
            return Err(ModelError::invalid(key("attention.head_count"), heads, problem));
        }
        check_head_dim(key("attention.head_count"), width / heads)?;
        let eps = metadata.f32(&key("attention.layer_norm_epsilon"))?;
        if !(eps.is_finite() && eps > 0.0) {
            return Err(ModelError::invalid(key("attention.layer_norm_epsilon"), eps, "it must be above 0"));
        }
        let patch_size = positive(metadata, "patch_size")?;
        let merge = positive(metadata, "spatial_merge_size")?;
        let output_width = positive(metadata, "projection_dim")?;
        if merge > 8 {
            return Err(ModelError::invalid(key("spatial_merge_size"), merge, "more than 8 are not supported"));
        }
        row_len(key("patch_size"), patch_size, &[3, patch_size, patch_size])?;
        row_len(key("embedding_length"), width, &[width, 3.max(merge * merge)])?;
        row_len(key("feed_forward_length"), inner, &[inner])?;
        row_len(key("projection_dim"), output_width, &[output_width])?;
        let places = tensors.rows_of(PLACES)?;
        let table_side = u32::try_from(places.isqrt()).unwrap_or(u32::MAX);
        if u64::from(table_side) * u64::from(table_side) != places || table_side > 1 << 12 {
            let problem = format!("{places} places are no square of at most 4096 x 4096");
            return Err(ModelError::Values { tensor: PLACES.into(), problem });
        }
        tensors.shaped(PLACES, &[width, table_side * table_side])?;
        Ok(VisionConfig {
            width,
            inner,
            layers,
            heads,
            eps,
            patch_size,
            merge,
            table_side,
            output_width,
            mean: colours(metadata, "image_mean", |_| true, "three numbers are needed")?,
            std: colours(metadata, "image_std", |v| v > 0.0, "three numbers above 0 are needed")?,
        })
    }

    /// How pictures shall be, where there is room for `max_tokens` tokens of one.
    pub fn preprocess(&self, max_tokens: u32) -> Preprocess {
        Preprocess {
            patch_size: self.patch_size,
            merge: self.merge,
            mean: self.mean,
            std: self.std,
            min_tokens: MIN_PICTURE_TOKENS.min(max_tokens),
            max_tokens,
        }
    }

    /// Numbers of a patch.
    pub fn patch_width(&self) -> u32 {
        3 * self.patch_size * self.patch_size
    }

    /// Whether a picture can be read where there is room for `max_tokens` tokens of one; what is wrong in words if not.
    ///
    /// # Errors
    /// Sides that are no multiples of the merged square, too few or too many patches, or another number of values.
    pub fn check(&self, patches: &Patches, max_tokens: u32) -> Result<(), String> {
        let Grid { rows, columns } = patches.grid;
        if patches.merge != self.merge || !rows.is_multiple_of(self.merge) || !columns.is_multiple_of(self.merge) {
            return Err(format!("a picture of {rows} x {columns} patches is not cut into squares of {0} x {0}", self.merge));
        }
        let tokens = u64::from(rows / self.merge) * u64::from(columns / self.merge);
        if tokens == 0 || tokens > u64::from(max_tokens) {
            return Err(format!("a picture of {tokens} tokens; the encoder has room for 1 to {max_tokens}"));
        }
        let expected = patches.grid.patches() * self.patch_width() as usize;
        if patches.values.len() != expected {
            return Err(format!("a picture of {} values, expected {expected}", patches.values.len()));
        }
        Ok(())
    }

    /// Whether its rows can stand among those of a model.
    ///
    /// # Errors
    /// Another width.
    pub fn fits(&self, dims: Dims) -> Result<(), ModelError> {
        if self.output_width == dims.width {
            return Ok(());
        }
        let problem = format!("the model has rows of {}; this encoder belongs to another model", dims.width);
        Err(ModelError::invalid(key("projection_dim"), self.output_width, problem))
    }

    /// Weights and the program for pictures of at most `max_tokens` tokens.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, or in a format that cannot be used.
    pub fn stage(&self, tensors: &Tensors<'_>, max_tokens: u32) -> Result<Stage, ModelError> {
        build::stage(self, tensors, max_tokens)
    }

    /// Reads the learned places.
    ///
    /// # Errors
    /// They cannot be read, or are no floats.
    pub fn places(&self, tensors: &Tensors<'_>) -> Result<PlaceTable, ModelError> {
        Ok(PlaceTable::new(self.table_side, self.width, tensors.read_floats(PLACES)?))
    }
}
