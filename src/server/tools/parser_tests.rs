use proptest::prelude::*;
use serde_json::json;

use super::*;

fn tools() -> Arc<Vec<ToolSpec>> {
    let parameters = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "days": { "type": "integer" }, "deep": { "type": "object" }, "unit": { "enum": ["C", "F"] }
    }});
    Arc::new(vec![
        ToolSpec { name: "weather".into(), description: None, parameters },
        ToolSpec { name: "noop".into(), description: None, parameters: json!({ "type": "object" }) },
    ])
}

/// Text and calls of an answer, joined.
#[derive(Debug, Clone, Default, PartialEq)]
struct Joined {
    text: String,
    calls: Vec<(String, String)>,
    ended: usize,
}

fn read<'a>(format: ToolFormat, pieces: impl Iterator<Item = &'a str>) -> Joined {
    let mut parser = ToolParser::new(format, tools());
    let mut joined = Joined::default();
    let mut take = |pieces: Vec<Piece>| {
        for piece in pieces {
            match piece {
                Piece::Text(text) => joined.text.push_str(&text),
                Piece::Start { index, name } => {
                    assert_eq!(index, joined.calls.len());
                    joined.calls.push((name, String::new()));
                }
                Piece::Args { index, json } => joined.calls[index].1.push_str(&json),
                Piece::End { index } => {
                    assert_eq!(index, joined.ended);
                    joined.ended += 1;
                }
            }
        }
    };
    for piece in pieces {
        take(parser.push(piece));
    }
    take(parser.finish());
    assert_eq!(joined.ended, joined.calls.len(), "every call ends");
    joined
}

fn whole(format: ToolFormat, text: &str) -> Joined {
    read(format, [text].into_iter())
}

const HERMES: &str = "Let me look.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Pa\\\"ris </tool_call>\", \
                      \"days\": [1, {\"x\": \"}\"}]}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"noop\"}\n</tool_call>";
const QWEN: &str = "I will.\n<tool_call>\n<function=weather>\n<parameter=city>\nline 1\n\"two\" </para\n</parameter>\n<parameter=days>\n3\n\
                    </parameter>\n<parameter=deep>\n{\"a\": [1]}\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n</tool_call>\n\
                    <tool_call>\n<function=noop>\n</function>\n</tool_call>";
const LLAMA: &str = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}; {\"name\": \"noop\", \"parameters\": {}}";

fn arguments(call: &(String, String)) -> serde_json::Value {
    serde_json::from_str(&call.1).expect("arguments are JSON")
}

#[test]
fn hermes_calls() {
    let joined = whole(ToolFormat::Hermes, HERMES);
    assert_eq!(joined.text, "Let me look.");
    assert_eq!(joined.calls.iter().map(|c| c.0.as_str()).collect::<Vec<_>>(), ["weather", "noop"]);
    assert_eq!(arguments(&joined.calls[0]), json!({ "city": "Pa\"ris </tool_call>", "days": [1, { "x": "}" }] }));
    assert_eq!(joined.calls[1].1, "{}");
}

#[test]
fn qwen_calls() {
    let joined = whole(ToolFormat::QwenXml, QWEN);
    assert_eq!(joined.text, "I will.");
    let expected = json!({ "city": "line 1\n\"two\" </para", "days": 3, "deep": { "a": [1] }, "unit": "C" });
    assert_eq!(arguments(&joined.calls[0]), expected);
    assert_eq!(joined.calls[1], ("noop".to_owned(), "{}".to_owned()));
}

#[test]
fn llama_calls() {
    for text in [LLAMA.to_owned(), format!("<|python_tag|>{LLAMA}")] {
        let joined = whole(ToolFormat::Llama3, &text);
        assert_eq!(joined.text, "");
        assert_eq!(joined.calls.len(), 2, "{text}");
        assert_eq!(arguments(&joined.calls[0]), json!({ "city": "Oslo" }));
    }
    let person = "{\"name\": \"Bob\", \"age\": 3}";
    assert_eq!(whole(ToolFormat::Llama3, person).text, person, "an object that names no tool is an answer");
}

#[test]
fn what_is_no_call_stays_text() {
    for text in ["plain", "a < b <tool", "see <tool_call> there", "<tool_call>{\"x\": 1}</tool_call>", "<tool_call>\n{\"name\": "]
    {
        let joined = whole(ToolFormat::Hermes, text);
        assert_eq!((joined.text.as_str(), joined.calls.len()), (text, 0));
    }
    let joined = whole(ToolFormat::QwenXml, "<tool_call>{\"name\": \"noop\", \"arguments\": {\"a\": 1}}</tool_call>");
    assert_eq!(joined.calls, [("noop".to_owned(), "{\"a\": 1}".to_owned())], "Qwen models write JSON at times");
}

#[test]
fn text_arguments_are_unpacked() {
    let joined = whole(ToolFormat::Hermes, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call> Done.");
    assert_eq!(joined.calls, [("f".to_owned(), "{\"a\": 1}".to_owned())]);
    assert_eq!(joined.text, " Done.");
}

#[test]
fn cut_off_calls_of_qwen_are_closed() {
    for end in QWEN.char_indices().map(|(at, _)| at).skip(QWEN.find("<parameter").expect("a parameter")) {
        let joined = whole(ToolFormat::QwenXml, &QWEN[..end]);
        joined.calls.iter().for_each(|call| drop(arguments(call)));
    }
}

#[test]
fn cuts_at_every_place_change_nothing() {
    for (format, text) in [(ToolFormat::Hermes, HERMES), (ToolFormat::QwenXml, QWEN), (ToolFormat::Llama3, LLAMA)] {
        let expected = whole(format, text);
        for (at, _) in text.char_indices() {
            let (a, b) = text.split_at(at);
            assert_eq!(read(format, [a, b].into_iter()), expected, "{format:?} cut at {at}");
        }
        let ends: Vec<usize> = text.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        let singles = ends.iter().scan(0, |from, end| Some(&text[std::mem::replace(from, *end)..*end]));
        assert_eq!(read(format, singles), expected, "{format:?} character by character");
    }
}

/// Fragments of the formats in any order, valid and not.
fn soup() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "weather>",
        "noop>",
        "<parameter=",
        "city>",
        "days>",
        "</parameter>",
        "</function>",
        "{\"name\": \"weather\"",
        ", \"arguments\": {",
        "\"a\": \"b\\\"",
        "}",
        "}}",
        "\n",
        " ",
        "text",
        "<",
        "ü",
        "<|python_tag|>",
        ";",
        "\"",
        "\\",
        "[",
        "]",
        ",",
        ":",
        "3",
    ]);
    prop::collection::vec(words, 0..24).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_text_cut_anywhere_reads_the_same(text in soup(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| places[cut.index(places.len())]).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        for format in [ToolFormat::Hermes, ToolFormat::QwenXml, ToolFormat::Llama3] {
            let pieces = cuts.windows(2).map(|w| &text[w[0]..w[1]]);
            prop_assert_eq!(read(format, pieces), whole(format, &text));
        }
    }
}
