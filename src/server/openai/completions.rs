//! `/v1/completions`: text that goes on from text.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value as Json, json};

use super::chat::{MAX_CHOICES, read_stop};
use super::chat_reply::{Head, finish_reason, timings, usage_json};
use super::sampling::read_sampling;
use crate::engine::service::{Chosen, Request};
use crate::sample::{Grammar, LogitMask};
use crate::server::app::App;
use crate::server::chat::{in_background, room};
use crate::server::error::{ApiError, Shape, json_response};
use crate::server::fields::{Fields, whole, wrong};
use crate::server::ids;
use crate::server::sse::{self, Encoder, Frames};
use crate::server::turn::{Delivery, Out, Turn, Usage, Whole};
use crate::tokenizer::{ShowSpecial, Special};
use crate::units::TokenId;

/// What the API generates if the client does not say.
const USUAL_TOKENS: usize = 16;
const MAX_PROMPTS: usize = 64;

struct Work {
    requests: Vec<Request>,
    /// What `echo` puts before each answer.
    echoes: Vec<String>,
    /// Answers to each prompt: choices of one prompt are neighbours.
    answers: usize,
    stream: bool,
    usage: bool,
    logprobs: bool,
}

/// Tokens of several prompts with several answers each. A prompt counts once.
struct Usages {
    answers: usize,
    prompts: Vec<Usage>,
}

impl Usages {
    fn new(answers: usize) -> Usages {
        Usages { answers: answers.max(1), prompts: Vec::new() }
    }

    fn add(&mut self, choice: usize, usage: Usage) {
        let prompt = choice / self.answers;
        if self.prompts.len() <= prompt {
            self.prompts.resize(prompt + 1, Usage::default());
        }
        self.prompts[prompt] = self.prompts[prompt] + usage;
    }

    fn total(&self) -> Usage {
        let sum =
            |all: Usage, one: &Usage| Usage { prompt: all.prompt + one.prompt, cached: all.cached + one.cached, ..all + *one };
        self.prompts.iter().fold(Usage::default(), sum)
    }
}

pub async fn completions(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let work = in_background(&app, move |app| read(app, &Fields::body(&body)?)).await?;
    let start = |request| Turn::start(&app, request, None, Delivery::of(work.stream));
    let turns = work.requests.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let head = Head::new("cmpl-", &app.options.model_name, work.logprobs);
    if work.stream {
        let stream = Stream {
            app: Arc::clone(&app),
            head,
            shown: vec![0; turns.len()],
            echoes: work.echoes,
            with_usage: work.usage,
            usage: Usages::new(work.answers),
            waiting: vec![Vec::new(); turns.len()],
            failed: false,
        };
        return Ok(sse::response(turns, stream, app.options.keep_alive));
    }
    let mut choices = Vec::new();
    let mut usage = Usages::new(work.answers);
    let mut last = Json::Null;
    for (index, turn) in turns.into_iter().enumerate() {
        let whole = Whole::of(turn).await?;
        let text = format!("{}{}", work.echoes[index], whole.text);
        let logprobs = work.logprobs.then(|| logprobs_json(&app, &whole.tokens, &mut work.echoes[index].chars().count()));
        let finish = finish_reason(&whole.reason());
        choices.push(json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish }));
        usage.add(index, whole.usage());
        last = whole.finished.map_or(Json::Null, |finished| timings(&finished.stats));
    }
    let reply = json!({
        "id": head.id, "object": "text_completion", "created": head.created, "model": head.model,
        "choices": choices, "usage": usage_json(&usage.total()), "timings": last,
    });
    Ok(json_response(StatusCode::OK, &reply))
}

fn read(app: &App, fields: &Fields<'_>) -> Result<Work, ApiError> {
    fields.text("model")?;
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.error("suffix", "filling in between two texts is not supported"));
    }
    let choices = fields.count("n", 1..=MAX_CHOICES)?.unwrap_or(1);
    if fields.count("best_of", 1..=MAX_CHOICES)?.is_some_and(|best| best != choices) {
        return Err(fields.error("best_of", "choosing among more answers than 'n' is not supported"));
    }
    let mut sampling = read_sampling(app, fields)?;
    sampling.logprobs = fields.count("logprobs", 0..=5)?;
    let limit = fields.first(&["max_tokens", "n_predict"]).unwrap_or("max_tokens");
    let max_tokens = match fields.integer(limit, -1..=i64::from(u32::MAX))? {
        // -1 is as many as there is room for.
        Some(-1) => usize::MAX,
        Some(most) => most as usize,
        None => app.options.max_tokens.unwrap_or(USUAL_TOKENS),
    };
    let options = fields.object("stream_options")?;
    let mut work = Work {
        requests: Vec::new(),
        echoes: Vec::new(),
        answers: choices,
        stream: fields.bool("stream")?.unwrap_or(false),
        usage: options.map(|options| options.bool("include_usage")).transpose()?.flatten().unwrap_or(false),
        logprobs: sampling.logprobs.is_some(),
    };
    let echo = fields.bool("echo")?.unwrap_or(false);
    let stop = [read_stop(fields)?.as_slice(), &app.options.stop].concat();
    let ignore_eos = fields.bool("ignore_eos")?.unwrap_or(app.options.ignore_eos);
    let grammar = fields.text("grammar")?.map(|text| Grammar::Lark(text.to_owned()));
    for prompt in read_prompts(app, fields)? {
        let most = max_tokens.min(room(app, prompt.len())?);
        let text = app.tokenizer.decode(&prompt, ShowSpecial::Yes).unwrap_or_default();
        for choice in 0..choices {
            let mut sampling = sampling.clone();
            sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(choice as u64));
            let mask = grammar.as_ref().map(|grammar| app.compile(grammar)).transpose();
            let mask = mask.map_err(|error| fields.error("grammar", error))?;
            work.requests.push(Request {
                sampling,
                max_tokens: Some(most),
                stop: stop.clone(),
                ignore_eos,
                show: ShowSpecial::ExceptEog,
                mask: mask.map(|mask| Box::new(mask) as Box<dyn LogitMask>),
                deadline: app.options.request_timeout.map(|most| Instant::now() + most),
                label: app.options.show_texts.then(|| text.chars().take(200).collect()),
                ..Request::new(ids::new("req_"), prompt.clone())
            });
            work.echoes.push(if echo { text.clone() } else { String::new() });
        }
    }
    Ok(work)
}

/// Text, tokens, or a list of either.
fn read_prompts(app: &App, fields: &Fields<'_>) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let path = fields.path("prompt");
    match fields.get("prompt") {
        None => Err(fields.error("prompt", "the text to go on from is missing")),
        Some(Json::Array(items)) if items.iter().any(Json::is_number) => Ok(vec![read_tokens(app, items, &path)?]),
        Some(Json::Array(items)) if items.is_empty() => Err(fields.error("prompt", "the list is empty")),
        Some(Json::Array(items)) if items.len() > MAX_PROMPTS => {
            Err(fields.error("prompt", format!("{} prompts were given and at most {MAX_PROMPTS} are possible", items.len())))
        }
        Some(Json::Array(items)) => {
            let one = |(i, item): (usize, &Json)| read_prompt(app, item, &format!("{path}[{i}]"));
            items.iter().enumerate().map(one).collect()
        }
        Some(other) => Ok(vec![read_prompt(app, other, &path)?]),
    }
}

fn read_prompt(app: &App, value: &Json, path: &str) -> Result<Vec<TokenId>, ApiError> {
    match value {
        Json::String(text) => {
            // A raw prompt is written by whoever runs the model: its special tokens are meant.
            let mut tokens = app.tokenizer.encode(text, Special::Parse).map_err(|e| ApiError::field(path, e))?;
            if let Some(bos) = app.tokenizer.bos().filter(|bos| app.tokenizer.adds_bos() && tokens.first() != Some(bos)) {
                tokens.insert(0, bos);
            }
            match tokens.is_empty() {
                true => Err(ApiError::field(path, "the prompt is empty: there is nothing to go on from")),
                false => Ok(tokens),
            }
        }
        Json::Array(items) => read_tokens(app, items, path),
        other => Err(wrong(path, "text or a list of tokens", other)),
    }
}

/// A list of token ids.
pub fn read_tokens(app: &App, items: &[Json], path: &str) -> Result<Vec<TokenId>, ApiError> {
    let vocab = app.tokenizer.vocab_len() as u64;
    let id = |(i, item): (usize, &Json)| match whole(item).and_then(|id| u64::try_from(id).ok()) {
        Some(id) if id < vocab => Ok(TokenId(id as u32)),
        _ => {
            Err(ApiError::field(format!("{path}[{i}]"), format!("a token id from 0 to {} is expected", vocab.saturating_sub(1))))
        }
    };
    let tokens = items.iter().enumerate().map(id).collect::<Result<Vec<_>, _>>()?;
    if tokens.is_empty() { Err(ApiError::field(path, "the list of tokens is empty")) } else { Ok(tokens) }
}

/// Characters that begin in a token; those that go on from the token before do not count again.
fn characters(app: &App, token: TokenId) -> usize {
    let bytes = app.tokenizer.token_bytes(token).unwrap_or_default();
    bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count()
}

/// `shown`: characters of the choice's text before these tokens; afterwards, those up to their end.
fn logprobs_json(app: &App, tokens: &[Chosen], shown: &mut usize) -> Json {
    let text = |token: TokenId| app.tokenizer.token_text(token).unwrap_or_default().into_owned();
    let number = |logprob: f32| if logprob.is_finite() { logprob } else { -9999.0 };
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(*shown);
        *shown += characters(app, token.id);
    }
    let top = |token: &Chosen| -> Map<String, Json> {
        token.top.iter().map(|top| (text(top.token), json!(number(top.logprob)))).collect()
    };
    json!({
        "tokens": tokens.iter().map(|token| text(token.id)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob.map(number)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

struct Stream {
    app: Arc<App>,
    head: Head,
    echoes: Vec<String>,
    /// Of each choice, characters of echo and tokens that were sent.
    shown: Vec<usize>,
    with_usage: bool,
    usage: Usages,
    waiting: Vec<Vec<Chosen>>,
    failed: bool,
}

impl Stream {
    fn chunk(&mut self, choice: usize, text: &str, finish: Option<&str>, frames: &mut Frames) {
        let waiting = self.waiting.get_mut(choice).map(std::mem::take).unwrap_or_default();
        let shown = self.shown.get_mut(choice).filter(|_| self.head.logprobs && !waiting.is_empty());
        let logprobs = shown.map(|shown| logprobs_json(&self.app, &waiting, shown));
        let entry = json!({ "index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish });
        frames.data(&self.envelope(json!([entry]), Json::Null));
    }

    fn envelope(&self, choices: Json, usage: Json) -> Json {
        let Head { id, created, model, .. } = &self.head;
        let mut chunk = json!({ "id": id, "object": "text_completion", "created": created, "model": model, "choices": choices });
        if self.with_usage {
            chunk["usage"] = usage;
        }
        chunk
    }
}

impl Encoder for Stream {
    fn out(&mut self, choice: usize, out: Out, frames: &mut Frames) {
        match out {
            Out::Started { .. } => {
                let echo = self.echoes.get_mut(choice).map(std::mem::take).unwrap_or_default();
                if !echo.is_empty() {
                    if let Some(shown) = self.shown.get_mut(choice) {
                        *shown = echo.chars().count();
                    }
                    self.chunk(choice, &echo, None, frames);
                }
            }
            Out::Progress { done, total } => frames.comment(&format!("prompt {done}/{total}")),
            Out::Text(text) | Out::Reasoning(text) => self.chunk(choice, &text, None, frames),
            Out::Token(chosen) => {
                if let Some(waiting) = self.waiting.get_mut(choice).filter(|_| self.head.logprobs) {
                    waiting.push(chosen);
                }
            }
            Out::ToolStart { .. } | Out::ToolArgs { .. } | Out::ToolEnd { .. } => {}
            Out::Finished(finished) => {
                self.usage.add(choice, finished.usage);
                self.chunk(choice, "", Some(finish_reason(&finished.reason)), frames);
            }
            Out::Failed(error) => {
                self.failed = true;
                frames.data(&error.body(Shape::OpenAi));
            }
        }
    }

    fn end(&mut self, frames: &mut Frames) {
        if self.with_usage && !self.failed {
            frames.data(&self.envelope(json!([]), usage_json(&self.usage.total())));
        }
        frames.raw("[DONE]");
    }
}
