//! What can be wrong with a picture.

use thiserror::Error;

/// Why a picture cannot be used. Texts stand after the name of the picture or of the field that holds it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PictureError {
    #[error("the picture is empty: it has no bytes")]
    Empty,
    #[error("this is no picture that can be read; PNG, JPEG, WebP and GIF can")]
    UnknownFormat,
    #[error("the {format} data is damaged or breaks off ({detail}); send the whole file")]
    Broken { format: &'static str, detail: String },
    #[error(
        "the picture has {width} x {height} pixels, and unpacked it would take more than {most_bytes} bytes or {most_side} pixels \
         to a side; scale it down"
    )]
    TooLarge { width: u32, height: u32, most_side: u32, most_bytes: u64 },
    #[error("unpacking the {format} data takes more than {most_bytes} bytes; scale the picture down")]
    TooMuchMemory { format: &'static str, most_bytes: u64 },
    #[error("the picture has {width} x {height} pixels; one side is more than {most} times the other. Cut it into pieces")]
    TooThin { width: u32, height: u32, most: u32 },
}
