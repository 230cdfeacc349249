//! Who may talk to the server: checks before any handler runs.
//!
//! A page that somebody visits can make the browser send requests to this machine. It cannot hide where it comes from
//! (`Origin`), nor, if its name was bent to point here (DNS rebinding), under which name it asks (`Host`). Both are checked.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

use super::app::App;
use super::error::{ApiError, Kind, Shape};

/// The host of `host:port` or `[v6]:port`, in lower case.
fn host_name(authority: &str) -> String {
    let name = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether requests may be addressed to that name.
fn host_is_ours(app: &App, authority: &str) -> bool {
    let name = host_name(authority);
    if name == "localhost" || name.ends_with(".localhost") {
        return true;
    }
    if let Ok(address) = name.parse::<IpAddr>() {
        // A number cannot be bent by DNS.
        return address.is_loopback() || app.options.beyond_loopback;
    }
    app.options.hosts.iter().any(|host| host.eq_ignore_ascii_case(&name))
}

enum Origin {
    /// No page, or one of our own.
    Own,
    /// A page that the owner has listed.
    Listed(HeaderValue),
}

fn check_origin(app: &App, headers: &HeaderMap, host: &str) -> Result<Origin, ApiError> {
    let Some(value) = headers.get(header::ORIGIN) else { return Ok(Origin::Own) };
    let origin = value.to_str().unwrap_or_default();
    let own = origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
    if own {
        return Ok(Origin::Own);
    }
    match app.options.origins.iter().any(|listed| listed == "*" || listed.eq_ignore_ascii_case(origin)) {
        true => Ok(Origin::Listed(value.clone())),
        false => {
            let message = format!("pages of '{origin}' may not use this server; --allow-origin {origin} lets them");
            Err(ApiError::new(Kind::Forbidden, message))
        }
    }
}

fn check(app: &App, request: &HttpRequest) -> Result<Origin, ApiError> {
    let headers = request.headers();
    let from_header = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let host = request.uri().authority().map(|authority| authority.as_str()).or(from_header);
    let Some(host) = host else {
        return Err(ApiError::new(Kind::Invalid, "the request names no host"));
    };
    if !host_is_ours(app, host) {
        let name = host_name(host);
        let message = format!("requests to '{name}' are not answered; --allow-host {name} changes that");
        return Err(ApiError::new(Kind::Forbidden, message));
    }
    check_origin(app, headers, host)
}

const ALLOWED_HEADERS: &str =
    "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, openai-beta, openai-organization, openai-project";

pub async fn guard(app: Arc<App>, request: HttpRequest, next: Next) -> Response {
    let shape = Shape::of_path(request.uri().path());
    let mut response = match check(&app, &request) {
        Err(error) => error.response(shape),
        Ok(Origin::Own) => next.run(request).await,
        Ok(Origin::Listed(origin)) => {
            let mut response = match *request.method() {
                Method::OPTIONS => preflight(),
                _ => next.run(request).await,
            };
            response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
            response
        }
    };
    for (name, value) in SECURITY_HEADERS {
        response.headers_mut().entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
    }
    response
}

const SECURITY_HEADERS: &[(&str, &str)] = &[
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

fn preflight() -> Response {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(ALLOWED_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

/// Whether the request brings one of the keys. Takes the same time for every wrong key of the same length.
pub fn has_key(app: &App, headers: &HeaderMap) -> bool {
    if app.options.api_keys.is_empty() {
        return true;
    }
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let given = [bearer, text(HeaderName::from_static("x-api-key"))];
    let mut found = subtle::Choice::from(0);
    for given in given.into_iter().flatten() {
        for key in &app.options.api_keys {
            found |= key.as_bytes().ct_eq(given.as_bytes());
        }
    }
    found.into()
}

#[cfg(test)]
mod tests {
    use super::host_name;

    #[test]
    fn host_names_are_cut_out() {
        let cases =
            [("LocalHost:80", "localhost"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("a.b.", "a.b"), ("127.0.0.1:1", "127.0.0.1")];
        for (authority, expected) in cases {
            assert_eq!(host_name(authority), expected);
        }
    }
}
