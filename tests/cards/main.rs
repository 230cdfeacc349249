//! Promise: cards of NVIDIA and AMD are found with their facts, or their absence is one sentence; models on them give what the
//! processor gives; a split over cards changes no bit; what fails on them is told by name at the call that sees it; and whatever
//! was taken is given back. The cards are simulated (`tests/sim`); the same tests hold for real ones.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../common/mod.rs"]
mod common;
#[path = "../sim_support/mod.rs"]
mod sim_support;

mod facts;
mod models;
mod starts;
mod tiers;
