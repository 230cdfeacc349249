//! Strata: runs very large mixture-of-experts language models on ordinary PCs.
//!
//! The rooms, and what each must not know, are listed in `docs/ARCHITECTURE.md`. Dependencies point one way:
//! `cli → server, launch → engine, plan, probe → schedule, sample → state → program, model → backend → quant, gguf,
//! tokenizer, picture, units`.

pub mod backend;
pub mod cli;
pub mod engine;
pub mod experts;
pub mod gguf;
pub mod launch;
pub mod model;
pub mod picture;
pub mod plan;
pub mod probe;
pub mod program;
pub mod quant;
pub mod sample;
pub mod schedule;
pub mod server;
pub mod state;
pub mod tokenizer;
pub mod units;
