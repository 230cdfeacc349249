//! Compiled kernels, and which of them a card runs.

use super::{Architecture, CardFacts};

/// What an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Machine code of one NVIDIA architecture; later ones of the same generation run it too.
    Cubin(u32),
    /// NVIDIA's intermediate code: the driver compiles it for any architecture from this one on.
    Ptx(u32),
    /// Machine code of one AMD architecture.
    Gfx(&'static str),
    /// For any card: what simulated drivers run.
    Host,
}

/// Kernels compiled for one kind of cards.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    pub code: Code,
    pub bytes: &'static [u8],
}

/// How well code fits a card; `None` if it does not run there. More is better.
fn fitness(code: Code, architecture: &Architecture) -> Option<u32> {
    match (code, architecture) {
        (Code::Cubin(built), Architecture::Sm(card)) if built / 10 == card / 10 && built <= *card => Some(10_000 + built),
        (Code::Ptx(built), Architecture::Sm(card)) if built <= *card => Some(built),
        (Code::Gfx(built), Architecture::Gfx(card)) if built == card => Some(10_000),
        (Code::Host, _) => Some(0),
        _ => None,
    }
}

/// The best image for a card.
pub fn choose(images: &'static [Image], card: &CardFacts) -> Option<&'static Image> {
    let fit = images.iter().filter_map(|image| Some((fitness(image.code, &card.architecture)?, image)));
    fit.max_by_key(|(fitness, _)| *fitness).map(|(_, image)| image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_goes_before_intermediate_code_and_the_newest_that_fits_wins() {
        let sm = |code, card| fitness(code, &Architecture::Sm(card));
        assert_eq!(sm(Code::Cubin(80), 86), Some(10_080));
        assert!(sm(Code::Cubin(86), 86) > sm(Code::Cubin(80), 86));
        assert!(sm(Code::Cubin(80), 86) > sm(Code::Ptx(80), 86));
        assert_eq!(sm(Code::Cubin(80), 90), None, "another generation");
        assert_eq!(sm(Code::Cubin(89), 86), None, "code of a later card");
        assert_eq!(sm(Code::Ptx(75), 120), Some(75));
        assert_eq!(sm(Code::Ptx(75), 61), None);
        assert_eq!(sm(Code::Gfx("gfx1100"), 86), None);
    }

    #[test]
    fn amd_code_fits_its_own_architecture_alone() {
        let gfx = |code, card: &str| fitness(code, &Architecture::Gfx(card.into()));
        assert!(gfx(Code::Gfx("gfx1100"), "gfx1100").is_some());
        assert!(gfx(Code::Gfx("gfx1100"), "gfx1101").is_none());
        assert!(gfx(Code::Ptx(75), "gfx1100").is_none());
    }
}
