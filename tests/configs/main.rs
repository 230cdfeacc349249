//! Promise: a model that breaks a rule of its family (for `qwen4exp`: section 8.3 of the specification) is refused with the
//! key or tensor at fault and what was found, and no metadata or table of tensors, however absurd, makes opening a model or
//! building its programs panic.

#[path = "../common/mod.rs"]
mod common;
mod header;
mod properties;
mod rules;
