//! Block formats of weights. One table lists them all; one file per family of formats holds the block layout and the
//! scalar decode, which is the specification that every other path is tested against.

mod table;

pub use table::{FORMATS, Format, FormatInfo};
