//! `strata logits`: files that other tools read.

use std::path::Path;

use crate::rig::{path, random_model, strata};

fn read(file: &Path) -> (Vec<u64>, Vec<f32>) {
    let npy = npyz::NpyFile::new(std::fs::File::open(file).unwrap()).unwrap();
    (npy.shape().to_vec(), npy.into_vec::<f32>().unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Tokens of the random model, longer than its sparse attention looks back.
fn tokens(count: u32) -> String {
    (0..count).map(|i| (i * 37 % 500).to_string()).collect::<Vec<_>>().join(",")
}

fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(b).map(|(x, y)| f(f64::from(*x), f64::from(*y))).sum::<f64>();
    (sum(&|x, y| (x - y) * (x - y)) / sum(&|_, y| y * y)).sqrt()
}

#[test]
fn steps_and_chunks_agree() {
    let dir = tempfile::tempdir().unwrap();
    let list = tokens(80);
    for mode in [&["--reference"][..], &[]] {
        let run = |name: &str, flags: &[&str]| {
            let file = dir.path().join(name);
            strata(&[&["logits", "-m", &random_model(), "--tokens", &list, "-o", path(&file)], mode, flags].concat()).ok();
            read(&file)
        };
        let (shape, whole) = run("whole.npy", &["--chunk", "512"]);
        assert_eq!(shape, [80, 512]);
        for flags in [&["--step"][..], &["--chunk", "7"], &["--chunk", "1"], &["--chunk", "64"]] {
            let (shape, other) = run("other.npy", flags);
            assert_eq!(shape, [80, 512]);
            let error = relative_l2(&other, &whole);
            assert!(error <= 1e-3, "{mode:?} {flags:?}: {error}");
        }
    }
    assert_eq!(names(dir.path()), ["other.npy", "whole.npy"], "nothing else is left behind");
}

#[test]
fn tokens_come_from_arguments_files_and_text() {
    let dir = tempfile::tempdir().unwrap();
    let (ids, out) = (dir.path().join("ids.json"), dir.path().join("out.npy"));
    std::fs::write(&ids, "[1, 2,\n 3]").unwrap();
    strata(&["logits", "-m", &random_model(), "--tokens-file", path(&ids), "-o", path(&out)]).ok();
    let from_file = read(&out);
    strata(&["logits", "-m", &random_model(), "--tokens", "1,2,3", "-o", path(&out)]).ok();
    assert_eq!(read(&out), from_file);
    strata(&["logits", "--text", "The capital of France is", "-o", path(&out)]).ok();
    let (shape, scores) = read(&out);
    let last = &scores[scores.len() - shape[1] as usize..];
    let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
    let word = strata(&["tokenize", "--json", "--ids", &best.to_string()]).json();
    assert!(" Paris".starts_with(word["text"].as_str().unwrap()), "{word}");
}

#[test]
fn every_step_can_be_dumped() {
    let dir = tempfile::tempdir().unwrap();
    let (out, dump) = (dir.path().join("out.npy"), dir.path().join("tensors"));
    let args = ["logits", "-m", &random_model(), "--tokens", "5,6,7", "-o", path(&out)];
    strata(&args).ok();
    let plain = read(&out);
    strata(&[&args[..], &["--dump", path(&dump), "--chunk", "2"]].concat()).ok();
    let files = names(&dump);
    assert!(files.iter().any(|f| f.starts_with("w0000.0000.")) && files.iter().any(|f| f.starts_with("w0001.")), "{files:?}");
    let logits = files.iter().rfind(|f| f.starts_with("w0001.") && f.contains("logits")).unwrap_or_else(|| panic!("{files:?}"));
    let (shape, last) = read(&dump.join(logits));
    assert_eq!(shape, [1, 512]);
    assert!(relative_l2(&last, &plain.1[2 * 512..]) < 1e-3);
    assert!(relative_l2(&read(&out).1, &plain.1) < 1e-3, "watching changes nothing");
}

#[test]
#[cfg(unix)]
fn ctrl_c_leaves_no_half_written_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.npy");
    let list = tokens(4000);
    let args = ["logits", "--tokens", &list, "--step", "--reference", "-o", path(&out)];
    let child = crate::rig::command(&args).spawn().unwrap();
    while names(dir.path()).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    crate::rig::interrupt(&child);
    let ran: crate::rig::Ran = child.wait_with_output().unwrap().into();
    ran.fails(130, &["interrupted"]);
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

#[test]
fn bad_tokens_and_places_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.npy");
    let logits = |args: &[&str]| strata(&[&["logits", "-m", &random_model()], args].concat());
    let file = dir.path().join("ids.txt");
    std::fs::write(&file, "1 2\n3 four").unwrap();
    logits(&["--tokens-file", path(&file), "-o", path(&out)]).fails(2, &["ids.txt", "line 2", "four"]);
    logits(&["--tokens", "1,512", "-o", path(&out)]).fails(2, &["512", "position 1", "vocabulary"]);
    logits(&["--tokens", "", "-o", path(&out)]).fails(2, &["no tokens"]);
    logits(&["--tokens-file", "/no/such/file", "-o", path(&out)]).fails(1, &["/no/such/file"]);
    logits(&["--tokens", "1", "-o", "/no/such/folder/out.npy"]).fails(1, &["cannot write", "/no/such/folder/out.npy"]);
    logits(&["--tokens", "1", "-o", path(dir.path())]).fails(1, &["it is a folder"]);
    logits(&["-o", path(&out)]).fails(2, &["--tokens"]);
    logits(&["--tokens", "1", "--text", "x", "-o", path(&out)]).fails(2, &["cannot be used with"]);
    logits(&["--tokens", "1", "--chunk", "0", "-o", path(&out)]).fails(2, &["--chunk"]);
    assert_eq!(names(dir.path()), ["ids.txt"]);
}
