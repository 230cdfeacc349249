//! Promise: a thousand requests in a row leave nothing behind: no memory, no files, no threads. Alone in its process, so that
//! what is counted is the server's.

mod api_support;

use api_support::*;
use serde_json::{Value as Json, json};
use strata::server::Server;

/// What this process holds, where the system tells.
#[derive(Debug)]
struct Held {
    files: usize,
    threads: usize,
    resident_bytes: u64,
}

fn held() -> Held {
    let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let resident_bytes = strata::engine::process_memory().map_or(0, |memory| memory.resident_bytes);
    Held { files: entries("/proc/self/fd"), threads: entries("/proc/self/task"), resident_bytes }
}

/// A request of another kind for every number, of all that clients send.
fn request(server: &Server, number: usize) {
    // Different texts, so that nothing is answered from what lies there already.
    let text = format!("{FRANCE} {number}");
    let schema = json!({ "type": "object", "required": ["a"], "properties": { "a": { "enum": [number, "x"] } } });
    let (path, body, status): (&str, Json, u16) = match number % 10 {
        0 => ("/v1/chat/completions", json!({ "messages": user(&text), "max_tokens": 4 }), 200),
        1 => ("/v1/chat/completions", json!({ "messages": user(&text), "max_tokens": 4, "stream": true, "logprobs": true }), 200),
        2 => ("/v1/messages", json!({ "messages": user(&text), "max_tokens": 4, "stream": true }), 200),
        3 => ("/v1/responses", json!({ "input": text, "max_output_tokens": 4 }), 200),
        4 => ("/v1/completions", json!({ "prompt": text, "max_tokens": 4, "n": 2 }), 200),
        5 => ("/v1/chat/completions", json!({ "messages": number }), 400),
        6 => ("/tokenize", json!({ "content": text }), 200),
        7 => {
            let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
            ("/v1/chat/completions", json!({ "messages": user(&text), "max_tokens": 4, "response_format": format }), 200)
        }
        8 => {
            // A client that leaves in the middle.
            let body = json!({ "messages": user(&text), "ignore_eos": true, "max_tokens": 900, "stream": true }).to_string();
            let mut pending = send(server, "POST", "/v1/chat/completions", &[], &body);
            pending.head();
            pending.chunk();
            return;
        }
        _ => {
            assert_eq!(get(server, "/v1/status").status, 200);
            return;
        }
    };
    let reply = post(server, path, &body);
    assert_eq!(reply.status, status, "{path} {body}: {}", reply.body);
}

#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let server = Setup::default().start();
    let round = |numbers: std::ops::Range<usize>| {
        numbers.for_each(|number| request(&server, number));
        eventually("the server is at rest", || {
            get(&server, "/slots").json().as_array().unwrap().iter().all(|slot| slot["is_processing"] == false)
        });
        held()
    };
    // Until every buffer has its size and every pool its threads.
    let before = round(0..300);
    let after = round(300..1300);
    assert!(after.files <= before.files + 4, "{before:?} became {after:?}");
    assert!(after.threads <= before.threads + 4, "{before:?} became {after:?}");
    assert!(after.resident_bytes <= before.resident_bytes + (16 << 20), "{before:?} became {after:?}");
    println!("{before:?} became {after:?}");
}
