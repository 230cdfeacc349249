//! From a conversation to requests for the engine: the one way that all chat APIs take.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value as Json, json};

use super::app::App;
use super::error::{ApiError, Kind};
use super::ids;
use super::tools::{ToolChoice, ToolParser, ToolSpec, describe_in_messages, forced_call, json_grammar};
use super::turn::{Delivery, Turn};
use crate::engine::service::{Request, Thinking};
use crate::picture::{Patches, Placed, place};
use crate::sample::{Grammar, LogitMask, SamplingParams};
use crate::tokenizer::content::{picture_numbers, words};
use crate::tokenizer::{ChatRequest, RenderedChat, ShowSpecial, TemplateError};
use crate::units::TokenId;

/// What an answer must be.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Format {
    #[default]
    Free,
    /// A JSON document that fits the schema.
    Json(Json),
    /// Text in the grammar language of llguidance.
    Grammar(String),
}

/// A conversation and how to go on with it.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    /// In the form that templates expect; contents are made by [`crate::tokenizer::content::Content`].
    pub messages: Vec<Json>,
    /// By the numbers that the messages' parts give.
    pub pictures: Vec<Arc<Patches>>,
    pub tools: Vec<ToolSpec>,
    pub tool_choice: ToolChoice,
    pub parallel_calls: bool,
    pub format: Format,
    pub sampling: SamplingParams,
    /// How many answers.
    pub choices: usize,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    pub thinking: Option<bool>,
    pub effort: Option<String>,
    pub reasoning_budget: Option<usize>,
    pub template_variables: Map<String, Json>,
}

/// A chat as the model will see it.
pub struct Prompt {
    /// A picture is its one place.
    pub text: String,
    /// A picture is as many as it takes.
    pub tokens: Vec<TokenId>,
    pub pictures: Vec<Placed>,
}

/// Requests that are ready for the engine.
pub struct Prepared {
    requests: Vec<(Request, Option<ToolParser>)>,
}

impl Prepared {
    /// # Errors
    /// The queue is full or the service is stopping.
    pub fn start(self, app: &App, delivery: Delivery) -> Result<Vec<Turn>, ApiError> {
        self.requests.into_iter().map(|(request, tools)| Turn::start(app, request, tools, delivery)).collect()
    }
}

/// Does work that takes a while (templates, long texts, grammars) where it does not hold up other clients.
pub async fn in_background<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // The semaphore is never closed.
    let _permit = app.preparing.acquire().await.ok();
    let shared = Arc::clone(app);
    let done = tokio::task::spawn_blocking(move || work(&shared)).await;
    done.unwrap_or_else(|_| Err(ApiError::new(Kind::Internal, "preparing the request failed; this is a defect of the server")))
}

impl Chat {
    /// Renders the conversation.
    ///
    /// # Errors
    /// The template refuses the messages.
    pub fn prompt(&self, app: &App) -> Result<Prompt, ApiError> {
        let rendered = self.render(app)?;
        let tokens = app.tokenizer.encode_chat(&rendered).map_err(|e| ApiError::field("messages", e))?;
        let text = rendered.text().to_owned();
        if self.pictures.is_empty() {
            return Ok(Prompt { text, tokens, pictures: Vec::new() });
        }
        let Some(picture_token) = app.tokenizer.picture_token() else {
            return Err(ApiError::field("messages", "the model's vocabulary has no token for pictures; send text only"));
        };
        let numbers = picture_numbers(&self.messages);
        let pictures: Vec<_> = numbers.iter().filter_map(|number| self.pictures.get(*number)).cloned().collect();
        let (tokens, pictures) = place(&tokens, picture_token, &pictures).map_err(|e| ApiError::field("messages", e))?;
        Ok(Prompt { text, tokens, pictures })
    }

    fn render(&self, app: &App) -> Result<RenderedChat, ApiError> {
        let offered: &[ToolSpec] = if self.tool_choice == ToolChoice::None { &[] } else { &self.tools };
        let has_calls = self.messages.iter().any(|m| m["role"] == "tool" || m.get("tool_calls").is_some());
        let by_template = app.template_has_tools;
        let messages = match by_template || (offered.is_empty() && !has_calls) {
            true => self.messages.clone(),
            false => describe_in_messages(&self.messages, offered),
        };
        let request = ChatRequest {
            messages,
            tools: if by_template { offered.iter().map(ToolSpec::to_json).collect() } else { Vec::new() },
            add_generation_prompt: true,
            enable_thinking: self.thinking.or(app.options.thinking),
            reasoning_effort: self.effort.clone(),
            extra: self.template_variables.clone(),
            now: None,
        };
        let result = match app.template.render(&request) {
            // Some templates want the system message first and alone. Most clients do not know that.
            Err(TemplateError::Raised { .. } | TemplateError::Failed { .. }) => {
                let messages = one_system_message(&request.messages);
                app.template.render(&ChatRequest { messages, ..request })
            }
            other => other,
        };
        result.map_err(|error| ApiError::field("messages", error))
    }

    /// # Errors
    /// Whatever of the request cannot be done.
    pub fn prepare(mut self, app: &App) -> Result<Prepared, ApiError> {
        self.check_tools()?;
        let prompt = self.prompt(app)?;
        let inside = prompt.text.trim_end().ends_with("<think>");
        let grammar = self.grammar(app, inside)?;
        let room = room(app, prompt.tokens.len())?;
        let label = app.options.show_texts.then(|| last_text(&self.messages));
        let most = self.max_tokens.or(app.options.max_tokens).unwrap_or(room).min(room);
        let stop = [self.stop.as_slice(), &app.options.stop].concat();
        let tools = Arc::new(std::mem::take(&mut self.tools));
        let parse = !tools.is_empty() && self.tool_choice != ToolChoice::None && self.format == Format::Free;
        let mut requests = Vec::with_capacity(self.choices.max(1));
        for choice in 0..self.choices.max(1) {
            let mut sampling = self.sampling.clone();
            // Several answers with one seed shall differ, and all of them repeat.
            sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(choice as u64));
            let mask = grammar.as_ref().map(|grammar| app.compile(grammar)).transpose();
            let mask = mask.map_err(|error| ApiError::field(self.grammar_field(), error))?;
            let request = Request {
                sampling,
                max_tokens: Some(most),
                stop: stop.clone(),
                ignore_eos: self.ignore_eos || app.options.ignore_eos,
                show: ShowSpecial::ExceptEog,
                thinking: if inside { Thinking::Inside } else { Thinking::AtStart },
                reasoning_budget: self.reasoning_budget,
                mask: mask.map(|mask| Box::new(mask) as Box<dyn LogitMask>),
                deadline: app.options.request_timeout.map(|most| Instant::now() + most),
                label: label.clone(),
                pictures: prompt.pictures.clone(),
                ..Request::new(ids::new("req_"), prompt.tokens.clone())
            };
            let parser = parse.then(|| ToolParser::new(app.tool_format, Arc::clone(&tools)));
            requests.push((request, parser));
        }
        Ok(Prepared { requests })
    }

    fn check_tools(&self) -> Result<(), ApiError> {
        match &self.tool_choice {
            ToolChoice::Auto | ToolChoice::None => Ok(()),
            ToolChoice::Required if self.tools.is_empty() => {
                Err(ApiError::field("tool_choice", "a call is required, but there are no tools; add some to 'tools'"))
            }
            ToolChoice::Required => Ok(()),
            ToolChoice::Named(name) if self.tools.iter().any(|tool| tool.name == *name) => Ok(()),
            ToolChoice::Named(name) => Err(ApiError::field("tool_choice", format!("no tool is named '{name}'"))),
        }
    }

    fn grammar_field(&self) -> &'static str {
        match &self.format {
            Format::Free => "tools",
            Format::Json(_) => "response_format",
            Format::Grammar(_) => "grammar",
        }
    }

    fn grammar(&self, app: &App, inside: bool) -> Result<Option<Grammar>, ApiError> {
        let chosen: Vec<&ToolSpec> = match &self.tool_choice {
            ToolChoice::Required => self.tools.iter().collect(),
            ToolChoice::Named(name) => self.tools.iter().filter(|tool| tool.name == *name).collect(),
            ToolChoice::Auto | ToolChoice::None => Vec::new(),
        };
        if !chosen.is_empty() && self.format != Format::Free {
            return Err(ApiError::field("tool_choice", "a forced call and a format of the answer exclude each other"));
        }
        Ok(match &self.format {
            Format::Json(schema) => Some(json_grammar(schema, inside)),
            Format::Grammar(text) => Some(Grammar::Lark(text.clone())),
            Format::Free if chosen.is_empty() => None,
            Format::Free => {
                Some(forced_call(&app.tokenizer, app.tool_format, &chosen, self.parallel_calls && !self.names_one(), inside))
            }
        })
    }

    fn names_one(&self) -> bool {
        matches!(self.tool_choice, ToolChoice::Named(_))
    }
}

/// Tokens that an answer to a prompt of that length can have.
///
/// # Errors
/// None at all.
pub fn room(app: &App, prompt: usize) -> Result<usize, ApiError> {
    let context = app.model.context;
    if prompt >= context {
        let message = format!(
            "the prompt has {prompt} tokens, and the context of {context} must hold prompt and answer; shorten the prompt, \
             or serve with a larger --ctx-size (the model was trained for {})",
            app.model.trained_context
        );
        return Err(ApiError::new(Kind::ContextLength, message));
    }
    Ok(context - prompt)
}

/// All system messages joined at the beginning.
fn one_system_message(messages: &[Json]) -> Vec<Json> {
    let (system, mut rest): (Vec<Json>, Vec<Json>) = messages.iter().cloned().partition(|m| m["role"] == "system");
    let texts: Vec<&str> = system.iter().filter_map(|m| m["content"].as_str()).collect();
    if !texts.is_empty() {
        rest.insert(0, json!({ "role": "system", "content": texts.join("\n\n") }));
    }
    rest
}

/// What the list of recent requests shows of a conversation.
fn last_text(messages: &[Json]) -> String {
    let text = messages.last().map(|message| words(&message["content"])).unwrap_or_default();
    text.chars().take(200).collect()
}
