//! The software Vulkan card, where there is one.

use super::skip::skipped;
use strata::backend::discovery::{CardOptions, NamedCard, survey};
use strata::backend::webgpu::{Tuning, VULKAN, WebGpuBackend};

/// Numbers that kernels are made for: those of a processor that plays a card, and those of cards.
pub const TUNINGS: [(&str, Tuning); 2] = [
    ("one lane", Tuning { threads: 64, lanes: 1, matrix_rows: 16, delta_threads: 32 }),
    ("32 lanes", Tuning { threads: 64, lanes: 32, matrix_rows: 16, delta_threads: 32 }),
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
