//! Errors as the APIs tell them: what is wrong, with which field, and what to do.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::engine::service::ServiceError;

/// Whose error format a route speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    OpenAi,
    Anthropic,
}

impl Shape {
    /// For errors before a route is known.
    pub fn of_path(path: &str) -> Shape {
        if path.starts_with("/v1/messages") { Shape::Anthropic } else { Shape::OpenAi }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Invalid,
    ContextLength,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    TooLarge,
    TooSlow,
    Busy,
    Timeout,
    Internal,
    Unavailable,
}

impl Kind {
    pub fn status(self) -> StatusCode {
        match self {
            Kind::Invalid | Kind::ContextLength => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
            Kind::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn openai_type(self) -> &'static str {
        match self {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::Busy => "rate_limit_error",
            Kind::Internal | Kind::Unavailable | Kind::Timeout => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(self) -> &'static str {
        match self {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::Busy => "rate_limit_error",
            Kind::Unavailable => "overloaded_error",
            Kind::Internal => "api_error",
            Kind::Timeout => "timeout_error",
            _ => "invalid_request_error",
        }
    }

    fn code(self) -> Option<&'static str> {
        match self {
            Kind::ContextLength => Some("context_length_exceeded"),
            Kind::Unauthorized => Some("invalid_api_key"),
            Kind::NotFound => Some("not_found"),
            Kind::Busy => Some("queue_full"),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub kind: Kind,
    pub message: String,
    /// The field of the request that is to blame, as a path such as `messages[2].content`.
    pub field: Option<String>,
}

impl ApiError {
    pub fn new(kind: Kind, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into(), field: None }
    }

    /// A field that is not as it should be. `problem` says what is wrong and what would be right.
    pub fn field(field: impl Into<String>, problem: impl std::fmt::Display) -> ApiError {
        let field = field.into();
        ApiError { kind: Kind::Invalid, message: format!("'{field}': {problem}"), field: Some(field) }
    }

    /// The error as an object of the API.
    pub fn body(&self, shape: Shape) -> Json {
        match shape {
            Shape::OpenAi => json!({ "error": {
                "message": self.message,
                "type": self.kind.openai_type(),
                "param": self.field,
                "code": self.kind.code(),
            }}),
            Shape::Anthropic => {
                json!({ "type": "error", "error": { "type": self.kind.anthropic_type(), "message": self.message } })
            }
        }
    }

    pub fn response(&self, shape: Shape) -> Response {
        let mut response = json_response(self.kind.status(), &self.body(shape));
        if matches!(self.kind, Kind::Busy | Kind::Unavailable) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        }
        if self.kind == Kind::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> ApiError {
        let kind = match &error {
            ServiceError::Busy { .. } => Kind::Busy,
            ServiceError::PromptTooLong { .. } => Kind::ContextLength,
            ServiceError::EmptyPrompt
            | ServiceError::Sample(_)
            | ServiceError::OtherKind { .. }
            | ServiceError::Pictures { .. } => Kind::Invalid,
            ServiceError::Deadline => Kind::Timeout,
            ServiceError::Cancelled | ServiceError::Engine { .. } => Kind::Internal,
            ServiceError::Down { .. } | ServiceError::Stopping => Kind::Unavailable,
        };
        ApiError::new(kind, error.to_string())
    }
}

pub fn json_response(status: StatusCode, value: &Json) -> Response {
    text_response(status, "application/json", value.to_string())
}

pub fn text_response(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
