//! Promise: through every API the model sees the pictures it is sent, each of them itself: the same picture comes from the cache,
//! another one does not. (The encoder's weights are random: the model sees something, and nobody knows what.)

mod api_support;
mod picture_support;

use std::sync::LazyLock;

use api_support::*;
use picture_support::{address, file, image, image_url, png, says, text};
use serde_json::{Value as Json, json};
use strata::engine::service::ServiceOptions;
use strata::server::Server;

const CHAT: &str = "/v1/chat/completions";
const QUESTION: &str = "What is the capital of France?";

static SERVER: LazyLock<Server> = LazyLock::new(|| Setup { sees: true, ..Setup::default() }.start());

/// A picture that is taken as it is: 4 x 3 tokens of 32 pixels.
fn picture(seed: u32) -> String {
    address(&png(128, 96, seed))
}

fn chat(picture: &str) -> Json {
    json!({ "messages": says(json!([image_url(picture), text(QUESTION)])), "max_tokens": 8 })
}

fn cached(reply: &Json) -> u64 {
    reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("cached tokens")
}

fn prompt_tokens(reply: &Json) -> u64 {
    reply["usage"]["prompt_tokens"].as_u64().expect("prompt tokens")
}

/// Log-probabilities of the first token of an answer.
fn first_scores(server: &Server, mut body: Json) -> Json {
    (body["logprobs"], body["top_logprobs"], body["max_tokens"]) = (json!(true), json!(5), json!(1));
    ask(server, CHAT, &body)["choices"][0]["logprobs"]["content"][0]["top_logprobs"].clone()
}

#[test]
fn every_api_answers_the_same_about_a_picture() {
    let picture = picture(1);
    let reply = ask(&SERVER, CHAT, &chat(&picture));
    let template = ask(&SERVER, "/apply-template", &chat(&picture));
    assert_eq!(prompt_tokens(&reply) as usize, template["tokens"].as_array().unwrap().len());
    let said = reply["choices"][0]["message"]["content"].as_str().unwrap();
    let parts = json!([{ "type": "input_image", "image_url": picture }, { "type": "input_text", "text": QUESTION }]);
    let response = ask(&SERVER, "/v1/responses", &json!({ "input": says(parts), "max_output_tokens": 8 }));
    assert_eq!(response["output"][0]["content"][0]["text"], said);
    assert_eq!(response["usage"]["input_tokens"], prompt_tokens(&reply));
    let blocks = says(json!([image(&picture), text(QUESTION)]));
    let message = ask(&SERVER, "/v1/messages", &json!({ "messages": blocks, "max_tokens": 8 }));
    assert_eq!(message["content"][0]["text"], said);
    let mut streamed = chat(&picture);
    streamed["stream"] = json!(true);
    let pieces = post(&SERVER, CHAT, &streamed).data();
    let text: String = pieces.iter().filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, said);
}

#[test]
fn what_a_picture_shows_decides_and_not_how_it_was_written() {
    let server = Setup { sees: true, ..Setup::default() }.start();
    let scores = |url: &str| first_scores(&server, chat(url));
    let (png, webp) = (address(&file("photo.png")), address(&file("lossless.webp")));
    assert_eq!(scores(&png), scores(&webp));
    assert_ne!(scores(&png), scores(&address(&file("grey.png"))));
    assert_ne!(scores(&picture(1)), scores(&picture(2)));
    // Two pictures are not the same the other way round.
    let pair =
        |a: u32, b: u32| json!({ "messages": says(json!([image_url(&picture(a)), image_url(&picture(b)), text(QUESTION)])) });
    assert_ne!(first_scores(&server, pair(1, 2)), first_scores(&server, pair(2, 1)));
}

#[test]
fn the_same_picture_comes_from_the_cache_and_another_does_not() {
    let server = Setup { sees: true, slots: 1, ..Setup::default() }.start();
    let first = ask(&server, CHAT, &chat(&picture(1)));
    assert_eq!(cached(&first), 0);
    // What leads to the picture, and what does not follow from it: the state before the last turn.
    let template = ask(&server, "/apply-template", &chat(&picture(1)));
    let tokens: Vec<u64> = template["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let pad = tokens.iter().position(|id| *id == 2041).unwrap() as u64;
    let again = ask(&server, CHAT, &chat(&picture(1)));
    assert!(cached(&again) > pad + 12, "{} of {}", cached(&again), prompt_tokens(&again));
    assert_eq!(again["choices"][0]["message"], first["choices"][0]["message"]);
    let other = ask(&server, CHAT, &chat(&picture(2)));
    assert!(cached(&other) <= pad, "{} of {}, the picture stands at {pad}", cached(&other), prompt_tokens(&other));
    // The same tokens without a picture are another prompt.
    let typed = ask(&server, "/v1/completions", &json!({ "prompt": tokens, "max_tokens": 1 }));
    assert!(cached(&typed) <= pad, "{} of {}", cached(&typed), prompt_tokens(&typed));
    let last = ask(&server, CHAT, &chat(&picture(1)));
    assert!(cached(&last) <= pad);
    assert_eq!(last["choices"][0]["message"], first["choices"][0]["message"]);
}

#[test]
fn a_conversation_goes_on_about_its_picture_also_from_ram() {
    let service = ServiceOptions { parked_bytes: 64 << 20, ..ServiceOptions::default() };
    let server = Setup { sees: true, slots: 1, service, ..Setup::default() }.start();
    let first = ask(&server, CHAT, &chat(&picture(3)));
    let said = first["choices"][0]["message"]["content"].clone();
    let mut messages = says(json!([image_url(&picture(3)), text(QUESTION)]));
    let turns = messages.as_array_mut().unwrap();
    turns.extend([json!({ "role": "assistant", "content": said }), json!({ "role": "user", "content": "And of Italy?" })]);
    let next = json!({ "messages": messages, "max_tokens": 8 });
    let expected = ask(&server, CHAT, &next);
    assert!(cached(&expected) > 12, "{}", cached(&expected));
    // Somebody else needs the slot.
    ask(&server, CHAT, &json!({ "messages": user(&long_text(60)), "max_tokens": 4 }));
    assert!(get(&server, "/v1/status").json()["parked"]["conversations"].as_u64().unwrap() >= 1);
    let back = ask(&server, CHAT, &next);
    assert!(cached(&back) > 12, "{}", cached(&back));
    assert_eq!(back["choices"], expected["choices"]);
}

#[test]
fn several_answers_and_requests_share_a_picture() {
    let mut body = chat(&picture(4));
    body["n"] = json!(2);
    let reply = ask(&SERVER, CHAT, &body);
    assert_eq!(reply["choices"][0]["message"], reply["choices"][1]["message"]);
    let body = chat(&picture(5)).to_string();
    let alone = send(&SERVER, "POST", CHAT, &[], &body).read().json();
    let both: Vec<Pending> = (0..2).map(|_| send(&SERVER, "POST", CHAT, &[], &body)).collect();
    for pending in both {
        assert_eq!(pending.read().json()["choices"][0]["message"], alone["choices"][0]["message"]);
    }
    eventually("nobody holds a picture", || get(&SERVER, "/v1/status").json()["model"]["vision"]["held_bytes"] == 0);
}

#[test]
fn a_broken_picture_leaves_the_engine_as_it_was() {
    let before = ask(&SERVER, CHAT, &chat(&picture(6)));
    let reply = post(&SERVER, CHAT, &chat(&address(&file("photo.png")[..500])));
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("messages[0].content[0].image_url.url"), "{}", reply.body);
    let after = ask(&SERVER, CHAT, &chat(&picture(6)));
    assert_eq!(after["choices"][0]["message"], before["choices"][0]["message"]);
    assert_eq!(get(&SERVER, "/v1/status").json()["restarts"], 0);
}
