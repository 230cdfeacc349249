//! The words of a model: its tokenizer and chat template, with errors that name the file.

use serde_json::{Value as Json, json};

use super::args::TemplateArgs;
use super::error::CliError;
use crate::gguf::ModelFiles;
use crate::tokenizer::{ChatRequest, ChatTemplate, RenderedChat, Special, TemplateSource, ThinkSplitter, Tokenizer};
use crate::units::TokenId;

/// The tokenizer of a model file.
pub fn open_tokenizer(files: &ModelFiles) -> Result<Tokenizer, CliError> {
    Tokenizer::from_metadata(files.metadata()).map_err(|e| CliError::in_file(&files.name(), e))
}

/// The chat template of a model file.
pub fn open_template(files: &ModelFiles, tokenizer: &Tokenizer) -> Result<ChatTemplate, CliError> {
    let hint = "`strata run --raw` goes without the template";
    ChatTemplate::new(tokenizer).map_err(|e| CliError::in_file(&files.name(), format!("{e}; {hint}")))
}

/// The name of the format that stands in where the file has no template of its own, as files of models that only
/// continue text.
pub fn stand_in(template: &ChatTemplate) -> Option<&'static str> {
    match template.source(&ChatRequest::default()) {
        TemplateSource::Fallback(format) => Some(format),
        TemplateSource::File | TemplateSource::Named(_) => None,
    }
}

/// A chat as the model will see it.
pub struct Prompt {
    pub tokens: Vec<TokenId>,
    pub text: String,
    /// Tells thinking from the answer; `None` where text is continued as it is.
    pub splitter: Option<ThinkSplitter>,
}

/// A message in the form that templates expect.
pub fn message(role: &str, content: &str) -> Json {
    json!({ "role": role, "content": content })
}

/// Renders a chat and turns it into tokens.
pub fn chat_prompt(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Json],
    thinking: Option<bool>,
) -> Result<Prompt, CliError> {
    let rendered = render(template, messages, thinking, true)?;
    let tokens = tokenizer.encode_chat(&rendered).map_err(|e| CliError::Failed(e.to_string()))?;
    let text = rendered.text().to_owned();
    Ok(Prompt { tokens, splitter: Some(ThinkSplitter::after_prompt(&text)), text })
}

pub fn render(
    template: &ChatTemplate,
    messages: &[Json],
    thinking: Option<bool>,
    open_answer: bool,
) -> Result<RenderedChat, CliError> {
    let request = ChatRequest {
        messages: messages.to_vec(),
        add_generation_prompt: open_answer,
        enable_thinking: thinking,
        ..ChatRequest::default()
    };
    template.render(&request).map_err(|e| CliError::Failed(format!("{e}; `strata run --raw` goes without the template")))
}

/// Text as it is, with the tokens that the file wants at its beginning.
pub fn raw_prompt(tokenizer: &Tokenizer, text: &str) -> Result<Prompt, CliError> {
    let mut tokens = tokenizer.encode(text, Special::Parse).map_err(|e| CliError::Failed(e.to_string()))?;
    add_bos(tokenizer, &mut tokens);
    Ok(Prompt { tokens, text: text.to_owned(), splitter: None })
}

/// A prompt must stay open at its end, so only the token for the beginning is added.
fn add_bos(tokenizer: &Tokenizer, tokens: &mut Vec<TokenId>) {
    if let Some(bos) = tokenizer.bos().filter(|bos| tokenizer.adds_bos() && tokens.first() != Some(bos)) {
        tokens.insert(0, bos);
    }
}

/// System message and question.
pub fn first_messages(args: &TemplateArgs, prompt: &str) -> Vec<Json> {
    let system = args.system.as_ref().map(|text| message("system", text));
    system.into_iter().chain([message("user", prompt)]).collect()
}
