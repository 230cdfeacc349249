//! Experts that are only partly on a card, as a user sees them: a run by a machine file, a trace and its replay.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(target_os = "linux")]
use strata::gguf::{GgufWriter, ModelFiles};
#[cfg(target_os = "linux")]
use strata::quant::Format;

#[cfg(target_os = "linux")]
use crate::rig::{command, fixture};
use crate::rig::{path, random_model, strata};

const PROMPT: [&str; 5] = ["--raw", "--temp", "0", "-n", "24"];
const TEXT: &str = "Once upon a time there was a river";

/// A machine with one card, which no other test of this binary has: a card in use is refused.
fn card(mib: u32) -> tempfile::NamedTempFile {
    static CARDS: AtomicU32 = AtomicU32::new(0);
    let number = 100 + CARDS.fetch_add(1, Ordering::Relaxed);
    let host = "[host]\nos = \"linux\"\nram_total = \"16 GiB\"\nram_available = \"12 GiB\"\ncores = 2\nram_read_gbs = 20.0\n";
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

/// The trained model with `count` experts a layer, nearly all of them zeros that take no disk, and a router that spreads its choices.
#[cfg(target_os = "linux")]
fn model_of(count: u32, target: &std::path::Path) {
    let files = ModelFiles::open(fixture("tiny-flash-next-Q8_0.gguf")).unwrap();
    let mut writer = GgufWriter::new();
    writer.set_all(files.metadata()).set("qwen4exp.expert_count", count);
    for tensor in files.tensors() {
        let mut shape = tensor.shape.clone();
        if tensor.name.contains("_exps") {
            shape[2] = count.into();
            writer.zeros(&tensor.name, &shape, tensor.format).unwrap();
            continue;
        }
        let mut bytes = vec![0; tensor.bytes as usize];
        files.read_at(tensor, 0, &mut bytes).unwrap();
        if tensor.name.ends_with("ffn_gate_inp.weight") {
            shape[1] = count.into();
            let value = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / (1 << 23) as f32 - 1.0;
            bytes = (0..shape[0] * shape[1]).flat_map(|i| value(i + 1).to_le_bytes()).collect();
            assert_eq!(tensor.format, Format::F32);
        }
        writer.tensor(&tensor.name, &shape, tensor.format, bytes).unwrap();
    }
    writer.write_file(target).unwrap();
}

/// A model of twice the RAM that it may use stays within that, and does not swap.
#[test]
#[cfg(target_os = "linux")]
fn a_model_larger_than_its_ram_runs_within_its_budget_and_does_not_swap() {
    const BUDGET_MIB: u64 = 640;
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("large.gguf");
    model_of(832, &model);
    let model_bytes = std::fs::metadata(&model).unwrap().len();
    assert!(model_bytes > (2 * BUDGET_MIB) << 20, "{model_bytes}");
    let budget = format!("{BUDGET_MIB} MiB");
    let flags = ["--device", "cpu", "--ctx-size", "128", "-ub", "16", "--ram-experts", "disk", "--ram-budget", &budget];
    let args = [&["run", "-m", path(&model), "--json"], &flags[..], &PROMPT[..], &[TEXT]].concat();
    let child = command(&args).spawn().unwrap();
    // What the system counts while it runs, and not only at its end.
    let status = format!("/proc/{}/status", child.id());
    let watch = std::thread::spawn(move || {
        let (mut peak_kib, mut swap_kib) = (0u64, 0u64);
        while let Ok(text) = std::fs::read_to_string(&status) {
            let kib = |key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key));
                line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
            };
            let Some(now_kib) = kib("VmHWM:") else { break };
            peak_kib = peak_kib.max(now_kib);
            swap_kib = swap_kib.max(kib("VmSwap:").unwrap_or(0));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        (peak_kib, swap_kib)
    });
    let json = crate::rig::Ran::from(child.wait_with_output().unwrap()).json();
    let (peak_kib, swap_kib) = watch.join().unwrap();
    let own = json["report"]["memory"]["peak_bytes"].as_u64().unwrap();
    let peak = own.max(peak_kib << 10);
    println!("{} MiB resident at most, {} MiB of model, {BUDGET_MIB} MiB of budget", peak >> 20, model_bytes >> 20);
    assert!(peak_kib > 0 && peak <= (BUDGET_MIB << 20), "{} MiB resident", peak >> 20);
    assert_eq!(swap_kib, 0);
    let tiers = &json["report"]["tiers"];
    assert!(tiers["disk_calls"].as_u64() > Some(0) && tiers["card_calls"].as_u64() > Some(0), "{tiers}");
}
