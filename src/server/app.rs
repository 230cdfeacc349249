//! What all handlers share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request as HttpRequest;
use futures_util::StreamExt;
use serde_json::Value as Json;
use tokio::sync::Semaphore;

use super::doing::Doing;
use super::error::{ApiError, Kind};
use super::metrics::Metrics;
use super::pictures::PictureRoom;
use super::tools::ToolFormat;
use crate::engine::service::Service;
use crate::picture::Preprocess;
use crate::sample::{Grammar, GrammarCompiler, GrammarMask, GrammarToken, SampleError, SamplingParams};
use crate::tokenizer::{ChatTemplate, Tokenizer};
use crate::units::TokenId;

/// What the owner of the machine decides.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Name under which the model is listed.
    pub model_name: String,
    /// Any of these opens the door; empty: no key is needed.
    pub api_keys: Vec<String>,
    /// Host names beyond the loopback ones that requests may be addressed to.
    pub hosts: Vec<String>,
    /// Pages of other origins that may use the server.
    pub origins: Vec<String>,
    /// The server listens beyond this machine, so that requests may be addressed to any number.
    pub beyond_loopback: bool,
    pub max_body_bytes: usize,
    /// Requests that are being read and prepared at once.
    pub max_preparing: usize,
    /// Open connections.
    pub max_connections: usize,
    /// Longest wait for the head of a request, for its body, and of an open connection for the next request.
    pub patience: Duration,
    /// Most time for one request, waiting included.
    pub request_timeout: Option<Duration>,
    /// Silence after which a stream sends a comment.
    pub keep_alive: Duration,
    pub sampling: SamplingParams,
    /// Most tokens of an answer whose client sets no limit.
    pub max_tokens: Option<usize>,
    /// End every answer, besides what the client names.
    pub stop: Vec<String>,
    pub ignore_eos: bool,
    pub thinking: Option<bool>,
    /// Serve the page.
    pub web: bool,
    /// Show the texts of recent requests to whoever may see the status.
    pub show_texts: bool,
    /// What the About page shows: flags and facts.
    pub about: Json,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            model_name: "strata".into(),
            api_keys: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
            beyond_loopback: false,
            max_body_bytes: 32 << 20,
            max_preparing: 32,
            max_connections: 512,
            patience: Duration::from_secs(60),
            request_timeout: None,
            keep_alive: Duration::from_secs(10),
            sampling: SamplingParams::default(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_eos: false,
            thinking: None,
            web: true,
            show_texts: false,
            about: Json::Null,
        }
    }
}

/// Facts about the model that do not change.
#[derive(Debug, Clone)]
pub struct ModelFacts {
    /// What the file calls itself.
    pub name: String,
    pub file: String,
    pub context: usize,
    pub trained_context: usize,
    pub vocab: usize,
    /// Elements of a vector, if the model gives these and not text.
    pub embedding_width: Option<usize>,
    /// How pictures shall be that requests bring, if the model sees.
    pub vision: Option<Preprocess>,
}

pub struct App {
    pub service: Service,
    pub model: ModelFacts,
    pub tokenizer: Arc<Tokenizer>,
    pub template: ChatTemplate,
    pub options: ServerOptions,
    pub tool_format: ToolFormat,
    /// The template writes tools itself.
    pub template_has_tools: bool,
    pub pictures: PictureRoom,
    pub metrics: Metrics,
    pub doing: Arc<Doing>,
    pub started: std::time::SystemTime,
    pub preparing: Semaphore,
    grammars: OnceLock<Result<GrammarCompiler, SampleError>>,
}

/// Of a body that is too large, so much more is read before the connection is cut.
const DRAINED_BYTES: usize = 16 << 20;

impl App {
    pub fn new(
        service: Service,
        model: ModelFacts,
        tokenizer: Arc<Tokenizer>,
        template: ChatTemplate,
        options: ServerOptions,
    ) -> App {
        let named = tokenizer.named_template_sources().iter().map(|(_, text)| text.as_str());
        let sources: Vec<&str> = tokenizer.chat_template_source().into_iter().chain(named).collect();
        let source = sources.join("\n");
        App {
            service,
            model,
            tool_format: ToolFormat::of_template(&source),
            template_has_tools: source.contains("tools"),
            tokenizer,
            template,
            pictures: PictureRoom::default(),
            metrics: Metrics::new(),
            doing: Arc::default(),
            started: std::time::SystemTime::now(),
            preparing: Semaphore::new(options.max_preparing.max(1)),
            options,
            grammars: OnceLock::new(),
        }
    }

    /// Makes a grammar ready. The first time this indexes the vocabulary.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarMask, SampleError> {
        let build = || {
            let token = |id: u32| GrammarToken {
                bytes: self.tokenizer.token_bytes(TokenId(id)).unwrap_or_default().to_vec(),
                special: self.tokenizer.is_special(TokenId(id)),
            };
            let tokens: Vec<GrammarToken> = (0..self.tokenizer.vocab_len() as u32).map(token).collect();
            GrammarCompiler::new(&tokens, self.tokenizer.eog_tokens())
        };
        match self.grammars.get_or_init(build) {
            Ok(compiler) => compiler.compile(grammar),
            Err(error) => Err(error.clone()),
        }
    }

    /// The body of a request as JSON.
    pub async fn read_json(&self, request: HttpRequest) -> Result<Json, ApiError> {
        let limit = self.options.max_body_bytes;
        let too_large = || {
            let message = format!("the request is larger than {limit} bytes, the most this server takes (--max-body-mib)");
            ApiError::new(Kind::TooLarge, message)
        };
        let read = tokio::time::timeout(self.options.patience, read_limited(request.into_body(), limit)).await;
        let bytes = match read {
            Err(_) => return Err(ApiError::new(Kind::TooSlow, "the body of the request did not arrive in time")),
            Ok(Err(_)) => return Err(ApiError::new(Kind::Invalid, "the body of the request broke off")),
            Ok(Ok(None)) => return Err(too_large()),
            Ok(Ok(Some(bytes))) => bytes,
        };
        if bytes.is_empty() {
            return Err(ApiError::new(Kind::Invalid, "the request has no body; send a JSON object"));
        }
        if bytes.len() <= QUICK_BODY_BYTES {
            return parse(&bytes);
        }
        let parsed = tokio::task::spawn_blocking(move || parse(&bytes)).await;
        parsed
            .unwrap_or_else(|_| Err(ApiError::new(Kind::Internal, "reading the request failed; this is a defect of the server")))
    }
}

/// A body up to this size is parsed where it arrives; a longer one would hold up what others are sent meanwhile.
const QUICK_BODY_BYTES: usize = 64 << 10;

fn parse(bytes: &[u8]) -> Result<Json, ApiError> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    serde_json::from_slice(text).map_err(|e| ApiError::new(Kind::Invalid, format!("the body is not valid JSON: {e}")))
}

/// `None` if there is more than `limit`. Most of what is too much is read nevertheless: a client that is still writing
/// would not read what is wrong.
async fn read_limited(body: Body, limit: usize) -> Result<Option<Vec<u8>>, axum::Error> {
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    let mut total = 0usize;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        total = total.saturating_add(chunk.len());
        if total > limit {
            bytes = Vec::new();
        } else {
            bytes.extend_from_slice(&chunk);
        }
        if total > limit.saturating_mul(2).saturating_add(DRAINED_BYTES) {
            break;
        }
    }
    Ok((total <= limit).then_some(bytes))
}
