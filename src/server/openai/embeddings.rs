//! `/v1/embeddings`, for models that are made for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::{Number, Value as Json, json};
use tokio::sync::oneshot;

use super::completions::read_tokens;
use crate::engine::service::{Event, Request, Sink, Wanted};
use crate::server::app::App;
use crate::server::chat::in_background;
use crate::server::error::{ApiError, Kind, json_response};
use crate::server::fields::{Fields, wrong};
use crate::server::ids;
use crate::tokenizer::Special;
use crate::units::TokenId;

/// As many as OpenAI takes.
const MAX_INPUTS: usize = 2048;

struct Work {
    inputs: Vec<Vec<TokenId>>,
    /// Leading elements of each vector that are wanted.
    elements: usize,
    as_base64: bool,
}

pub async fn embeddings(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let Some(width) = app.model.embedding_width else {
        let message = format!(
            "'{}' writes text and gives no embeddings; serve a model that is made for them (a file with pooling_type)",
            app.options.model_name
        );
        return Err(ApiError { kind: Kind::Invalid, message, field: Some("model".into()) });
    };
    let work = in_background(&app, move |app| read(app, &Fields::body(&body)?, width)).await?;
    let tokens: usize = work.inputs.iter().map(Vec::len).sum();
    // As many at once as have slots, so that a long list is no full queue.
    let at_once = app.service.status().slots.len().max(1);
    let vectors: Vec<Vec<f32>> =
        futures_util::stream::iter(work.inputs).map(|tokens| embed(&app, tokens)).buffered(at_once).try_collect().await?;
    let data: Vec<Json> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| {
            let vector = shortened(vector, work.elements);
            let embedding = if work.as_base64 { base64_of(&vector) } else { numbers(&vector) };
            json!({ "object": "embedding", "index": index, "embedding": embedding })
        })
        .collect();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    let reply = json!({ "object": "list", "data": data, "model": app.options.model_name, "usage": usage });
    Ok(json_response(StatusCode::OK, &reply))
}

fn read(app: &App, fields: &Fields<'_>, width: usize) -> Result<Work, ApiError> {
    fields.text("model")?;
    let formats = [("float", false), ("base64", true)];
    Ok(Work {
        inputs: read_inputs(app, fields)?,
        elements: fields.count("dimensions", 1..=width as i64)?.unwrap_or(width),
        as_base64: fields.word("encoding_format", &formats)?.unwrap_or(false),
    })
}

/// Text, tokens, or a list of either.
fn read_inputs(app: &App, fields: &Fields<'_>) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let path = fields.path("input");
    match fields.get("input") {
        None => Err(fields.error("input", "the text is missing; send text, or a list of texts")),
        Some(Json::Array(items)) if items.iter().any(Json::is_number) => {
            Ok(vec![checked(app, read_tokens(app, items, &path)?, &path)?])
        }
        Some(Json::Array(items)) if items.is_empty() => Err(fields.error("input", "the list is empty")),
        Some(Json::Array(items)) if items.len() > MAX_INPUTS => {
            Err(fields.error("input", format!("{} texts were given and at most {MAX_INPUTS} are possible", items.len())))
        }
        Some(Json::Array(items)) => {
            items.iter().enumerate().map(|(i, item)| read_input(app, item, &format!("{path}[{i}]"))).collect()
        }
        Some(other) => Ok(vec![read_input(app, other, &path)?]),
    }
}

fn read_input(app: &App, value: &Json, path: &str) -> Result<Vec<TokenId>, ApiError> {
    let tokens = match value {
        Json::String(text) if text.is_empty() => return Err(ApiError::field(path, "the text is empty")),
        Json::String(text) => {
            let mut tokens = app.tokenizer.encode(text, Special::AsText).map_err(|e| ApiError::field(path, e))?;
            // Models that pool by the last token were trained with the one that ends a text.
            app.tokenizer.add_bos_eos(&mut tokens);
            tokens
        }
        Json::Array(items) => read_tokens(app, items, path)?,
        other => return Err(wrong(path, "text or a list of tokens", other)),
    };
    checked(app, tokens, path)
}

fn checked(app: &App, tokens: Vec<TokenId>, path: &str) -> Result<Vec<TokenId>, ApiError> {
    let (count, context) = (tokens.len(), app.model.context);
    if count > context {
        let message = format!(
            "'{path}' has {count} tokens, and the context holds {context}; shorten it, or serve with a larger --ctx-size \
             (the model was trained for {})",
            app.model.trained_context
        );
        return Err(ApiError { field: Some(path.to_owned()), ..ApiError::new(Kind::ContextLength, message) });
    }
    Ok(tokens)
}

/// Ends a request whose client went away.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn embed(app: &App, tokens: Vec<TokenId>) -> Result<Vec<f32>, ApiError> {
    let (sender, receiver) = oneshot::channel();
    let deadline = app.options.request_timeout.map(|most| Instant::now() + most);
    let request = Request { wanted: Wanted::Embedding, deadline, ..Request::new(ids::new("req_"), tokens) };
    let _cancel = CancelOnDrop(Arc::clone(&request.cancel));
    app.service.submit(request, sink(sender))?;
    match receiver.await {
        Ok(Event::Embedded(embedded)) => Ok(embedded.vector),
        Ok(Event::Failed(error)) => Err(error.into()),
        // The service promises a terminal event of the kind that was asked for; this is for a defect in it.
        _ => Err(ApiError::new(Kind::Internal, "the engine went away without an embedding")),
    }
}

/// Hands over the last event.
fn sink(sender: oneshot::Sender<Event>) -> Sink {
    let mut sender = Some(sender);
    Box::new(move |event| match event.is_terminal() {
        true => sender.take().is_some_and(|sender| sender.send(event).is_ok()),
        false => sender.as_ref().is_some_and(|sender| !sender.is_closed()),
    })
}

/// The first elements, scaled to length 1 again: models that are trained for it say the most with them.
fn shortened(vector: &[f32], elements: usize) -> Vec<f32> {
    let head = &vector[..elements.min(vector.len())];
    let length = head.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if head.len() == vector.len() || length == 0.0 {
        return head.to_vec();
    }
    head.iter().map(|x| (f64::from(*x) / length) as f32).collect()
}

/// As few digits as tell a 32-bit number from its neighbours.
fn numbers(vector: &[f32]) -> Json {
    let number = |x: &f32| x.to_string().parse().ok().and_then(Number::from_f64).map_or(Json::Null, Json::Number);
    vector.iter().map(number).collect()
}

/// 32-bit numbers, the lowest byte first.
fn base64_of(vector: &[f32]) -> Json {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    Json::String(STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_elements_have_length_one_again() {
        let vector = [0.6, 0.0, 0.8];
        assert_eq!(shortened(&vector, 3), vector);
        assert_eq!(shortened(&vector, 2), [1.0, 0.0]);
        assert_eq!(shortened(&[0.0, 1.0], 1), [0.0], "nothing is left to scale");
    }

    #[test]
    fn numbers_are_short_and_exact() {
        assert_eq!(numbers(&[0.1, -1e-7, 2.0]).to_string(), "[0.1,-1e-7,2.0]");
        assert_eq!(base64_of(&[1.0]), json!("AACAPw=="));
    }
}
