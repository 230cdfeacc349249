//! Probing this very machine gives a machine that can be saved, read again and planned for. Cards come from whatever backends
//! there are; here from one that reports what a test wants.

use strata::backend::discovery::{Absent, CardLimits, CardOptions, CardRates, Finder, FoundCard, Interface, NamedCard};
use strata::backend::{Backend, BackendError};
use strata::plan::{BackendKind, Limits, Machine, Size};
use strata::probe::{Effort, Probe, Probed, probe};

use super::support::{flash_next, planned, refused};

#[test]
fn this_pc_can_be_probed_saved_and_read_again() {
    let probed = probe(Effort::Read);
    let machine = &probed.machine;
    machine.check().unwrap();
    assert!(probed.render().contains("cpu: CPU"));
    assert_eq!(machine.cards.last().map(|card| card.backend), Some(BackendKind::Cpu));
    assert_eq!(&Machine::from_toml(&machine.to_toml().unwrap()).unwrap(), machine);
    if cfg!(target_os = "linux") {
        assert!(machine.host.ram_total.0 > 0 && machine.host.ram_available.0 > 0);
    }
}

/// A backend with the cards that a test gives it.
struct Fake(Interface, Vec<FoundCard>);

impl Finder for Fake {
    fn interface(&self) -> Interface {
        self.0
    }

    fn find(&self) -> Result<Vec<FoundCard>, Absent> {
        if self.1.is_empty() { Err(Absent("its library is not installed".into())) } else { Ok(self.1.clone()) }
    }

    fn free_bytes(&self, card: &FoundCard) -> Option<u64> {
        Some(card.free_bytes)
    }

    fn measure(&self, _card: &FoundCard) -> CardRates {
        CardRates { memory_gbs: Some(900.0), bus_gbs: Some(25.0), bus_median_gbs: Some(-1.0), compute_tflops: None }
    }

    fn open(&self, card: &NamedCard, _options: &CardOptions) -> Result<Box<dyn Backend>, BackendError> {
        Err(BackendError::Rejected { device: card.id.clone(), problem: "only a fake".into() })
    }
}

fn card(interface: Interface, name: &str, pci: &str) -> FoundCard {
    FoundCard {
        pci: Some(pci.parse().unwrap()),
        total_bytes: 24 << 30,
        free_bytes: 23 << 30,
        driver: "some driver 1.2".into(),
        limits: CardLimits { max_buffer_bytes: Some(2 << 30), ..CardLimits::default() },
        ..FoundCard::new(interface, 0, name)
    }
}

/// An NVIDIA card that two interfaces reach, an AMD card, one that is too old, and the processor in a card's clothes.
fn zoo() -> [Fake; 3] {
    let old = FoundCard {
        driver_index: 1,
        unusable: Some("its driver is older than 525".into()),
        ..card(Interface::Cuda, "Old", "05:00.0")
    };
    let played = FoundCard { software: true, pci: None, driver_index: 2, ..card(Interface::Vulkan, "Played", "00:00.0") };
    let vulkan = vec![
        FoundCard { driver_index: 1, ..card(Interface::Vulkan, "Radeon", "03:00.0") },
        card(Interface::Vulkan, "GeForce by Vulkan", "01:00.0"),
        played,
    ];
    [
        Fake(Interface::Cuda, vec![old, card(Interface::Cuda, "GeForce", "01:00.0")]),
        Fake(Interface::Hip, vec![]),
        Fake(Interface::Vulkan, vulkan),
    ]
}

/// This PC with the cards of the zoo; nothing is kept.
fn probe_zoo(effort: Effort) -> Probed {
    let [cuda, hip, vulkan] = zoo();
    Probe { finders: &[&cuda, &hip, &vulkan], cache: None, ..Probe::new(effort) }.look()
}

#[test]
fn cards_of_backends_become_cards_of_the_planner() {
    let probed = probe_zoo(Effort::Measure);
    let machine = &probed.machine;
    machine.check().unwrap();
    let ids: Vec<&str> = machine.cards.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(ids, ["cuda:0", "vulkan:0", "vulkan:1", "vulkan:2", "cpu"]);
    let geforce = &machine.cards[0];
    assert_eq!((geforce.total, geforce.free, geforce.max_buffer), (Size(24 << 30), Size(23 << 30), Some(Size(2 << 30))));
    assert_eq!((geforce.memory_gbs, geforce.bus_gbs, geforce.bus_median_gbs), (Some(900.0), Some(25.0), None));
    assert_eq!(&Machine::from_toml(&machine.to_toml().unwrap()).unwrap(), machine);
    let text = probed.render();
    for part in [
        "cuda:0: GeForce, 23.00 GiB free of 24.00 GiB",
        "used only with --device vulkan:0: it is the same card as cuda:0, and CUDA is preferred",
        "used only with --device vulkan:2: it is played by the processor",
        "cuda:1: Old: cannot be used: its driver is older than 525",
        "no HIP cards: its library is not installed",
    ] {
        assert!(text.contains(part), "'{part}' is not in {text}");
    }
    let json = serde_json::to_value(probed.report()).unwrap();
    assert_eq!(json["cards"][0]["free"]["bytes"], 23u64 << 30);
    assert_eq!(json["cards"][0]["free"]["text"], "23.00 GiB");
    assert_eq!((&json["cards"][1]["part"], &json["cards"][5]["part"]), (&"by-name-only".into(), &"unusable".into()));
    assert_eq!(json["absent"][0]["interface"], "hip");
}

#[test]
fn a_card_that_cannot_be_used_is_reported_as_others_are() {
    let of = |unusable: Option<&str>| {
        let played =
            FoundCard { software: true, unusable: unusable.map(Into::into), ..card(Interface::Vulkan, "Played", "03:00.0") };
        let probed = Probe { finders: &[&Fake(Interface::Vulkan, vec![played])], cache: None, ..Probe::new(Effort::Read) }.look();
        let mut report = serde_json::to_value(probed.report()).unwrap();
        let cards = report["cards"].as_array_mut().unwrap();
        cards.remove(cards.iter().position(|c| c["name"] == "Played").unwrap())
    };
    let (usable, unusable) = (of(None), of(Some("its driver is too old")));
    assert_eq!((&unusable["part"], &unusable["why"]), (&"unusable".into(), &"its driver is too old".into()));
    for (key, value) in usable.as_object().unwrap() {
        let of_plans = ["part", "why", "driver_kind", "max_buffer"].contains(&key.as_str());
        assert!(of_plans || unusable[key] == *value, "{key}: {value} and {}", unusable[key]);
    }
    assert_eq!(unusable["shares_host_memory"], true);
}

#[test]
fn plans_take_each_card_once_and_software_only_by_name() {
    let mut machine = probe_zoo(Effort::Read).machine;
    // The answer must not depend on the memory of the PC that runs the test.
    machine.host.ram_total = Size(128 << 30);
    machine.host.ram_available = Size(120 << 30);
    (machine.host.container_limit, machine.host.container_used) = (None, None);
    let model = flash_next("IQ3_XXS");
    let with = |ids: &[&str]| Limits { devices: Some(ids.iter().map(|id| (*id).to_string()).collect()), ..Limits::default() };
    let plan = planned(&model, &machine, &Limits::default()).unwrap();
    let used: Vec<&str> = plan.stages.iter().map(|s| s.card_id.as_str()).collect();
    assert!(used.iter().all(|id| ["cuda:0", "vulkan:1"].contains(id)), "{used:?}");
    let plan = planned(&model, &machine, &with(&["vulkan:0"])).unwrap();
    assert_eq!(plan.stages[0].card_id, "vulkan:0");
    let twice = refused(&model, &machine, &with(&["cuda:0", "vulkan:0"]));
    assert!(twice.message.contains("the same card"), "{twice}");
}

#[test]
fn measurements_are_made_once_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let look = |effort| Probe { finders: &[], cache: Some(folder.path().to_owned()), ..Probe::new(effort) }.look();
    let first = look(Effort::Known);
    assert_eq!(first.notes, Vec::<String>::new());
    assert!(first.machine.host.ram_read_gbs.is_some() && first.machine.host.cpu_weights_gbs.is_some());
    // The second is the first to the bit: it was read, not measured.
    assert_eq!(look(Effort::Known).machine.host.ram_read_gbs, first.machine.host.ram_read_gbs);
    assert!(look(Effort::Measure).machine.host.ram_read_gbs >= first.machine.host.ram_read_gbs);
    assert_eq!(look(Effort::Read).machine.host.ram_read_gbs, None);
}
