//! From pixels to the patches of a vision encoder, as the image processors of `transformers` prepare pictures for Qwen's encoders
//! (`Qwen2VLImageProcessor`, whose rules for the size are `smart_resize`).

use sha2::{Digest, Sha256};

use super::decode::{Pixels, decode};
use super::resize::resize;
use super::{Grid, Patches, PictureError, Preprocess};

/// One side of a picture may be so many times the other.
pub const MAX_RATIO: u32 = 200;

/// Unpacks a picture file and prepares it.
///
/// # Errors
/// It cannot be read ([`decode`]), or it is too thin ([`Preprocess::fitted`]).
pub fn read_picture(bytes: &[u8], wanted: &Preprocess) -> Result<Patches, PictureError> {
    wanted.prepare(&decode(bytes)?)
}

impl Preprocess {
    /// The size in patches to which a picture of `width` x `height` pixels is scaled: both sides rounded to whole tokens, and
    /// scaled alike where there would be fewer tokens than `min_tokens` or more than `max_tokens`. There are never more than that.
    ///
    /// # Errors
    /// One side is more than [`MAX_RATIO`] times the other.
    pub fn fitted(&self, width: u32, height: u32) -> Result<Grid, PictureError> {
        let (longer, shorter) = (width.max(height), width.min(height));
        if u64::from(longer) > u64::from(shorter) * u64::from(MAX_RATIO) {
            return Err(PictureError::TooThin { width, height, most: MAX_RATIO });
        }
        // In tokens; a half is rounded to even, as Python does.
        let side = f64::from(self.side_pixels().max(1));
        let (across, down) = (f64::from(width) / side, f64::from(height) / side);
        let (min, max) = (f64::from(self.min_tokens), f64::from(self.max_tokens.max(1)));
        let (mut columns, mut rows) = (across.round_ties_even(), down.round_ties_even());
        if columns * rows > max {
            let shrink = (across * down / max).sqrt();
            (columns, rows) = ((across / shrink).floor(), (down / shrink).floor());
        } else if columns * rows < min {
            let grow = (min / (across * down)).sqrt();
            (columns, rows) = ((across * grow).ceil(), (down * grow).ceil());
        }
        (columns, rows) = (columns.max(1.0), rows.max(1.0));
        // A side that was raised to a whole token, or rounding up, may have gone beyond the limit.
        if columns * rows > max {
            match columns > rows {
                true => columns = (max / rows).floor().max(1.0),
                false => rows = (max / columns).floor().max(1.0),
            }
        }
        Ok(Grid { rows: rows as u32 * self.merge, columns: columns as u32 * self.merge })
    }

    /// Scales a picture and cuts it into patches.
    ///
    /// # Errors
    /// As [`Preprocess::fitted`].
    pub fn prepare(&self, pixels: &Pixels) -> Result<Patches, PictureError> {
        let grid = self.fitted(pixels.width, pixels.height)?;
        let scaled = resize(pixels, grid.columns * self.patch_size, grid.rows * self.patch_size);
        let digest = Sha256::digest(&scaled.rgb).into();
        Ok(Patches { grid, merge: self.merge, values: self.cut(&scaled, grid), digest })
    }

    /// The values of all patches, in the order of [`Patches::values`].
    fn cut(&self, scaled: &Pixels, grid: Grid) -> Vec<f32> {
        let (side, merge) = (self.patch_size as usize, self.merge as usize);
        let (rows, columns) = (grid.rows as usize, grid.columns as usize);
        let row_bytes = scaled.width as usize * 3;
        let levels = self.levels();
        let mut values = Vec::with_capacity(grid.patches() * 3 * side * side);
        for group in 0..(rows / merge) * (columns / merge) {
            let (group_row, group_column) = (group / (columns / merge), group % (columns / merge));
            for inside in 0..merge * merge {
                let row = (group_row * merge + inside / merge) * side;
                let column = (group_column * merge + inside % merge) * side;
                for (channel, levels) in levels.iter().enumerate() {
                    for y in row..row + side {
                        let line = &scaled.rgb[y * row_bytes + column * 3..][..side * 3];
                        values.extend(line.iter().skip(channel).step_by(3).map(|byte| levels[usize::from(*byte)]));
                    }
                }
            }
        }
        values
    }

    /// What a byte becomes in each channel.
    fn levels(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|channel| std::array::from_fn(|byte| (byte as f32 / 255.0 - self.mean[channel]) / self.std[channel]))
    }
}
