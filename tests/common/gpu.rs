//! The software Vulkan card, where there is one.

use super::skip::skipped;
use strata::backend::discovery::{CardOptions, NamedCard, survey};
use strata::backend::webgpu::{BROADCAST_THREADS, Tuning, VULKAN, WebGpuBackend};

/// Kernels as they are made for a processor that plays a card, for cards with subgroups of one size (here the software driver's),
/// and for cards without.
pub const TUNINGS: [(&str, Tuning); 4] = [
    ("processor", Tuning::processor(BROADCAST_THREADS)),
    ("subgroups", Tuning::subgroups(BROADCAST_THREADS)),
    ("one lane", Tuning::modest()),
    ("32 lanes", Tuning::plain(32)),
];

/// Mesa's software driver, or nothing: then the tests that need it say so.
pub fn software_card() -> Option<NamedCard> {
    let card = survey(&[&VULKAN]).cards.into_iter().find(|c| c.card.software && c.card.unusable.is_none());
    if card.is_none() {
        skipped("the software Vulkan card: no such driver (Debian: mesa-vulkan-drivers, libvulkan1)");
    }
    card
}

pub fn open_card(card: &NamedCard, tuning: Option<Tuning>) -> WebGpuBackend {
    VULKAN.open_tuned(card, &CardOptions::default(), tuning).expect("the software card opens")
}
