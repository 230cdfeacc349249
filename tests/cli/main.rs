//! The built program from outside: what users type, what they get, and how it ends.

mod chat;
mod data;
mod errors;
mod experts;
mod logits;
mod models;
mod pictures;
mod rig;
mod run;
#[path = "../common/skip.rs"]
mod skip;
