//! Promise: a damaged or hostile file gives one clear error that names the file and the tensor or key.

mod gguf_support;

use gguf_support::{Raw, everything};
use strata::gguf::{GgufError, GgufWriter, ModelFiles};
use strata::quant::Format;

const F32: u32 = 0;
const Q8_0: u32 = 8;

/// The error that `bytes` must give. It must name the file.
fn refusal(case: &str, bytes: Vec<u8>) -> String {
    match ModelFiles::from_bytes("hostile.gguf", bytes) {
        Ok(_) => panic!("{case}: opened"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("'hostile.gguf'"), "{case}: {text}");
            assert!(!text.contains(char::is_control), "{case}: {text:?}");
            text
        }
    }
}

/// Checks that each file is refused with an error that has all the given parts.
fn check(cases: Vec<(&str, Raw, &[&str])>) {
    for (case, raw, parts) in cases {
        let text = refusal(case, raw.0);
        for part in parts {
            assert!(text.contains(part), "{case}: expected {part:?} in: {text}");
        }
    }
}

#[test]
fn files_that_are_something_else_are_recognised() {
    let raw = |bytes: &[u8]| Raw(bytes.to_vec());
    let big_endian = Raw(b"GGUF".to_vec()).bytes(&3u32.to_be_bytes()).bytes(&[0; 16]);
    check(vec![
        ("empty", raw(b""), &["not a GGUF file", "empty"]),
        ("short", raw(b"GG"), &["not a GGUF file"]),
        ("text", raw(b"hello, this is no model"), &["does not begin with 'GGUF'"]),
        ("zeros", raw(&[0; 100]), &["zeros", "download it again"]),
        ("web page", raw(b"<!DOCTYPE html><html>"), &["web page"]),
        ("git-lfs", raw(b"version https://git-lfs.github.com/spec/v1\noid"), &["git lfs pull"]),
        ("safetensors", raw(b"\x40\0\0\0\0\0\0\0{\"__metadata__\":{}}"), &["safetensors"]),
        ("zip", raw(b"PK\x03\x04rest"), &["PyTorch"]),
        ("old ggml", raw(b"lmggrest"), &["GGML"]),
        ("big-endian", big_endian, &["big-endian", "convert"]),
        ("version 0", Raw::start(0, 0, 0), &["version 0"]),
        ("version 1", Raw::start(1, 0, 0), &["version 1", "newer conversion"]),
        ("version 4", Raw::start(4, 0, 0), &["version 4", "update"]),
    ]);
}

#[test]
fn lengths_and_counts_beyond_the_file_are_refused_before_they_are_used() {
    let start = |keys| Raw::start(3, 0, keys);
    check(vec![
        ("magic only", Raw(b"GGUF".to_vec()), &["cut short", "4 bytes at byte 4", "0 left"]),
        ("no counts", Raw(b"GGUF\x03\0\0\0\x01".to_vec()), &["the count of tensors and keys", "1 left"]),
        ("many tensors", Raw::start(3, u64::MAX, 0), &["18446744073709551615 tensors", "65536"]),
        ("many keys", Raw::start(3, 0, 1 << 40), &["metadata keys", "16384"]),
        ("tensors without bytes", Raw::start(3, 60_000, 0), &["cut short", "the count of tensors"]),
        ("keys without bytes", start(10_000), &["cut short", "the count of tensors and keys"]),
        ("key length", start(1).u64(u64::MAX).bytes(&[0; 8]), &["the name of metadata key 0", "18446744073709551615"]),
        ("value missing", start(1).key("n", 4).bytes(&[0]), &["the value of metadata key \"n\"", "4 bytes"]),
        ("string length", start(1).key("text", 8).u64(1 << 62), &["\"text\"", "4611686018427387904 bytes"]),
        ("array count", start(1).key("list", 9).u32(4).u64(1 << 62).u64(0), &["\"list\"", "18446744073709551615 bytes"]),
        ("array of strings", start(1).key("list", 9).u32(8).u64(2).u64(0).u64(9), &["string 1 of metadata key \"list\""]),
        ("string count", start(1).key("list", 9).u32(8).u64(1 << 50), &["\"list\"", "needs 9007199254740992 bytes"]),
        ("inner count", start(1).key("n", 9).u32(9).u64(1).u32(9).u64(1 << 60), &["\"n\"", "cut short"]),
    ]);
}

#[test]
fn metadata_that_means_nothing_is_refused() {
    let start = |keys| Raw::start(3, 0, keys);
    let nested = (0..6).fold(start(1).key("deep", 9), |raw, _| raw.u32(9).u64(1)).bytes(&[0; 64]);
    let many = (0..3).fold(start(1).key("wide", 9).u32(9).u64(3), |raw, _| raw.u32(9).u64(40_000).bytes(&[0; 480_000]));
    check(vec![
        ("type 13", start(1).key("k", 13).bytes(&[0; 8]), &["\"k\"", "value type 13"]),
        ("item type", start(1).key("k", 9).u32(77).u64(1).bytes(&[0; 8]), &["\"k\"", "value type 77"]),
        ("bool of 2", start(1).key("flag", 7).bytes(&[2]), &["\"flag\"", "bool of 2"]),
        ("array with a bool of 3", start(1).key("flags", 9).u32(7).u64(2).bytes(&[1, 3]), &["\"flags\"", "bool of 3"]),
        ("nested", nested, &["\"deep\"", "nested deeper than 4"]),
        ("many inner arrays", many, &["arrays inside arrays"]),
        ("twice", start(2).key_u32("same", 1).key_u32("same", 2), &["\"same\" twice"]),
        ("no name", start(1).key_u32("", 1), &["the name of metadata key 0", "empty"]),
        ("long name", start(1).key_u32(&"k".repeat(1025), 1), &["the name of metadata key 0", "1025", "1024"]),
        ("key not UTF-8", start(1).string(b"\xff\xfe").u32(4).u32(1), &["the name of metadata key 0", "UTF-8"]),
        ("text not UTF-8", start(1).key("text", 8).string(b"\xc3"), &["\"text\"", "UTF-8"]),
        (
            "token not UTF-8",
            start(1).key("t", 9).u32(8).u64(3).string("a").string(b"\xc3").string(b"\xa9"),
            &["string 1 of metadata key \"t\"", "UTF-8"],
        ),
        ("control characters", start(1).key("\x1b[2J", 13).bytes(&[0; 8]), &["\\u{1b}[2J"]),
        ("alignment 0", start(1).key_u32("general.alignment", 0), &["general.alignment is 0"]),
        ("alignment 24", start(1).key_u32("general.alignment", 24), &["general.alignment is 24", "power of two"]),
        ("alignment 4", start(1).key_u32("general.alignment", 4), &["general.alignment is 4"]),
        ("alignment 2^31", start(1).key_u32("general.alignment", 1 << 31), &["general.alignment is 2147483648"]),
        ("alignment text", start(1).key("general.alignment", 8).string("x"), &["general.alignment", "an integer"]),
    ]);
}

#[test]
fn tensors_that_cannot_be_are_refused_by_name() {
    let one = |shape: &[u64], number, offset, data| Raw::start(3, 1, 0).tensor("x", shape, number, offset).data(data);
    check(vec![
        ("no name", Raw::start(3, 1, 0).tensor("", &[1], F32, 0).data(32), &["the name of tensor 0", "empty"]),
        ("not UTF-8", Raw::start(3, 1, 0).string(b"\x80").bytes(&[0; 99]), &["the name of tensor 0", "UTF-8"]),
        ("no dimensions", one(&[], F32, 0, 32), &["\"x\"", "0 dimensions"]),
        ("5 dimensions", one(&[1; 5], F32, 0, 32), &["\"x\"", "5 dimensions", "1 to 4"]),
        ("zero", one(&[4, 0], F32, 0, 32), &["\"x\"", "[4, 0]", "zero"]),
        ("product", one(&[1 << 32, 1 << 32, 2], F32, 0, 32), &["\"x\"", "more weights than any file"]),
        ("bytes", one(&[1 << 62, 2], F32, 0, 32), &["\"x\"", "more weights than any file"]),
        ("row", one(&[33, 2], Q8_0, 0, 96), &["\"x\"", "33 weights", "Q8_0 blocks of 32"]),
        ("offset", one(&[1], F32, 33, 96), &["\"x\"", "byte 33", "alignment 32"]),
        ("far offset", one(&[1], F32, u64::MAX - 31, 96), &["\"x\"", "cut short"]),
        ("past the end", one(&[9], F32, 0, 35), &["\"x\"", "36 bytes", "download or copy"]),
        ("table cut", Raw::start(3, 1, 0).string("x").u32(4).u64(1).bytes(&[0; 20]), &["description of tensor \"x\""]),
        ("Q8_1", one(&[32], 9, 0, 96), &["\"x\"", "type number 9 (Q8_1"]),
        ("I32", one(&[32], 26, 0, 128), &["\"x\"", "type number 26 (I32)"]),
        ("IQ4_K", one(&[256], 139, 0, 256), &["\"x\"", "IQ4_K of ik_llama.cpp"]),
        ("unknown", one(&[256], 9999, 0, 256), &["\"x\"", "type number 9999 (not a known type)"]),
    ]);
}

#[test]
fn tensors_that_share_a_name_or_bytes_are_refused() {
    let pair = |first: &str, first_offset, second: &str, second_offset| {
        let raw = Raw::start(3, 2, 0).tensor(first, &[16], F32, first_offset);
        raw.tensor(second, &[16], F32, second_offset).data(128)
    };
    check(vec![
        ("same name", pair("x", 0, "x", 64), &["\"x\"", "and again"]),
        ("same bytes", pair("a", 0, "b", 0), &["\"a\"", "\"b\"", "overlap"]),
        ("half", pair("a", 32, "b", 0), &["\"a\"", "\"b\"", "overlap"]),
    ]);
    assert!(ModelFiles::from_bytes("ok", pair("a", 64, "b", 0).0).is_ok(), "any order is fine");
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = everything().to_bytes().unwrap();
    let model = ModelFiles::from_bytes("whole.gguf", bytes.clone()).unwrap();
    let data_end = model.tensors().iter().map(|tensor| tensor.offset + tensor.bytes).max().unwrap() as usize;
    for length in 0..data_end {
        let text = refusal("cut", bytes[..length].to_vec());
        assert!(length < 4 || text.contains("cut short"), "{length}: {text}");
    }
    assert!(ModelFiles::from_bytes("whole.gguf", bytes[..data_end].to_vec()).is_ok());
}

#[test]
fn paths_that_are_no_files_are_refused_without_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = ModelFiles::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("folder"), "{text}");
    let text = ModelFiles::open(folder.path().join("none.gguf")).unwrap_err().to_string();
    assert!(text.contains("cannot open") && text.contains("none.gguf"), "{text}");
    if cfg!(unix) {
        let text = ModelFiles::open("/dev/zero").unwrap_err().to_string();
        assert!(text.contains("not a regular file"), "{text}");
    }
}

/// Shards that do not fit together: what is done to the second of two, and what the error must say.
#[test]
fn shards_that_contradict_each_other_are_refused() {
    fn shards(change: impl FnOnce(&mut GgufWriter)) -> Result<ModelFiles, GgufError> {
        let mut first = GgufWriter::new();
        first.set("split.no", 0u16).set("split.count", 2u16).set("split.tensors.count", 2i32);
        first.zeros("a", &[8], Format::F32).unwrap();
        let mut second = GgufWriter::new();
        second.set("split.no", 1u16).set("split.count", 2u16).set("split.tensors.count", 2i32);
        change(&mut second);
        let files = vec![("one.gguf".to_owned(), first.to_bytes()?), ("two.gguf".to_owned(), second.to_bytes()?)];
        ModelFiles::from_memory(files)
    }
    type Change = fn(&mut GgufWriter);
    let cases: [(&str, Change, &[&str]); 6] = [
        ("twice", |w| drop(w.zeros("a", &[8], Format::F32)), &["\"a\"", "'one.gguf'", "'two.gguf'", "not shards of one"]),
        ("no tensors", |_| {}, &["one.gguf", "1 tensors together", "has 2"]),
        (
            "wrong number",
            |w| {
                w.set("split.no", 0u16);
            },
            &["two.gguf", "should be shard 2 of 2"],
        ),
        (
            "number too large",
            |w| {
                w.set("split.no", 2u16);
            },
            &["two.gguf", "split.no is 2"],
        ),
        (
            "other count",
            |w| {
                w.set("split.tensors.count", 3);
            },
            &["two.gguf", "should be shard 2 of 2 of 'one.gguf'"],
        ),
        (
            "text",
            |w| {
                w.set("split.no", "1");
            },
            &["two.gguf", "split.no", "an integer"],
        ),
    ];
    for (case, change, parts) in cases {
        let text = shards(change).unwrap_err().to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{case}: {text}");
    }
    assert_eq!(shards(|w| drop(w.zeros("b", &[8], Format::F32))).unwrap().tensors().len(), 2);
    let lonely = Raw::start(3, 0, 2).key_u32("split.count", 70_000).key_u32("split.no", 0);
    assert!(refusal("many shards", lonely.0).contains("split.count is 70000"));
    let lonely = Raw::start(3, 0, 2).key_u32("split.count", 3).key_u32("split.no", 0);
    assert!(refusal("lonely", lonely.0).contains("shard 2 of 3"));
}
