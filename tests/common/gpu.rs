//! The software Vulkan card, where there is one.

use super::skip::skipped;
use strata::backend::discovery::{CardOptions, NamedCard, survey};
use strata::backend::webgpu::{Tuning, VULKAN, WebGpuBackend};

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
