//! Promise: `async-openai`, the client of most Rust programs, understands what the server says: every answer fits its types.

mod api_support;

use std::sync::LazyLock;

use api_support::*;
use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, CreateChatCompletionRequest, CreateChatCompletionResponse, FinishReason,
};
use async_openai::types::completions::CreateCompletionRequest;
use async_openai::types::embeddings::CreateEmbeddingRequest;
use async_openai::types::responses::{CreateResponse, OutputItem, ResponseStreamEvent};
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use strata::server::{Server, ServerOptions};

const KEY: &str = "secret";

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let setup = Setup::default();
    let options = ServerOptions { api_keys: vec![KEY.into()], ..setup.options.clone() };
    // The server has a runtime of its own, which must not begin inside that of a test.
    let start = || Setup { options, ..setup }.start();
    std::thread::scope(|scope| scope.spawn(start).join().expect("the server starts"))
});

fn client(key: &str) -> Client<OpenAIConfig> {
    let base = format!("http://{}/v1", SERVER.address());
    Client::with_config(OpenAIConfig::new().with_api_base(base).with_api_key(key))
}

/// A request of the client's own type: what it sends is what that type writes.
fn typed<T: DeserializeOwned>(mut request: Json) -> T {
    request["model"] = json!("any");
    serde_json::from_value(request).expect("the client knows the request")
}

fn schema() -> Json {
    json!({ "type": "object", "required": ["city", "days"], "additionalProperties": false, "properties": {
        "city": { "enum": ["Paris", "Oslo"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 },
    }})
}

fn check_arguments(text: &str) {
    let arguments: Json = serde_json::from_str(text).expect("arguments are JSON");
    assert!(["Paris", "Oslo"].contains(&arguments["city"].as_str().unwrap()), "{text}");
    assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{text}");
}

async fn chat(request: Json) -> CreateChatCompletionResponse {
    client(KEY).chat().create(typed(request)).await.expect("an answer")
}

#[tokio::test]
async fn a_chat_whole_and_streamed() {
    let whole = chat(json!({ "messages": user(FRANCE) })).await;
    let text = whole.choices[0].message.content.clone().unwrap();
    assert!(text.contains("Paris"), "{text}");
    let usage = whole.usage.expect("usage");
    assert_eq!(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);

    let request: CreateChatCompletionRequest =
        typed(json!({ "messages": user(FRANCE), "stream": true, "stream_options": { "include_usage": true } }));
    let mut stream = client(KEY).chat().create_stream(request).await.expect("a stream");
    let (mut streamed, mut reasons, mut last) = (String::new(), Vec::new(), None);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.expect("a chunk that fits the client's type");
        for choice in chunk.choices {
            streamed += choice.delta.content.as_deref().unwrap_or_default();
            reasons.extend(choice.finish_reason);
        }
        last = chunk.usage.or(last);
    }
    assert_eq!((streamed, reasons), (text, vec![FinishReason::Stop]));
    assert_eq!(last.expect("usage at the end").completion_tokens, usage.completion_tokens);
}

fn with_tools(messages: Json) -> Json {
    let function = json!({ "name": "weather", "description": "The weather", "parameters": schema(), "strict": true });
    json!({ "messages": messages, "tools": [{ "type": "function", "function": function }] })
}

fn forced_call() -> Json {
    let mut request = with_tools(user("Weather?"));
    request["tool_choice"] = json!("required");
    request["parallel_tool_calls"] = json!(false);
    request
}

#[tokio::test]
async fn tools_are_called_and_answered() {
    let reply = chat(forced_call()).await;
    assert_eq!(reply.choices[0].finish_reason, Some(FinishReason::ToolCalls));
    let calls = reply.choices[0].message.tool_calls.clone().expect("calls");
    let [ChatCompletionMessageToolCalls::Function(call)] = calls.as_slice() else { panic!("one call of a function: {calls:?}") };
    assert_eq!(call.function.name, "weather");
    check_arguments(&call.function.arguments);
    let messages = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "tool_calls": calls },
        { "role": "tool", "tool_call_id": call.id, "content": "sunny" },
    ]);
    let mut next = with_tools(messages);
    next["max_completion_tokens"] = json!(5);
    assert!(chat(next).await.usage.expect("usage").prompt_tokens > 10);
}

#[tokio::test]
async fn calls_are_streamed() {
    let mut request = forced_call();
    request["stream"] = json!(true);
    let request: CreateChatCompletionRequest = typed(request);
    let mut stream = client(KEY).chat().create_stream(request).await.expect("a stream");
    let (mut names, mut arguments, mut pieces) = (Vec::new(), String::new(), 0);
    while let Some(chunk) = stream.next().await {
        let calls = chunk.expect("a chunk").choices.into_iter().filter_map(|choice| choice.delta.tool_calls).flatten();
        for function in calls.filter_map(|call| call.function) {
            names.extend(function.name);
            arguments += function.arguments.as_deref().unwrap_or_default();
            pieces += 1;
        }
    }
    assert_eq!(names, ["weather"]);
    assert!(pieces > 2, "arguments arrive in pieces");
    check_arguments(&arguments);
}

#[tokio::test]
async fn structured_output_keeps_its_schema() {
    let format = json!({ "type": "json_schema", "json_schema": { "name": "trip", "schema": schema(), "strict": true } });
    let reply = chat(json!({ "messages": user("Plan a trip."), "temperature": 1.5, "response_format": format })).await;
    check_arguments(reply.choices[0].message.content.as_deref().expect("content"));
}

/// The client's own types leave this field out; its users bring their own.
#[derive(Deserialize)]
struct Thoughtful<M> {
    choices: Vec<M>,
}

#[derive(Deserialize)]
struct WholeChoice {
    message: Parts,
}

#[derive(Deserialize)]
struct StreamedChoice {
    delta: Parts,
}

#[derive(Deserialize)]
struct Parts {
    reasoning_content: Option<String>,
    content: Option<String>,
}

#[tokio::test]
async fn reasoning_has_its_field() {
    let mut request = json!({ "model": "any", "messages": user("What is 17 + 25?"), "reasoning_effort": "high",
                              "max_completion_tokens": 200 });
    let client = client(KEY);
    let whole: Thoughtful<WholeChoice> = client.chat().create_byot(&request).await.expect("an answer");
    let Parts { reasoning_content, content } = &whole.choices[0].message;
    assert!(!reasoning_content.as_deref().unwrap_or_default().is_empty());
    request["stream"] = json!(true);
    let mut stream = client.chat().create_stream_byot::<_, Thoughtful<StreamedChoice>>(request).await.expect("a stream");
    let (mut thought, mut said) = (String::new(), String::new());
    while let Some(chunk) = stream.next().await {
        for StreamedChoice { delta } in chunk.expect("a chunk").choices {
            thought += delta.reasoning_content.as_deref().unwrap_or_default();
            said += delta.content.as_deref().unwrap_or_default();
        }
    }
    assert_eq!((Some(thought), Some(said)), (reasoning_content.clone(), content.clone()));
}

#[tokio::test]
async fn responses_whole_and_streamed() {
    let client = client(KEY);
    let request: CreateResponse = typed(json!({ "input": FRANCE, "instructions": "Answer briefly." }));
    let whole = client.responses().create(request.clone()).await.expect("a response");
    let text = whole.output_text().expect("text");
    assert!(text.contains("Paris"), "{text}");
    let request = CreateResponse { stream: Some(true), ..request };
    let mut stream = client.responses().create_stream(request).await.expect("a stream");
    let (mut streamed, mut ended) = (String::new(), None);
    while let Some(event) = stream.next().await {
        match event.expect("an event that the client knows") {
            ResponseStreamEvent::ResponseOutputTextDelta(delta) => streamed += &delta.delta,
            ResponseStreamEvent::ResponseCompleted(completed) => ended = Some(completed.response),
            _ => {}
        }
    }
    assert_eq!(ended.expect("a last event").output_text().as_deref(), Some(text.as_str()));
    assert_eq!(streamed, text);

    let tools = json!([{ "type": "function", "name": "weather", "parameters": schema(), "strict": true }]);
    let request: CreateResponse =
        typed(json!({ "input": "Weather?", "tools": tools, "tool_choice": "required", "parallel_tool_calls": false }));
    let reply = client.responses().create(request).await.expect("a response");
    let Some(OutputItem::FunctionCall(call)) = reply.output.first() else { panic!("a call: {:?}", reply.output) };
    check_arguments(&call.arguments);
}

#[tokio::test]
async fn completions_and_models() {
    let request: CreateCompletionRequest = typed(json!({ "prompt": "The capital of France is", "max_tokens": 4, "logprobs": 2 }));
    let reply = client(KEY).completions().create(request).await.expect("a completion");
    assert_eq!(reply.choices[0].logprobs.as_ref().expect("logprobs").tokens.len(), 4);
    let models = client(KEY).models().list().await.expect("models");
    assert_eq!(models.data[0].id, "tiny");
    assert_eq!(client(KEY).models().retrieve("tiny").await.expect("the model").id, "tiny");
}

fn api_error<T>(result: Result<T, OpenAIError>) -> (u16, Option<String>, Option<String>) {
    match result {
        Err(OpenAIError::ApiError(error)) => (error.status_code.as_u16(), error.api_error.r#type, error.api_error.param),
        Err(other) => panic!("an error of the API was expected: {other}"),
        Ok(_) => panic!("an error was expected"),
    }
}

#[tokio::test]
async fn errors_are_errors_of_the_api() {
    let invalid = Some("invalid_request_error".to_owned());
    let empty: CreateChatCompletionRequest = typed(json!({ "messages": [] }));
    let reply = client(KEY).chat().create(empty.clone()).await;
    assert_eq!(api_error(reply), (400, invalid.clone(), Some("messages".into())));
    let streamed = CreateChatCompletionRequest { stream: Some(true), ..empty.clone() };
    assert_eq!(api_error(client(KEY).chat().create_stream(streamed).await).0, 400, "a stream that never begins");
    let (status, kind, _) = api_error(client("wrong").chat().create(empty).await);
    assert_eq!((status, kind.as_deref()), (401, Some("authentication_error")));
    assert_eq!(api_error(client(KEY).models().retrieve("other").await).0, 404);
    let request: CreateEmbeddingRequest = typed(json!({ "input": "x" }));
    let reply = client(KEY).embeddings().create(request).await;
    assert_eq!(api_error(reply), (400, invalid, Some("model".into())), "this model gives no embeddings");
}
