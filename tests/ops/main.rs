//! Every op against a naive formula in double precision, on both modes and several thread counts (see `rig`).

mod attention;
mod engine;
mod experts;
mod recurrent;
mod rig;
mod rowwise;
mod windows;
