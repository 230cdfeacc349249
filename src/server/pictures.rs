//! The pictures that a request brings: taken from it, limited, unpacked and prepared for the model's eye.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::app::App;
use super::error::{ApiError, Kind};
use super::fields::Fields;
use crate::picture::{Patches, read_picture};

/// Pictures of one request.
pub const MAX_PICTURES: usize = 64;

/// Bytes of prepared pictures of all requests that wait or run. Those of a model with the most tokens to a picture (4096) have
/// 48 MiB each.
pub const MAX_HELD_BYTES: usize = 512 << 20;

/// What a `data:` address or `media_type` may call a picture. Which of them it is, the bytes say.
const MEDIA_TYPES: &[&str] = &["image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif"];

/// As clients write it: some leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The room that the server has for pictures.
pub struct PictureRoom {
    most_bytes: usize,
    /// One picture is unpacked at a time: that takes far more memory than what becomes of it.
    unpacking: Mutex<()>,
    held: Mutex<Vec<Weak<Patches>>>,
}

impl Default for PictureRoom {
    fn default() -> PictureRoom {
        PictureRoom { most_bytes: MAX_HELD_BYTES, unpacking: Mutex::default(), held: Mutex::default() }
    }
}

impl PictureRoom {
    /// Bytes of the prepared pictures that requests still need.
    pub fn held_bytes(&self) -> usize {
        bytes_still_held(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a picture among those that requests still need. Requests come at the same time, so looking and taking are one.
    fn hold(&self, patches: &Arc<Patches>) -> Result<(), ApiError> {
        let mut pictures = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (held, more) = (bytes_still_held(&mut pictures), bytes_of(patches));
        if held + more > self.most_bytes {
            let message = format!(
                "the pictures of all requests that wait or run take {held} bytes, {more} more would be beyond the limit of {}; \
                 try again later, or with smaller pictures",
                self.most_bytes
            );
            return Err(ApiError::new(Kind::Busy, message));
        }
        pictures.push(Arc::downgrade(patches));
        Ok(())
    }
}

/// Forgets the pictures that nobody needs any more.
fn bytes_still_held(pictures: &mut Vec<Weak<Patches>>) -> usize {
    pictures.retain(|patches| patches.strong_count() > 0);
    pictures.iter().filter_map(Weak::upgrade).map(|patches| bytes_of(&patches)).sum()
}

fn bytes_of(patches: &Patches) -> usize {
    std::mem::size_of_val(patches.values.as_slice())
}

/// The pictures of one request while it is read.
pub struct Pictures<'a> {
    app: &'a App,
    taken: Vec<Arc<Patches>>,
    tokens: usize,
}

impl<'a> Pictures<'a> {
    pub fn new(app: &'a App) -> Pictures<'a> {
        Pictures { app, taken: Vec::new(), tokens: 0 }
    }

    /// Whether the model sees at all.
    pub fn are_seen(&self) -> bool {
        self.app.model.vision.is_some()
    }

    pub fn into_taken(self) -> Vec<Arc<Patches>> {
        self.taken
    }

    /// Takes the picture of an address, whose field is `path`; returns its number.
    ///
    /// # Errors
    /// It is no `data:` address of a picture that can be used.
    pub fn add_address(&mut self, address: &str, path: &str) -> Result<usize, ApiError> {
        let Some(rest) = strip_scheme(address, "data:") else {
            let shown: String = address.chars().take_while(|c| *c != ':').take(20).collect();
            let problem = format!(
                "an address '{shown}:…' is not opened: this server fetches nothing and reads no files for a request; send the \
                 picture itself, as data:image/png;base64,…"
            );
            return Err(ApiError::field(path, problem));
        };
        let Some((head, data)) = rest.split_once(',') else {
            return Err(ApiError::field(path, "the data: address has no comma, behind which the picture should stand"));
        };
        let (media_type, options) = head.split_once(';').unwrap_or((head, ""));
        check_media_type(media_type, path)?;
        if !options.split(';').any(|option| option.trim().eq_ignore_ascii_case("base64")) {
            return Err(ApiError::field(path, "the data: address must be in base64: data:image/png;base64,…"));
        }
        self.add_base64(data, path)
    }

    /// Takes a picture in base64, as Anthropic's `source` has it.
    ///
    /// # Errors
    /// It is no picture that can be used.
    pub fn add_typed(&mut self, media_type: &str, data: &str, source: &Fields<'_>) -> Result<usize, ApiError> {
        check_media_type(media_type, &source.path("media_type"))?;
        self.add_base64(data, &source.path("data"))
    }

    fn add_base64(&mut self, data: &str, path: &str) -> Result<usize, ApiError> {
        // Some tools break the lines.
        let compact: Vec<u8> = data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let bytes = BASE64.decode(compact).map_err(|error| ApiError::field(path, format!("the base64 is malformed: {error}")))?;
        self.add(&bytes, path)
    }

    fn add(&mut self, bytes: &[u8], path: &str) -> Result<usize, ApiError> {
        let Some(wanted) = &self.app.model.vision else { return Err(blind(path)) };
        if self.taken.len() == MAX_PICTURES {
            return Err(ApiError::field(path, format!("a request may bring {MAX_PICTURES} pictures and no more")));
        }
        let read = {
            let _alone = self.app.pictures.unpacking.lock().unwrap_or_else(PoisonError::into_inner);
            read_picture(bytes, wanted)
        };
        let patches = Arc::new(read.map_err(|error| ApiError::field(path, error))?);
        self.tokens += patches.tokens();
        let context = self.app.model.context;
        if self.tokens >= context {
            let message = format!(
                "'{path}': the pictures up to this one have {} tokens, and the context of {context} must hold prompt and answer; \
                 send fewer or smaller ones, or serve with a larger --ctx-size",
                self.tokens
            );
            return Err(ApiError { kind: Kind::ContextLength, message, field: Some(path.to_owned()) });
        }
        self.app.pictures.hold(&patches)?;
        self.taken.push(patches);
        Ok(self.taken.len() - 1)
    }
}

/// The error of a picture for a model that sees none. `path` is the field that says it is one.
pub fn blind(path: &str) -> ApiError {
    let problem = "this server reads text only: no vision encoder is open. Serve the model with its encoder: --vision-file FILE";
    ApiError::field(path, problem)
}

fn strip_scheme<'t>(address: &'t str, scheme: &str) -> Option<&'t str> {
    let head = address.get(..scheme.len())?;
    head.eq_ignore_ascii_case(scheme).then(|| &address[scheme.len()..])
}

fn check_media_type(media_type: &str, path: &str) -> Result<(), ApiError> {
    if MEDIA_TYPES.iter().any(|known| media_type.trim().eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    let shown: String = media_type.chars().take(40).collect();
    let problem = format!("the media type '{shown}' is not supported; supported are {}", MEDIA_TYPES.join(", "));
    Err(ApiError::field(path, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_all_requests_share_a_limit() {
        let room = PictureRoom { most_bytes: 1000, ..PictureRoom::default() };
        let picture = |values| {
            let grid = crate::picture::Grid { rows: 2, columns: 2 };
            Arc::new(Patches { grid, merge: 2, values: vec![0.0; values], digest: [0; 32] })
        };
        let (first, second) = (picture(150), picture(150));
        room.hold(&first).unwrap();
        let refused = room.hold(&second).unwrap_err();
        assert!(refused.kind == Kind::Busy && refused.message.contains("1000"), "{}", refused.message);
        // A request that is over gives its room back.
        drop(first);
        room.hold(&second).unwrap();
        assert!(room.hold(&picture(101)).is_err(), "600 of 1000 bytes are taken");
        assert_eq!(room.held_bytes(), 600);
    }

    #[test]
    fn base64_is_taken_with_and_without_padding() {
        for text in ["aGk=", "aGk"] {
            assert_eq!(BASE64.decode(text).unwrap(), b"hi");
        }
        assert!(BASE64.decode("a*k=").is_err());
    }

    #[test]
    fn schemes_and_media_types() {
        assert_eq!(strip_scheme("DATA:x", "data:"), Some("x"));
        assert_eq!(strip_scheme("http://x", "data:"), None);
        assert_eq!(strip_scheme("dé", "data:"), None);
        assert!(check_media_type("Image/PNG", "f").is_ok());
        assert!(check_media_type("image/svg+xml", "f").unwrap_err().message.contains("image/webp"));
    }
}
