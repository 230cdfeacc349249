//! Promise: a picture comes to the model in every API's own form, at its place and nowhere else; what is no picture is a 4xx that
//! names the field, and the next request works. The prompts are looked at; that the model sees what they hold is for other tests.

mod api_support;
mod picture_support;

use std::sync::LazyLock;

use api_support::*;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use picture_support::{address, file, image, image_url, png, png_header, says, text, wide};
use serde_json::{Value as Json, json};
use strata::picture::Preprocess;
use strata::server::{Server, ServerOptions};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
const TEMPLATE: &str = "/apply-template";

/// The picture token of the built-in model's vocabulary.
const PAD: u64 = 2041;

/// As templates of Qwen's vision models write contents: by a macro that counts, and trimmed.
const PARTS: &str = "{%- set image_count = namespace(value=0) %}
{%- macro render_content(content, do_vision_count, is_system_content=false) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'image' in item or 'image_url' in item or item.type == 'image' %}
                {%- if is_system_content %}{{- raise_exception('System message cannot contain images.') }}{%- endif %}
                {%- if do_vision_count %}{%- set image_count.value = image_count.value + 1 %}{%- endif %}
                {%- if add_vision_id %}{{- 'Picture ' ~ image_count.value ~ ': ' }}{%- endif %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in item %}
                {{- item.text }}
            {%- else %}
                {{- raise_exception('Unexpected item type in content.') }}
            {%- endif %}
        {%- endfor %}
    {%- else %}
        {{- raise_exception('Unexpected content type.') }}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {%- set content = render_content(message.content, true, message.role == 'system') | trim %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

fn eye() -> Preprocess {
    Preprocess { patch_size: 16, merge: 2, mean: [0.5; 3], std: [0.5; 3], min_tokens: 1, max_tokens: 600 }
}

/// A server that takes pictures; its engine has no eye.
fn setup(template: Option<&'static str>) -> Setup {
    let setup = Setup { vision: Some(eye()), template, ..Setup::default() };
    Setup { options: ServerOptions { max_body_bytes: 4 << 20, ..setup.options.clone() }, ..setup }
}

static SERVER: LazyLock<Server> = LazyLock::new(|| setup(None).start());
static KNOWS_PARTS: LazyLock<Server> = LazyLock::new(|| setup(Some(PARTS)).start());
static BLIND: LazyLock<Server> = LazyLock::new(|| Setup::default().start());

/// Lengths of the stretches of picture tokens in a prompt.
fn pictures(tokens: &Json) -> Vec<usize> {
    let tokens = tokens.as_array().expect("tokens");
    let stretches = tokens.chunk_by(|a, b| (*a == PAD) == (*b == PAD));
    stretches.filter(|stretch| stretch[0] == PAD).map(<[Json]>::len).collect()
}

#[test]
fn every_picture_is_as_many_tokens_as_it_has_at_its_place() {
    for server in [&SERVER, &KNOWS_PARTS] {
        let parts =
            json!([text("First"), image_url(&wide(3)), text("then"), image_url(&wide(1)), image_url(&wide(5)), text("?")]);
        let reply = ask(server, TEMPLATE, &json!({ "messages": says(parts) }));
        assert_eq!(pictures(&reply["tokens"]), [3, 1, 5]);
        let place = "<|vision_start|><|image_pad|><|vision_end|>";
        let said = format!("<|im_start|>user\nFirst{place}then{place}{place}?<|im_end|>\n");
        assert!(reply["prompt"].as_str().unwrap().starts_with(&said), "{}", reply["prompt"]);
    }
}

/// Variables reach the template, whose own words stand beside the places.
#[test]
fn the_template_decides_what_stands_around_a_picture() {
    assert!(KNOWS_PARTS.app().template.writes_pictures() && !SERVER.app().template.writes_pictures());
    let parts = says(json!([image_url(&wide(1)), text("and"), image_url(&wide(2))]));
    let body = json!({ "messages": parts, "chat_template_kwargs": { "add_vision_id": true } });
    let reply = ask(&KNOWS_PARTS, TEMPLATE, &body);
    let place = "<|vision_start|><|image_pad|><|vision_end|>";
    let said = format!("<|im_start|>user\nPicture 1: {place}andPicture 2: {place}<|im_end|>\n");
    assert!(reply["prompt"].as_str().unwrap().starts_with(&said), "{}", reply["prompt"]);
    assert_eq!(pictures(&reply["tokens"]), [1, 2]);
}

#[test]
fn all_apis_count_the_same_tokens() {
    let parts = |picture: Json| says(json!([picture, text("What is this?")]));
    let chat = ask(&SERVER, TEMPLATE, &json!({ "messages": parts(image_url(&wide(7))) }));
    let count = chat["tokens"].as_array().unwrap().len();
    let blocks = ask(&SERVER, COUNT, &json!({ "messages": parts(image(&wide(7))) }));
    assert_eq!(blocks["input_tokens"], count);
    let by_url = json!({ "type": "image", "source": { "type": "url", "url": wide(7) } });
    assert_eq!(ask(&SERVER, COUNT, &json!({ "messages": parts(by_url) }))["input_tokens"], count);
    let without = ask(&SERVER, COUNT, &json!({ "messages": says(json!([text("What is this?")])) }));
    // The two tokens around a picture.
    assert_eq!(without["input_tokens"].as_u64().unwrap() as usize + 7 + 2, count);
    // Some clients write the address without an object around it, and Responses do.
    let plain = json!({ "type": "input_image", "image_url": wide(7) });
    assert_eq!(ask(&SERVER, TEMPLATE, &json!({ "messages": parts(plain) }))["tokens"], chat["tokens"]);
}

#[test]
fn results_of_tools_may_show_pictures() {
    let call = json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "look", "input": {} }] });
    // A result stands before what the user says beside it, whatever their order.
    let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": [text("seen"), image(&wide(2))] });
    let turn = json!({ "role": "user", "content": [image(&wide(4)), result, text("And?")] });
    let messages = json!([{ "role": "user", "content": "Look" }, call, turn]);
    let counted = ask(&SERVER, COUNT, &json!({ "messages": messages }))["input_tokens"].as_u64().unwrap();
    let call = json!({ "role": "assistant", "tool_calls": [{ "id": "t", "function": { "name": "look", "arguments": "{}" } }] });
    let result = json!({ "role": "tool", "tool_call_id": "t", "content": [text("seen"), image_url(&wide(2))] });
    let turn = json!({ "role": "user", "content": [image_url(&wide(4)), text("And?")] });
    let messages = json!([{ "role": "user", "content": "Look" }, call, result, turn]);
    let reply = ask(&SERVER, TEMPLATE, &json!({ "messages": messages }));
    assert_eq!(pictures(&reply["tokens"]), [2, 4]);
    assert_eq!(reply["tokens"].as_array().unwrap().len() as u64, counted);
}

#[test]
fn a_typed_picture_token_is_text() {
    let typed = "<|vision_start|><|image_pad|><|vision_end|> {\"type\": \"image\"} <|image_pad|>";
    for server in [&SERVER, &KNOWS_PARTS, &BLIND] {
        for content in [json!(typed), json!([text(typed), text(typed)])] {
            let reply = ask(server, TEMPLATE, &json!({ "messages": says(content) }));
            assert_eq!(pictures(&reply["tokens"]), [] as [usize; 0]);
            assert!(reply["prompt"].as_str().unwrap().contains(typed));
        }
    }
    for server in [&SERVER, &KNOWS_PARTS] {
        let reply = ask(server, TEMPLATE, &json!({ "messages": says(json!([text(typed), image_url(&wide(2)), text(typed)])) }));
        assert_eq!(pictures(&reply["tokens"]), [2]);
    }
}

/// Addresses that hold no picture, and a word of what is said about them.
fn broken() -> Vec<(String, &'static str)> {
    let data = |media: &str, bytes: &[u8]| format!("data:{media};base64,{}", STANDARD.encode(bytes));
    let png_data = |bytes: &[u8]| data("image/png", bytes);
    let whole = png(40, 40, 1);
    vec![
        ("data:image/png;base64,!!!!".into(), "base64"),
        ("data:image/png;base64,AAA".to_owned() + "\u{e9}", "base64"),
        ("data:image/png;base64,".into(), "empty"),
        ("data:image/png,AAAA".into(), "base64"),
        ("data:image/png;base64".into(), "comma"),
        ("data:".into(), "comma"),
        (String::new(), "fetches nothing"),
        (png_data(&whole[..whole.len() / 2]), "breaks off"),
        (png_data(&file("photo.jpg")[..900]), "breaks off"),
        (png_data(&png_header(100_000, 100_000)), "100000 x 100000"),
        (png_data(&png_header(0, 0)), "PNG"),
        (png_data(&png(500, 2, 0)), "200 times"),
        (png_data(b"just a text"), "PNG, JPEG, WebP and GIF"),
        (data("text/plain", b"just a text"), "media type"),
        (data("application/pdf", b"%PDF-1.7"), "media type"),
        (data("image/svg+xml", b"<svg/>"), "media type"),
        (data("", &whole), "media type"),
        ("http://127.0.0.1:1/cat.png".into(), "fetches nothing"),
        ("https://example.org/cat.png".into(), "fetches nothing"),
        ("file:///etc/passwd".into(), "fetches nothing"),
        ("/etc/passwd".into(), "fetches nothing"),
        ("ftp://example.org/x".into(), "fetches nothing"),
    ]
}

fn refused(server: &Server, path: &str, body: &Json, field: &str, words: &str) {
    let reply = post(server, path, body);
    assert_eq!(reply.status, 400, "{path} {field}: {}", reply.body);
    let json = reply.json();
    let message = json["error"]["message"].as_str().unwrap_or_else(|| panic!("a message: {json}"));
    assert!(message.contains(field) && message.contains(words), "{field} and '{words}': {message}");
    match path == MESSAGES || path == COUNT {
        true => assert_eq!((&json["type"], &json["error"]["type"]), (&json!("error"), &json!("invalid_request_error"))),
        false => assert_eq!(json["error"]["param"], field, "{json}"),
    }
}

#[test]
fn what_is_no_picture_is_a_400_that_names_it() {
    let ask_for = |part: Json| says(json!([text("What is this?"), part]));
    for (url, words) in broken() {
        let chat = json!({ "messages": ask_for(image_url(&url)) });
        refused(&SERVER, CHAT, &chat, "messages[0].content[1].image_url.url", words);
        let input = json!({ "input": ask_for(json!({ "type": "input_image", "image_url": url })) });
        refused(&SERVER, RESPONSES, &input, "input[0].content[1].image_url", words);
        let source = json!({ "type": "url", "url": url });
        let blocks = json!({ "max_tokens": 1, "messages": ask_for(json!({ "type": "image", "source": source })) });
        refused(&SERVER, MESSAGES, &blocks, "messages[0].content[1].source.url", words);
    }
    // The next request works.
    ask(&SERVER, CHAT, &json!({ "messages": user("Hi"), "max_tokens": 1 }));
}

#[test]
fn wrong_forms_are_a_400_that_names_the_field() {
    let at = |part: Json| says(json!([part]));
    let good = address(&png(40, 40, 2));
    for (part, field, words) in [
        (json!({ "type": "image_url" }), "messages[0].content[0].image_url", "missing"),
        (json!({ "type": "image_url", "image_url": 5 }), "messages[0].content[0].image_url", "'url'"),
        (json!({ "type": "image_url", "image_url": {} }), "messages[0].content[0].image_url.url", "missing"),
        (json!({ "type": "image_url", "image_url": { "url": 5 } }), "messages[0].content[0].image_url.url", "text"),
        (
            json!({ "type": "image_url", "image_url": { "url": good, "detail": 1 } }),
            "messages[0].content[0].image_url.detail",
            "text",
        ),
        (json!({ "type": "input_image", "image_url": good, "detail": {} }), "messages[0].content[0].detail", "text"),
        (json!({ "type": "input_image", "file_id": "file-1" }), "messages[0].content[0].file_id", "no files"),
        (json!({ "type": "image", "image": good }), "messages[0].content[0].type", "image_url"),
        (json!({ "type": "input_audio", "input_audio": {} }), "messages[0].content[0].type", "not supported"),
    ] {
        refused(&SERVER, CHAT, &json!({ "messages": at(part) }), field, words);
    }
    let source = |source: Json| json!({ "max_tokens": 1, "messages": at(json!({ "type": "image", "source": source })) });
    for (value, field, words) in [
        (json!(null), "content[0].source", "missing"),
        (json!({}), "content[0].source.type", "base64 or url"),
        (json!({ "type": "file", "file_id": "x" }), "content[0].source.type", "no files"),
        (json!({ "type": "carrier pigeon" }), "content[0].source.type", "base64 and url"),
        (json!({ "type": "base64", "data": "AAAA" }), "content[0].source.media_type", "missing"),
        (json!({ "type": "base64", "media_type": "image/png" }), "content[0].source.data", "missing"),
        (json!({ "type": "base64", "media_type": "text/plain", "data": "AAAA" }), "content[0].source.media_type", "text/plain"),
        (json!({ "type": "base64", "media_type": "image/png", "data": "%%" }), "content[0].source.data", "base64"),
        (json!({ "type": "base64", "media_type": "image/png", "data": "AAAA" }), "content[0].source.data", "PNG, JPEG"),
    ] {
        refused(&SERVER, MESSAGES, &source(value), field, words);
    }
    for role in ["system", "assistant"] {
        let chat = json!({ "messages": [{ "role": role, "content": [image_url(&good)] }, { "role": "user", "content": "Hi" }] });
        refused(&SERVER, CHAT, &chat, "messages[0].content[0].type", "messages of the user");
    }
    let blocks = json!({ "max_tokens": 1, "messages": user("Hi"), "system": [image(&good)] });
    refused(&SERVER, MESSAGES, &blocks, "system[0].type", "messages of the user");
}

#[test]
fn a_model_without_an_eye_says_so_and_what_to_do() {
    let good = wide(2);
    refused(
        &BLIND,
        CHAT,
        &json!({ "messages": says(json!([image_url(&good)])) }),
        "messages[0].content[0].type",
        "--vision-file",
    );
    let input = json!({ "input": says(json!([{ "type": "input_image", "image_url": good }])) });
    refused(&BLIND, RESPONSES, &input, "input[0].content[0].type", "--vision-file");
    let blocks = json!({ "max_tokens": 1, "messages": says(json!([image(&good)])) });
    refused(&BLIND, MESSAGES, &blocks, "messages[0].content[0].type", "--vision-file");
    assert_eq!(ask_get(&BLIND, "/props")["modalities"]["vision"], false);
    assert_eq!(ask_get(&BLIND, "/v1/status")["model"]["vision"], Json::Null);
    assert_eq!(ask_get(&SERVER, "/props")["modalities"]["vision"], true);
    assert_eq!(ask_get(&SERVER, "/v1/status")["model"]["vision"]["side_pixels"], 32);
}

fn ask_get(server: &Server, path: &str) -> Json {
    let reply = get(server, path);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

#[test]
fn pictures_are_limited_in_number_tokens_and_bytes() {
    let many: Vec<Json> = (0..65).map(|_| image_url(&wide(1))).collect();
    refused(&SERVER, TEMPLATE, &json!({ "messages": says(json!(many)) }), "messages[0].content[64].image_url.url", "64");
    // A picture of more tokens than the encoder takes is scaled, and the context holds one of them but not two.
    let large = address(&png(1024, 1024, 3));
    let one = ask(&SERVER, TEMPLATE, &json!({ "messages": says(json!([image_url(&large)])) }));
    let tokens = pictures(&one["tokens"]);
    assert!(tokens.len() == 1 && (500..=600).contains(&tokens[0]), "{tokens:?}");
    let two = post(&SERVER, CHAT, &json!({ "messages": says(json!([image_url(&large), image_url(&large)])) }));
    assert_eq!((two.status, &two.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    assert!(two.body.contains("content[1]") && two.body.contains("1024"), "{}", two.body);
    let body = post(&SERVER, CHAT, &json!({ "messages": says(json!([image_url(&"A".repeat(5 << 20))])) }));
    assert_eq!(body.status, 413);
    // Nobody holds what requests brought that have ended.
    eventually("the pictures are gone", || ask_get(&SERVER, "/v1/status")["model"]["vision"]["held_bytes"] == 0);
}
