//! Promise: only those reach the server who may: keys, hosts, origins.

mod api_support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use api_support::*;
use serde_json::json;
use strata::server::{Server, ServerOptions, openapi_document};

fn server(change: impl FnOnce(&mut ServerOptions)) -> Server {
    let mut setup = Setup { slots: 1, ..Setup::default() };
    change(&mut setup.options);
    setup.start()
}

fn status(server: &Server, path: &str, headers: &[(&str, &str)]) -> u16 {
    send(server, "GET", path, headers, "").read().status
}

#[test]
fn hosts_and_origins() {
    let server = server(|options| {
        options.hosts = vec!["strata.lan".into()];
        options.origins = vec!["http://app.example".into()];
    });
    let port = server.address().port();
    let own = format!("127.0.0.1:{port}");
    for (host, expected) in [
        ("localhost", 200),
        (own.as_str(), 200),
        ("[::1]:1", 200),
        ("LOCALHOST.", 200),
        ("strata.lan:80", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("192.168.1.5", 403),
        ("", 403),
    ] {
        assert_eq!(status(&server, "/v1/models", &[("host", host)]), expected, "host {host:?}");
        assert_eq!(status(&server, "/health", &[("host", host)]), expected, "open routes too: {host:?}");
    }
    let same = format!("http://{own}");
    for (origin, expected) in [
        (same.as_str(), 200),
        ("http://app.example", 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("http://app.example.evil", 403),
    ] {
        assert_eq!(status(&server, "/v1/models", &[("host", &own), ("origin", origin)]), expected, "origin {origin}");
    }
    let preflight = [("origin", "http://app.example"), ("access-control-request-method", "POST")];
    let reply = send(&server, "OPTIONS", "/v1/chat/completions", &preflight, "").read();
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (204, Some("http://app.example")));
    let reply = send(&server, "OPTIONS", "/v1/chat/completions", &[("origin", "http://evil.example")], "").read();
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (403, None));
    let reply = get(&server, "/v1/models");
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
}

#[test]
fn keys() {
    let server = server(|options| options.api_keys = vec!["first-key".into(), "second".into()]);
    for (headers, expected) in [
        (vec![], 401),
        (vec![("authorization", "Bearer first-key")], 200),
        (vec![("authorization", "bearer second")], 200),
        (vec![("x-api-key", "second")], 200),
        (vec![("authorization", "Bearer first-ke")], 401),
        (vec![("authorization", "Bearer first-key2")], 401),
        (vec![("authorization", "Bearer ")], 401),
        (vec![("authorization", "Basic second")], 401),
        (vec![("authorization", "Bearer wrong"), ("x-api-key", "second")], 200),
    ] {
        assert_eq!(status(&server, "/v1/models", &headers), expected, "{headers:?}");
    }
    for open in ["/health", "/", "/docs", "/web/app.js", "/openapi.json"] {
        assert_eq!(status(&server, open, &[]), 200, "{open}");
    }
    for closed in ["/v1/status", "/metrics", "/slots", "/props"] {
        assert_eq!(status(&server, closed, &[]), 401, "{closed}");
    }
    let reply = post(&server, "/v1/messages", &json!({}));
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (401, &json!("authentication_error")));
}

#[test]
fn nobody_holds_a_connection_without_asking_for_something() {
    let server = server(|options| (options.patience, options.max_connections) = (Duration::from_millis(300), 2));
    let open = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.address()).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream.write_all(bytes).expect("the request is sent");
        stream
    };
    let rest = |mut stream: TcpStream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an end");
        text
    };
    assert_eq!(rest(open(b"")), "", "a connection without a request");
    assert!(!rest(open(b"POST /v1/completions HTTP/1.1\r\nhost: local")).starts_with("HTTP/1.1 200"), "half a head");
    let half = rest(open(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"prompt\":"));
    assert!(half.starts_with("HTTP/1.1 408"), "half a body: {half}");
    // Two idle connections are all there may be; who comes then waits until they are closed, and is served.
    let idle = [open(b""), open(b"")];
    assert_eq!(get(&server, "/health").status, 200);
    assert_eq!(idle.map(rest), ["", ""]);
    // A long answer is not cut off.
    let body = json!({ "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true });
    assert!(post(&server, "/v1/completions", &body).body.ends_with("data: [DONE]\n\n"));
}

#[test]
fn the_page_is_whole_and_asks_nobody_else() {
    let server = server(|_| ());
    let page = get(&server, "/");
    assert_eq!(page.status, 200);
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    let mut files = 0;
    let docs = get(&server, "/docs");
    assert_eq!((docs.status, docs.header("content-security-policy")), (200, page.header("content-security-policy")));
    for part in (page.body + &docs.body).split(['"', '\'']).filter(|part| part.starts_with("/web/")) {
        assert_eq!(get(&server, part).status, 200, "{part}");
        files += 1;
    }
    assert!(files >= 4);
    for file in
        ["/", "/web/app.js", "/web/chat.js", "/web/monitor.js", "/web/markdown.js", "/web/style.css", "/docs", "/web/docs.js"]
    {
        let text = get(&server, file).body;
        let text = text.replace("http://www.w3.org/", "").replace("http://localhost", "").replace("https?:", "");
        assert!(!text.contains("http://") && !text.contains("https://"), "{file} names another server");
    }
    let without = Setup { slots: 1, ..Setup::default() };
    let without = Setup { options: ServerOptions { web: false, ..without.options.clone() }, ..without }.start();
    assert_eq!(get(&without, "/").status, 404);
}

#[test]
fn native_routes_and_the_document() {
    let server = server(|options| options.show_texts = true);
    ask(&server, "/v1/chat/completions", &json!({ "messages": user(FRANCE) }));
    assert_eq!(get(&server, "/health").json()["status"], "ok");
    eventually("the request is recorded", || get(&server, "/v1/status").json()["recent"][0]["text"] == FRANCE);
    let status = get(&server, "/v1/status").json();
    assert_eq!((&status["state"], &status["totals"]["done"]), (&json!("ready"), &json!(1)));
    assert!(status["engine"]["memory"]["weights_bytes"].as_u64().unwrap() > 1_000_000);
    let device = &status["engine"]["devices"][0];
    assert_eq!((&device["id"], &device["late_allocations"]), (&json!("cpu"), &json!(0)));
    assert!(status["activity"]["what"].is_string());
    let metrics = get(&server, "/metrics").body;
    assert!(metrics.contains("strata_requests_done_total 1\n"), "{metrics}");
    assert!(metrics.contains("strata_http_requests_total{route=\"chat\",status=\"200\"} 1\n"), "{metrics}");
    assert!(metrics.trim_end().ends_with("# EOF"));
    assert_eq!(get(&server, "/slots").json().as_array().unwrap().len(), 1);
    assert_eq!(get(&server, "/props").json()["default_generation_settings"]["n_ctx"], CONTEXT);
    let tokens = ask(&server, "/tokenize", &json!({ "content": "The red box", "with_pieces": true }))["tokens"].clone();
    let ids: Vec<_> = tokens.as_array().unwrap().iter().map(|token| token["id"].clone()).collect();
    assert_eq!(ask(&server, "/detokenize", &json!({ "tokens": ids }))["content"], "The red box");
    let document = get(&server, "/openapi.json").json();
    let vocab = status["model"]["vocab"].as_u64().unwrap() as usize;
    assert_eq!(document, openapi_document(vocab, None, false));
    assert!(document["paths"]["/v1/embeddings"].is_null(), "what cannot be answered is not offered");
    for line in strata::server::listing(false) {
        let mut words = line.split_whitespace();
        let (method, path) = (words.next().unwrap().to_lowercase(), words.next().unwrap());
        assert!(document["paths"][path][&method].is_object(), "{line} is described");
    }
}
