//! The Anthropic API.

mod messages;
mod reply;

pub use messages::{count_tokens, messages};
