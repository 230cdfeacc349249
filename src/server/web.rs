//! The page. Its files are part of the program and need nothing from the network.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;

use super::app::App;
use super::error::{ApiError, Kind, text_response};

const PAGE: &str = include_str!("../../assets/web/index.html");
const DOCS: &str = include_str!("../../assets/web/docs.html");

/// Name, type and text of every file beside the pages.
const FILES: &[(&str, &str, &str)] = &[
    ("style.css", "text/css; charset=utf-8", include_str!("../../assets/web/style.css")),
    ("markdown.js", "text/javascript; charset=utf-8", include_str!("../../assets/web/markdown.js")),
    ("chat.js", "text/javascript; charset=utf-8", include_str!("../../assets/web/chat.js")),
    ("pictures.js", "text/javascript; charset=utf-8", include_str!("../../assets/web/pictures.js")),
    ("monitor.js", "text/javascript; charset=utf-8", include_str!("../../assets/web/monitor.js")),
    ("docs.js", "text/javascript; charset=utf-8", include_str!("../../assets/web/docs.js")),
    ("app.js", "text/javascript; charset=utf-8", include_str!("../../assets/web/app.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../assets/web/icon.svg")),
];

/// Nothing but our own files, and nobody may put the page into a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn file_response(content_type: &'static str, text: &'static str) -> Response {
    let mut response = text_response(StatusCode::OK, content_type, text);
    response.headers_mut().insert(HeaderName::from_static("content-security-policy"), HeaderValue::from_static(POLICY));
    response
}

pub async fn page(_app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    Ok(file_response("text/html; charset=utf-8", PAGE))
}

/// The OpenAPI document as a page.
pub async fn docs(_app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    Ok(file_response("text/html; charset=utf-8", DOCS))
}

pub async fn file(_app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let wanted = request.uri().path().strip_prefix("/web/").unwrap_or_default();
    match FILES.iter().find(|(name, ..)| *name == wanted) {
        Some((_, content_type, text)) => Ok(file_response(content_type, text)),
        None => Err(ApiError::new(Kind::NotFound, "the page has no such file")),
    }
}

pub async fn icon(_app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    let icon = FILES.iter().find(|(name, ..)| *name == "icon.svg");
    icon.map(|(_, content_type, text)| file_response(content_type, text)).ok_or_else(|| ApiError::new(Kind::NotFound, "no icon"))
}
