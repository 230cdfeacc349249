//! Strata's own routes, several of them as llama.cpp's server has them.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value as Json, json};

use super::STALL;
use super::app::App;
use super::chat::in_background;
use super::error::{ApiError, json_response, text_response};
use super::fields::{Fields, whole, wrong};
use super::ids;
use super::pictures::MAX_PICTURES;
use crate::engine::service::{RecentRequest, SlotState, SlotStatus, State, Status};
use crate::engine::{available_memory_bytes, process_memory};
use crate::experts::TierStats;
use crate::picture::MAX_SIDE_PIXELS;
use crate::tokenizer::{ShowSpecial, Special};
use crate::units::TokenId;

pub async fn health(app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    let status = app.service.status();
    let (code, word) = match &status.state {
        State::Ready if status.is_stalled(STALL) => (StatusCode::SERVICE_UNAVAILABLE, "stalled"),
        State::Ready => (StatusCode::OK, "ok"),
        other => (StatusCode::SERVICE_UNAVAILABLE, other.name()),
    };
    Ok(json_response(code, &json!({ "status": word })))
}

pub async fn metrics(app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    let text = app.metrics.text(&app.service.status());
    Ok(text_response(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text))
}

fn slot_json(index: usize, slot: &SlotStatus, context: usize) -> Json {
    json!({
        "id": index,
        "state": slot.state.name(),
        "is_processing": slot.state != SlotState::Idle,
        "request": slot.request,
        "n_ctx": context,
        "held_tokens": slot.held_tokens,
        "checkpoints": slot.checkpoints,
        "checkpoint_bytes": slot.checkpoint_bytes,
        "prompt_tokens": slot.stats.prompt_tokens,
        "cached_tokens": slot.stats.reused_tokens,
        "generated_tokens": slot.stats.generated_tokens,
        "prompt_tokens_per_second": slot.stats.prompt_rate(),
        "tokens_per_second": slot.stats.decode_rate(),
    })
}

fn slots_json(app: &App, status: &Status) -> Vec<Json> {
    status.slots.iter().enumerate().map(|(index, slot)| slot_json(index, slot, app.model.context)).collect()
}

pub async fn slots(app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    let status = app.service.status();
    Ok(json_response(StatusCode::OK, &Json::Array(slots_json(&app, &status))))
}

fn recent_json(app: &App, recent: &RecentRequest) -> Json {
    json!({
        "id": recent.id,
        "ended": ids::unix_seconds(recent.ended),
        "outcome": recent.outcome,
        "waited_seconds": recent.waited.as_secs_f64(),
        "prompt_tokens": recent.stats.prompt_tokens,
        "cached_tokens": recent.stats.reused_tokens,
        "generated_tokens": recent.stats.generated_tokens,
        "prompt_seconds": recent.stats.prompt_time.as_secs_f64(),
        "decode_seconds": recent.stats.decode_time.as_secs_f64(),
        "tokens_per_second": recent.stats.decode_rate(),
        "experts": recent.stats.tiers.as_ref().map(tiers_json),
        "text": recent.label.as_ref().filter(|_| app.options.show_texts),
    })
}

/// What the tiers of experts did for a request.
fn tiers_json(tiers: &TierStats) -> Json {
    json!({
        "card_calls": tiers.card_calls, "ram_calls": tiers.ram_calls, "disk_calls": tiers.disk_calls,
        "card_hit_rate": tiers.card_hit_rate(), "card_bytes": tiers.card_bytes, "processor_bytes": tiers.processor_bytes,
        "bus_bytes": tiers.bus_bytes, "disk_bytes": tiers.disk_bytes, "swaps": tiers.swaps, "swap_bytes": tiers.swap_bytes,
        "card_seconds": tiers.card_time.as_secs_f64(), "processor_seconds": tiers.processor_time.as_secs_f64(),
        "bus_seconds": tiers.bus_time.as_secs_f64(), "disk_seconds": tiers.disk_time.as_secs_f64(),
        "swap_seconds": tiers.swap_time.as_secs_f64(), "slowest": tiers.slowest().map(|(name, _)| name),
    })
}

pub async fn status(app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    let status = app.service.status();
    let failure = match &status.state {
        State::Down(reason) => Some(reason.clone()),
        _ => status.last_failure.clone(),
    };
    let engine = status.engine.as_ref().map(|engine| {
        json!({
            "context": engine.context,
            "slots": engine.slots,
            "prompt_rows": engine.prompt_rows,
            "devices": engine.devices.iter().map(|device| json!({
                "id": device.id, "detail": device.detail, "arenas_bytes": device.arenas_bytes,
                "scratch_bytes": device.scratch_bytes, "late_allocations": device.late_allocations,
            })).collect::<Vec<_>>(),
            "plan": engine.plan.as_deref(),
            "cards": engine.cards,
            "memory": {
                "weights_bytes": engine.memory.weights_bytes,
                "state_bytes": engine.memory.state_bytes,
                "work_bytes": engine.memory.work_bytes,
                "scratch_bytes": engine.memory.scratch_bytes,
                "experts_bytes": engine.memory.experts_bytes,
                "vision_bytes": engine.memory.vision_bytes,
            },
        })
    });
    let totals = &status.totals;
    let process = process_memory();
    let reply = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": { "id": app.options.model_name, "name": app.model.name, "file": app.model.file, "vocab": app.model.vocab,
                   "context": app.model.context, "trained_context": app.model.trained_context,
                   "embedding_width": app.model.embedding_width, "vision": vision_json(&app) },
        "state": status.state.name(),
        "stalled": status.is_stalled(STALL),
        "restarts": status.restarts,
        "last_failure": failure,
        "uptime_seconds": ids::now().saturating_sub(ids::unix_seconds(app.started)),
        "activity": { "what": status.activity.what, "request": status.activity.request,
                      "seconds": Instant::now().duration_since(status.activity.since).as_secs_f64() },
        "http": app.doing.list().iter().map(|(route, age)| json!({ "route": route, "seconds": age.as_secs_f64() })).collect::<Vec<_>>(),
        "engine": engine,
        "memory": { "resident_bytes": process.map(|p| p.resident_bytes), "peak_bytes": process.map(|p| p.peak_bytes),
                    "available_bytes": available_memory_bytes() },
        "slots": slots_json(&app, &status),
        "waiting": status.waiting,
        "parked": { "conversations": status.parked, "bytes": status.parked_bytes,
                    "budget_bytes": app.service.options().parked_bytes },
        "totals": {
            "requests": totals.requests, "done": totals.done, "failed": totals.failed, "cancelled": totals.cancelled,
            "refused": totals.refused, "prompt_tokens": totals.prompt_tokens, "cached_tokens": totals.cached_tokens,
            "generated_tokens": totals.generated_tokens, "prompt_seconds": totals.prompt_time.as_secs_f64(),
            "decode_seconds": totals.decode_time.as_secs_f64(), "decode_steps": totals.decode_steps,
            "pictures": totals.pictures, "picture_seconds": totals.picture_time.as_secs_f64(),
        },
        "recent": status.recent.iter().rev().map(|recent| recent_json(&app, recent)).collect::<Vec<_>>(),
        "configuration": app.options.about,
    });
    Ok(json_response(StatusCode::OK, &reply))
}

/// What pictures may be, if the model sees any.
fn vision_json(app: &App) -> Json {
    app.model.vision.as_ref().map_or(Json::Null, |vision| {
        json!({
            "side_pixels": vision.side_pixels(), "min_tokens": vision.min_tokens, "max_tokens": vision.max_tokens,
            "max_pictures": MAX_PICTURES, "max_side_pixels": MAX_SIDE_PIXELS, "held_bytes": app.pictures.held_bytes(),
        })
    })
}

pub async fn props(app: Arc<App>, _request: HttpRequest) -> Result<Response, ApiError> {
    let sampling = &app.options.sampling;
    let reply = json!({
        "model_alias": app.options.model_name,
        "model_path": app.model.file,
        "total_slots": app.service.status().slots.len(),
        "chat_template": app.tokenizer.chat_template_source().unwrap_or_default(),
        "can_think": app.template.can_think(),
        "modalities": { "vision": app.model.vision.is_some(), "audio": false },
        "bos_token": app.tokenizer.bos().and_then(|id| app.tokenizer.token_text(id)),
        "eos_token": app.tokenizer.eos().and_then(|id| app.tokenizer.token_text(id)),
        "default_generation_settings": { "n_ctx": app.model.context, "params": {
            "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p,
            "repeat_penalty": sampling.repeat_penalty, "repeat_last_n": sampling.repeat_last_n,
            "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
        }},
        "build_info": format!("strata {}", env!("CARGO_PKG_VERSION")),
    });
    Ok(json_response(StatusCode::OK, &reply))
}

pub async fn tokenize(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let reply = in_background(&app, move |app| {
        let fields = Fields::body(&body)?;
        let text = fields.text("content")?.ok_or_else(|| fields.error("content", "the text is missing"))?;
        let special = if fields.bool("parse_special")?.unwrap_or(true) { Special::Parse } else { Special::AsText };
        let mut tokens = app.tokenizer.encode(text, special).map_err(|e| fields.error("content", e))?;
        if fields.bool("add_special")?.unwrap_or(false) {
            app.tokenizer.add_bos_eos(&mut tokens);
        }
        let pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let one = |id: &TokenId| match pieces {
            true => json!({ "id": id.0, "piece": app.tokenizer.token_text(*id).unwrap_or_default() }),
            false => json!(id.0),
        };
        Ok(json!({ "tokens": tokens.iter().map(one).collect::<Vec<_>>() }))
    })
    .await?;
    Ok(json_response(StatusCode::OK, &reply))
}

pub async fn detokenize(app: Arc<App>, request: HttpRequest) -> Result<Response, ApiError> {
    let body = app.read_json(request).await?;
    let fields = Fields::body(&body)?;
    let list = fields.list("tokens")?.ok_or_else(|| fields.error("tokens", "the list of token ids is missing"))?;
    let vocab = app.tokenizer.vocab_len() as u64;
    let id = |(i, value): (usize, &Json)| {
        let id = whole(value)
            .and_then(|id| u64::try_from(id).ok())
            .ok_or_else(|| wrong(format!("tokens[{i}]"), "a token id", value))?;
        match id < vocab {
            true => Ok(TokenId(id as u32)),
            false => Err(ApiError::field(format!("tokens[{i}]"), format!("{id} is not below the vocabulary's {vocab}"))),
        }
    };
    let tokens = list.iter().enumerate().map(id).collect::<Result<Vec<_>, ApiError>>()?;
    let text = app.tokenizer.decode(&tokens, ShowSpecial::Yes).map_err(|e| fields.error("tokens", e))?;
    Ok(json_response(StatusCode::OK, &json!({ "content": text })))
}
