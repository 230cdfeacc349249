//! `/v1/models`.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::server::app::App;
use crate::server::error::{ApiError, Kind, json_response};
use crate::server::ids;

fn entry(app: &App) -> Json {
    json!({
        "id": app.options.model_name,
        "object": "model",
        "created": ids::unix_seconds(app.started),
        "owned_by": "strata",
        // Clients of several servers look for the context under one of these names.
        "context_length": app.model.context,
        "max_model_len": app.model.context,
        "meta": { "name": app.model.name, "n_ctx": app.model.context, "n_ctx_train": app.model.trained_context, "n_vocab": app.model.vocab },
    })
}

pub async fn models(app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    let entry = entry(&app);
    let id = entry["id"].clone();
    let list = json!({ "object": "list", "data": [entry], "has_more": false, "first_id": id, "last_id": id });
    Ok(json_response(StatusCode::OK, &list))
}

pub async fn model(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let wanted = request.uri().path().strip_prefix("/v1/models/").unwrap_or_default();
    if wanted != app.options.model_name {
        let message = format!("there is no model '{wanted}' here; the one that is served is '{}'", app.options.model_name);
        return Err(ApiError::new(Kind::NotFound, message));
    }
    Ok(json_response(StatusCode::OK, &entry(&app)))
}
