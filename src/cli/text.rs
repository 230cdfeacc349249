//! The words of a model: its tokenizer and chat template, with errors that name the file.

use serde_json::{Value as Json, json};

use super::args::TemplateArgs;
use super::error::CliError;
use super::output::note;
use crate::gguf::ModelFiles;
use crate::tokenizer::{ChatRequest, ChatTemplate, RenderedChat, Special, TemplateSource, ThinkSplitter, Tokenizer};
use crate::units::TokenId;

/// The tokenizer of a model file.
pub fn open_tokenizer(files: &ModelFiles) -> Result<Tokenizer, CliError> {
    Tokenizer::from_metadata(files.metadata()).map_err(|e| CliError::in_file(&files.name(), e))
}

/// Stands in for the template of a file that has none. Such a model was mostly made to continue text, and a plain dialogue
/// is text that any model can continue.
const DIALOGUE: &str = "{%- for message in messages %}
{%- if message.role == 'system' %}{{- message.content + '\\n\\n' }}
{%- elif message.role == 'user' %}{{- 'User: ' + message.content + '\\n' }}
{%- else %}{{- 'Assistant: ' + message.content + '\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'Assistant:' }}{%- endif %}";

/// Where the model begins to speak for the user.
const DIALOGUE_STOP: &str = "\nUser:";

/// How conversations are put to a model.
pub struct Chat {
    template: ChatTemplate,
    /// The template is [`DIALOGUE`].
    dialogue: bool,
}

/// What the tokens of a prompt are, which decides how the answer is shown.
#[derive(Debug, Clone)]
pub enum Form {
    Chat(ThinkSplitter),
    Dialogue,
    /// Text to be continued as it is.
    Raw,
}

/// A prompt as the model will see it.
pub struct Prompt {
    pub tokens: Vec<TokenId>,
    pub text: String,
    pub form: Form,
}

impl Chat {
    /// The chat template of a model file; says so where the file has none.
    pub fn open(files: &ModelFiles, tokenizer: &Tokenizer) -> Result<Chat, CliError> {
        let hint = "`strata run --raw` goes without a template";
        let fail = |e| CliError::in_file(&files.name(), format!("{e}; {hint}"));
        let template = ChatTemplate::new(tokenizer).map_err(fail)?;
        if let TemplateSource::File | TemplateSource::Named(_) = template.source(&ChatRequest::default()) {
            return Ok(Chat { template, dialogue: false });
        }
        note(format!("note: '{}' has no chat template, so it is given a plain dialogue to continue; {hint}", files.name()));
        let template = ChatTemplate::from_source(tokenizer, DIALOGUE).map_err(fail)?;
        Ok(Chat { template, dialogue: true })
    }

    /// Renders a conversation with the opening of an answer.
    pub fn prompt(&self, tokenizer: &Tokenizer, messages: &[Json], thinking: Option<bool>) -> Result<Prompt, CliError> {
        let rendered = self.render(messages, thinking, true)?;
        let tokens = tokenizer.encode_chat(&rendered).map_err(|e| CliError::Failed(e.to_string()))?;
        let text = rendered.text().to_owned();
        let form = if self.dialogue { Form::Dialogue } else { Form::Chat(ThinkSplitter::after_prompt(&text)) };
        Ok(Prompt { tokens, text, form })
    }

    /// How many tokens of a prompt belong to the conversation so far, and not to the opening of the answer: what the
    /// prompt of the next turn begins with whatever the answer will be.
    pub fn history_tokens(&self, tokenizer: &Tokenizer, messages: &[Json], thinking: Option<bool>, prompt: &Prompt) -> usize {
        let closed = self.render(messages, thinking, false).ok().and_then(|closed| tokenizer.encode_chat(&closed).ok());
        closed.unwrap_or_default().iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count()
    }

    fn render(&self, messages: &[Json], thinking: Option<bool>, open_answer: bool) -> Result<RenderedChat, CliError> {
        let request = ChatRequest {
            messages: messages.to_vec(),
            add_generation_prompt: open_answer,
            enable_thinking: thinking,
            ..ChatRequest::default()
        };
        self.template.render(&request).map_err(|e| CliError::Failed(format!("{e}; `strata run --raw` goes without a template")))
    }

    /// Texts that end an answer besides those the user named.
    pub fn stops(&self) -> Vec<String> {
        if self.dialogue { vec![DIALOGUE_STOP.to_owned()] } else { Vec::new() }
    }

    /// The template, and the texts that end an answer.
    pub fn into_parts(self) -> (ChatTemplate, Vec<String>) {
        let stops = self.stops();
        (self.template, stops)
    }

    /// Whether thinking can be switched.
    pub fn can_think(&self) -> bool {
        self.template.can_think()
    }
}

/// A message in the form that templates expect.
pub fn message(role: &str, content: &str) -> Json {
    json!({ "role": role, "content": content })
}

/// System message and question.
pub fn first_messages(args: &TemplateArgs, prompt: &str) -> Vec<Json> {
    let system = args.system.as_ref().map(|text| message("system", text));
    system.into_iter().chain([message("user", prompt)]).collect()
}

/// Text as it is. A prompt must stay open at its end, so only the token for the beginning is added.
pub fn raw_prompt(tokenizer: &Tokenizer, text: &str) -> Result<Prompt, CliError> {
    let mut tokens = tokenizer.encode(text, Special::Parse).map_err(|e| CliError::Failed(e.to_string()))?;
    if let Some(bos) = tokenizer.bos().filter(|bos| tokenizer.adds_bos() && tokens.first() != Some(bos)) {
        tokens.insert(0, bos);
    }
    Ok(Prompt { tokens, text: text.to_owned(), form: Form::Raw })
}
