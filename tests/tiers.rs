//! Promise: it does not matter where an expert is. With all, half, a tenth or none of the experts on the card, with all of them in
//! RAM or some on disk, while they change places and through a ring of slots, the tokens are the same; no wrong byte is ever
//! read; what cannot be read fails one request and no more; and the routing of a session can be replayed exactly.

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use common::*;
use strata::backend::cpu::{CpuBackend, CpuOptions, Mode};
use strata::backend::{Backend, VirtualCard, VirtualFacts};
use strata::engine::{Engine, EngineError, OpenOptions, Placement, Want};
use strata::experts::{ExpertError, ExpertOptions, Misses, Policy, Profile, Replay, Trace, replay};
use strata::gguf::ModelFiles;
use strata::model::Model;
use strata::schedule::ScheduleError;
use strata::units::TokenId;

const CONTEXT: u32 = 400;
const CHUNK: u32 = 48;
/// Experts and layers of the trained models.
const EXPERTS: u32 = 8;
const LAYERS: usize = 8;

fn cpu(mode: Mode) -> CpuOptions {
    CpuOptions { pin_threads: false, ..CpuOptions::new(mode).with_threads(NonZeroUsize::new(2).unwrap()) }
}

/// A card that the processor plays in `card` mode, one for each range of layers that ends before one of `ends`.
fn open_on(path: &Path, card: Mode, ends: &[u32], options: OpenOptions) -> Result<Engine, EngineError> {
    let files = Arc::new(ModelFiles::open(path).unwrap());
    let model = Arc::new(Model::open(&files).unwrap());
    let mut start = 0;
    let placements = ends.iter().enumerate().map(|(i, end)| {
        let facts = VirtualFacts {
            id: format!("virtual:{i}"),
            name: "a card".into(),
            limit_bytes: 1 << 30,
            max_piece_bytes: u64::MAX,
            faults: Arc::default(),
            in_use: Arc::default(),
        };
        let backend: Box<dyn Backend> = Box::new(VirtualCard::new(CpuBackend::new(cpu(card)).unwrap(), facts));
        Placement { layers: std::mem::replace(&mut start, *end)..*end, backend }
    });
    Engine::open_split(Arc::clone(&files), model, placements.collect(), options, &mut |_| ())
}

fn slots(count: u32) -> Option<Vec<u32>> {
    Some(vec![count; LAYERS])
}

fn options_with(mode: Mode, card_slots: Option<Vec<u32>>, experts: ExpertOptions) -> OpenOptions {
    OpenOptions { expert_slots: card_slots, experts, host: cpu(mode), ..options(mode, CONTEXT, CHUNK) }
}

fn open(mode: Mode, card_slots: Option<Vec<u32>>, experts: ExpertOptions) -> Engine {
    open_on(&model_path(TRAINED[0]), mode, &[LAYERS as u32], options_with(mode, card_slots, experts)).expect("it opens")
}

fn tokens(count: u32) -> Vec<TokenId> {
    (0..count).map(|i| TokenId(3 + (i * 37 + i * i % 11) % 200)).collect()
}

/// Logits of a prompt of several chunks, then of greedily decoded tokens.
fn session(engine: &mut Engine) -> Vec<Vec<f32>> {
    let prompt = tokens(2 * CHUNK + 19);
    let mut s = engine.start().unwrap();
    let mut rows = all_logits(engine, &mut s, &prompt, prompt.len());
    for _ in 0..24 {
        let next = TokenId(argmax(rows.last().unwrap()) as u32);
        rows.extend(all_logits(engine, &mut s, &[next], 1));
    }
    engine.end(s);
    rows
}

#[test]
fn all_half_a_tenth_and_none_of_the_experts_on_the_card_give_the_same_bits() {
    for mode in [Mode::Reference, Mode::Fast] {
        let whole = session(&mut open(mode, None, ExpertOptions::default()));
        for held in [EXPERTS, EXPERTS / 2, 1, 0] {
            let mut engine = open(mode, slots(held), ExpertOptions::default());
            assert!(session(&mut engine) == whole, "{mode:?}: {held} of {EXPERTS} on the card");
            let stats = engine.tier_stats().unwrap();
            assert_eq!(stats.card_calls > 0, held > 0);
            assert_eq!(stats.ram_calls > 0, held < EXPERTS);
            assert_eq!(engine.late_allocations(), 0);
        }
    }
}
