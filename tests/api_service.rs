//! Promise: requests share the engine fairly, end when their client goes away, reuse what was read before, and survive a
//! failing engine.

mod api_support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
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

fn idle(server: &Server) -> bool {
    get(server, "/slots").json().as_array().unwrap().iter().all(|slot| slot["is_processing"] == false)
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
    let body = json!({ "messages": user(FRANCE), "stream": true, "max_tokens": 2 }).to_string();
    let request = request_text("POST", CHAT, &[], &body);
    let open = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.address()).expect("the server listens");
        stream.write_all(bytes).expect("the request is sent");
        stream
    };
    let mut whole = Vec::new();
    open(request.as_bytes()).read_to_end(&mut whole).expect("an answer");
    (0..request.len()).for_each(|cut| drop(open(&request.as_bytes()[..cut])));
    for bytes in 0..whole.len() {
        let mut stream = open(request.as_bytes());
        // The last bytes may be fewer: chunks are cut by what is there at once.
        let _ = stream.read_exact(&mut vec![0; bytes]);
    }
    eventually("all slots are free", || idle(&server));
    let totals = get(&server, "/v1/status").json()["totals"].clone();
    assert!(totals["cancelled"].as_u64().unwrap() > 0, "some left before the end: {totals}");
    assert_eq!((&totals["failed"], &get(&server, "/v1/status").json()["restarts"]), (&json!(0), &json!(0)));
    assert!(text(&ask(&server, CHAT, &json!({ "messages": user(FRANCE) }))).contains("Paris"));
}

/// What the engine did, request by request, in order.
type Order = Arc<Mutex<Vec<String>>>;

fn logging(pause: Duration) -> (Order, StepHook) {
    let order = Order::default();
    let log = Arc::clone(&order);
    let hook: StepHook = Arc::new(move |id| {
        log.lock().unwrap().push(id.to_owned());
        std::thread::sleep(pause);
    });
    (order, hook)
}

#[test]
fn a_prompt_of_4096_tokens_holds_a_running_answer_up_for_a_window_a_token() {
    let (order, hook) = logging(Duration::ZERO);
    let server = Setup { context: 6000, prompt_rows: 512, ..with_hook(2, hook) }.start();
    let body = json!({ "messages": user("Tell me a story."), "ignore_eos": true, "max_tokens": 5000, "stream": true });
    let mut first = send(&server, "POST", CHAT, &[], &body.to_string());
    first.head();
    first.chunk().expect("the first answer runs");
    eventually("the engine works on it", || !order.lock().unwrap().is_empty());
    let first_id = order.lock().unwrap()[0].clone();
    let long = ask(&server, CHAT, &json!({ "messages": user(&long_text(4096)), "max_tokens": 1 }));
    drop(first);
    assert!(long["usage"]["prompt_tokens"].as_u64().unwrap() > 4096, "{long}");
    let order = order.lock().unwrap().clone();
    let begin = order.iter().position(|id| *id != first_id).expect("the second request ran");
    let end = order.iter().rposition(|id| *id != first_id).unwrap();
    let between = &order[begin..=end];
    let windows = between.iter().filter(|id| **id != first_id).count();
    assert!(windows > 8, "the prompt took {windows} windows");
    for pair in between.windows(2) {
        assert!(pair[0] == first_id || pair[1] == first_id, "no two windows of the prompt in a row");
    }
}

/// Sends `bodies` one after the other and then all at once; the answers must be the same to the last bit of every
/// probability.
fn compare_alone_and_together(model: &'static str, path: &str, bodies: &[Json]) {
    // Slow enough that those sent at once run at once.
    let (order, hook) = logging(Duration::from_millis(1));
    let server = Setup { model, ..with_hook(2, hook) }.start();
    let choices = |body: &Json| ask(&server, path, body)["choices"].clone();
    // Every question once before, so that each is read from the same checkpoint afterwards or not at all.
    let alone: Vec<Json> = bodies.iter().map(choices).collect();
    let changes = |ids: &[String]| ids.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let before = order.lock().unwrap().len();
    assert_eq!(changes(&order.lock().unwrap()), bodies.len() - 1, "one after the other");
    let together: Vec<Json> = std::thread::scope(|scope| {
        let threads: Vec<_> = bodies.iter().map(|body| scope.spawn(|| choices(body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone, "{model}");
    let changes = changes(&order.lock().unwrap()[before..]);
    assert!(changes > 2 * bodies.len(), "the requests took turns {changes} times");
}

#[test]
fn two_clients_get_the_answers_they_would_get_alone() {
    let questions = [FRANCE, "What is 12 + 30?", "My box holds the red key. What does my box hold?", "Say hello."];
    let body = |question| json!({ "messages": user(question), "max_tokens": 40, "ignore_eos": true, "logprobs": true, "top_logprobs": 5 });
    compare_alone_and_together(BUILT_IN, CHAT, &questions.map(body));
}

#[test]
fn two_clients_of_a_float_model_too() {
    let prompts = ["The red box", "A key of the house and", "One two three", "In the morning the"];
    let mut seed = 0;
    let body = |prompt| {
        seed += 1;
        json!({ "prompt": prompt, "max_tokens": 40, "ignore_eos": true, "logprobs": 5, "temperature": 1.0, "seed": seed })
    };
    compare_alone_and_together("tests/fixtures/tiny-random-BF16.gguf", "/v1/completions", &prompts.map(body));
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
fn a_raw_prompt_that_comes_again_is_read_once() {
    let server = Setup::default().start();
    let body = json!({ "prompt": long_text(200), "max_tokens": 5, "ignore_eos": true });
    let first = ask(&server, "/v1/completions", &body);
    let again = ask(&server, "/v1/completions", &body);
    let usage = &again["usage"];
    let (read, cached) = (&usage["prompt_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]);
    assert_eq!(cached.as_u64(), read.as_u64().map(|read| read - 1), "all but the token whose scores are needed: {usage}");
    assert_eq!(again["choices"], first["choices"]);
}

#[test]
fn times_of_the_engine_count_once_however_many_answers_share_a_window() {
    let server = Setup { slots: 4, ..Setup::default() }.start();
    let start = Instant::now();
    ask(&server, CHAT, &json!({ "messages": user("Tell me a story."), "ignore_eos": true, "max_tokens": 300, "n": 4 }));
    let most = start.elapsed().as_secs_f64();
    eventually("all are recorded", || total(&server, "done") == 4);
    let status = get(&server, "/v1/status").json();
    let seconds = |key: &str| status["totals"][key].as_f64().unwrap();
    assert!(seconds("decode_seconds") > 0.0 && seconds("prompt_seconds") > 0.0);
    assert!(seconds("decode_seconds") + seconds("prompt_seconds") <= most, "in {most} s: {}", status["totals"]);
    let metrics = get(&server, "/metrics").body;
    assert!(metrics.contains("strata_generated_tokens_total 1200\n"), "{metrics}");
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
    eventually("the engine has done its part", || idle(&server));
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
        ("/v1/completions", json!({ "prompt": "Once", "ignore_eos": true, "max_tokens": 300, "stream": true })),
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
        assert!(text(&ask(&server, CHAT, &question)).contains("Paris"), "the next request is served");
    }
}

#[test]
fn an_engine_that_does_not_come_back_is_told_and_tried_again() {
    let bomb = Arc::new(AtomicBool::new(false));
    let fuse = Arc::clone(&bomb);
    let hook: StepHook = Arc::new(move |_| assert!(!fuse.swap(false, Ordering::SeqCst), "a test's panic"));
    let setup = with_hook(2, hook);
    let failing = Arc::clone(&setup.failing_opens);
    let server = setup.start();
    let question = json!({ "messages": user(FRANCE) });
    failing.store(1, Ordering::SeqCst);
    bomb.store(true, Ordering::SeqCst);
    assert_eq!(post(&server, CHAT, &question).status, 500);
    eventually("the engine is down", || get(&server, "/v1/status").json()["state"] == "down");
    assert_eq!((get(&server, "/health").status, get(&server, "/health").json()["status"].clone()), (503, json!("down")));
    let refused = post(&server, CHAT, &question);
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("a test's refusal"), "{}", refused.body);
    eventually("the engine is open again", || get(&server, "/health").status == 200);
    assert!(text(&ask(&server, CHAT, &question)).contains("Paris"));
}

#[test]
fn a_step_that_takes_too_long_is_seen_with_what_it_was_about() {
    let (gate, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    // Goes on when the gate is gone.
    let hook: StepHook = Arc::new(move |_| held.lock().unwrap().recv().unwrap_or_default());
    let server = with_hook(1, hook).start();
    let status = || server.app().service.status();
    eventually("an idle engine is not stalled", || !status().is_stalled(Duration::ZERO));
    let pending = send(&server, "POST", CHAT, &[], &json!({ "messages": user(FRANCE), "max_tokens": 3 }).to_string());
    eventually("the step takes long", || status().is_stalled(Duration::from_millis(50)));
    let activity = get(&server, "/v1/status").json()["activity"].clone();
    assert_eq!(activity["what"], "reading a prompt");
    assert_eq!(activity["request"], get(&server, "/slots").json()[0]["request"]);
    let open = get(&server, "/v1/status").json()["http"].clone();
    let routes: Vec<&str> = open.as_array().unwrap().iter().map(|request| request["route"].as_str().unwrap()).collect();
    assert_eq!(routes, ["chat", "status"], "what has no response yet, the oldest first");
    assert_eq!(get(&server, "/health").status, 200, "a minute may pass before that counts as a stall");
    drop(gate);
    assert_eq!(pending.read().status, 200);
    eventually("the engine rests", || !status().is_stalled(Duration::ZERO));
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

#[test]
fn idle_connections_do_not_keep_the_server_from_stopping() {
    let mut server = Setup { slots: 1, ..Setup::default() }.start();
    let _idle: Vec<_> = (0..5).map(|_| std::net::TcpStream::connect(server.address()).unwrap()).collect();
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(8));
}
