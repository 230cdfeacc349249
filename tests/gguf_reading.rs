//! Promise: a sound GGUF file opens, in whatever shards and under whatever names, and gives back what is in it.

mod gguf_support;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use gguf_support::{FIXTURES, Raw, SHARD_1, SHARD_2, everything, fixture, repository};
use strata::gguf::{GgufError, GgufWriter, Metadata, MetadataError, ModelFiles, Strings, Value};
use strata::quant::Format;

fn copy(from: &Path, folder: &Path, name: &str) {
    fs::copy(from, folder.join(name)).unwrap();
}

/// Opens a model that must be refused, and returns what the error says.
fn refusal(path: &Path) -> String {
    ModelFiles::open(path).expect_err("this must not open").to_string()
}

#[test]
fn every_fixture_opens_and_its_tensors_lie_in_its_files() {
    for (path, key_count, tensor_count) in FIXTURES {
        let model = ModelFiles::open(repository(path)).unwrap();
        assert_eq!(model.metadata().len(), key_count, "{path}");
        assert_eq!(model.tensors().len(), tensor_count, "{path}");
        assert_eq!(model.metadata().str("general.architecture").unwrap(), "qwen4exp");
        assert_eq!(model.metadata().opt_u32("qwen4exp.embedding_length").unwrap(), Some(256));
        let sizes: u64 = model.files().iter().map(|file| fs::metadata(&file.path).unwrap().len()).sum();
        assert_eq!(model.total_bytes(), sizes);
        for file in model.files() {
            assert_eq!((file.version, file.alignment_bytes, file.trailing_bytes), (3, 32, 0), "{path}");
        }
        for tensor in model.tensors() {
            assert!(tensor.offset + tensor.bytes <= model.files()[tensor.shard].bytes);
            assert_eq!(tensor.row_bytes() * tensor.rows(), tensor.bytes);
            assert_eq!(model.tensor(&tensor.name), Some(tensor));
        }
        let of_formats: u64 = model.totals_by(|tensor| tensor.format).values().map(|total| total.bytes).sum();
        assert_eq!(of_formats, model.tensors().iter().map(|tensor| tensor.bytes).sum::<u64>());
    }
}

#[test]
fn values_of_a_real_file_are_as_its_documentation_says() {
    let model = ModelFiles::open(fixture("tiny-flash-next-Q8_0.gguf")).unwrap();
    let metadata = model.metadata();
    assert_eq!(metadata.u32("qwen4exp.block_count").unwrap(), 8);
    assert_eq!(metadata.i32s("qwen4exp.rope.dimension_sections").unwrap(), [6, 5, 5, 0]);
    assert_eq!(metadata.u64s_exact("qwen4exp.ple.head_vocab_sizes").unwrap()[0], 2003);
    assert_eq!(metadata.f32("qwen4exp.rope.freq_base").unwrap(), 1e5);
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!((tokens.len(), &tokens[0], &tokens[2038]), (2048, "!", "<|im_end|>"));
    assert_eq!(metadata.strings("tokenizer.ggml.merges").unwrap().iter().next(), Some("h e"));
    assert_eq!(metadata.iter().next().unwrap().0, "general.architecture", "file order");
    let embedding = model.require_tensor("token_embd.weight").unwrap();
    assert_eq!((embedding.shape.as_slice(), embedding.format), ([256, 2048].as_slice(), Format::Q8_0));
    assert_eq!((embedding.row_len(), embedding.rows(), embedding.row_bytes()), (256, 2048, 8 * 34));
}

#[test]
fn data_is_read_at_any_offset_and_from_many_threads() {
    let path = fixture("tiny-random-BF16.gguf");
    let whole = fs::read(&path).unwrap();
    let model = ModelFiles::open(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (model, whole) = (&model, &whole);
            scope.spawn(move || {
                for tensor in model.tensors().iter().skip(thread).step_by(4) {
                    for offset in [0, 1, tensor.bytes / 2, tensor.bytes] {
                        let mut buffer = vec![0; (tensor.bytes - offset) as usize];
                        model.read_at(tensor, offset, &mut buffer).unwrap();
                        let start = (tensor.offset + offset) as usize;
                        assert!(buffer == whole[start..start + buffer.len()], "{}", tensor.name);
                    }
                }
            });
        }
    });
}

#[test]
fn a_model_in_memory_reads_like_one_on_disk_and_lends_its_bytes() {
    let bytes: &'static [u8] = fs::read(fixture("tiny-random-BF16.gguf")).unwrap().leak();
    let model = ModelFiles::from_static("built-in", bytes).unwrap();
    let on_disk = ModelFiles::open(fixture("tiny-random-BF16.gguf")).unwrap();
    assert_eq!(model.metadata(), on_disk.metadata());
    assert_eq!(model.tensors(), on_disk.tensors());
    assert!(model.file_handle(0).is_none() && on_disk.file_handle(0).is_some());
    for tensor in model.tensors() {
        let mut buffer = vec![0; tensor.bytes as usize];
        on_disk.read_at(tensor, 0, &mut buffer).unwrap();
        let lent = model.borrow(tensor).unwrap();
        assert!(lent == buffer && bytes.as_ptr_range().contains(&lent.as_ptr()), "not copied");
    }
}

#[test]
fn every_type_of_value_comes_back_as_written() {
    let writer = everything();
    let bytes = writer.to_bytes().unwrap();
    let model = ModelFiles::from_bytes("all.gguf", bytes.clone()).unwrap();
    let mut again = GgufWriter::new();
    again.set_all(model.metadata());
    for tensor in model.tensors() {
        again.tensor(&tensor.name, &tensor.shape, tensor.format, model.borrow(tensor).unwrap().to_vec()).unwrap();
    }
    assert!(again.to_bytes().unwrap() == bytes);
    assert_eq!(model.metadata().u64("n.u64").unwrap(), u64::MAX);
    assert_eq!(model.metadata().i64("n.i64").unwrap(), i64::MIN);
    assert_eq!(model.metadata().str("general.name").unwrap(), "Grüße 🦀");
    let json = serde_json::to_value(model.metadata()).unwrap();
    assert_eq!(json["a.nested"], serde_json::json!([[1, 2], ["x", "y"], []]));
    assert_eq!(json["tokenizer.ggml.tokens"][3], "é");

    let mut version_2 = bytes;
    version_2[4] = 2;
    let model_2 = ModelFiles::from_bytes("v2.gguf", version_2).unwrap();
    assert_eq!((model_2.metadata(), model_2.files()[0].version), (model.metadata(), 2));
}

#[test]
fn values_print_in_one_short_line_without_control_characters() {
    let mut metadata = Metadata::new();
    metadata.insert("text", Value::from("\x1b[31mred\n".repeat(1000)));
    metadata.insert("list", Value::from((0..1000u32).collect::<Vec<_>>()));
    metadata.insert("tokens", Value::from(Strings::from_iter(["\x07 a long token of many characters"; 100])));
    metadata.insert("far", Value::from(vec![f64::MIN_POSITIVE, f64::MAX, f64::MIN, 1e300, 1e-300, f64::NAN]));
    for (key, value) in metadata.iter() {
        let line = value.to_string();
        assert!(line.len() < 400 && !line.contains(char::is_control), "{key}: {line}");
    }
    assert_eq!(metadata.get("list").unwrap().to_string(), "[0, 1, 2, 3, 4, 5, 6, 7, … 1000 u32]");
}

#[test]
fn integers_of_any_width_are_taken_where_they_fit() {
    let model = ModelFiles::from_bytes("all.gguf", everything().to_bytes().unwrap()).unwrap();
    let metadata = model.metadata();
    assert_eq!(metadata.u32("n.u8").unwrap(), 200);
    assert_eq!(metadata.i32("n.u16").unwrap(), 60_000);
    assert_eq!(metadata.u64("n.u32").unwrap(), u64::from(u32::MAX));
    assert_eq!(metadata.u32s("a.u64").unwrap_err().to_string().matches("a.u64[0]").count(), 1);
    assert_eq!(metadata.i32s("a.u16").unwrap(), [1, 2, 3]);
    assert_eq!(metadata.f32("n.f64").unwrap(), 0.1);
    assert_eq!(metadata.bools("a.bool").unwrap(), [true, false, true]);
    assert!(metadata.u32s("a.empty").unwrap().is_empty());
    assert_eq!(metadata.u32_per_layer("n.u8", 3).unwrap(), [200; 3]);
    assert_eq!(metadata.u32_per_layer("a.u32", 5).unwrap(), [7; 5]);
    assert_eq!(metadata.opt_u32_per_layer("none", 5).unwrap(), None);
    assert_eq!(metadata.opt_bool_per_layer("a.bool", 3).unwrap(), Some(vec![true, false, true]));
}

#[test]
fn a_failed_look_up_names_the_key_what_was_expected_and_what_was_found() {
    let model = ModelFiles::from_bytes("all.gguf", everything().to_bytes().unwrap()).unwrap();
    let metadata = model.metadata();
    let cases: [(Result<(), MetadataError>, [&str; 3]); 9] = [
        (metadata.u32("n.none").map(drop), ["n.none", "no metadata key", "needed"]),
        (metadata.u32("n.i32").map(drop), ["n.i32", "0..=4294967295", "-7"]),
        (metadata.u32("general.name").map(drop), ["general.name", "an integer (u32)", "the string \"Grüße"]),
        (metadata.opt_bool("n.u8").map(drop), ["n.u8", "a bool", "the u8 200"]),
        (metadata.f32("n.u32").map(drop), ["n.u32", "a number (f32)", "the u32 4294967295"]),
        (metadata.f32s("a.f64").map(drop), ["a.f64", "range of an f32", "1e300"]),
        (metadata.strings("a.u32").map(drop), ["a.u32", "an array of strings", "an array of 5 u32"]),
        (metadata.u64s_exact("a.u32").map(drop), ["a.u32", "64 bits", "an array of 5 u32"]),
        (metadata.u32_per_layer("a.u32", 8).map(drop), ["a.u32", "exactly 8", "an array of 5"]),
    ];
    for (result, parts) in cases {
        let text = result.unwrap_err().to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    assert_eq!(metadata.opt_u32("n.none"), Ok(None));
}

#[test]
fn alignment_is_honoured_and_what_lies_behind_the_data_is_reported() {
    for alignment_bytes in [8u32, 32, 64, 4096] {
        let mut writer = everything();
        writer.set_alignment(alignment_bytes).unwrap();
        let mut bytes = writer.to_bytes().unwrap();
        bytes.extend([0; 5]);
        let model = ModelFiles::from_bytes("aligned.gguf", bytes).unwrap();
        let file = &model.files()[0];
        assert_eq!((file.alignment_bytes, file.trailing_bytes), (alignment_bytes.into(), 5));
        assert!(model.tensors().iter().all(|tensor| tensor.offset % u64::from(alignment_bytes) == 0));
        assert_eq!(model.borrow(model.tensor("norm.weight").unwrap()).unwrap()[..3], [11, 18, 25]);
    }
}

#[test]
fn the_padding_of_the_last_tensor_may_be_missing() {
    let raw = Raw::start(3, 1, 0).tensor("x", &[3], 0, 0).data(12);
    let model = ModelFiles::from_bytes("unpadded.gguf", raw.0).unwrap();
    assert_eq!(model.files()[0].trailing_bytes, 0);
    let vocabulary_only = Raw::start(3, 0, 1).key_u32("a", 1);
    assert_eq!(ModelFiles::from_bytes("vocabulary.gguf", vocabulary_only.0).unwrap().tensors().len(), 0);
}

#[test]
fn a_header_alone_is_enough_to_inspect_and_reading_data_is_then_an_error() {
    let mut writer = GgufWriter::new();
    writer.zeros("experts", &[2560, 640, 512], Format::Q4_K).unwrap();
    let (header, file_bytes) = writer.header().unwrap();
    let model = ModelFiles::from_header("sheet.gguf", header.as_slice(), file_bytes).unwrap();
    let tensor = model.require_tensor("experts").unwrap();
    assert_eq!(tensor.bytes, 2560 * 640 * 512 / 256 * 144);
    let error = model.read_at(tensor, 0, &mut [0; 4]).unwrap_err();
    assert!(matches!(&error, GgufError::NoData { tensor, .. } if tensor == "experts"), "{error}");
}

/// 60 GiB of zeros take no room on a file system with holes.
#[cfg(target_os = "linux")]
#[test]
fn a_huge_file_opens_at_once_and_is_read_behind_4_gib() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.gguf");
    let mut writer = GgufWriter::new();
    writer.zeros("a", &[1 << 20, 1 << 14], Format::F32).unwrap();
    writer.tensor("b", &[2], Format::F32, vec![1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    writer.write_file(&path).unwrap();
    let begin = std::time::Instant::now();
    let model = ModelFiles::open(&path).unwrap();
    assert!(begin.elapsed().as_secs() < 2, "{:?}", begin.elapsed());
    let mut buffer = [0; 8];
    model.read_at(model.tensor("b").unwrap(), 0, &mut buffer).unwrap();
    assert_eq!((model.total_bytes() >> 36, buffer), (1, [1, 2, 3, 4, 5, 6, 7, 8]));
}

#[test]
fn shards_are_found_under_any_name() {
    let expected = ModelFiles::open(fixture(SHARD_1)).unwrap();
    assert_eq!(expected.files().len(), 2);
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture(SHARD_1), folder.path(), "zebra.gguf");
    copy(&fixture(SHARD_2), folder.path(), "ant.GGUF");
    fs::write(folder.path().join("broken.gguf"), b"GGUF\x03").unwrap();
    fs::create_dir(folder.path().join("folder.gguf")).unwrap();
    let model = ModelFiles::open(folder.path().join("zebra.gguf")).unwrap();
    assert_eq!(model.tensors(), expected.tensors());
    let names: Vec<_> = model.files().iter().map(|file| file.path.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["zebra.gguf", "ant.GGUF"]);
    let shards: HashSet<usize> = model.tensors().iter().map(|tensor| tensor.shard).collect();
    assert_eq!(shards.len(), 2);
    for tensor in model.tensors().iter().step_by(13) {
        let (mut here, mut there) = (vec![0; tensor.bytes as usize], vec![1; tensor.bytes as usize]);
        model.read_at(tensor, 0, &mut here).unwrap();
        expected.read_at(expected.tensor(&tensor.name).unwrap(), 0, &mut there).unwrap();
        assert!(here == there, "{}", tensor.name);
    }
}

#[test]
fn many_shards_are_put_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let paths = everything().write_shards(folder.path(), "model", 1).unwrap();
    // Names whose order is not that of the shards.
    for (path, name) in paths.iter().zip(["e.gguf", "d.gguf", "c.gguf", "b.gguf", "a.gguf"]) {
        fs::rename(path, folder.path().join(name)).unwrap();
    }
    let model = ModelFiles::open(folder.path().join("e.gguf")).unwrap();
    let whole = ModelFiles::from_bytes("whole.gguf", everything().to_bytes().unwrap()).unwrap();
    for (tensor, expected) in model.tensors().iter().zip(whole.tensors()) {
        assert_eq!((&tensor.name, tensor.bytes), (&expected.name, expected.bytes));
        let mut data = vec![0; tensor.bytes as usize];
        model.read_at(tensor, 0, &mut data).unwrap();
        assert!(data == whole.borrow(expected).unwrap());
    }
    let in_memory = ModelFiles::from_memory(everything().to_shards("model", 2).unwrap()).unwrap();
    assert_eq!(in_memory.files().len(), 3);
}

#[test]
fn of_two_models_split_alike_the_names_decide() {
    let folder = tempfile::tempdir().unwrap();
    for stem in ["model-Q4", "model-Q8"] {
        everything().write_shards(folder.path(), stem, 3).unwrap();
    }
    let model = ModelFiles::open(folder.path().join("model-Q8-00001-of-00002.gguf")).unwrap();
    assert!(model.files()[1].path.ends_with("model-Q8-00002-of-00002.gguf"));

    // Another model's shard is not taken for a missing one.
    fs::remove_file(folder.path().join("model-Q8-00002-of-00002.gguf")).unwrap();
    let text = refusal(&folder.path().join("model-Q8-00001-of-00002.gguf"));
    assert!(text.contains("shard 2 of 2") && text.contains("named as a shard of another model"), "{text}");

    // Names that say nothing do not decide.
    fs::rename(folder.path().join("model-Q8-00001-of-00002.gguf"), folder.path().join("first.gguf")).unwrap();
    fs::copy(folder.path().join("model-Q4-00002-of-00002.gguf"), folder.path().join("x.gguf")).unwrap();
    let text = refusal(&folder.path().join("first.gguf"));
    assert!(text.contains("could both be shard 2 of 2") && text.contains("x.gguf"), "{text}");
}

#[cfg(unix)]
#[test]
fn links_to_a_shard_are_no_contradiction() {
    let folder = tempfile::tempdir().unwrap();
    let paths = everything().write_shards(folder.path(), "model", 3).unwrap();
    fs::rename(&paths[0], folder.path().join("first.gguf")).unwrap();
    std::os::unix::fs::symlink(&paths[1], folder.path().join("link.gguf")).unwrap();
    assert_eq!(ModelFiles::open(folder.path().join("first.gguf")).unwrap().files().len(), 2);
}

#[test]
fn a_missing_shard_is_named_with_the_folder_that_was_searched() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture(SHARD_1), folder.path(), SHARD_1);
    fs::write(folder.path().join("cut.gguf"), &fs::read(fixture(SHARD_2)).unwrap()[..60]).unwrap();
    let text = refusal(&folder.path().join(SHARD_1));
    let folder = folder.path().display().to_string();
    assert!(["shard 2 of 2", SHARD_1, &folder, "cut.gguf"].iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn opening_a_later_shard_says_which_one_is_the_first() {
    let text = refusal(&fixture(SHARD_2));
    assert!(["shard 2 of 2", SHARD_1].iter().all(|part| text.contains(part)), "{text}");
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture(SHARD_2), folder.path(), "alone.gguf");
    let text = refusal(&folder.path().join("alone.gguf"));
    assert!(text.contains("alone.gguf") && text.contains("not in the same folder"), "{text}");
}

#[test]
fn a_file_cut_short_after_it_was_opened_gives_an_error_that_names_the_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    everything().write_file(&path).unwrap();
    let model = ModelFiles::open(&path).unwrap();
    let tensor = model.tensor("output.weight").unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(tensor.offset + 10).unwrap();
    let error = model.read_at(tensor, 0, &mut vec![0; tensor.bytes as usize]).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, GgufError::ShortRead { .. }), "{text}");
    assert!(text.contains("cut.gguf") && text.contains("output.weight"), "{text}");
}

#[test]
fn reads_past_a_tensor_or_of_another_model_are_refused() {
    let model = ModelFiles::from_bytes("all.gguf", everything().to_bytes().unwrap()).unwrap();
    let tensor = model.tensor("norm.weight").unwrap().clone();
    let mut foreign = tensor.clone();
    foreign.shard = 7;
    let mut outside = tensor.clone();
    outside.offset = u64::MAX;
    for (tensor, offset) in [(&tensor, 9), (&tensor, u64::MAX), (&foreign, 0), (&outside, 0)] {
        let error = model.read_at(tensor, offset, &mut [0; 4]).unwrap_err();
        assert!(matches!(error, GgufError::OutsideTensor { .. }), "{error}");
    }
    assert!(model.borrow(&foreign).is_none() && model.borrow(&outside).is_none());
    assert!(model.require_tensor("nope").unwrap_err().to_string().contains("\"nope\""));
}
