//! Experts that are only partly on a card, as a user sees them: a run by a machine file, a trace and its replay.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::rig::{path, random_model, strata};

const PROMPT: [&str; 5] = ["--raw", "--temp", "0", "-n", "24"];
const TEXT: &str = "Once upon a time there was a river";

/// A machine with one card, which no other test of this binary has: a card in use is refused.
fn card(mib: u32) -> tempfile::NamedTempFile {
    static CARDS: AtomicU32 = AtomicU32::new(0);
    let number = 100 + CARDS.fetch_add(1, Ordering::Relaxed);
    let host = "[host]\nos = \"linux\"\nram_total = \"16 GiB\"\nram_available = \"12 GiB\"\ncores = 2\n";
    let card = format!(
        "[[card]]\nid = \"virtual:{number}\"\nname = \"a small card\"\nbackend = \"virtual\"\ndriver = \"none\"\ntotal = \"{mib} MiB\"\n\
         free = \"{mib} MiB\"\nmemory_gbs = 10.0\nbus_gbs = 8.0\ncompute_tflops = 0.1\n"
    );
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "version = 1\nname = \"a small card\"\n{host}{card}").unwrap();
    file
}

#[test]
fn a_card_that_holds_only_some_experts_gives_the_same_text_and_says_what_it_did() {
    let whole = strata(&[&["run"], &PROMPT[..], &[TEXT]].concat()).ok();
    assert!(!whole.err.contains("experts: card"), "{}", whole.err);
    let machine = card(8);
    let machine = machine.path().to_str().unwrap();
    let args = ["run", "--machine", machine, "--ctx-size", "256", "-ub", "16", "--reproducible"];
    let partly = strata(&[&args[..], &PROMPT[..], &[TEXT]].concat()).ok();
    assert_eq!(partly.out, whole.out);
    for part in ["experts: card", "RAM", "of measured", "disk 0 %", "most time"] {
        assert!(partly.err.contains(part), "'{part}' is not in {}", partly.err);
    }
    let json = strata(&[&args[..], &PROMPT[..], &["--json", TEXT]].concat()).json();
    let tiers = &json["report"]["tiers"];
    assert!(tiers["card_calls"].as_u64() > Some(0) && tiers["ram_calls"].as_u64() > Some(0), "{json}");
    let bench = ["bench", "--machine", machine, "-p", "0", "-n", "8", "-r", "1", "-ub", "16"];
    let table = strata(&bench).ok().out;
    assert!(table.contains("bound: card") && table.contains("processor"), "{table}");
}

#[test]
fn a_trace_is_replayed_for_any_number_of_slots() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("routing.trace");
    let (file, profile) = (file.to_str().unwrap(), folder.path().join("profile.json"));
    let profile = profile.to_str().unwrap();
    let traced = strata(&[&["trace", "-o", file, "--expert-profile", profile], &PROMPT[..], &[TEXT]].concat()).ok();
    assert!(traced.err.contains("windows of 8 layers"), "{}", traced.err);
    let lines = strata(&["replay", file, "--json"]).json();
    let rates: Vec<f64> = lines.as_array().unwrap().iter().map(|l| l["card_hit_rate"].as_f64().unwrap()).collect();
    assert_eq!((rates[0], rates[rates.len() - 1]), (0.0, 1.0));
    assert!(rates.windows(2).all(|w| w[0] <= w[1]), "{rates:?}");
    let table = strata(&["replay", file, "--slots", "3,5", "--swaps", "0", "--expert-profile", profile]).ok().out;
    assert_eq!(table.lines().count(), 4, "{table}");
    strata(&["replay", profile]).fails(2, &["trace", "profile.json"]);
    strata(&["replay", "no such file"]).fails(1, &["cannot read", "no such file"]);
    strata(&["replay", file, "--expert-profile", "no such profile"]).fails(1, &["cannot read", "no such profile"]);
    // A trace whose numbers no model has.
    let bytes = std::fs::read(file).unwrap();
    let end = bytes.iter().position(|b| *b == b'\n').unwrap();
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[..end]).unwrap();
    for (experts, used) in [(4_000_000_000u32, 2), (8, 0), (8, 9), (0, 0)] {
        (header["layers"][0]["experts"], header["layers"][0]["used"]) = (experts.into(), used.into());
        std::fs::write(file, [header.to_string().as_bytes(), b"\n"].concat()).unwrap();
        strata(&["replay", file]).fails(2, &["routing.trace", "experts"]);
    }
}

#[test]
fn a_trace_never_takes_the_place_of_the_model_and_a_bad_place_is_told_before_loading() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.gguf");
    std::fs::copy(random_model(), &model).unwrap();
    let whole = std::fs::read(&model).unwrap();
    let model = path(&model);
    let trace = |file: &str| strata(&["trace", "-m", model, "-o", file, "--raw", "-n", "1", "x"]);
    let early = |ran: crate::rig::Ran, code: i32, words: &[&str]| {
        assert!(!ran.err.contains("loaded:"), "{}", ran.err);
        ran.fails(code, words);
    };
    early(trace(model), 2, &["a file of the model itself"]);
    early(trace("/no/such/folder/routing.trace"), 1, &["cannot write", "/no/such/folder/routing.trace"]);
    early(trace(path(folder.path())), 1, &["it is a folder"]);
    #[cfg(unix)]
    {
        let link = folder.path().join("link.gguf");
        std::os::unix::fs::symlink(model, &link).unwrap();
        early(trace(path(&link)), 2, &["a file of the model itself"]);
        std::fs::remove_file(&link).unwrap();
    }
    assert_eq!(std::fs::read(model).unwrap(), whole);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
}

/// Slots for copies must not push experts to disk that the plan has in RAM.
#[test]
fn experts_over_the_bus_need_a_place_in_ram_or_leave_to_stay_on_disk() {
    let machine = card(8);
    let machine = machine.path().to_str().unwrap();
    let run = |ram: &str| {
        let args =
            ["run", "--machine", machine, "--ctx-size", "256", "-ub", "16", "--expert-misses", "card", "--ram-experts", ram];
        strata(&[&args[..], &PROMPT[..], &[TEXT]].concat())
    };
    run("complement").fails(3, &["--expert-misses card", "--ram-experts disk"]);
    assert!(run("disk").ok().err.contains("; bus "));
    let copied = run("all").ok();
    assert!(copied.err.contains("; bus ") && copied.err.contains("disk 0 %"), "{}", copied.err);
}
