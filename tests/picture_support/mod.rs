//! Pictures for tests: good ones made on the spot, and broken ones.
#![allow(dead_code)] // every test binary uses its own part

use std::io::Cursor;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, RgbImage};
use serde_json::{Value as Json, json};

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures").join(name)
}

/// Bytes of a picture beside the tests.
pub fn file(name: &str) -> Vec<u8> {
    let path = fixture(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A PNG whose colours depend on `seed`.
pub fn png(width: u32, height: u32, seed: u32) -> Vec<u8> {
    let image =
        RgbImage::from_fn(width, height, |x, y| image::Rgb([(x * 7 + seed) as u8, (y * 5) as u8, (x + y + seed * 3) as u8]));
    let mut bytes = Vec::new();
    image.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png).expect("a PNG");
    bytes
}

/// A picture as an address that holds it.
pub fn address(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(bytes))
}

/// A picture of so many tokens side by side, where a token has 32 pixels.
pub fn wide(tokens: u32) -> String {
    address(&png(tokens * 32, 32, tokens))
}

/// A part of OpenAI's messages, and of Anthropic's.
pub fn text(text: &str) -> Json {
    json!({ "type": "text", "text": text })
}

/// A part of OpenAI's messages.
pub fn image_url(url: &str) -> Json {
    json!({ "type": "image_url", "image_url": { "url": url, "detail": "high" } })
}

/// The same for Anthropic.
pub fn image(url: &str) -> Json {
    let (head, data) = url.split_once(";base64,").expect("a data: address");
    let media_type = head.strip_prefix("data:").expect("a data: address");
    json!({ "type": "image", "source": { "type": "base64", "media_type": media_type, "data": data } })
}

/// A conversation of one message.
pub fn says(parts: Json) -> Json {
    json!([{ "role": "user", "content": parts }])
}

/// A PNG without pixels that says it has `width` x `height` of them.
pub fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", header.as_slice()), (b"IDAT", &[0x78, 0x9c]), (b"IEND", &[])] {
        let body = [kind.as_slice(), data].concat();
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(&body);
        bytes.extend(crc32(&body).to_be_bytes());
    }
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { 0xEDB8_8320 ^ (sum >> 1) } else { sum >> 1 })
    };
    !bytes.iter().fold(!0, step)
}
