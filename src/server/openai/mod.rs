//! The OpenAI APIs.

mod chat;
mod chat_reply;
mod completions;
mod embeddings;
mod messages;
mod models;
mod responses;
mod responses_reply;
mod sampling;

pub use chat::{apply_template, chat};
pub use completions::completions;
pub use embeddings::embeddings;
pub use models::{model, models};
pub use responses::responses;
pub use sampling::{read_sampling, read_tool};
