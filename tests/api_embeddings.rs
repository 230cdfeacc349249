//! Promise: an embedding model gives the vectors of a float64 reference that llama.cpp confirms (see
//! tests/fixtures/families/README.md), however a text is cut into windows and wherever the layers lie, and `/v1/embeddings` hands
//! them out in the forms that clients ask for. Models that write text, and texts asked of embedding models, are refused.

mod api_support;
mod common;

use std::path::PathBuf;

use api_support::*;
use base64::Engine as _;
use common::gpu::{open_card, software_card};
use common::npz::Npz;
use common::{fixture, ids, open_on, open_path, options, relative_l2, split_path};
use serde_json::{Value as Json, json};
use strata::backend::cpu::Mode;
use strata::engine::{Embedding, EmbeddingProgress, Engine, GenerateError, OpenOptions};
use strata::server::{Server, openapi_document};
use strata::units::TokenId;

const PATH: &str = "/v1/embeddings";
/// By the last token, which ends every text; by the mean of all.
const MODELS: [&str; 2] = ["qwen3-embed-last", "llama-embed-mean"];
const LAST: &str = "tests/fixtures/families/qwen3-embed-last.gguf";
const MEAN: &str = "tests/fixtures/families/llama-embed-mean.gguf";
const WIDTH: usize = 64;
/// The token that ends a text, the last of the vocabulary.
const END: u32 = 257;

fn path(name: &str) -> PathBuf {
    fixture(&format!("families/{name}.gguf"))
}

fn reference(name: &str) -> (Vec<TokenId>, Vec<f32>) {
    let mut npz = Npz::open(&fixture(&format!("families/{name}.npz")));
    (ids(&npz.ints("tokens")), npz.floats("embedding"))
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    relative_l2([(a, b)].into_iter())
}

/// Windows of at most `rows` rows, all of which may be wanted.
fn windows_of(mode: Mode, rows: u32) -> OpenOptions {
    OpenOptions { max_outputs: rows, decode_rows: 1, ..options(mode, 128, rows) }
}

fn vector(engine: &mut Engine, tokens: &[TokenId]) -> Vec<f32> {
    let mut sequence = engine.start().expect("a free slot");
    let mut embedding = Embedding::new(engine.dims(), tokens.to_vec()).expect("an embedding model");
    loop {
        if let EmbeddingProgress::Vector(vector) = embedding.step(engine, &mut sequence).expect("a step") {
            engine.end(sequence);
            return vector;
        }
    }
}

#[test]
fn vectors_equal_the_reference_in_windows_of_any_size() {
    for name in MODELS {
        let (tokens, expected) = reference(name);
        for (mode, bound) in [(Mode::Reference, 1e-5), (Mode::Fast, 5e-3)] {
            for rows in [1, 7, 128] {
                let mut engine = open_path(&path(name), mode, 2, windows_of(mode, rows));
                let got = distance(&vector(&mut engine, &tokens), &expected);
                assert!(got <= bound, "{name} {mode:?}, windows of {rows}: relative L2 {got:.2e}");
                assert_eq!(engine.late_allocations(), 0);
            }
        }
    }
}

#[test]
fn two_devices_give_the_bits_of_one() {
    for name in MODELS {
        let tokens = reference(name).0;
        let options = windows_of(Mode::Fast, 16);
        let one = vector(&mut open_path(&path(name), Mode::Fast, 2, options.clone()), &tokens);
        let mut two = split_path(&path(name), Mode::Fast, &[1, 2], options).expect("the split opens");
        assert_eq!(vector(&mut two, &tokens), one, "{name}");
    }
}

#[test]
fn gpu_kernels_give_the_reference_too() {
    let Some(card) = software_card() else { return };
    for name in MODELS {
        let (tokens, expected) = reference(name);
        let mut engine = open_on(&path(name), Box::new(open_card(&card, None)), windows_of(Mode::Reference, 16));
        let got = distance(&vector(&mut engine, &tokens), &expected);
        assert!(got <= 1e-4, "{name}: relative L2 {got:.2e}");
    }
}

#[test]
fn each_kind_of_model_refuses_what_the_other_gives() {
    let engine = open_path(&path(MODELS[0]), Mode::Reference, 1, windows_of(Mode::Reference, 16));
    let files = strata::gguf::ModelFiles::open(path(MODELS[0])).expect("the file opens");
    let tokenizer = strata::tokenizer::Tokenizer::from_metadata(files.metadata()).expect("a tokenizer");
    let (sampling, options) = (strata::sample::SamplingParams::greedy(), strata::engine::GenerateOptions::default());
    let text = strata::engine::Generation::new(&tokenizer, engine.dims(), sampling, vec![TokenId(1)], options);
    assert!(matches!(text.err(), Some(GenerateError::NoText)));
    let writer = open_path(&path("qwen3"), Mode::Reference, 1, windows_of(Mode::Reference, 16));
    assert!(matches!(Embedding::new(writer.dims(), vec![TokenId(1)]).err(), Some(GenerateError::NoEmbeddings)));
}

fn server(model: &'static str) -> Server {
    Setup { model, context: 128, ..Setup::default() }.start()
}

fn numbers(embedding: &Json) -> Vec<f32> {
    embedding.as_array().expect("a list of numbers").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

fn vectors(reply: &Json) -> Vec<Vec<f32>> {
    reply["data"].as_array().expect("a list").iter().map(|entry| numbers(&entry["embedding"])).collect()
}

#[test]
fn clients_get_the_reference_vector_in_every_form() {
    for (model, name) in [(LAST, MODELS[0]), (MEAN, MODELS[1])] {
        let server = server(model);
        let (tokens, expected) = reference(name);
        let tokens: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        let reply = ask(&server, PATH, &json!({ "input": tokens, "model": "any", "user": "u" }));
        assert_eq!(
            (&reply["object"], &reply["data"][0]["object"], &reply["data"][0]["index"]),
            (&json!("list"), &json!("embedding"), &json!(0))
        );
        assert_eq!(reply["usage"], json!({ "prompt_tokens": tokens.len(), "total_tokens": tokens.len() }));
        let whole = numbers(&reply["data"][0]["embedding"]);
        assert!(distance(&whole, &expected) <= 5e-3, "{name}");
        let length: f64 = whole.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((length - 1.0).abs() < 1e-5);

        let reply = ask(&server, PATH, &json!({ "input": [tokens], "encoding_format": "base64" }));
        let bytes = base64::engine::general_purpose::STANDARD.decode(reply["data"][0]["embedding"].as_str().unwrap()).unwrap();
        let floats: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(floats, whole, "the same bits in both forms");

        let reply = ask(&server, PATH, &json!({ "input": [tokens], "dimensions": 10 }));
        let scale = whole[..10].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let expected: Vec<f32> = whole[..10].iter().map(|x| (f64::from(*x) / scale) as f32).collect();
        assert!(distance(&vectors(&reply)[0], &expected) < 1e-6, "the first ten, of length 1 again");
    }
}

#[test]
fn texts_are_tokens_with_their_end_and_lists_keep_their_order() {
    let server = server(LAST);
    let texts: Vec<String> = (0..20).map(|i| format!("text ab {i}")).collect();
    let all = ask(&server, PATH, &json!({ "input": texts }));
    let tokens = |text: &str| {
        let mut tokens = ask(&server, "/tokenize", &json!({ "content": text }))["tokens"].clone();
        tokens.as_array_mut().unwrap().push(json!(END));
        tokens
    };
    let lists: Vec<Json> = texts.iter().map(|text| tokens(text)).collect();
    let of_tokens = ask(&server, PATH, &json!({ "input": lists }));
    assert_eq!(all["data"], of_tokens["data"], "a text is its tokens and the one that ends it");
    assert_eq!(all["usage"], of_tokens["usage"]);
    for (i, text) in texts.iter().enumerate() {
        let alone = ask(&server, PATH, &json!({ "input": text }));
        assert_eq!((&all["data"][i]["embedding"], &all["data"][i]["index"]), (&alone["data"][0]["embedding"], &json!(i)));
    }
    // A control token that is typed in is text.
    let typed = ask(&server, PATH, &json!({ "input": "<end>" }));
    assert_eq!(typed["usage"]["prompt_tokens"], 6);
    let status = || get(&server, "/v1/status").json();
    eventually("all are recorded", || status()["totals"]["done"] == 61);
    assert_eq!((&status()["recent"][0]["outcome"], &status()["totals"]["failed"]), (&json!("embedded"), &json!(0)));
}

#[test]
fn wrong_requests_are_named() {
    let server = server(LAST);
    for (body, field) in [
        (json!({}), "input"),
        (json!({ "input": "" }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": {} }), "input"),
        (json!({ "input": ["a", ""] }), "input[1]"),
        (json!({ "input": ["a", 1] }), "input[0]"),
        (json!({ "input": [[]] }), "input[0]"),
        (json!({ "input": [[1], [999]] }), "input[1][0]"),
        (json!({ "input": [1.5] }), "input[0]"),
        (json!({ "input": vec!["a"; 2049] }), "input"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions"),
        (json!({ "input": "a", "dimensions": WIDTH + 1 }), "dimensions"),
        (json!({ "input": "a", "encoding_format": "int8" }), "encoding_format"),
        (json!({ "input": "a", "model": 1 }), "model"),
    ] {
        let reply = post(&server, PATH, &body);
        assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some(field)), "{body}: {}", reply.body);
    }
    let reply = post(&server, PATH, &json!({ "input": ["a", "x".repeat(500)] })).json();
    assert_eq!((&reply["error"]["code"], &reply["error"]["param"]), (&json!("context_length_exceeded"), &json!("input[1]")));
    assert!(reply["error"]["message"].as_str().unwrap().contains("128"), "{reply}");
    ask(&server, PATH, &json!({ "input": "a" }));
}

#[test]
fn an_embedding_model_writes_no_text_and_offers_none() {
    let server = server(LAST);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": user("Hi"), "stream": true })),
        ("/v1/completions", json!({ "prompt": "Hi" })),
        ("/v1/responses", json!({ "input": "Hi" })),
        ("/v1/messages", json!({ "messages": user("Hi"), "max_tokens": 1 })),
    ] {
        let reply = post(&server, path, &body);
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains("/v1/embeddings"), "{path}: {}", reply.body);
        assert!(get(&server, "/openapi.json").json()["paths"][path].is_null(), "{path} is not offered");
    }
    let document = get(&server, "/openapi.json").json();
    assert!(document["paths"][PATH]["post"].is_object());
    assert_eq!(document, openapi_document(END as usize + 1, Some(WIDTH), false));
    assert!(strata::server::listing(true).iter().any(|line| line.contains(PATH)));
}
