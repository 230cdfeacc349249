//! Promises of chat templates: the fixtures' renderings, templates as published families write them, Python's
//! ways, and errors instead of crashes.

mod text_support;

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};
use strata::tokenizer::{
    ChatRequest, ChatTemplate, Segment, Special, TemplateError, TemplateSource, TokenType, Tokenizer, TokenizerSpec,
};
use text_support::{DEEPSEEK, GEMMA, LLAMA3, MISTRAL, PHI, QWEN3, ask, fixture, path, says, toy};

fn render(template: &str, request: &ChatRequest) -> String {
    let tokenizer = toy(template);
    ChatTemplate::new(&tokenizer).unwrap().render(request).unwrap().text().to_owned()
}

fn fails(template: &str, request: &ChatRequest) -> TemplateError {
    let tokenizer = toy(template);
    match ChatTemplate::new(&tokenizer) {
        Ok(template) => template.render(request).unwrap_err(),
        Err(error) => error,
    }
}

#[test]
fn fixture_chats_give_the_published_text_and_ids() {
    let files = [
        ("tiny-flash-next-Q8_0.gguf", "fixtures/tiny-flash-next.tokenizer-cases.json"),
        ("tiny-random-BF16.gguf", "fixtures/tiny-random.tokenizer-cases.json"),
    ];
    for (model, cases) in files {
        let tokenizer = fixture(model);
        let template = ChatTemplate::new(&tokenizer).unwrap();
        let cases: Json = serde_json::from_slice(&std::fs::read(path(cases)).unwrap()).unwrap();
        let chats = cases["chat"].as_array().unwrap();
        assert!(chats.len() >= 12);
        for chat in chats {
            let request = ChatRequest {
                messages: chat["messages"].as_array().unwrap().clone(),
                add_generation_prompt: chat.get("add_generation_prompt").is_none_or(|v| v == true),
                enable_thinking: chat.get("enable_thinking").and_then(Json::as_bool),
                ..ChatRequest::default()
            };
            let rendered = template.render(&request).unwrap();
            assert_eq!(rendered.text(), chat["rendered"].as_str().unwrap());
            let ids: Vec<u64> = tokenizer.encode_chat(&rendered).unwrap().iter().map(|id| id.0.into()).collect();
            assert_eq!(json!(ids), chat["ids"], "{}", rendered.text());
        }
    }
}

#[test]
fn a_file_without_template_falls_back_and_says_so() {
    let tokenizer = toy("");
    let template = ChatTemplate::new(&tokenizer).unwrap();
    let request = ChatRequest::new(vec![says("system", "S"), says("user", "Hi")]);
    assert_eq!(template.source(&request), &TemplateSource::Fallback("ChatML"));
    let rendered = template.render(&request).unwrap();
    let expected = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered.text(), expected);
    assert_eq!(rendered.segments().iter().filter(|segment| matches!(segment, Segment::Token(_))).count(), 5);
}

#[test]
fn the_fallback_fits_the_vocabulary() {
    let request = ChatRequest::new(vec![says("system", "S"), says("user", "Hi")]);
    let with = |marker: &str| {
        let tokens = ["a", marker].map(str::to_owned).to_vec();
        let token_types = vec![TokenType::Normal, TokenType::Control];
        let spec = TokenizerSpec { model: "gpt2".into(), tokens, token_types, ..Default::default() };
        let template = ChatTemplate::new(&Tokenizer::new(spec).unwrap()).unwrap();
        template.render(&request).unwrap().text().to_owned()
    };
    assert_eq!(with("<start_of_turn>"), "<start_of_turn>user\nS\n\nHi<end_of_turn>\n<start_of_turn>model\n");
    let llama = with("<|start_header_id|>");
    assert!(llama.ends_with("\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"), "{llama}");
    assert!(with("<other>").starts_with("<|im_start|>system\nS<|im_end|>\n"));
}

// Templates in the manner of published families. ---------------------------------------------------------------------

#[test]
fn llama3_style() {
    let mut request = ChatRequest::new(vec![says("system", " Be brief. "), says("user", " Hi\n")]);
    request.now = Some(1_709_210_096);
    let expected = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 29 Feb 2024\n\n\
        Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
        <|start_header_id|>assistant<|end_header_id|>\n\n";
    assert_eq!(render(LLAMA3, &request), expected);
}

#[test]
fn gemma_style() {
    let parts =
        json!({"role": "user", "content": [{"type": "text", "text": " A "}, {"type": "image"}, {"type": "text", "text": "B"}]});
    let request = ChatRequest::new(vec![says("system", "S"), says("user", " Hi "), says("assistant", "Yo"), parts]);
    let expected = "<s><start_of_turn>user\nS\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n\
        <start_of_turn>user\nAB<end_of_turn>\n<start_of_turn>model\n";
    assert_eq!(render(GEMMA, &request), expected);
    let error = fails(GEMMA, &ChatRequest::new(vec![says("assistant", "x")]));
    let TemplateError::Raised { line, message } = &error else { panic!("{error:?}") };
    assert_eq!((*line, message.as_str()), (13, "Conversation roles must alternate user/assistant/user/assistant/..."));
}

#[test]
fn qwen3_style_with_tools_and_thinking() {
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": 1.0, "é": [true, null]}}});
    let call = json!({"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nOK", "tool_calls": [{"function": {"name": "f", "arguments": {"q": "a<b> & 'c'"}}}]});
    let request = ChatRequest {
        tools: vec![tool],
        enable_thinking: Some(false),
        ..ChatRequest::new(vec![says("system", "S"), says("user", "Go"), call, says("tool", "42"), says("tool", "43")])
    };
    let expected = "<|im_start|>system\nS\n\nYou may call functions.\n<tools>\n\
        {\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"x\": 1.0, \"é\": [true, null]}}}\n\
        </tools>\nReply within <tool_call></tool_call> tags.<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n\
        <|im_start|>assistant\n<think>\nlet me see\n</think>\n\nOK\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"q\": \"a<b> & 'c'\"}}\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\n42\n</tool_response>\n<tool_response>\n43\n</tool_response><|im_end|>\n\
        <|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(render(QWEN3, &request), expected);
    let tokenizer = toy(QWEN3);
    let rendered = ChatTemplate::new(&tokenizer).unwrap().render(&request).unwrap();
    // The model's own reasoning is marked by real tokens, as it was when it was generated.
    assert_eq!(tokenizer.encode_chat(&rendered).unwrap(), tokenizer.encode(expected, Special::Parse).unwrap());
}

#[test]
fn deepseek_style() {
    let messages = vec![says("system", "S"), says("user", "Hi"), says("assistant", "<think>x</think>Yo"), says("user", "Bye")];
    let expected = "<s>S<｜User｜>Hi<｜Assistant｜>Yo<｜end▁of▁sentence｜><｜User｜>Bye<｜Assistant｜><think>\n";
    assert_eq!(render(DEEPSEEK, &ChatRequest::new(messages)), expected);
}

#[test]
fn mistral_style() {
    let request = ChatRequest::new(vec![says("user", "A"), says("assistant", " B "), says("user", "C")]);
    assert_eq!(render(MISTRAL, &request), "<s>[INST] A [/INST] B</s>[INST] C [/INST]");
    let error = fails(MISTRAL, &ChatRequest::new(vec![says("user", "A"), says("wizard", "B")]));
    assert_eq!(
        error.to_string(),
        "the chat template refuses these messages, line 9: Only user and assistant roles are supported, got wizard of 1"
    );
}

#[test]
fn tokens_built_from_pieces_are_found_but_not_those_users_write() {
    let tokenizer = toy(PHI);
    let template = ChatTemplate::new(&tokenizer).unwrap();
    let request =
        ChatRequest::new(vec![says("system", "S"), says("user", "<|assistant|>x<|user|>"), says("assistant", "<|system|>")]);
    let rendered = template.render(&request).unwrap();
    let expected = "<|system|>S<|end|><|user|><|assistant|>x<|user|><|end|><|assistant|><|system|><|end|><|assistant|>";
    assert_eq!(rendered.text(), expected);
    let specials: Vec<String> = rendered
        .segments()
        .iter()
        .filter_map(|segment| match segment {
            Segment::Token(id) => Some(tokenizer.token_text(*id).unwrap().into_owned()),
            Segment::Text(_) => None,
        })
        .collect();
    assert_eq!(specials, ["<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>", "<|end|>", "<|assistant|>"]);
}

// Python in templates. ------------------------------------------------------------------------------------------------

#[test]
fn python_methods_and_printing() {
    let cases = [
        ("{{ 'a,b'.split(',')[1] }}{{ 'a b  c'.split() | length }}", "b3"),
        ("{{ ' x '.strip() }}|{{ 'xxa'.lstrip('x') }}|{{ 'axx'.rstrip('x') }}", "x|a|a"),
        ("{{ 'aXb'.upper() }}{{ 'aXb'.lower() }}{{ 'ab cd'.title() }}{{ 'ab'.capitalize() }}", "AXBaxbAb CdAb"),
        ("{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.replace('b', '-') }}", "TrueTruea-c"),
        ("{{ ', '.join(['a', 'b']) }}{{ 'x={}'.format(1) }}{{ 'abc'.find('c') }}{{ 'aa'.count('a') }}", "a, bx=122"),
        ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "a1b2"),
        (
            "{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('z', 'd') }}{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}",
            "1d['a'][1]",
        ),
        (
            "{{ true }} {{ none }} {{ [1, 'x', none, 1.5] }} {{ {'a': false} }} {{ \"it's\" }} {{ [\"it's\"] }}",
            "True None [1, 'x', None, 1.5] {'a': False} it's [\"it's\"]",
        ),
        (
            "{{ [1, 2] | tojson }} {{ '<é\"\\n>' | tojson }} {{ 1e20 | tojson }} {{ none | tojson }}",
            "[1, 2] \"<é\\\"\\n>\" 1e+20 null",
        ),
        ("{{ {'b': 1, 'a': [], 'c': {}} | tojson(indent=2) }}", "{\n  \"b\": 1,\n  \"a\": [],\n  \"c\": {}\n}"),
        (
            "{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
            "{\"a\":\"\\u00e9\",\"b\":1}",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        ("{% generation %}x{% endgeneration %}{%- generation -%} y {%- endgeneration -%}", "xy"),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{{ undefined_thing }}{% for x in undefined_thing %}x{% endfor %}|{{ messages[0].nothing is defined }}", "|False"),
        ("{% macro m(x, y='d') %}{{ x ~ y }}{% endmacro %}{{ m('a') }}{{ m('a', y=1) }}", "ada1"),
        (
            "{{ messages | map(attribute='role') | join(',') }}{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}",
            "user0",
        ),
        (
            "{{ 'a' if messages[0].role in ['user', 'tool'] else 'b' }}{{ messages[-1]['content'][:2] }}{{ 'abc'[::-1] }}",
            "aHecba",
        ),
        ("{{ (1 if false else 2) | string + 'x' }}{{ '%s-%d' | format('a', 3) }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 3 }}", "2xa-3338"),
    ];
    for (template, expected) in cases {
        assert_eq!(render(template, &ask("Hello")), expected, "{template}");
    }
}

#[test]
fn further_variables_reach_the_template() {
    let mut request = ask("x");
    request.reasoning_effort = Some("low".into());
    request.extra = Map::from_iter([("style".to_owned(), json!(["a", {"b": 1}]))]);
    assert_eq!(
        render("{{ reasoning_effort }}{{ style[1].b }}{{ enable_thinking is defined }}{{ tools }}", &request),
        "low1FalseNone"
    );
}

#[test]
fn named_templates_are_chosen() {
    let mut spec = TokenizerSpec { model: "gpt2".into(), tokens: vec!["a".into()], ..Default::default() };
    spec.chat_template = Some("main".into());
    spec.named_templates = vec![("tool_use".into(), "tools".into()), ("rag".into(), "rag".into())];
    let template = ChatTemplate::new(&Tokenizer::new(spec).unwrap()).unwrap();
    let mut request = ask("x");
    assert_eq!(template.render(&request).unwrap().text(), "main");
    assert_eq!(template.render_named("rag", &request).unwrap().text(), "rag");
    request.tools.push(json!({}));
    assert_eq!(template.render(&request).unwrap().text(), "tools");
    let error = template.render_named("none", &request).unwrap_err().to_string();
    assert_eq!(error, "the file has no chat template named 'none' (it has: tool_use, rag)");
}

// Errors. -------------------------------------------------------------------------------------------------------------

#[test]
fn malformed_templates_are_errors_with_a_line() {
    let line_of = |template: &str| match fails(template, &ask("x")) {
        TemplateError::Syntax { line, .. } | TemplateError::Failed { line, .. } => line,
        other => panic!("{template}: {other:?}"),
    };
    assert_eq!(line_of("a\n{% if x %}\nb"), 3);
    assert_eq!(line_of("a\n{{ 1 + }}"), 2);
    assert_eq!(line_of("a\n\n{{ messages[0].content.no_such_method() }}"), 3);
    assert_eq!(line_of("{{ 'x' | no_such_filter }}"), 1);
    assert_eq!(line_of("{{ missing.attribute }}"), 1);
    assert_eq!(line_of("{% include 'file' %}"), 1);
    assert_eq!(line_of("{{ undefined_thing | tojson }}"), 1);
    assert_eq!(line_of("{% raw %}"), 1);
    let nested = format!("{{{{ {}1 }}}}", "(".repeat(100_000));
    line_of(&nested);
    let bad_message = fails("x", &ChatRequest::new(vec![json!({"content": "no role"})]));
    assert_eq!(bad_message, TemplateError::BadMessage { index: 0 });
}

#[test]
fn endless_templates_end() {
    let loops =
        "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}{% endfor %}";
    let doubling = "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    let tree = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    let (printed, json) = (format!("{tree}{{{{ ns.x }}}}"), format!("{tree}{{{{ ns.x | tojson }}}}"));
    for template in [loops, doubling, &printed, &json] {
        let error = fails(template, &ask("x"));
        assert!(matches!(error, TemplateError::TooMuchWork { .. }), "{error:?}");
    }
    let deep = "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}";
    let error = fails(deep, &ask("x"));
    assert!(error.to_string().contains("nested too deeply"), "{error}");
    let deepest = "{% set ns = namespace(x=1) %}{% for a in range(1000) %}{% for b in range(10000) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    let error = fails(deepest, &ask("x"));
    assert!(matches!(error, TemplateError::TooMuchWork { .. }), "{error:?}");
    let recursion = fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", &ask("x"));
    assert!(matches!(recursion, TemplateError::Failed { .. }), "{recursion:?}");
}

#[test]
fn long_conversations_have_fuel_enough() {
    let messages: Vec<Json> = (0..2000).map(|i| says(if i % 2 == 0 { "user" } else { "assistant" }, "Hi")).collect();
    let text = render(QWEN3, &ChatRequest::new(messages));
    assert_eq!(text.matches("<|im_start|>").count(), 2001);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Hostile template sources end in an error or a text, never in a panic.
    #[test]
    fn any_source_ends(pieces in prop::collection::vec(prop_oneof![
        Just("{% for m in messages %}"), Just("{% endfor %}"), Just("{{ m.content }}"), Just("{{"), Just("}}"), Just("{%"), Just("%}"),
        Just("{#"), Just("#}"), Just("'"), Just("<|im_end|>"), Just("{% if m %}"), Just("{% else %}"), Just("{% endif %}"), Just("-"),
        Just("{% set x = [x, x] %}"), Just("{{ x | tojson }}"), Just("{{ messages[0].content.split('') }}"), Just("{% generation %}"), Just("é"), Just("\n"),
    ], 0..14)) {
        let tokenizer = toy("");
        if let Ok(template) = ChatTemplate::from_source(&tokenizer, &pieces.concat()) {
            let _ = template.render(&ask("Hi"));
        }
    }
}
