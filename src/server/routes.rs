//! The one table of routes: what the router serves, the banner lists and the OpenAPI document describes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use serde_json::Value as Json;
use tower_http::catch_panic::CatchPanicLayer;

use super::app::App;
use super::error::{ApiError, Kind, Shape, json_response};
use super::{anthropic, guard, native, openai, openapi, web};

type Reply = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;
type Handler = fn(Arc<App>, HttpRequest) -> Reply;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
}

impl Method {
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
        }
    }

    fn filter(self) -> MethodFilter {
        match self {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
        }
    }
}

pub struct Route {
    pub name: &'static str,
    pub method: Method,
    pub path: &'static str,
    /// Served without a key: it shows nothing that is anybody's own.
    pub open: bool,
    /// Belongs to the page, and is not listed.
    pub page: bool,
    /// Answers with what a model writes.
    pub text: bool,
    /// Answers with a model's embeddings.
    pub embeddings: bool,
    pub doc: &'static str,
    handler: Handler,
}

macro_rules! route {
    ($method:ident $path:literal, $name:literal, $handler:path, $doc:literal $(, $flag:ident)*) => {{
        #[allow(unused_mut)]
        let mut route = Route {
            name: $name,
            method: Method::$method,
            path: $path,
            open: false,
            page: false,
            text: false,
            embeddings: false,
            doc: $doc,
            handler: |app, request| Box::pin($handler(app, request)),
        };
        $(route.$flag = true;)*
        route
    }};
}

pub fn routes() -> Vec<Route> {
    vec![
        route!(Get "/", "page", web::page, "The page: chat, monitor, about", open, page),
        route!(Get "/docs", "docs", web::docs, "This interface as a page", open, page),
        route!(Get "/web/{file}", "page_file", web::file, "Files of the page", open, page),
        route!(Get "/favicon.ico", "icon", web::icon, "The page's icon", open, page),
        route!(Post "/v1/chat/completions", "chat", openai::chat, "OpenAI chat: streaming, tools, structured output, reasoning", text),
        route!(Post "/v1/completions", "completions", openai::completions, "OpenAI completion of plain text", text),
        route!(Post "/v1/responses", "responses", openai::responses, "OpenAI responses, stateless", text),
        route!(Get "/v1/models", "models", openai::models, "The model that is served"),
        route!(Get "/v1/models/{model}", "model", openai::model, "One model"),
        route!(Post "/v1/embeddings", "embeddings", openai::embeddings, "OpenAI embeddings of texts", embeddings),
        route!(Post "/v1/messages", "messages", anthropic::messages, "Anthropic messages: streaming, tools, thinking", text),
        route!(Post "/v1/messages/count_tokens", "count_tokens", anthropic::count_tokens, "Anthropic count of a prompt's tokens"),
        route!(Get "/health", "health", native::health, "Whether the engine is ready", open),
        route!(Get "/metrics", "metrics", native::metrics, "Counters for Prometheus"),
        route!(Get "/v1/status", "status", native::status, "Engine, slots, memory, recent requests"),
        route!(Post "/tokenize", "tokenize", native::tokenize, "Tokens of a text"),
        route!(Post "/detokenize", "detokenize", native::detokenize, "Text of tokens"),
        route!(Post "/apply-template", "apply_template", openai::apply_template, "The prompt of a chat, not answered"),
        route!(Get "/props", "props", native::props, "Template and defaults"),
        route!(Get "/slots", "slots", native::slots, "What each slot does"),
        route!(Get "/openapi.json", "openapi", openapi::document, "This interface as an OpenAPI document", open),
    ]
}

impl Route {
    /// Whether a model that gives embeddings, or else text, can answer here.
    pub fn suits(&self, embeddings: bool) -> bool {
        if embeddings { !self.text } else { !self.embeddings }
    }
}

/// Lines for the banner.
pub fn listing(embeddings: bool) -> Vec<String> {
    let shown = routes().into_iter().filter(|route| !route.page && route.suits(embeddings));
    shown.map(|route| format!("{:<4} {:<26} {}", route.method.name(), route.path, route.doc)).collect()
}

pub fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for route in routes() {
        if route.page && !app.options.web {
            continue;
        }
        let Route { name, method, path, open, handler, .. } = route;
        let app = Arc::clone(&app);
        let serve = move |request: HttpRequest| {
            let app = Arc::clone(&app);
            async move { serve(app, name, open, path, handler, request).await }
        };
        router = router.route(path, on(method.filter(), serve));
    }
    let unknown = |request: HttpRequest| async move {
        let path = request.uri().path();
        let remedy = meant(path).map_or_else(|| "/openapi.json lists what does".to_owned(), |meant| format!("{meant} does"));
        let message = format!("{} {path} does not exist here; {remedy}", request.method());
        ApiError::new(Kind::NotFound, message).response(Shape::of_path(path))
    };
    let wrong_method = |request: HttpRequest| async move {
        let message = format!("{} is not possible for {}", request.method(), request.uri().path());
        ApiError::new(Kind::MethodNotAllowed, message).response(Shape::of_path(request.uri().path()))
    };
    let guarded = Arc::clone(&app);
    router
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(CatchPanicLayer::custom(|_| {
            let error = ApiError::new(Kind::Internal, "the server has a defect: handling this request failed");
            json_response(StatusCode::INTERNAL_SERVER_ERROR, &error.body(Shape::OpenAi))
        }))
        .layer(axum::middleware::from_fn(move |request, next| guard::guard(Arc::clone(&guarded), request, next)))
}

/// The route that a path names but for a slash too many or the `/v1` that belongs to a base address.
fn meant(path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let tidy = format!("/{}", parts.join("/"));
    let (longer, shorter) = (format!("/v1{tidy}"), tidy.strip_prefix("/v1/v1").map(|rest| format!("/v1{rest}")));
    let candidates = [Some(tidy), Some(longer), shorter];
    let known = routes();
    let find = |path: &String| known.iter().find(|route| !route.page && route.path == *path).map(|route| route.path);
    candidates.iter().flatten().find_map(find)
}

async fn serve(
    app: Arc<App>,
    name: &'static str,
    open: bool,
    path: &'static str,
    handler: Handler,
    request: HttpRequest,
) -> Response {
    let start = Instant::now();
    let _listed = app.doing.begin(name);
    let shape = Shape::of_path(path);
    let result = match open || guard::has_key(&app, request.headers()) {
        true => handler(Arc::clone(&app), request).await,
        false => {
            let message = "a valid API key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
            Err(ApiError::new(Kind::Unauthorized, message))
        }
    };
    let response = result.unwrap_or_else(|error| error.response(shape));
    app.metrics.request(name, response.status().as_u16(), start.elapsed());
    response
}

/// For handlers that need no more than a value.
pub fn ready(value: &Json) -> Response {
    json_response(StatusCode::OK, value)
}
