//! The OpenAI APIs.

mod chat;
mod chat_reply;
mod completions;
mod messages;
mod models;
mod responses;
mod responses_reply;
mod sampling;

pub use chat::{apply_template, chat};
pub use completions::completions;
pub use models::{embeddings, model, models};
pub use responses::responses;
pub use sampling::{read_sampling, read_tool};
