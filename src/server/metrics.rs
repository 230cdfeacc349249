//! Counters for Prometheus. What the engine counts is read from its status at the time of the question.

use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::engine::service::{SlotState, Status};

type Labels = Vec<(&'static str, String)>;

pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    headers_seconds: Histogram,
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("strata");
        let requests = Family::<Labels, Counter>::default();
        registry.register("http_requests", "HTTP requests by route and status", requests.clone());
        let headers_seconds = Histogram::new(exponential_buckets(0.001, 2.0, 16));
        let help = "Time until the response began, seconds";
        registry.register("http_response_start_seconds", help, headers_seconds.clone());
        Metrics { registry, requests, headers_seconds }
    }

    pub fn request(&self, route: &'static str, status: u16, time: Duration) {
        self.requests.get_or_create(&vec![("route", route.to_owned()), ("status", status.to_string())]).inc();
        self.headers_seconds.observe(time.as_secs_f64());
    }

    /// Everything as text.
    pub fn text(&self, status: &Status) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        let end = text.rfind("# EOF").unwrap_or(text.len());
        text.truncate(end);
        engine(&mut text, status);
        text.push_str("# EOF\n");
        text
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

fn engine(text: &mut String, status: &Status) {
    use std::fmt::Write as _;
    let totals = &status.totals;
    let mut line = |name: &str, kind: &str, help: &str, value: f64| {
        let suffix = if kind == "counter" { "_total" } else { "" };
        let _ = writeln!(text, "# HELP strata_{name} {help}.\n# TYPE strata_{name} {kind}\nstrata_{name}{suffix} {value}");
    };
    let busy = status.slots.iter().filter(|slot| slot.state != SlotState::Idle).count();
    let held: usize = status.slots.iter().map(|slot| slot.held_tokens).sum();
    line("requests", "counter", "Requests that got a slot", totals.requests as f64);
    line("requests_done", "counter", "Requests that ended well", totals.done as f64);
    line("requests_failed", "counter", "Requests that failed", totals.failed as f64);
    line("requests_cancelled", "counter", "Requests whose client left or whose time ran out", totals.cancelled as f64);
    line("requests_refused", "counter", "Requests refused because the queue was full", totals.refused as f64);
    line("prompt_tokens", "counter", "Tokens of prompts", totals.prompt_tokens as f64);
    line("cached_tokens", "counter", "Tokens of prompts that were not read again", totals.cached_tokens as f64);
    line("generated_tokens", "counter", "Tokens generated", totals.generated_tokens as f64);
    line("prompt_seconds", "counter", "Time spent reading prompts", totals.prompt_time.as_secs_f64());
    line("decode_seconds", "counter", "Time spent decoding", totals.decode_time.as_secs_f64());
    line("engine_restarts", "counter", "Times the engine was opened again after a failure", status.restarts as f64);
    line("slots", "gauge", "Slots", status.slots.len() as f64);
    line("slots_busy", "gauge", "Slots with a request", busy as f64);
    line("requests_waiting", "gauge", "Requests that wait for a slot", status.waiting as f64);
    line("held_tokens", "gauge", "Tokens that the slots hold", held as f64);
}
