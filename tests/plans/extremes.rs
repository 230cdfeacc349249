//! Nothing that a machine file, a sheet or a flag says can overflow, panic or print more than its line: what no PC and no model
//! has is refused where it is read.

use super::random::Random;
use super::support::{machine, root, sheet};
use strata::plan::{
    Card, KvType, Limits, Machine, MetaValue, ModelHeader, PlanModel, RamExperts, RefusalKind, SizeError, decide, plan, verify,
};

const SIZES: [u64; 16] = [
    0,
    1,
    255,
    1 << 20,
    1 << 28,
    1 << 30,
    8 << 30,
    24 << 30,
    1 << 40,
    1 << 49,
    (1 << 50) - 1,
    1 << 50,
    (1 << 50) + 1,
    1 << 62,
    1 << 63,
    u64::MAX,
];
const RATES: [&str; 8] = ["1e-300", "5e-324", "1e-3", "0.5", "600.0", "1e9", "1e12", "1e300"];

/// The last ones are more than any PC has: seldom, or no file would be good.
fn bytes(random: &mut Random) -> u64 {
    if random.chance(2) { random.of(&SIZES) } else { random.of(&SIZES[..SIZES.len() - 4]) }
}

fn size(random: &mut Random) -> String {
    format!("\"{}\"", bytes(random))
}

fn rate(random: &mut Random) -> &'static str {
    if random.chance(5) { random.of(&RATES) } else { random.of(&RATES[2..6]) }
}

fn machine_text(random: &mut Random) -> String {
    let os = random.of(&["linux", "windows", "wsl", "macos"]);
    let total = bytes(random);
    let available = if random.chance(80) { total } else { bytes(random).min(total) };
    let cores = if random.chance(3) { u32::MAX } else { random.of(&[1u32, 8, 65_536]) };
    let mut text = format!(
        "version = 1\nname = \"extreme\"\n[host]\nos = \"{os}\"\nram_total = \"{total}\"\nram_available = \"{available}\"\ncores = {cores}\n"
    );
    for key in ["container_limit", "container_used", "pinned_limit", "memlock_limit", "page_file"] {
        if random.chance(25) {
            text += &format!("{key} = {}\n", size(random));
        }
    }
    if random.chance(40) {
        text += &format!("commit_limit = {}\ncommit_used = {}\n", size(random), size(random));
    }
    for key in ["ram_read_gbs", "cpu_weights_gbs", "cpu_gmacs"] {
        if random.chance(20) {
            text += &format!("{key} = {}\n", rate(random));
        }
    }
    for i in 0..random.between(0, 3) {
        text += &card_text(random, i, os);
    }
    text
}

fn card_text(random: &mut Random, i: u64, os: &str) -> String {
    let backend = random.of(&["cuda", "hip", "vulkan", "dx12", "metal", "cpu", "virtual"]);
    let usual = match os {
        "windows" | "wsl" => "wddm",
        other => other,
    };
    let driver = if random.chance(97) { usual } else { random.of(&["linux", "wddm", "tcc", "macos", "none"]) };
    let total = bytes(random);
    let free = if random.chance(80) { total } else { bytes(random).min(total) };
    let mut text = format!(
        "[[card]]\nid = \"c:{i}\"\nname = \"c\"\nbackend = \"{backend}\"\ndriver = \"{driver}\"\ntotal = \"{total}\"\nfree = \"{free}\"\nopened = {}\nshares_host_memory = {}\n",
        random.chance(50),
        random.chance(30)
    );
    for key in ["max_buffer", "max_binding", "context_bytes", "module_bytes", "library_bytes", "graph_bytes"] {
        if random.chance(20) {
            text += &format!("{key} = {}\n", size(random));
        }
    }
    for key in ["memory_gbs", "bus_gbs", "bus_median_gbs", "compute_tflops"] {
        if random.chance(15) {
            text += &format!("{key} = {}\n", rate(random));
        }
    }
    text
}

fn extreme_limits(random: &mut Random) -> Limits {
    Limits {
        context: random.chance(60).then(|| random.of(&[1, 256, 262_144, 1 << 24])),
        kv: random.of(&KvType::ALL),
        prefill: random.chance(30).then(|| random.of(&[1, 65_536])),
        slots: if random.chance(3) { u32::MAX } else { random.of(&[1, 1, 256]) },
        draft: random.chance(30),
        draft_window: random.of(&[1, 3, 32]),
        vision: random.chance(20),
        vision_tokens: if random.chance(3) { u32::MAX } else { random.of(&[8, 1024, 4096]) },
        reserve: random.chance(20).then(|| bytes(random)),
        expert_slots: random.chance(20).then(|| random.of(&[0, u32::MAX])),
        resident_kv: random.chance(20).then(|| random.of(&[1, 1 << 24])),
        checkpoints: if random.chance(3) { u32::MAX } else { random.of(&[0, 0, 4096]) },
        cache_ram: if random.chance(25) { bytes(random) } else { 0 },
        ram_budget: random.chance(20).then(|| bytes(random)),
        ram_experts: random.of(&[RamExperts::Auto, RamExperts::All, RamExperts::Complement, RamExperts::Disk]),
        ..Limits::default()
    }
}

/// Overflow checks are on in tests, so a sum that overflows ends this test.
#[test]
fn extreme_machines_and_wishes_end_in_a_plan_or_a_reason() {
    let (tiny, large) = (PlanModel::from_header(&tiny()).unwrap(), super::support::flash_next("IQ3_S"));
    let (mut refused_files, mut plans, mut refusals) = (0, 0, 0);
    for seed in 0..6000 {
        let model = if seed % 40 == 0 { &large } else { &tiny };
        let mut random = Random::new(seed);
        let Ok(pc) = Machine::from_toml(&machine_text(&mut random)) else {
            refused_files += 1;
            continue;
        };
        let mut limits = extreme_limits(&mut random);
        (limits.draft, limits.vision) = (limits.draft && model.draft.is_some(), limits.vision && model.vision.is_some());
        match plan(model, &pc, &limits) {
            Ok(plan) => {
                plans += 1;
                assert_eq!(verify(&plan, model, &pc, &limits), vec![], "seed {seed}");
                assert!(plan.predicted.decode_tokens_per_s > 0.0 && plan.predicted.objective_s.is_finite(), "seed {seed}");
            }
            Err(refusal) => {
                refusals += 1;
                assert!(!refusal.to_string().is_empty(), "seed {seed}");
            }
        }
    }
    println!("{refused_files} files refused, {plans} plans, {refusals} refusals");
    assert!(refused_files > 100 && plans > 50 && refusals > 200, "{refused_files} files, {plans} plans, {refusals} refusals");
}

#[test]
fn sizes_that_no_pc_has_are_refused_where_they_are_read() {
    assert!(matches!("18446744073709551615".parse::<strata::plan::Size>(), Err(SizeError::TooLarge { .. })));
    let text = machine("linux-4-mixed-128g").to_toml().unwrap();
    let with =
        |line: &str| Machine::from_toml(&text.replacen("[[card]]", &format!("[[card]]\n{line}"), 1)).unwrap_err().to_string();
    assert!(with("context_bytes = \"18446744073709551615\"").contains("1024 TiB"));
    assert!(with("library_bytes = 1125899906842625").contains("1024 TiB"));
    let model = super::support::flash_next("IQ3_S");
    let pc = machine("linux-rtx3090-24g-128g");
    for limits in [
        Limits { cache_ram: u64::MAX, ..Limits::default() },
        Limits { reserve: Some(1 << 51), ..Limits::default() },
        Limits { ram_budget: Some(u64::MAX), ..Limits::default() },
    ] {
        let refusal = decide(&model, &pc, &limits, false).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Invalid);
        assert!(refusal.message.contains("1024 TiB"), "{}", refusal.message);
    }
    // A machine that a program made is checked as one that was read.
    let mut made = pc.clone();
    made.cards[0].context_bytes = Some(strata::plan::Size(u64::MAX));
    assert_eq!(decide(&model, &made, &Limits::default(), false).unwrap_err().kind, RefusalKind::Invalid);
}

#[test]
fn rates_texts_ids_and_drivers_that_cannot_be_are_refused() {
    let pc = machine("linux-rtx3090-24g-128g");
    let wrong = |change: fn(&mut Machine), word: &str| {
        let mut changed = pc.clone();
        change(&mut changed);
        let text = changed.check().unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
        assert!(!text.chars().any(char::is_control), "{text:?}");
        // The same in a file.
        let file = Machine::from_toml(&changed.to_toml().unwrap()).unwrap_err().to_string();
        assert!(!file.chars().any(|c| c.is_control() && c != '\n'), "{file:?}");
    };
    wrong(|m| m.cards[0].memory_gbs = Some(5e-324), "rate");
    wrong(|m| m.cards[0].bus_median_gbs = Some(1e300), "rate");
    wrong(|m| m.host.cpu_gmacs = Some(f64::MIN_POSITIVE), "rate");
    wrong(|m| m.host.cores = u32::MAX, "cores");
    wrong(|m| m.name = "PC\u{1b}[2Jfits".into(), "control");
    wrong(|m| m.name = "PC\nPredicted: 99 tokens/s".into(), "control");
    wrong(|m| m.cards[0].name = "card\r".into(), "control");
    wrong(|m| m.cards[0].uuid = Some("\u{7}".into()), "control");
    wrong(|m| m.cards[0].by_name_only = Some("\u{202e}".into()), "control");
    wrong(|m| m.host.simd = Some("avx\u{9b}2".into()), "control");
    wrong(|m| m.cards[0].id = String::new(), "id of a card");
    wrong(|m| m.cards[0].id = "a,b".into(), "id of a card");
    wrong(|m| m.cards[0].id = "auto".into(), "id of a card");
    wrong(|m| m.cards[0].id = "ram".into(), "id of a card");
    wrong(|m| m.cards[0].id = "cuda 0".into(), "id of a card");
    wrong(|m| m.cards[0].driver = strata::plan::DriverKind::Wddm, "wddm");
    wrong(|m| m.cards[0].driver = strata::plan::DriverKind::Macos, "macos");
    // A name that a driver says is made harmless, one of a model too.
    let named =
        Card::new("cuda:0", "RTX\u{0} 1\n2", strata::plan::BackendKind::Cuda, strata::plan::DriverKind::Linux, pc.cards[0].total);
    assert!(!named.name.chars().any(char::is_control));
    let mut header = sheet("IQ3_S");
    header.metadata.insert("general.name".into(), MetaValue::Text("model\u{1b}[1A\nfits".into()));
    assert!(!PlanModel::from_header(&header).unwrap().name.chars().any(char::is_control));
}

fn tiny() -> ModelHeader {
    ModelHeader::from(&strata::gguf::ModelFiles::open(root().join("tests/fixtures/tiny-flash-next-Q8_0.gguf")).unwrap())
}

const NUMBERS: [u64; 9] = [0, 1, 7, 64, 65_535, 65_536, 1_000_000_000, u32::MAX as u64, u64::MAX];

/// A sheet whose numbers contradict its tensors, or each other.
fn broken(good: &ModelHeader, random: &mut Random) -> ModelHeader {
    let mut header = good.clone();
    let keys: Vec<String> = good.metadata.keys().filter(|key| key.starts_with("qwen4exp.")).cloned().collect();
    for _ in 0..random.between(1, 4) {
        let key = keys[random.between(0, keys.len() as u64 - 1) as usize].clone();
        header.metadata.insert(key, MetaValue::Unsigned(random.of(&NUMBERS)));
    }
    for _ in 0..random.between(0, 2) {
        let at = random.between(0, header.tensors.len() as u64 - 1) as usize;
        let shape = &mut header.tensors[at].shape;
        let axis = random.between(0, shape.len() as u64 - 1) as usize;
        shape[axis] = random.of(&NUMBERS);
    }
    header
}

#[test]
fn extreme_sheets_end_in_a_plan_or_a_reason() {
    let good = tiny();
    let pc = machine("linux-4-virtual-cards");
    let (mut models, mut plans) = (0, 0);
    for seed in 0..8000 {
        let mut random = Random::new(seed);
        let Ok(model) = PlanModel::from_header(&broken(&good, &mut random)) else { continue };
        models += 1;
        let limits = Limits { draft: false, vision: false, ..extreme_limits(&mut random) };
        if let Ok(plan) = plan(&model, &pc, &limits) {
            plans += 1;
            assert_eq!(verify(&plan, &model, &pc, &limits), vec![], "seed {seed}");
        }
    }
    println!("{models} models of 8000, {plans} plans");
    assert!(models > 60 && plans > 20, "{models} models, {plans} plans");
}

#[test]
fn numbers_of_experts_that_contradict_the_tensors_are_refused() {
    for (key, value, word) in [
        ("expert_count", 1_000_000_000, "expert_count"),
        ("expert_count", 7, "expert_count"),
        ("expert_used_count", 1_000_000_000, "expert_used_count"),
        ("expert_used_count", 0, "expert_used_count"),
    ] {
        let mut header = sheet("IQ3_S");
        header.metadata.insert(format!("qwen4exp.{key}"), MetaValue::Unsigned(value));
        let error = PlanModel::from_header(&header).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}
