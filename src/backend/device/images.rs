//! Compiled kernels as this program carries them, and which of them a card runs.
//!
//! `kernels-cuda/build` writes `images.bin`; all its numbers are little endian:
//!
//! ```text
//! "STRATAK1", sha256 of the sources, u32 streams
//! stream      u16 length and name of its unit, u64 offset in the file, u32 packed bytes, u32 unpacked bytes, u16 images
//!   image     u16 length and name of its target (sm_86, ptx_80, gfx1100), u32 offset in the unpacked stream, u32 bytes
//! the streams, xz
//! ```
//!
//! A unit is what is loaded at once: `ops`, or the kernels of one block format.

use std::borrow::Cow;
use std::io::Cursor;

use thiserror::Error;

use super::Architecture;

const MAGIC: &[u8] = b"STRATAK1";
const DIGEST_BYTES: usize = 32;

/// The unit of the kernels that have no format.
pub const OPS: &str = "ops";

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ImageError {
    #[error("the kernels that come with this program are damaged ({0}); install it again")]
    Damaged(&'static str),
    #[error("there are no kernels for weights in {unit}")]
    NoUnit { unit: String },
}

/// Where a vendor's kernels come from.
#[derive(Debug, Clone, Copy)]
pub enum Images {
    /// The bytes of an `images.bin`.
    Packed(&'static [u8]),
    /// One image for every card, with all kernels: what a simulated driver takes.
    Whole(&'static [u8]),
}

/// What an image holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Code {
    /// Machine code of one NVIDIA architecture; later ones of the same generation run it too.
    Cubin(u32),
    /// NVIDIA's intermediate code: the driver compiles it for any architecture from this one on.
    Ptx(u32),
    /// Machine code of one AMD architecture.
    Gfx(String),
}

impl Code {
    fn of(target: &str) -> Option<Code> {
        let number = |text: &str| text.parse().ok();
        match target.split_once('_') {
            Some(("sm", capability)) => number(capability).map(Code::Cubin),
            Some(("ptx", capability)) => number(capability).map(Code::Ptx),
            None if target.starts_with("gfx") => Some(Code::Gfx(target.to_owned())),
            _ => None,
        }
    }

    /// How well the code fits a card; `None` if it does not run there. More is better.
    fn fitness(&self, architecture: &Architecture) -> Option<u32> {
        const MACHINE_CODE: u32 = 10_000;
        match (self, architecture) {
            (Code::Cubin(built), Architecture::Sm(card)) if built / 10 == card / 10 && built <= card => {
                Some(MACHINE_CODE + built)
            }
            (Code::Ptx(built), Architecture::Sm(card)) if built <= card => Some(*built),
            (Code::Gfx(built), Architecture::Gfx(card)) if built == card => Some(MACHINE_CODE),
            _ => None,
        }
    }
}

/// One unit for one target, and where it lies.
#[derive(Debug, Clone)]
struct Entry {
    unit: String,
    code: Code,
    stream_at: usize,
    packed_bytes: usize,
    unpacked_bytes: usize,
    at: usize,
    bytes: usize,
}

impl Entry {
    /// Everything that is packed together with it. Its checksum is part of the stream.
    fn stream(&self, file: &[u8]) -> Result<Vec<u8>, ImageError> {
        let packed = file.get(self.stream_at..).and_then(|rest| rest.get(..self.packed_bytes));
        let packed = packed.ok_or(ImageError::Damaged("a stream lies outside"))?;
        let mut stream = Vec::new();
        lzma_rs::xz_decompress(&mut Cursor::new(packed), &mut stream).map_err(|_| ImageError::Damaged("a stream"))?;
        if stream.len() == self.unpacked_bytes { Ok(stream) } else { Err(ImageError::Damaged("a stream's length")) }
    }

    fn image<'a>(&self, stream: &'a [u8]) -> Result<&'a [u8], ImageError> {
        let image = stream.get(self.at..).and_then(|rest| rest.get(..self.bytes));
        image.ok_or(ImageError::Damaged("an image lies outside"))
    }
}

/// The kernels that a card runs.
#[derive(Debug, Clone)]
pub struct CardImages {
    source: Images,
    /// All of one target.
    entries: Vec<Entry>,
}

impl Images {
    /// The best kernels for a card; `None` if there are none.
    pub fn for_card(self, architecture: &Architecture) -> Result<Option<CardImages>, ImageError> {
        let Images::Packed(file) = self else { return Ok(Some(CardImages { source: self, entries: vec![] })) };
        let mut entries = read_table(file)?;
        let fit = entries.iter().filter(|e| e.unit == OPS).filter_map(|e| Some((e.code.fitness(architecture)?, e.code.clone())));
        let Some((_, best)) = fit.max_by_key(|(fitness, _)| *fitness) else { return Ok(None) };
        entries.retain(|e| e.code == best);
        Ok(Some(CardImages { source: self, entries }))
    }
}

impl CardImages {
    /// Bytes of all units: more than a card's driver takes for those that are loaded.
    pub fn code_bytes(&self) -> u64 {
        self.entries.iter().map(|e| e.bytes as u64).sum()
    }

    /// The image that holds a unit, as the driver wants it, and the name it is loaded under.
    pub fn load(&self, unit: &str) -> Result<Cow<'static, [u8]>, ImageError> {
        let file = match self.source {
            Images::Packed(file) => file,
            Images::Whole(image) => return Ok(Cow::Borrowed(image)),
        };
        let missing = || ImageError::NoUnit { unit: unit.to_owned() };
        let entry = self.entries.iter().find(|e| e.unit == unit).ok_or_else(missing)?;
        let mut image = entry.image(&entry.stream(file)?)?.to_vec();
        // Drivers read PTX to its terminating zero.
        image.push(0);
        Ok(Cow::Owned(image))
    }

    /// Whether all units are one image.
    pub fn is_whole(&self) -> bool {
        matches!(self.source, Images::Whole(_))
    }
}

/// A table being read.
struct Table<'a> {
    rest: &'a [u8],
}

impl<'a> Table<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ImageError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(ImageError::Damaged("the table is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<u64, ImageError> {
        let bytes = self.take(N)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn size(&mut self) -> Result<usize, ImageError> {
        Ok(self.number::<4>()? as usize)
    }

    fn name(&mut self) -> Result<String, ImageError> {
        let len = self.number::<2>()? as usize;
        Ok(String::from_utf8_lossy(self.take(len)?).into_owned())
    }
}

fn read_table(file: &[u8]) -> Result<Vec<Entry>, ImageError> {
    let mut table = Table { rest: file };
    if table.take(MAGIC.len())? != MAGIC {
        return Err(ImageError::Damaged("their beginning"));
    }
    table.take(DIGEST_BYTES)?;
    let mut entries = vec![];
    for _ in 0..table.size()? {
        let unit = table.name()?;
        let stream_at = table.number::<8>()? as usize;
        let packed_bytes = table.size()?;
        let unpacked_bytes = table.size()?;
        for _ in 0..table.number::<2>()? {
            let target = table.name()?;
            let code = Code::of(&target).ok_or(ImageError::Damaged("a target"))?;
            let (at, bytes) = (table.size()?, table.size()?);
            entries.push(Entry { unit: unit.clone(), code, stream_at, packed_bytes, unpacked_bytes, at, bytes });
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitness(target: &str, architecture: &Architecture) -> Option<u32> {
        Code::of(target).unwrap().fitness(architecture)
    }

    #[test]
    fn machine_code_goes_before_intermediate_code_and_the_newest_that_fits_wins() {
        let sm = |target, card| fitness(target, &Architecture::Sm(card));
        assert!(sm("sm_86", 86) > sm("sm_80", 86));
        assert!(sm("sm_80", 86) > sm("ptx_80", 86));
        assert_eq!(sm("sm_80", 90), None, "another generation");
        assert_eq!(sm("sm_89", 86), None, "code of a later card");
        assert_eq!(sm("ptx_75", 120), Some(75));
        assert_eq!((sm("ptx_75", 61), sm("gfx1100", 86)), (None, None));
    }

    #[test]
    fn amd_code_fits_its_own_architecture_alone() {
        let gfx = |target, card: &str| fitness(target, &Architecture::Gfx(card.into()));
        assert!(gfx("gfx1100", "gfx1100").is_some());
        assert_eq!((gfx("gfx1100", "gfx1101"), gfx("ptx_75", "gfx1100")), (None, None));
    }

    /// A file of two units, each with the texts of two targets.
    fn file() -> Vec<u8> {
        let mut streams = vec![];
        let mut table = [MAGIC, &[0; DIGEST_BYTES], &2u32.to_le_bytes()].concat();
        let text = |text: &str| [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat();
        let head = table.len() + 2 * (2 + 3 + 8 + 4 + 4 + 2 + 2 * (2 + 5 + 4 + 4)) + 2;
        for unit in ["ops", "q4k"] {
            let stream = format!("{unit} for 80;{unit} for 86;");
            let half = stream.len() as u32 / 2;
            let mut packed = vec![];
            lzma_rs::xz_compress(&mut Cursor::new(stream.as_bytes()), &mut packed).unwrap();
            table.extend(text(unit));
            table.extend(((head + streams.len()) as u64).to_le_bytes());
            table.extend((packed.len() as u32).to_le_bytes());
            table.extend((stream.len() as u32).to_le_bytes());
            table.extend(2u16.to_le_bytes());
            for (i, target) in ["ptx_80", "sm_86"].into_iter().enumerate() {
                table.extend(text(target));
                table.extend((i as u32 * half).to_le_bytes());
                table.extend(half.to_le_bytes());
            }
            streams.extend(packed);
        }
        assert_eq!(table.len(), head);
        table.extend(streams);
        table
    }

    #[test]
    fn a_card_gets_its_own_images() {
        let packed = Images::Packed(file().leak());
        let of = |card, unit: &str| packed.for_card(&Architecture::Sm(card)).unwrap().map(|images| images.load(unit));
        assert_eq!(of(86, "q4k").unwrap().unwrap().as_ref(), b"q4k for 86;\0");
        assert_eq!(of(90, "ops").unwrap().unwrap().as_ref(), b"ops for 80;\0");
        assert!(of(75, "ops").is_none());
        assert_eq!(of(86, "q9").unwrap(), Err(ImageError::NoUnit { unit: "q9".into() }));
        assert_eq!(packed.for_card(&Architecture::Sm(86)).unwrap().unwrap().code_bytes(), 22);
    }

    #[test]
    fn damaged_files_are_told() {
        let whole = file();
        for len in 0..200.min(whole.len()) {
            let images = Images::Packed(whole[..len].to_vec().leak());
            let loaded = images.for_card(&Architecture::Sm(86)).and_then(|images| match images {
                Some(images) => images.load(OPS).map(drop),
                None => Ok(()),
            });
            assert!(loaded.is_err(), "{len} bytes");
        }
    }

    /// Where an ELF file ends by its own word: behind its table of sections.
    fn elf_bytes(image: &[u8]) -> usize {
        let number = |at: usize, len: usize| image[at..at + len].iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
        number(40, 8) + number(58, 2) * number(60, 2)
    }

    fn check_image(entry: &Entry, image: &[u8], kernel: &str) {
        let Entry { unit, code, .. } = entry;
        let names = |text: &str| image.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(names(kernel), "{unit} for {code:?} has no {kernel}");
        match code {
            Code::Ptx(target) => {
                let text = std::str::from_utf8(image).unwrap();
                assert!(text.contains(".version ") && text.contains(&format!(".target sm_{target}")), "{unit} for {code:?}");
                assert!(text.trim_end_matches(['\0', '\n', ' ']).ends_with('}'), "{unit} for {code:?} is cut off");
            }
            Code::Cubin(_) | Code::Gfx(_) => {
                let machine = if matches!(code, Code::Gfx(_)) { 224 } else { 190 };
                assert!(image.starts_with(b"\x7fELF") && image[18] == machine, "{unit} for {code:?}");
                assert!(elf_bytes(image) <= image.len(), "{unit} for {code:?} is cut off");
            }
        }
    }

    /// Reads everything with the reader that the program uses; checksums are checked as it unpacks.
    #[test]
    fn the_kernels_that_come_with_the_program_are_whole() {
        let units: Vec<String> = crate::quant::FORMATS.iter().map(|f| f.name.to_lowercase()).collect();
        let sm = [70, 75, 80, 86, 89, 90, 120].map(Code::Cubin);
        let gfx = ["gfx906", "gfx1030", "gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201"].map(|name| Code::Gfx(name.into()));
        for (images, promised) in [(crate::backend::cuda::IMAGES, sm), (crate::backend::hip::IMAGES, gfx)] {
            let Images::Packed(file) = images else { panic!("they are packed") };
            let entries = read_table(file).unwrap();
            let built = |code: &Code| entries.iter().any(|e| e.unit == OPS && e.code == *code);
            assert!(promised.iter().all(built), "{promised:?}");
            let targets = entries.iter().filter(|e| e.unit == OPS).count();
            let mut read = 0;
            for unit in units.iter().map(String::as_str).chain([OPS]) {
                let own: Vec<&Entry> = entries.iter().filter(|e| e.unit == unit).collect();
                let Some(first) = own.first() else { panic!("no kernels for {unit}") };
                assert_eq!(own.len(), targets, "{unit}");
                let stream = first.stream(file).unwrap();
                let kernel = if unit == OPS { "rms_norm".into() } else { format!("mat_vec_{unit}_b1") };
                for entry in &own {
                    assert_eq!(entry.stream_at, first.stream_at, "{unit} lies in two streams");
                    check_image(entry, entry.image(&stream).unwrap(), &kernel);
                    read += 1;
                }
            }
            assert_eq!(read, entries.len(), "every image has been read");
        }
    }
}
