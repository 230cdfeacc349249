//! Promise: `strata plan`, `devices` and `model-sheet` from outside: what they print, how they end, and that the plan of the
//! 125B model takes well under a second.

#[path = "cli/rig.rs"]
#[allow(dead_code)] // this binary uses its own part
mod rig;

use std::time::{Duration, Instant};

use rig::{Ran, fixture, path, strata};

const STORY: &str = "linux-2x2080ti-22g-126g";

fn asset(name: &str) -> String {
    format!("{}/assets/sheets/qwen3.8-flash-next-{name}.sheet.json", env!("CARGO_MANIFEST_DIR"))
}

fn machine(name: &str) -> String {
    format!("{}/tests/machines/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

fn plan(quant: &str, pc: &str, more: &[&str]) -> Ran {
    let (model, machine) = (asset(quant), machine(pc));
    strata(&[&["plan", "-m", &model, "--machine", &machine], more].concat())
}

#[test]
fn a_sheet_of_the_125b_model_is_planned_in_well_under_a_second() {
    let start = Instant::now();
    let ran = plan("IQ3_XXS", STORY, &["--context", "262144", "--kv", "int8"]).ok();
    // Unoptimised builds and busy machines included.
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    for part in ["fits", "cuda:0", "cuda:1", "expert slots", "floor", "Predicted", "Other splits", "RAM"] {
        assert!(ran.out.contains(part), "'{part}' is not in {}", ran.out);
    }
    assert!(!ran.err.contains("error"), "{}", ran.err);
}

#[test]
fn what_this_version_cannot_run_is_told_with_the_plan() {
    let ran = strata(&["plan", "--resident-kv", "256", "-c", "1024"]).ok();
    assert!(ran.err.contains("cannot run a cache that is partly in RAM yet; leave out --resident-kv"), "{}", ran.err);
    assert_eq!(strata(&["plan", "--kv", "q4_0"]).ok().err, "");
}

#[test]
fn json_holds_every_row_and_pool() {
    let json = plan("IQ3_S", STORY, &["-c", "65536", "--json"]).json();
    assert_eq!(json["fits"], true);
    let rows = json["plan"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["id"] == "cuda:1/expert-slots" && row["bytes"].as_u64() > Some(0)));
    assert!(json["plan"]["predicted"]["decode_tokens_per_s"].as_f64() > Some(0.0));
    let split = plan("IQ3_S", STORY, &["--layer-split", "0-9,10-47", "--json"]).json();
    assert_eq!(split["plan"]["stages"][0]["layers"]["end"], 10);
}

#[test]
fn companions_are_planned_from_files_of_their_own() {
    let (draft, vision) = (asset("draft"), asset("vision"));
    let files = ["--draft", "on", "--draft-file", &draft, "--vision", "on", "--vision-file", &vision];
    let ran = plan("IQ3_XXS", STORY, &files).ok();
    assert!(ran.out.contains("draft block, experts") && ran.out.contains("vision encoder"), "{}", ran.out);
    plan("IQ3_XXS", STORY, &["--vision", "on"]).fails(2, &["--vision off"]);
    // A file that is not used is not silently ignored; an error names the file that it is in.
    let ran = plan("IQ3_XXS", STORY, &["--draft-file", &draft]).ok();
    assert!(ran.err.contains("--draft-file") && ran.err.contains("--draft on"), "{}", ran.err);
    let dense = asset("IQ3_XXS");
    plan("IQ3_XXS", STORY, &["--vision", "on", "--vision-file", &dense]).fails(1, &[&dense, "not 'clip'"]);
    strata(&["plan", "-m", rig::path(&fixture("tiny-flash-next-Q8_0.gguf")), "--vision", "on", "--vision-file", &vision])
        .fails(1, &[&vision, "2560 wide"]);
    strata(&["plan", "-m", &draft]).fails(1, &[&draft, "--draft-file"]);
}

#[test]
fn wrong_wishes_are_wrong_arguments() {
    for (wishes, word) in [
        (&["--device", "cuda:9"][..], "cuda:9"),
        (&["--device", "cuda:0,cuda:0"], "twice"),
        (&["--slots", "0"], "slots"),
        (&["--layer-split", "0-9,10-90"], "48 layers"),
        (&["-c", "4000000000"], "context (-c)"),
        (&["--draft-window", "0"], "--draft-window"),
        (&["--checkpoints", "99999"], "--checkpoints"),
        (&["--device", "cuda:0,cuda:1", "--layer-split", "0-47"], "--device names 2 cards"),
        (&["--cache-ram", "18446744073709551615"], "1024 TiB"),
        (&["--reserve", "2000 TiB"], "1024 TiB"),
    ] {
        plan("IQ3_XXS", STORY, wishes).fails(2, &[word]);
    }
    let json = plan("IQ3_XXS", STORY, &["--slots", "0", "--json"]);
    assert_eq!((json.code, json.err.as_str()), (Some(2), ""));
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["refusal"]["kind"], "invalid");
}

#[test]
fn only_plan_reads_sheets() {
    let sheet = asset("IQ3_XXS");
    for args in
        [&["run", "-m", &sheet, "x"][..], &["bench", "-m", &sheet], &["inspect", &sheet], &["tokenize", "-m", &sheet, "x"]]
    {
        strata(args).fails(1, &["model sheet", "strata plan"]);
    }
}

#[test]
fn on_the_processor_experts_are_in_ram() {
    let ran = strata(&["plan", "--machine", &machine("laptop-8g-no-gpu-linux")]).ok();
    assert!(ran.out.contains("experts: 64 of 64 in RAM") && !ran.out.contains("on cards"), "{}", ran.out);
}

#[test]
fn why_explains_a_row() {
    let ran = plan("IQ3_XXS", STORY, &["--why", "cuda:0/kv-cache"]).ok();
    assert!(ran.out.starts_with("cuda:0/kv-cache = ") && ran.out.contains("place: State arena"), "{}", ran.out);
    plan("IQ3_XXS", STORY, &["--why", "cuda:0/biscuits"]).fails(2, &["cuda:0/biscuits", "cuda:0/kv-cache", "ram/process"]);
}

#[test]
fn a_refusal_ends_with_3_and_remedies() {
    let held = "linux-2x2080ti-22g-126g-held";
    let ran = plan("IQ3_XXS", held, &["--context", "262144", "--kv", "int8"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    for part in ["Refused", "held by other programs", "bytes", "Largest context", "What helps", "--held-cards use"] {
        assert!(ran.out.contains(part), "'{part}' is not in {}", ran.out);
    }
    let json = plan("IQ3_XXS", held, &["--context", "262144", "--kv", "int8", "--json"]);
    assert_eq!(json.code, Some(3));
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["fits"], false);
    assert!(json["refusal"]["remedies"].as_array().is_some_and(|r| !r.is_empty()));
}

/// The flags of a refused command with those of a remedy in their place.
fn retyped<'a>(flags: &[&'a str], change: &'a str) -> Vec<&'a str> {
    let change: Vec<&str> = change.split(' ').collect();
    let kept = flags.chunks(2).filter(|pair| !change.contains(&pair[0])).flatten();
    kept.chain(&change).copied().collect()
}

#[test]
fn a_remedy_typed_as_it_is_told_fits() {
    let held = "linux-2x2080ti-22g-126g-held";
    let cases: [(&str, &str, &[&str]); 4] = [
        ("IQ3_XXS", held, &["--context", "262144", "--kv", "int8"]),
        ("IQ3_XXS", held, &["--context", "4000000", "--kv", "k8v4", "--reserve", "8GiB"]),
        ("IQ3_XXS", held, &["--device", "cuda:0,cuda:1", "--layer-split", "0-3,4-47", "--context", "262144"]),
        (
            "IQ3_S",
            "win-5060ti-5070ti-64g-small-pagefile",
            &["--context", "1000000", "--prefill", "65536", "--ram-budget", "20GiB"],
        ),
    ];
    for (quant, pc, flags) in cases {
        let refused = plan(quant, pc, &[flags, &["--json"]].concat());
        let json: serde_json::Value = serde_json::from_str(&refused.out).unwrap();
        let remedies = json["refusal"]["remedies"].as_array().unwrap();
        let changes: Vec<&str> = remedies.iter().map(|r| r["change"].as_str().unwrap()).filter(|c| c.starts_with("--")).collect();
        assert!(!changes.is_empty(), "{flags:?}: {}", refused.out);
        for change in changes {
            let ran = plan(quant, pc, &retyped(flags, change));
            assert_eq!(ran.code, Some(0), "{flags:?}, then {change}: {}{}", ran.out, ran.err);
        }
    }
}

#[test]
fn a_bad_machine_file_names_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pc.toml");
    let good = std::fs::read_to_string(machine(STORY)).unwrap();
    for (from, to, word) in [
        ("ram_total", "ram_totall", "ram_totall"),
        ("version = 1", "version = 9", "version 9"),
        ("backend = \"cuda\"", "backend = \"abacus\"", "abacus"),
        ("cores = ", "cores = -", "cores"),
        ("driver = \"linux\"", "driver = \"wddm\"", "wddm"),
        ("id = \"cuda:0\"", "id = \"auto\"", "auto"),
        ("ram_total = ", "page_file = \"2000 TiB\"\nram_total = ", "1024 TiB"),
    ] {
        std::fs::write(&file, good.replacen(from, to, 1)).unwrap();
        strata(&["plan", "--machine", path(&file)]).fails(1, &["pc.toml", word]);
    }
    strata(&["plan", "--machine", "nowhere.toml"]).fails(1, &["nowhere.toml"]);
    strata(&["plan", "-m", "nowhere.gguf"]).fails(1, &["nowhere.gguf"]);
    strata(&["plan", "--kv", "q5"]).fails(2, &["q4_0"]);
    strata(&["plan", "--layer-split", "5"]).fails(2, &["0-23,24-47"]);
    strata(&["plan", "--reserve", "much"]).fails(2, &["--reserve", "22 GiB"]);
}

#[test]
fn a_model_becomes_a_sheet_that_plans_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (sheet, pc) = (dir.path().join("tiny.sheet.json"), machine("linux-4-virtual-cards"));
    let gguf = fixture("tiny-flash-next-Q8_0.gguf");
    let ran = strata(&["model-sheet", path(&gguf), "-o", path(&sheet)]).ok();
    assert!(ran.out.is_empty() && ran.err.contains("tensors"), "{}", ran.err);
    assert_eq!(strata(&["model-sheet", path(&gguf)]).ok().out, std::fs::read_to_string(&sheet).unwrap());
    let of = |model| strata(&["plan", "-m", path(model), "--machine", &pc]).ok().out;
    assert_eq!(of(&gguf), of(&sheet));
    std::fs::write(&sheet, "{\"strata_model_sheet\": 7, \"metadata\": {}, \"tensors\": []}").unwrap();
    strata(&["plan", "-m", path(&sheet)]).fails(1, &["tiny.sheet.json", "version 7"]);
}

#[test]
fn this_pc_can_be_shown_saved_and_planned_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("this.toml");
    let ran = strata(&["devices", "--save", path(&file)]).ok();
    assert!(ran.out.contains("RAM") && ran.out.contains("cpu: ") && ran.err.contains("this.toml"), "{}", ran.out);
    let json = strata(&["devices", "--json"]).json();
    let cards = json["cards"].as_array().unwrap();
    let cpu = cards.iter().find(|card| card["id"] == "cpu").expect("the processor is always there");
    assert!(cpu["total"]["bytes"].as_u64() > Some(1 << 20) && cpu["total"]["text"].as_str().is_some(), "{cpu}");
    if cfg!(target_os = "linux") {
        let ran = strata(&["plan", "--machine", path(&file)]).ok();
        assert!(ran.out.contains("layers: 0-"), "{}", ran.out);
    }
}

/// Runs on virtual cards, with a lock folder of its own.
fn run_on_cards(folder: &std::path::Path, more: &[&str]) -> Ran {
    let machine = machine("linux-4-virtual-cards");
    let args = [&["run", "--temp", "0", "-n", "16", "--machine", &machine, "What is the capital of France?"], more].concat();
    rig::command(&args).env("XDG_RUNTIME_DIR", folder).output().expect("the program starts").into()
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_goes_through_the_plan_of_a_machine_file() {
    let folder = tempfile::tempdir().unwrap();
    let split = ["--device", "virtual:3,virtual:0", "--layer-split", "0-2,3-7"];
    let ran = run_on_cards(folder.path(), &split).ok();
    assert_eq!(ran.out, "The capital of France is Paris.\n");
    for part in ["plan: virtual:3: layers 0-2", "plan: virtual:0: layers 3-7", "loaded: virtual:3", "as planned; host"] {
        assert!(ran.err.contains(part), "'{part}' is not in {}", ran.err);
    }
    assert_eq!(run_on_cards(folder.path(), &["--kv", "int8"]).ok().out, "The capital of France is Paris.\n");
    run_on_cards(folder.path(), &["--resident-kv", "64"]).fails(3, &["partly in RAM", "--resident-kv", "Nothing was loaded"]);
    run_on_cards(folder.path(), &["--reserve", "1 GiB"]).fails(3, &["short", "--reserve 0", "Nothing was loaded"]);
    run_on_cards(folder.path(), &["--device", "virtual:7"]).fails(2, &["virtual:7", "virtual:0"]);
    // Cards that no PC with this system has.
    let elsewhere = folder.path().join("elsewhere.toml");
    let text = std::fs::read_to_string(machine(STORY)).unwrap().replace("backend = \"cuda\"", "backend = \"metal\"");
    std::fs::write(&elsewhere, text).unwrap();
    strata(&["run", "--machine", path(&elsewhere), "x"]).fails(3, &["cuda:0", "not in this PC", "Nothing was loaded"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_card_in_use_is_named_with_its_holder() {
    let folder = tempfile::tempdir().unwrap();
    let locks = folder.path().join("strata/cards");
    std::fs::create_dir_all(&locks).unwrap();
    let lock = std::fs::File::create(locks.join("virtual_0.lock")).unwrap();
    lock.lock().unwrap();
    std::fs::write(locks.join("virtual_0.holder"), "process 4711 (strata, big.gguf)\n").unwrap();
    run_on_cards(folder.path(), &["--device", "virtual:0"]).fails(3, &["virtual:0 is in use by process 4711", "big.gguf"]);
    drop(lock);
    run_on_cards(folder.path(), &["--device", "virtual:0"]).ok();
}
