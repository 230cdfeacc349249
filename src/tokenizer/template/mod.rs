//! Chat templates: the Jinja source a model file carries, rendered as the published tokenizers render it.
//!
//! # Who may write a special token
//!
//! Only the template itself. [`guard`] has the details; in short:
//!
//! - In the template's source every special token is replaced by one private character before it is compiled. After
//!   rendering, exactly these characters become special tokens. Text that merely looks like one stays text, whatever
//!   the template does to it (trimming, splitting, replacing, joining).
//! - The model's own earlier turns (`content` and reasoning of an assistant message) may contain markup such as
//!   `<think>`, which the model wrote as tokens and templates look for. Control tokens are text there as well.
//! - Some templates build a token from pieces (`'<|' + message.role + '|>'`). Tokens the source can build this way are
//!   also recognised in the rendered text, except where one stands whole in something the user supplied.
//!
//! # Pictures
//!
//! The content of a message is text, or a list of `{"type": "text", "text": …}` and `{"type": "image"}`. A template that knows
//! pictures writes a place for each, whose token nobody else can write. Most templates of small or older models only know
//! text: these get the parts as one text with the places in it ([`ChatTemplate::writes_pictures`]).

mod fallback;
mod guard;
mod python;
mod values;

use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value as Json, json};
use thiserror::Error;

use super::Tokenizer;
use super::special::SpecialMatcher;
use crate::units::TokenId;

use guard::{Contents, Guard, Trust};

/// What can go wrong with a template. `line` is a line of the template.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TemplateError {
    #[error("the chat template is malformed, line {line}: {detail}")]
    Syntax { line: usize, detail: String },
    #[error("the chat template refuses these messages, line {line}: {message}")]
    Raised { line: usize, message: String },
    #[error("the chat template failed, line {line}: {detail}")]
    Failed { line: usize, detail: String },
    #[error("the chat template does not come to an end within its limit of work (line {line})")]
    TooMuchWork { line: usize },
    #[error("the file has no chat template named '{name}' (it has: {known})")]
    UnknownName { name: String, known: String },
    #[error("message {index} is not an object with a 'role'")]
    BadMessage { index: usize },
    #[error("no thread could be started for the chat template, which needs a deep stack: {reason}")]
    Thread { reason: String },
    #[error("the messages use up the private characters of Unicode, which are needed to keep special tokens apart")]
    NoPrivateCharacters,
}

/// Where the template in use comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateSource {
    /// The model file.
    File,
    /// The model file, under this name.
    Named(String),
    /// The file has none; the format of that name fits its vocabulary best. The user should be told.
    Fallback(&'static str),
}

/// A conversation to render. Messages are JSON objects as in the OpenAI chat format.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    pub messages: Vec<Json>,
    /// Tool definitions; empty: none.
    pub tools: Vec<Json>,
    /// Ends the prompt with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// `None`: the template's own default.
    pub enable_thinking: Option<bool>,
    pub reasoning_effort: Option<String>,
    /// Further variables of the template.
    pub extra: Map<String, Json>,
    /// Seconds since 1970, UTC, for templates that write today's date. `None`: the clock.
    pub now: Option<i64>,
}

impl ChatRequest {
    /// Messages with the opening of the answer, everything else by default.
    pub fn new(messages: Vec<Json>) -> Self {
        Self { messages, add_generation_prompt: true, ..Self::default() }
    }
}

/// A stretch of a rendered chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Ordinary text, whatever it looks like.
    Text(String),
    /// A special token the template wrote.
    Token(TokenId),
}

/// A rendered chat; [`Tokenizer::encode_chat`] turns it into tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChat {
    text: String,
    segments: Vec<Segment>,
}

impl RenderedChat {
    /// As a person would read it: special tokens by their text.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

/// Fuel for a template that does nothing unusual, and what every byte of input adds. One fuel is about one instruction
/// or 64 bytes of text made.
const FUEL_BASE: u64 = 2_000_000;
const FUEL_PER_INPUT_BYTE: u64 = 1;

/// A template can nest a value once for every few instructions, and dropping a nested value takes stack for every
/// level. Rendering therefore has a thread of its own, whose stack (address space; only what is touched becomes memory)
/// is large enough for all the fuel there is.
const STACK_BYTES_PER_FUEL: u64 = 96;

struct Entry {
    source: TemplateSource,
    text: String,
    contents: Contents,
}

impl Entry {
    fn new(source: TemplateSource, text: impl Into<String>) -> Entry {
        Entry { source, text: text.into(), contents: Contents::AsTheyAre }
    }
}

/// The chat templates of one model.
pub struct ChatTemplate {
    entries: Vec<Entry>,
    specials: SpecialMatcher,
    /// `bos_token` and its like: variables that hold special tokens.
    variables: Vec<(&'static str, String)>,
    model_markup: Vec<TokenId>,
    picture_token: Option<TokenId>,
}

impl ChatTemplate {
    /// The templates of the file, or one that fits its vocabulary if it has none. A malformed template is found here.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, TemplateError> {
        let mut entries = Vec::new();
        if let Some(text) = tokenizer.chat_template_source() {
            entries.push(Entry::new(TemplateSource::File, text));
        }
        for (name, text) in tokenizer.named_template_sources() {
            entries.push(Entry::new(TemplateSource::Named(name.clone()), text));
        }
        if entries.is_empty() {
            let (name, text) = fallback::choose(tokenizer);
            entries.push(Entry::new(TemplateSource::Fallback(name), text));
        }
        Self::with_entries(tokenizer, entries)
    }

    /// A template given by the user in place of the file's.
    pub fn from_source(tokenizer: &Tokenizer, text: &str) -> Result<Self, TemplateError> {
        Self::with_entries(tokenizer, vec![Entry::new(TemplateSource::File, text)])
    }

    fn with_entries(tokenizer: &Tokenizer, mut entries: Vec<Entry>) -> Result<Self, TemplateError> {
        for entry in &mut entries {
            entry.text = python::without_generation_blocks(&entry.text);
        }
        let text_of = |id: Option<TokenId>| id.and_then(|id| tokenizer.token_text(id)).map(|text| text.into_owned());
        let variables = [
            ("bos_token", text_of(tokenizer.bos())),
            ("eos_token", text_of(tokenizer.eos())),
            ("pad_token", text_of(tokenizer.pad())),
            ("unk_token", text_of(tokenizer.unk())),
        ];
        let mut this = Self {
            entries,
            specials: tokenizer.structural().clone(),
            variables: variables.into_iter().filter_map(|(name, text)| text.map(|text| (name, text))).collect(),
            model_markup: guard::model_markup(tokenizer),
            picture_token: tokenizer.picture_token(),
        };
        for entry in &this.entries {
            let guard = Guard::new(&this.specials, &entry.text, &this.variables, &this.model_markup, &[], &Map::new())?;
            compile(&guard.template(&entry.text), 0, None)?;
        }
        let contents: Vec<Contents> = this.entries.iter().map(|entry| this.contents_for(entry)).collect();
        this.entries.iter_mut().zip(contents).for_each(|(entry, contents)| entry.contents = contents);
        Ok(this)
    }

    /// Tries whether a template writes a place for a picture.
    fn contents_for(&self, entry: &Entry) -> Contents {
        let Some(place) = self.picture_token.map(Segment::Token) else { return Contents::AsTheyAre };
        let message = json!({ "role": "user", "content": [{ "type": "image" }, { "type": "text", "text": "What is this?" }] });
        let rendered = self.render_entry(entry, &ChatRequest::new(vec![message]));
        let places = rendered.map_or(0, |chat| chat.segments.iter().filter(|segment| **segment == place).count());
        if places == 1 { Contents::AsTheyAre } else { Contents::AsText }
    }

    /// Which template [`Self::render`] uses for `request`, so that a fallback can be reported.
    pub fn source(&self, request: &ChatRequest) -> &TemplateSource {
        &self.choose(request).source
    }

    /// True if the template asks for `enable_thinking`.
    pub fn can_think(&self) -> bool {
        self.entries.iter().any(|entry| entry.text.contains("enable_thinking"))
    }

    /// True if the templates write the places of pictures themselves; otherwise these are put into the text that they are given.
    pub fn writes_pictures(&self) -> bool {
        self.entries.iter().all(|entry| entry.contents == Contents::AsTheyAre)
    }

    /// With tools, the file's `tool_use` template if it has one; otherwise its main one.
    fn choose(&self, request: &ChatRequest) -> &Entry {
        let named = |wanted: &str| {
            self.entries.iter().find(|entry| matches!(&entry.source, TemplateSource::Named(name) if name == wanted))
        };
        let with_tools = if request.tools.is_empty() { None } else { named("tool_use") };
        let main = || self.entries.iter().find(|entry| !matches!(entry.source, TemplateSource::Named(_)));
        with_tools.or_else(main).or_else(|| named("default")).unwrap_or(&self.entries[0])
    }

    /// Renders with the template that fits the request.
    pub fn render(&self, request: &ChatRequest) -> Result<RenderedChat, TemplateError> {
        self.render_entry(self.choose(request), request)
    }

    /// Renders with the template of that name.
    pub fn render_named(&self, name: &str, request: &ChatRequest) -> Result<RenderedChat, TemplateError> {
        let names = || {
            self.entries.iter().filter_map(|entry| match &entry.source {
                TemplateSource::Named(name) => Some(name.as_str()),
                _ => None,
            })
        };
        let entry = self.entries.iter().find(|entry| matches!(&entry.source, TemplateSource::Named(found) if found == name));
        let entry = entry
            .ok_or_else(|| TemplateError::UnknownName { name: name.to_owned(), known: names().collect::<Vec<_>>().join(", ") })?;
        self.render_entry(entry, request)
    }

    fn render_entry(&self, entry: &Entry, request: &ChatRequest) -> Result<RenderedChat, TemplateError> {
        if let Some(index) = request.messages.iter().position(|message| !message.get("role").is_some_and(Json::is_string)) {
            return Err(TemplateError::BadMessage { index });
        }
        let inputs: Vec<&Json> = request.messages.iter().chain(&request.tools).collect();
        let mut guard = Guard::new(&self.specials, &entry.text, &self.variables, &self.model_markup, &inputs, &request.extra)?;
        guard.contents = entry.contents;
        let vars = self.context(&guard, request);
        let input_bytes = (guard.input_bytes() + entry.text.len()) as u64;
        let fuel = FUEL_BASE + FUEL_PER_INPUT_BYTE * input_bytes;
        let source = guard.template(&entry.text);
        let rendered = with_deep_stack(fuel * STACK_BYTES_PER_FUEL, || {
            let env = compile(&source, fuel, request.now)?;
            let template = env.get_template(TEMPLATE_NAME).map_err(template_error)?;
            template.render(python::from_json(vars)).map_err(template_error)
        })?;
        let (text, segments) = guard.segments(&rendered);
        Ok(RenderedChat { text, segments })
    }

    fn context(&self, guard: &Guard<'_>, request: &ChatRequest) -> Json {
        let mut vars = Map::new();
        for (name, text) in &self.variables {
            vars.insert((*name).to_owned(), Json::String(guard.string(text, Trust::Template)));
        }
        vars.insert("messages".to_owned(), Json::Array(request.messages.iter().map(|message| guard.message(message)).collect()));
        let user = |value: &Json| guard.value(value, Trust::User);
        let tools = if request.tools.is_empty() { Json::Null } else { Json::Array(request.tools.iter().map(user).collect()) };
        vars.insert("tools".to_owned(), tools);
        vars.insert("documents".to_owned(), Json::Null);
        vars.insert("add_generation_prompt".to_owned(), Json::Bool(request.add_generation_prompt));
        if let Some(thinking) = request.enable_thinking {
            vars.insert("enable_thinking".to_owned(), Json::Bool(thinking));
        }
        if let Some(effort) = &request.reasoning_effort {
            vars.insert("reasoning_effort".to_owned(), Json::String(guard.string(effort, Trust::User)));
        }
        for (name, value) in &request.extra {
            vars.insert(name.clone(), user(value));
        }
        Json::Object(vars)
    }
}

const TEMPLATE_NAME: &str = "chat_template";

/// Runs `work` on a thread with a stack of that size.
fn with_deep_stack<T: Send>(
    stack_bytes: u64,
    work: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    let failed = |detail: &str| TemplateError::Failed { line: 0, detail: detail.to_owned() };
    let size = usize::try_from(stack_bytes).map_err(|_| failed("the input is too long"))?;
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("chat template".to_owned()).stack_size(size);
        let thread = builder.spawn_scoped(scope, work).map_err(|error| TemplateError::Thread { reason: error.to_string() })?;
        thread.join().unwrap_or_else(|_| Err(failed("the template engine stopped")))
    })
}

/// An environment that behaves like the one the published tokenizers use, with `source` loaded.
fn compile(source: &str, fuel: u64, now: Option<i64>) -> Result<Environment<'_>, TemplateError> {
    let mut env = Environment::new();
    let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(template_error)?);
    env.set_fuel(Some(fuel));
    env.set_debug(false);
    python::install(&mut env, now);
    env.add_template(TEMPLATE_NAME, source).map_err(template_error)?;
    Ok(env)
}

fn template_error(error: minijinja::Error) -> TemplateError {
    // The innermost cause says what happened; the outer ones only where it was called from.
    let line = error.line().unwrap_or(0);
    let mut cause: &minijinja::Error = &error;
    while let Some(inner) = std::error::Error::source(cause).and_then(|inner| inner.downcast_ref::<minijinja::Error>()) {
        cause = inner;
    }
    let detail = match cause.detail() {
        Some(detail) => format!("{} ({detail})", cause.kind()),
        None => cause.kind().to_string(),
    };
    match cause.kind() {
        ErrorKind::SyntaxError => TemplateError::Syntax { line, detail },
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork { line },
        _ => match cause.detail().and_then(|detail| detail.strip_prefix(python::RAISED)) {
            Some(message) => TemplateError::Raised { line, message: message.to_owned() },
            None => TemplateError::Failed { line, detail },
        },
    }
}
