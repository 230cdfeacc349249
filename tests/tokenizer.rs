//! Promises of the tokenizer: the fixtures' ids, exact round trips, streams equal to wholes, other engines' ids.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::Value as Json;
use strata::gguf::ModelFiles;
use strata::tokenizer::{
    ShowSpecial, Special, StreamStart, TokenStream, TokenType, Tokenizer, TokenizerError, TokenizerSpec, known_pre_tokenizers,
};
use strata::units::TokenId;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn fixture(model: &str) -> Tokenizer {
    let files = ModelFiles::open(path("fixtures").join(model)).unwrap();
    Tokenizer::from_metadata(files.metadata()).unwrap()
}

fn json(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

fn ids_of(value: &Json) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn raw(ids: &[TokenId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

#[test]
fn fixture_cases_give_the_published_ids() {
    let files = [
        ("tiny-flash-next-Q8_0.gguf", "fixtures/tiny-flash-next.tokenizer-cases.json"),
        ("tiny-random-BF16.gguf", "fixtures/tiny-random.tokenizer-cases.json"),
    ];
    for (model, cases) in files {
        let tokenizer = fixture(model);
        let cases = json(cases);
        for case in cases["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids = tokenizer.encode(text, Special::Parse).unwrap();
            assert_eq!(raw(&ids), ids_of(&case["ids"]), "{model}: {text:?}");
            let decoded = tokenizer.decode(&ids, ShowSpecial::Yes).unwrap();
            assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{model}: {text:?}");
        }
    }
}

/// The cases were made by the Python package `tokenizers` (see `tests/tools/make_pretokenizer_cases.py`): a tiny
/// vocabulary for every cut, nasty strings, and the ids.
#[test]
fn every_cut_agrees_with_the_reference_package() {
    let file = json("data/pretokenizer-cases.json");
    for family in file["families"].as_array().unwrap() {
        let mut spec: TokenizerSpec = serde_json::from_value(family["spec"].clone()).unwrap();
        let names: Vec<&str> = family["pre"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        for pre in names {
            spec.pre = Some(pre.to_owned());
            let tokenizer = Tokenizer::new(spec.clone()).unwrap();
            for case in family["cases"].as_array().unwrap() {
                let text = case[0].as_str().unwrap();
                let ids = tokenizer.encode(text, Special::AsText).unwrap();
                assert_eq!(raw(&ids), ids_of(&case[1]), "{pre}: {text:?}");
            }
        }
    }
}

#[test]
fn sentencepiece_agrees_with_the_reference_package() {
    let file = json("data/sentencepiece-cases.json");
    for family in file["families"].as_array().unwrap() {
        let spec: TokenizerSpec = serde_json::from_value(family["spec"].clone()).unwrap();
        let name = family["name"].as_str().unwrap();
        let tokenizer = Tokenizer::new(spec).unwrap();
        for case in family["cases"].as_array().unwrap() {
            let text = case[0].as_str().unwrap();
            let ids = tokenizer.encode(text, Special::AsText).unwrap();
            assert_eq!(raw(&ids), ids_of(&case[1]), "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&ids, ShowSpecial::Yes).unwrap(), text, "{name}");
        }
    }
}

/// A small SentencePiece vocabulary with all the kinds of tokens such files have.
fn spm(space_prefix: bool) -> Tokenizer {
    let mut spec = TokenizerSpec {
        model: "llama".into(),
        add_space_prefix: Some(space_prefix),
        bos_id: Some(1),
        eos_id: Some(2),
        unk_id: Some(0),
        ..TokenizerSpec::default()
    };
    let mut add = |text: &str, kind, score: f32| {
        spec.tokens.push(text.to_owned());
        spec.token_types.push(kind);
        spec.scores.get_or_insert_default().push(score);
    };
    add("<unk>", TokenType::Unknown, 0.0);
    add("<s>", TokenType::Control, 0.0);
    add("</s>", TokenType::Control, 0.0);
    for byte in 0..=255u8 {
        add(&format!("<0x{byte:02X}>"), TokenType::Byte, 0.0);
    }
    add("<start_of_turn>", TokenType::UserDefined, 0.0);
    add("\n\n", TokenType::UserDefined, 0.0);
    let pieces = ["▁t", "he", "▁the", "in", "▁▁", "er", "re", "</", "s>", "ab", "bc", "abc", "▁", "t", "h", "e"];
    for (rank, piece) in pieces.iter().chain(&["a", "b", "c", "i", "n", "r", "s", "<", "/", ">"]).enumerate() {
        add(piece, TokenType::Normal, -(rank as f32));
    }
    Tokenizer::new(spec).unwrap()
}

#[test]
fn sentencepiece_rules() {
    let tokenizer = spm(true);
    let text = |id: u32| tokenizer.token_text(TokenId(id)).unwrap().into_owned();
    let pieces = |s: &str, special| tokenizer.encode(s, special).unwrap().iter().map(|id| text(id.0)).collect::<Vec<_>>();
    assert_eq!(pieces("the", Special::AsText), [" the"]);
    assert_eq!(pieces("abc", Special::AsText), [" ", "abc"], "the better pair 'ab' is joined first");
    assert_eq!(pieces("there", Special::AsText), [" the", "re"]);
    // Byte fallback.
    assert_eq!(tokenizer.encode("é", Special::AsText).unwrap().len(), 3);
    // What looks like a special token is text unless parsed; no join makes one either.
    assert_eq!(pieces("</s>", Special::AsText), [" ", "</", "s>"]);
    assert_eq!(tokenizer.encode("</s>", Special::Parse).unwrap(), [TokenId(2)]);
    assert!(!pieces("<start_of_turn>", Special::AsText).contains(&"<start_of_turn>".to_owned()));
    // Pieces the file keeps whole are kept whole in any text.
    assert!(pieces("a\n\nb", Special::AsText).contains(&"\n\n".to_owned()));
    // Gemma: no blank in front.
    let plain = spm(false).encode("the", Special::AsText).unwrap();
    assert_eq!(plain.len(), 2, "'t' and 'he'");
    let mut ids = plain;
    tokenizer.add_bos_eos(&mut ids);
    assert_eq!(ids[0], TokenId(1), "SentencePiece files add a begin-of-text token unless they say otherwise");
}

#[test]
fn a_stream_after_text_keeps_its_blank() {
    let tokenizer = spm(true);
    let the = tokenizer.encode("the", Special::AsText).unwrap();
    let mut stream = TokenStream::after_prompt(&tokenizer, &the, ShowSpecial::No);
    assert_eq!(stream.push(the[0]).unwrap(), " the");
    let mut stream = TokenStream::after_prompt(&tokenizer, &[TokenId(1)], ShowSpecial::No);
    assert_eq!(stream.push(the[0]).unwrap(), "the");
}

#[test]
fn special_tokens_are_hidden_or_shown() {
    let tokenizer = fixture("tiny-random-BF16.gguf");
    let ids = tokenizer.encode("<think>a</think>b<|im_end|>", Special::Parse).unwrap();
    let decode = |show| tokenizer.decode(&ids, show).unwrap();
    assert_eq!(decode(ShowSpecial::Yes), "<think>a</think>b<|im_end|>");
    assert_eq!(decode(ShowSpecial::ExceptEog), "<think>a</think>b");
    assert_eq!(decode(ShowSpecial::No), "ab");
}

#[test]
fn generation_ends_at_every_known_end() {
    let tokenizer = fixture("tiny-flash-next-Q8_0.gguf");
    let end = |text| tokenizer.is_eog(tokenizer.special_id(text).unwrap());
    assert!(end("<|im_end|>") && end("<|endoftext|>"));
    assert!(!end("<|im_start|>") && !end("<think>"));
    assert_eq!(tokenizer.eos(), tokenizer.special_id("<|im_end|>"));
}

#[test]
fn damaged_vocabularies_are_refused_with_a_reason() {
    let good = TokenizerSpec {
        model: "gpt2".into(),
        pre: Some("qwen2".into()),
        tokens: ["a", "b", "ab"].map(str::to_owned).to_vec(),
        merges: vec!["a b".into()],
        ..TokenizerSpec::default()
    };
    assert!(Tokenizer::new(good.clone()).is_ok());
    let refuse = |change: &dyn Fn(&mut TokenizerSpec)| {
        let mut spec = good.clone();
        change(&mut spec);
        Tokenizer::new(spec).err().expect("refused").to_string()
    };
    assert!(refuse(&|s| s.model = "bert".into()).contains("'bert'"));
    let unknown = refuse(&|s| s.pre = Some("nonsense".into()));
    assert!(unknown.contains("'nonsense'") && unknown.contains("qwen35"), "{unknown}");
    assert!(refuse(&|s| s.tokens.clear()).contains("empty"));
    for merge in ["a  b", "ab", "", " ", "a x", "ab ab", "aaaaaaaaaaaa b", "é b"] {
        assert!(refuse(&|s| s.merges = vec![merge.into()]).contains("merge 0"), "{merge:?}");
    }
    assert!(refuse(&|s| s.eos_id = Some(3)).contains("token id 3"));
    assert!(refuse(&|s| s.token_types = vec![TokenType::Normal]).contains("token_type"));
    assert!(refuse(&|s| (s.model, s.scores) = ("llama".into(), Some(vec![f32::NAN; 3]))).contains("score"));
    // A byte without a token is an error, not a gap in the text.
    let tokenizer = Tokenizer::new(good).unwrap();
    assert_eq!(tokenizer.encode("ac", Special::AsText), Err(TokenizerError::NoTokenForByte { byte: b'c' }));
    let outside = tokenizer.decode(&[TokenId(3)], ShowSpecial::Yes);
    assert_eq!(outside, Err(TokenizerError::UnknownToken { id: 3, tokens: 3 }));
}

#[test]
fn every_known_name_loads() {
    for pre in known_pre_tokenizers() {
        let tokens = vec!["a".to_owned()];
        let spec = TokenizerSpec { model: "gpt2".into(), pre: Some(pre.into()), tokens, ..Default::default() };
        assert_eq!(Tokenizer::new(spec).unwrap().encode("a", Special::AsText).unwrap(), [TokenId(0)], "{pre}");
    }
}

/// A run of blanks or of one letter must cost neither exactness nor quadratic time.
#[test]
fn long_runs_stay_exact_and_quick() {
    let tokenizer = fixture("tiny-random-BF16.gguf");
    let begun = std::time::Instant::now();
    for unit in [" ", "\n", "x", " \n", "é", "'", "1", "字"] {
        let text = unit.repeat(400_000);
        let text = format!("a{text}b");
        let ids = tokenizer.encode(&text, Special::AsText).unwrap();
        assert_eq!(tokenizer.decode(&ids, ShowSpecial::Yes).unwrap(), text);
    }
    assert!(begun.elapsed().as_secs() < 60, "took {:?}", begun.elapsed());
}

/// A vocabulary as large as the flagship's loads in about a second.
#[test]
fn a_large_vocabulary_loads_quickly() {
    let mut spec = TokenizerSpec { model: "gpt2".into(), pre: Some("qwen35".into()), ..Default::default() };
    let letters: Vec<char> = ('!'..='~').collect();
    spec.tokens.extend(letters.iter().map(char::to_string));
    let mut longer = Vec::new();
    for left in &letters {
        for right in &letters {
            longer.push((format!("{left}{right}"), left.to_string(), right.to_string()));
        }
    }
    'fill: for (pair, ..) in longer.clone() {
        for last in &letters {
            longer.push((format!("{pair}{last}"), pair.clone(), last.to_string()));
            if longer.len() == 248_000 {
                break 'fill;
            }
        }
    }
    for (joined, left, right) in longer {
        spec.tokens.push(joined);
        spec.merges.push(format!("{left} {right}"));
    }
    let begun = std::time::Instant::now();
    let tokenizer = Tokenizer::new(spec).unwrap();
    let took = begun.elapsed();
    assert_eq!(tokenizer.vocab_len(), 248_094);
    assert!(took.as_secs_f32() < 10.0, "took {took:?}");
    println!("{} tokens loaded in {took:?}", tokenizer.vocab_len());
}

fn decode_all(tokenizer: &Tokenizer, ids: &[TokenId], show: ShowSpecial) -> String {
    let mut stream = TokenStream::new(tokenizer, StreamStart::Text, show);
    let mut out: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    out.push_str(&stream.finish());
    out
}

/// Any text, with what tokenizers stumble over made likely.
fn nasty_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<String>(),
        "[ \\t\\r\\n]{0,6}",
        "[a-z'’]{1,8}",
        "[0-9]{1,5}",
        "<\\|?(im_end|im_start|endoftext|think|/think)\\|?>",
        "\\PC{1,4}",
        Just("👩‍👩‍👧".to_owned()),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

/// Normal form C, by the Rust package the encoder's package uses.
fn nfc(text: &str) -> String {
    let mut normalized = tokenizers::NormalizedString::from(text);
    normalized.nfc();
    normalized.get().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn text_survives_encoding_and_decoding(text in nasty_text()) {
        thread_local! {
            static TOKENIZER: Tokenizer = fixture("tiny-random-BF16.gguf");
            static SPM: [Tokenizer; 2] = [spm(false), spm(true)];
        }
        TOKENIZER.with(|tokenizer| {
            let whole = nfc(&text);
            for special in [Special::Parse, Special::AsText] {
                let ids = tokenizer.encode(&text, special).unwrap();
                prop_assert_eq!(tokenizer.decode(&ids, ShowSpecial::Yes).unwrap(), whole.clone());
                if special == Special::AsText {
                    prop_assert!(ids.iter().all(|id| !tokenizer.is_special(*id)));
                }
            }
            Ok(())
        })?;
        // SentencePiece writes blanks as U+2581 and cannot tell the two apart.
        let text = text.replace('\u{2581}', "");
        SPM.with(|tokenizers| {
            for tokenizer in tokenizers {
                for special in [Special::Parse, Special::AsText] {
                    let ids = tokenizer.encode(&text, special).unwrap();
                    prop_assert_eq!(tokenizer.decode(&ids, ShowSpecial::Yes).unwrap(), text.clone());
                }
            }
            Ok(())
        })?;
    }

    /// Any tokens, also such that end inside a character.
    #[test]
    fn streams_equal_wholes(ids in prop::collection::vec(0u32..512, 0..60)) {
        thread_local!(static TOKENIZER: Tokenizer = fixture("tiny-random-BF16.gguf"));
        TOKENIZER.with(|tokenizer| {
            let ids: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
            let bytes = |hide: bool| {
                let kept = ids.iter().filter(|id| !(hide && tokenizer.is_special(**id)));
                kept.flat_map(|id| tokenizer.token_bytes(*id).unwrap().to_vec()).collect::<Vec<u8>>()
            };
            for (show, hide) in [(ShowSpecial::Yes, false), (ShowSpecial::No, true)] {
                let whole = String::from_utf8_lossy(&bytes(hide)).into_owned();
                prop_assert_eq!(decode_all(tokenizer, &ids, show), whole);
            }
            Ok(())
        })?;
    }
}
