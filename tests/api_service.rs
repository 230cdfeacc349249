//! Promise: requests share the engine fairly, end when their client goes away, reuse what was read before, and survive a
//! failing engine.

mod api_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api_support::*;
use serde_json::{Value as Json, json};
use strata::engine::service::{ServiceOptions, StepHook};
use strata::server::{Server, ServerOptions};

const CHAT: &str = "/v1/chat/completions";

fn with_hook(slots: u32, hook: StepHook) -> Setup {
    Setup { slots, service: ServiceOptions { before_step: Some(hook), ..ServiceOptions::default() }, ..Setup::default() }
}

fn text(reply: &Json) -> String {
    reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

fn total(server: &Server, key: &str) -> u64 {
    get(server, "/v1/status").json()["totals"][key].as_u64().unwrap()
}

#[test]
fn a_client_that_goes_away_stops_its_request() {
    let steps = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&steps);
    let hook: StepHook = Arc::new(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(5));
    });
    let server = with_hook(1, hook).start();
    for stream in [true, false] {
        let before = total(&server, "cancelled");
        let body = json!({ "messages": user("Tell me a story."), "ignore_eos": true, "max_tokens": 900, "stream": stream });
        let mut pending = send(&server, "POST", CHAT, &[], &body.to_string());
        if stream {
            pending.head();
            pending.chunk().expect("the stream has begun");
        } else {
            eventually("the request runs", || get(&server, "/slots").json()[0]["is_processing"] == true);
        }
        drop(pending);
        eventually("the request has ended", || total(&server, "cancelled") == before + 1);
        let at = steps.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(steps.load(Ordering::SeqCst), at, "nothing is computed any more");
    }
    assert!(text(&ask(&server, CHAT, &json!({ "messages": user(FRANCE) }))).contains("Paris"));
}

#[test]
fn clients_that_leave_at_any_byte_do_no_harm() {
    let server = Setup::default().start();
    let body = json!({ "messages": user(FRANCE), "stream": true }).to_string();
    let whole = send(&server, "POST", CHAT, &[], &body).read();
    let request = request_text("POST", CHAT, &[], &body);
    for cut in (0..request.len()).step_by(7) {
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        std::io::Write::write_all(&mut stream, &request.as_bytes()[..cut]).unwrap();
    }
    for bytes in (1..whole.body.len()).step_by(97) {
        let mut pending = send(&server, "POST", CHAT, &[], &body);
        std::io::Read::read_exact(&mut pending.stream, &mut vec![0; bytes]).unwrap();
    }
    eventually("all slots are free", || {
        get(&server, "/slots").json().as_array().unwrap().iter().all(|slot| slot["is_processing"] == false)
    });
    assert!(text(&ask(&server, CHAT, &json!({ "messages": user(FRANCE) }))).contains("Paris"));
}

#[test]
fn a_long_prompt_does_not_starve_a_running_answer() {
    // What the engine did, in order.
    let order = Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let log = Arc::clone(&order);
    let hook: StepHook = Arc::new(move |id| {
        log.lock().unwrap().push(id.to_owned());
        std::thread::sleep(Duration::from_millis(2));
    });
    let server = Setup { prompt_rows: 32, ..with_hook(2, hook) }.start();
    let body = json!({ "messages": user("Tell me a story."), "ignore_eos": true, "max_tokens": 400, "stream": true });
    let mut first = send(&server, "POST", CHAT, &[], &body.to_string());
    first.head();
    first.chunk().expect("the first answer runs");
    eventually("the engine works on it", || !order.lock().unwrap().is_empty());
    let first_id = order.lock().unwrap()[0].clone();
    let long = json!({ "messages": user(&long_text(600)), "max_tokens": 1 });
    ask(&server, CHAT, &long);
    drop(first);
    let order = order.lock().unwrap().clone();
    let begin = order.iter().position(|id| *id != first_id).expect("the second request ran");
    let end = order.iter().rposition(|id| *id != first_id).unwrap();
    let between = &order[begin..=end];
    let windows = between.iter().filter(|id| **id != first_id).count();
    assert!(windows > 10, "the prompt took {windows} windows");
    for pair in between.windows(2) {
        assert!(pair[0] == first_id || pair[1] == first_id, "no two windows of the prompt in a row");
    }
}

#[test]
fn two_clients_get_the_answers_they_would_get_alone() {
    let server = Setup::default().start();
    let questions = [FRANCE, "What is 12 + 30?", "My box holds the red key. What does my box hold?", "Say hello."];
    let body = |question: &str| json!({ "messages": user(question), "max_tokens": 40 });
    // Every question once before, so that each is read from the same checkpoint afterwards or not at all.
    let alone: Vec<String> = questions.iter().map(|question| text(&ask(&server, CHAT, &body(question)))).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let run = |question: &&'static str| text(&ask(&server, CHAT, &body(question)));
        let threads: Vec<_> = questions.iter().map(|question| scope.spawn(move || run(question))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

#[test]
fn prompts_are_read_once() {
    let server = Setup { slots: 2, ..Setup::default() }.start();
    let cached = |reply: &Json| reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
    let read = |reply: &Json| reply["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    let question = format!("{} {FRANCE}", long_text(100));
    let first = ask(&server, CHAT, &json!({ "messages": user(&question), "max_tokens": 30 }));
    assert_eq!(cached(&first), 0);
    // The same prompt: all but the opening of the answer.
    let again = ask(&server, CHAT, &json!({ "messages": user(&question), "max_tokens": 30 }));
    assert!(cached(&again) + 12 >= read(&again), "{again}");
    assert_eq!(text(&again), text(&first), "what was kept answers as what was read");
    // The next turn: the whole of the last one.
    let mut messages = user(&question);
    messages.as_array_mut().unwrap().push(json!({ "role": "assistant", "content": text(&first) }));
    messages.as_array_mut().unwrap().push(json!({ "role": "user", "content": "Thanks." }));
    let next = ask(&server, CHAT, &json!({ "messages": messages, "max_tokens": 5 }));
    assert!(cached(&next) + 4 >= read(&first) + first["usage"]["completion_tokens"].as_u64().unwrap() as usize, "{next}");
    // Another conversation takes the other slot and leaves this one alone.
    ask(&server, CHAT, &json!({ "messages": user("Say hello."), "max_tokens": 5 }));
    let later = ask(&server, CHAT, &json!({ "messages": messages, "max_tokens": 5 }));
    assert!(cached(&later) >= cached(&next), "{later}");
    assert!(total(&server, "cached_tokens") > 0);
}

#[test]
fn conversations_wait_in_ram_while_others_use_their_slots() {
    let budget = 64 << 20;
    let service = ServiceOptions { parked_bytes: budget, ..ServiceOptions::default() };
    let server = Setup { slots: 1, service, ..Setup::default() }.start();
    let cached = |reply: &Json| reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
    let read = |reply: &Json| reply["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    let opening = |word: &str| format!("{word} {} {FRANCE}", long_text(80));
    let turn = |question: &str, answer: Option<&str>| {
        let mut messages = user(question);
        if let Some(answer) = answer {
            let more = [json!({ "role": "assistant", "content": answer }), json!({ "role": "user", "content": "Thanks." })];
            messages.as_array_mut().unwrap().extend(more);
        }
        ask(&server, CHAT, &json!({ "messages": messages, "max_tokens": 20 }))
    };
    let first = turn(&opening("red"), None);
    let second = turn(&opening("blue"), None);
    assert!(cached(&second) * 2 < read(&second), "another conversation: {second}");
    let parked = get(&server, "/v1/status").json()["parked"].clone();
    assert_eq!(parked["conversations"], 1);
    assert!(parked["bytes"].as_u64().unwrap() > 0 && parked["budget_bytes"] == budget);
    // One slot, and still both conversations go on where they were.
    for (question, answer) in [(opening("red"), &first), (opening("blue"), &second)] {
        let next = turn(&question, Some(&text(answer)));
        assert!(cached(&next) + 4 >= read(answer), "{next}");
    }
}

#[test]
fn a_slow_reader_slows_nobody_and_loses_nothing() {
    let server = Setup::default().start();
    let body = json!({ "messages": user("Tell me a story."), "ignore_eos": true, "max_tokens": 700, "stream": true,
                       "logprobs": true, "top_logprobs": 20, "n": 4, "seed": 5 });
    let texts = |reply: &Reply| {
        let mut texts = vec![String::new(); 4];
        for chunk in reply.data() {
            for choice in chunk["choices"].as_array().unwrap() {
                texts[choice["index"].as_u64().unwrap() as usize] += choice["delta"]["content"].as_str().unwrap_or_default();
            }
        }
        texts
    };
    let fast = texts(&send(&server, "POST", CHAT, &[], &body.to_string()).read());
    // Megabytes of answer that nobody reads, more than the system takes on the way.
    let slow = send(&server, "POST", CHAT, &[], &body.to_string());
    assert!(text(&ask(&server, CHAT, &json!({ "messages": user(FRANCE) }))).contains("Paris"));
    eventually("the engine has done its part", || {
        get(&server, "/slots").json().as_array().unwrap().iter().all(|slot| slot["is_processing"] == false)
    });
    let reply = slow.read();
    assert!(reply.body.len() > 4 << 20, "{} bytes", reply.body.len());
    assert!(texts(&reply) == fast, "every token arrived");
}

#[test]
fn requests_of_one_instant_find_the_free_slots_beside_the_queue() {
    let hook: StepHook = Arc::new(|_| std::thread::sleep(Duration::from_millis(3)));
    let service = ServiceOptions { queue: 2, before_step: Some(hook), ..ServiceOptions::default() };
    let server = Setup { slots: 3, service, ..Setup::default() }.start();
    let body = json!({ "messages": user(FRANCE), "max_tokens": 10 });
    for _ in 0..5 {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..5).map(|_| scope.spawn(|| post(&server, CHAT, &body).status)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(statuses, [200; 5]);
    }
}

#[test]
fn a_panicking_engine_is_replaced() {
    let bomb = Arc::new(AtomicBool::new(false));
    let fuse = Arc::clone(&bomb);
    let hook: StepHook = Arc::new(move |_| {
        if fuse.swap(false, Ordering::SeqCst) {
            panic!("a test's panic");
        }
    });
    let server = with_hook(2, hook).start();
    let question = json!({ "messages": user(FRANCE) });
    for round in 1..=3 {
        bomb.store(true, Ordering::SeqCst);
        let reply = post(&server, CHAT, &question);
        assert_eq!(reply.status, 500, "{}", reply.body);
        assert_eq!(reply.json()["error"]["type"], "server_error");
        assert!(text(&ask(&server, CHAT, &question)).contains("Paris"), "the next request is served");
        let status = get(&server, "/v1/status").json();
        assert_eq!(status["restarts"], round);
        assert!(status["last_failure"].as_str().unwrap().contains("a test's panic"));
    }
    // In the middle of streams: each ends with exactly one error.
    for (path, body) in [
        (CHAT, json!({ "messages": user("Tell me a story."), "ignore_eos": true, "max_tokens": 300, "stream": true })),
        ("/v1/messages", json!({ "messages": user("Tell me a story."), "max_tokens": 300, "stream": true })),
        ("/v1/responses", json!({ "input": "Tell me a story.", "stream": true })),
    ] {
        let mut pending = send(&server, "POST", path, &[], &body.to_string());
        let (status, _) = pending.head();
        assert_eq!(status, 200);
        let mut body = pending.chunk().expect("the stream has begun");
        bomb.store(true, Ordering::SeqCst);
        while let Some(chunk) = pending.chunk() {
            body.push_str(&chunk);
        }
        assert_eq!(body.matches("the engine failed").count(), 1, "{path}: {body}");
    }
}

#[test]
fn a_full_queue_refuses_and_a_deadline_ends() {
    let hook: StepHook = Arc::new(|_| std::thread::sleep(Duration::from_millis(10)));
    let setup = with_hook(1, hook);
    let setup = Setup { service: ServiceOptions { queue: 1, ..setup.service.clone() }, ..setup };
    let options = ServerOptions { request_timeout: Some(Duration::from_millis(700)), ..setup.options.clone() };
    let server = Setup { options, ..setup }.start();
    let body = json!({ "messages": user("Tell me a story."), "ignore_eos": true, "max_tokens": 900 }).to_string();
    let start = Instant::now();
    let running = send(&server, "POST", CHAT, &[], &body);
    eventually("the first runs", || get(&server, "/slots").json()[0]["is_processing"] == true);
    let waiting = send(&server, "POST", CHAT, &[], &body);
    eventually("the second waits", || get(&server, "/v1/status").json()["waiting"] == 1);
    let refused = post(&server, CHAT, &serde_json::from_str(&body).unwrap());
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("queue_full")));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(running.read().status, 504);
    assert_eq!(waiting.read().status, 504);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn stopping_tells_everybody() {
    let hook: StepHook = Arc::new(|_| std::thread::sleep(Duration::from_millis(5)));
    let mut server = with_hook(1, hook).start();
    let body = json!({ "messages": user("Tell me a story."), "ignore_eos": true, "max_tokens": 900, "stream": true });
    let mut running = send(&server, "POST", CHAT, &[], &body.to_string());
    running.head();
    running.chunk();
    let waiting = send(&server, "POST", CHAT, &[], &json!({ "messages": user("Hi") }).to_string());
    eventually("the second waits", || get(&server, "/v1/status").json()["waiting"] == 1);
    let stopper = std::thread::spawn(move || server.stop());
    let mut rest = String::new();
    while let Some(chunk) = running.chunk() {
        rest.push_str(&chunk);
    }
    assert!(rest.contains("shutting down") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
    assert_eq!(waiting.read().status, 503);
    stopper.join().unwrap();
}

#[test]
fn silence_is_filled_with_comments() {
    let hook: StepHook = Arc::new(|_| std::thread::sleep(Duration::from_millis(120)));
    let setup = with_hook(1, hook);
    let setup = Setup {
        prompt_rows: 32,
        options: ServerOptions { keep_alive: Duration::from_millis(40), ..setup.options.clone() },
        ..setup
    };
    let server = setup.start();
    let body = json!({ "messages": user(&long_text(60)), "max_tokens": 2, "stream": true, "return_progress": true });
    let reply = post(&server, CHAT, &body);
    assert!(reply.body.contains(": keep-alive\n\n"), "{}", reply.body);
    assert!(reply.body.contains(": prompt 32/"), "{}", reply.body);
    let progress: Vec<Json> =
        reply.data().iter().map(|chunk| chunk["prompt_progress"].clone()).filter(|p| !p.is_null()).collect();
    assert!(progress.len() >= 2);
    assert_eq!(progress.last().unwrap()["processed"], progress[0]["total"]);
}

/// Open files of this process, where the system tells.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let server = Setup::default().start();
    let round = |count: usize| {
        for i in 0..count {
            match i % 10 {
                0 => drop(ask(&server, CHAT, &json!({ "messages": user("Hi"), "max_tokens": 1 }))),
                1 => assert_eq!(post(&server, CHAT, &json!({ "messages": 1 })).status, 400),
                _ => drop(ask(&server, "/tokenize", &json!({ "content": "The red box" }))),
            }
        }
        eventually("all connections are closed", || get(&server, "/v1/status").json()["waiting"] == 0);
        (open_files(), strata::engine::process_memory().map_or(0, |memory| memory.resident_bytes))
    };
    let (files, bytes) = round(200);
    let (files_after, bytes_after) = round(800);
    // Other tests of this binary run beside this one and open files of their own.
    assert!(files_after <= files + 60, "{files} open files became {files_after}");
    assert!(bytes_after <= bytes + (256 << 20), "{bytes} bytes became {bytes_after}");
}

#[test]
fn idle_connections_do_not_keep_the_server_from_stopping() {
    let mut server = Setup { slots: 1, ..Setup::default() }.start();
    let _idle: Vec<_> = (0..5).map(|_| std::net::TcpStream::connect(server.address()).unwrap()).collect();
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(8));
}
