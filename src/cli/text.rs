//! The words of a model: its tokenizer and chat template, with errors that name the file.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::args::TemplateArgs;
use super::error::CliError;
use super::output::note;
use crate::gguf::ModelFiles;
use crate::picture::{Patches, Placed, place};
use crate::tokenizer::content::{Content, picture_numbers};
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
    /// A picture is one token until it is placed.
    pub tokens: Vec<TokenId>,
    pub text: String,
    pub form: Form,
    /// The pictures that were placed.
    pub pictures: Vec<Placed>,
    /// Numbers of the pictures that belong to it, in order.
    numbers: Vec<usize>,
}

impl Prompt {
    fn new(tokens: Vec<TokenId>, text: String, form: Form) -> Prompt {
        Prompt { tokens, text, form, pictures: Vec::new(), numbers: Vec::new() }
    }

    /// Puts the pictures at their places. `all` are those of the conversation, by their numbers.
    pub fn place(&mut self, tokenizer: &Tokenizer, all: &[Arc<Patches>]) -> Result<(), CliError> {
        let numbers = std::mem::take(&mut self.numbers);
        if numbers.is_empty() {
            return Ok(());
        }
        let Some(token) = tokenizer.picture_token() else {
            return Err(CliError::Usage("the model's vocabulary has no token for pictures".into()));
        };
        let pictures: Vec<_> = numbers.iter().filter_map(|number| all.get(*number)).cloned().collect();
        let placed = place(&self.tokens, token, &pictures).map_err(|e| CliError::Failed(e.to_string()))?;
        (self.tokens, self.pictures) = placed;
        Ok(())
    }
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
        self.encode(tokenizer, messages, &self.render(messages, thinking, true)?)
    }

    fn encode(&self, tokenizer: &Tokenizer, messages: &[Json], rendered: &RenderedChat) -> Result<Prompt, CliError> {
        let tokens = tokenizer.encode_chat(rendered).map_err(|e| CliError::Failed(e.to_string()))?;
        let text = rendered.text().to_owned();
        let form = if self.dialogue { Form::Dialogue } else { Form::Chat(ThinkSplitter::after_prompt(&text)) };
        Ok(Prompt { numbers: picture_numbers(messages), ..Prompt::new(tokens, text, form) })
    }

    /// The conversation so far without the opening of the answer: what the prompt of the next turn begins with whatever the
    /// answer will be.
    pub fn history(&self, tokenizer: &Tokenizer, messages: &[Json], thinking: Option<bool>) -> Result<Prompt, CliError> {
        self.encode(tokenizer, messages, &self.render(messages, thinking, false)?)
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

/// A user's message with pictures, given by their numbers, before the text.
pub fn question(pictures: impl IntoIterator<Item = usize>, text: &str) -> Json {
    let mut content = Content::new("");
    pictures.into_iter().for_each(|number| content.push_picture(number));
    content.push_text(text);
    json!({ "role": "user", "content": content.into_json() })
}

/// System message and question, with so many pictures before it.
pub fn first_messages(args: &TemplateArgs, pictures: usize, prompt: &str) -> Vec<Json> {
    let system = args.system.as_ref().map(|text| message("system", text));
    system.into_iter().chain([question(0..pictures, prompt)]).collect()
}

/// Text as it is. A prompt must stay open at its end, so only the token for the beginning is added.
pub fn raw_prompt(tokenizer: &Tokenizer, text: &str) -> Result<Prompt, CliError> {
    let mut tokens = tokenizer.encode(text, Special::Parse).map_err(|e| CliError::Failed(e.to_string()))?;
    if let Some(bos) = tokenizer.bos().filter(|bos| tokenizer.adds_bos() && tokens.first() != Some(bos)) {
        tokens.insert(0, bos);
    }
    Ok(Prompt::new(tokens, text.to_owned(), Form::Raw))
}
