//! From the bytes of a file to pixels. Whoever sent them is not trusted: what a picture may take is settled from its header,
//! before anything of its size is allocated.

use std::io::Cursor;

use image::error::LimitErrorKind;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use super::PictureError;

/// Most pixels to a side.
pub const MAX_SIDE_PIXELS: u32 = 16_384;

/// Most bytes of an unpacked picture in its own form: 53 million pixels of a photo, which have three bytes each. Turning it upright
/// and putting it on white may need as much again.
pub const MAX_UNPACKED_BYTES: u64 = 160 << 20;

/// The formats, each with its name for people.
const FORMATS: &[(ImageFormat, &str)] =
    &[(ImageFormat::Png, "PNG"), (ImageFormat::Jpeg, "JPEG"), (ImageFormat::WebP, "WebP"), (ImageFormat::Gif, "GIF")];

/// Pixels without transparency, upright.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pixels {
    pub width: u32,
    pub height: u32,
    /// Row by row, red, green, blue: `width * height * 3` bytes.
    pub rgb: Vec<u8>,
}

/// Reads a PNG, JPEG, WebP or GIF; of several frames the first. What the camera noted of its orientation is heeded, and what is
/// transparent stands on white, as in Qwen's own preparation of pictures.
///
/// # Errors
/// It is no such picture, it is damaged, or it is larger than [`MAX_SIDE_PIXELS`] and [`MAX_UNPACKED_BYTES`] allow.
pub fn decode(bytes: &[u8]) -> Result<Pixels, PictureError> {
    if bytes.is_empty() {
        return Err(PictureError::Empty);
    }
    let guessed = image::guess_format(bytes).ok();
    let known = FORMATS.iter().find(|(format, _)| guessed == Some(*format));
    let &(format, name) = known.ok_or(PictureError::UnknownFormat)?;
    let failed = |error: ImageError| picture_error(name, &error);
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(limits());
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    if width > MAX_SIDE_PIXELS || height > MAX_SIDE_PIXELS || decoder.total_bytes() > MAX_UNPACKED_BYTES {
        let (most_side, most_bytes) = (MAX_SIDE_PIXELS, MAX_UNPACKED_BYTES);
        return Err(PictureError::TooLarge { width, height, most_side, most_bytes });
    }
    if format == ImageFormat::Jpeg && !is_whole_jpeg(bytes) {
        // The decoder would fill what is missing with grey.
        return Err(PictureError::Broken { format: name, detail: "it has no end".into() });
    }
    // An orientation that cannot be read is none.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(failed)?;
    image.apply_orientation(orientation);
    let (width, height) = (image.width(), image.height());
    if width == 0 || height == 0 {
        return Err(PictureError::Broken { format: name, detail: format!("it has {width} x {height} pixels") });
    }
    Ok(Pixels { width, height, rgb: on_white(image) })
}

/// The sides are checked by ourselves, so that the error can name them.
fn limits() -> Limits {
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (None, None);
    limits.max_alloc = Some(MAX_UNPACKED_BYTES);
    limits
}

fn picture_error(format: &'static str, error: &ImageError) -> PictureError {
    match error {
        ImageError::Limits(limit)
            if matches!(limit.kind(), LimitErrorKind::InsufficientMemory | LimitErrorKind::DimensionError) =>
        {
            PictureError::TooMuchMemory { format, most_bytes: MAX_UNPACKED_BYTES }
        }
        other => PictureError::Broken { format, detail: other.to_string() },
    }
}

/// Whether the end-of-image marker comes after the beginning of the scan. Segments before that have lengths and may hold
/// thumbnails with markers of their own.
fn is_whole_jpeg(bytes: &[u8]) -> bool {
    const START_OF_SCAN: u8 = 0xDA;
    const END_OF_IMAGE: [u8; 2] = [0xFF, 0xD9];
    let mut at = 2;
    while let Some(&[mark, kind, high, low]) = bytes.get(at..at + 4) {
        match (mark, kind) {
            (0xFF, START_OF_SCAN) => return bytes[at..].windows(2).any(|pair| pair == END_OF_IMAGE),
            // Padding, and markers without a length.
            (0xFF, 0xFF) => at += 1,
            (0xFF, 0x01 | 0xD0..=0xD8) => at += 2,
            (0xFF, _) => at += 2 + usize::from(u16::from_be_bytes([high, low])),
            // What stands between segments is passed over, as the decoder does.
            _ => at += 1,
        }
    }
    false
}

fn on_white(image: DynamicImage) -> Vec<u8> {
    if !image.color().has_alpha() {
        return image.into_rgb8().into_raw();
    }
    let rgba = image.into_rgba8();
    let mut rgb = Vec::with_capacity(rgba.as_raw().len() / 4 * 3);
    for pixel in rgba.as_raw().chunks_exact(4) {
        let alpha = u32::from(pixel[3]);
        rgb.extend(pixel[..3].iter().map(|value| over_white(u32::from(*value), alpha)));
    }
    rgb
}

/// `value * alpha + 255 * (1 - alpha)` of bytes, rounded to the nearest.
fn over_white(value: u32, alpha: u32) -> u8 {
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}
