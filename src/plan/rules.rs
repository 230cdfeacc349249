//! Fixed knowledge about operating systems and drivers: floors, what drivers take, rates to assume. Each value says
//! where it comes from; nothing here is a share of something.

use serde::Serialize;

use super::machine::{BackendKind, Card, DiskKind, DriverKind, Host, Machine, Os};
use super::size::{GIB, MIB, human};

/// A stated guess in place of a fact that nobody has measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Assumption {
    pub what: String,
    pub value: String,
    pub why: String,
}

/// Bytes that stay free on a card, with the reason.
pub fn card_floor(card: &Card) -> (u64, &'static str) {
    match (card.backend, card.driver, card.drives_display) {
        (BackendKind::Cpu, ..) => (0, "the host's floor counts"),
        (BackendKind::Virtual, ..) => (0, "a virtual card has no driver that could take more"),
        (_, DriverKind::Wddm, true) => (GIB, "Windows display driver with a desktop: free memory reads up to 1 GB too high"),
        (_, DriverKind::Wddm, false) => (768 * MIB, "Windows display driver: free memory reads 0.7 GB too high"),
        (_, DriverKind::Tcc, false) => (256 * MIB, "no display driver"),
        (_, DriverKind::Macos, _) => (GIB, "the window server shares the pool"),
        (BackendKind::Hip, DriverKind::Linux, true) => (GIB, "AMD desktop on Linux: the compositor cannot give way"),
        (_, _, true) => (768 * MIB, "a desktop on Linux: the compositor cannot give way"),
        (_, DriverKind::Linux | DriverKind::None, false) => (256 * MIB, "Linux without a desktop on the card"),
    }
}

/// RAM that stays available to everything else.
pub fn ram_floor(host: &Host, display: bool, contained: bool) -> (u64, &'static str) {
    if contained {
        return (512 * MIB, "a container of our own");
    }
    match (host.os, display) {
        (Os::Windows, _) => (2 * GIB, "Windows trims and stutters below this"),
        (Os::Macos, _) => (3 * GIB, "macOS compresses below this"),
        (Os::Wsl, _) => (GIB, "the Linux side of WSL"),
        (Os::Linux, true) => (2 * GIB, "a Linux desktop"),
        (Os::Linux, false) => (GIB, "Linux without a desktop"),
    }
}

/// Commit that stays uncharged on Windows.
pub const COMMIT_FLOOR_BYTES: u64 = 2 * GIB;

/// Pinning goes in slices of this size and stops at the first refusal.
pub use crate::experts::PIN_SLICE_BYTES;

/// Most bytes that can be pinned with `cards` contexts, and why.
pub fn pinned_limit(machine: &Machine, ram_capacity: u64, cards: usize) -> (u64, String) {
    let host = &machine.host;
    if let Some(limit) = host.pinned_limit {
        return (limit.0.min(ram_capacity), format!("stated limit of {}", human(limit.0)));
    }
    match host.os {
        Os::Wsl => (GIB.min(ram_capacity), "WSL pins about 1 GiB".into()),
        Os::Windows if cards >= 2 => {
            ((8 * GIB).min(ram_capacity), "Windows with two or more contexts was seen to stop at 8 GiB".into())
        }
        Os::Windows => ((host.ram_total.0 / 2).min(ram_capacity), "Windows lends cards half of RAM".into()),
        Os::Linux | Os::Macos => (ram_capacity, "no limit but RAM itself".into()),
    }
}

/// What a driver takes on the card for itself, when it was not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverBytes {
    pub context: u64,
    pub modules: u64,
    pub library: u64,
    pub graphs: u64,
    pub host: u64,
}

pub fn assumed_driver_bytes(backend: BackendKind, driver: DriverKind) -> DriverBytes {
    let mib = |context: u64, modules: u64, library: u64, graphs: u64, host: u64| DriverBytes {
        context: context * MIB,
        modules: modules * MIB,
        library: library * MIB,
        graphs: graphs * MIB,
        host: host * MIB,
    };
    match (backend, driver) {
        (BackendKind::Cuda, DriverKind::Wddm) => mib(512, 160, 96, 128, 300),
        (BackendKind::Cuda, _) => mib(460, 160, 96, 128, 250),
        (BackendKind::Hip, _) => mib(364, 160, 96, 128, 400),
        (BackendKind::Vulkan | BackendKind::Dx12, _) => mib(192, 64, 0, 0, 150),
        (BackendKind::Metal, _) => mib(96, 32, 0, 0, 100),
        (BackendKind::Cpu | BackendKind::Virtual, _) => mib(0, 0, 0, 0, 0),
    }
}

/// Memory that a healthy idle card shows as used, and what a program of moderate size may hold beside it.
pub fn expected_idle_bytes(card: &Card) -> u64 {
    if matches!(card.backend, BackendKind::Cpu | BackendKind::Virtual) || card.shares_host_memory {
        return card.total.0;
    }
    let idle = match (card.driver, card.drives_display) {
        (DriverKind::Wddm, true) => 2 * GIB,
        (DriverKind::Wddm, false) => GIB,
        (_, true) => 3 * GIB / 2,
        (_, false) => GIB / 2,
    };
    let opened = if card.opened { GIB } else { 0 };
    idle + opened + 2 * GIB
}

/// Bytes of a card that other programs hold beyond what is ordinary; 0 if it is not held.
pub fn held_bytes(card: &Card) -> u64 {
    (card.total.0 - card.free.0.min(card.total.0)).saturating_sub(expected_idle_bytes(card))
}

/// Rates of a card with every gap filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CardRates {
    pub memory_gbs: f64,
    pub bus_gbs: f64,
    pub tflops: f64,
    /// Time that a layer takes beside its bytes: launches and synchronisation.
    pub layer_overhead_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostRates {
    pub ram_gbs: f64,
    /// Quantised weights that the CPU multiplies in a second.
    pub cpu_weights_gbs: f64,
    pub cpu_tflops: f64,
    pub disk_gbs: f64,
    /// Pages a second that the disk reads at random places, where that was measured.
    pub random_reads_per_s: Option<f64>,
}

/// Collects what had to be assumed.
#[derive(Debug, Default)]
pub struct Notes(pub Vec<Assumption>);

impl Notes {
    pub fn add(&mut self, what: impl Into<String>, value: impl Into<String>, why: impl Into<String>) {
        let note = Assumption { what: what.into(), value: value.into(), why: why.into() };
        if !self.0.contains(&note) {
            self.0.push(note);
        }
    }

    fn rate(&mut self, known: Option<f64>, what: String, unit: &str, assumed: f64) -> f64 {
        known.unwrap_or_else(|| {
            self.add(what, format!("{assumed:.1} {unit}"), "not measured");
            assumed
        })
    }
}

pub fn host_rates(machine: &Machine, notes: &mut Notes) -> HostRates {
    let host = &machine.host;
    let ram_gbs = notes.rate(host.ram_read_gbs, "RAM read rate".into(), "GB/s", 25.0);
    let per_core = f64::from(host.cores) * 4.0;
    let cpu_weights_gbs =
        notes.rate(host.cpu_weights_gbs, "weights that the CPU multiplies".into(), "GB/s", ram_gbs.min(per_core));
    let cpu_gmacs = notes.rate(host.cpu_gmacs, "CPU multiply-adds".into(), "G/s", f64::from(host.cores) * 15.0);
    let disks = machine.disks.iter();
    let disk_gbs = disks.clone().filter_map(|d| d.read_gbs).reduce(f64::max).unwrap_or_else(|| assumed_disk_gbs(machine, notes));
    HostRates {
        ram_gbs,
        cpu_weights_gbs: cpu_weights_gbs.min(ram_gbs),
        cpu_tflops: 2.0 * cpu_gmacs / 1000.0,
        disk_gbs,
        random_reads_per_s: disks.filter_map(|d| d.random_reads_per_s).reduce(f64::max),
    }
}

/// How fast a disk reads large pieces that nobody has measured, by what it is.
fn assumed_disk_gbs(machine: &Machine, notes: &mut Notes) -> f64 {
    let kind = machine.disks.iter().find_map(|d| d.kind).unwrap_or(DiskKind::Unknown);
    let (rate, why) = match kind {
        DiskKind::Nvme => (3.0, "not measured; usual for NVMe"),
        DiskKind::Ssd => (0.5, "not measured; usual for an SSD on SATA"),
        DiskKind::Hdd => (0.15, "not measured; usual for a hard disk"),
        DiskKind::Network => (0.1, "not measured; a network of 1 Gbit/s"),
        DiskKind::Memory => (5.0, "not measured; the file lies in RAM"),
        DiskKind::Unknown => (2.0, "not measured, and what kind of disk it is is not known: a slow NVMe"),
    };
    notes.add("disk read rate", format!("{rate:.1} GB/s"), why);
    rate
}

pub fn card_rates(card: &Card, host: &HostRates, notes: &mut Notes) -> CardRates {
    if card.backend == BackendKind::Cpu {
        let tflops = card.compute_tflops.unwrap_or(host.cpu_tflops);
        let memory_gbs = card.memory_gbs.unwrap_or(host.cpu_weights_gbs);
        return CardRates { memory_gbs, bus_gbs: host.ram_gbs, tflops, layer_overhead_s: 20e-6 };
    }
    let (memory, bus, tflops, overhead) = match card.backend {
        BackendKind::Cuda | BackendKind::Hip => (200.0, 6.0, 10.0, 150e-6),
        BackendKind::Vulkan | BackendKind::Dx12 | BackendKind::Metal => (100.0, 6.0, 5.0, 300e-6),
        BackendKind::Virtual | BackendKind::Cpu => (host.ram_gbs, host.ram_gbs, host.cpu_tflops, 20e-6),
    };
    let id = &card.id;
    let warm = notes.rate(card.bus_gbs, format!("{id}: host to card"), "GB/s", bus);
    CardRates {
        memory_gbs: notes.rate(card.memory_gbs, format!("{id}: memory read rate"), "GB/s", memory),
        bus_gbs: card.bus_median_gbs.map_or(warm, |median| median.min(warm)),
        tflops: notes.rate(card.compute_tflops, format!("{id}: matrix products"), "TFLOP/s", tflops),
        layer_overhead_s: overhead,
    }
}

/// Most bytes that a driver may take beyond what was planned for it.
pub const UNEXPLAINED_BYTES: u64 = 128 * MIB;

/// Exponent of expert popularity by rank: measured on published runs, used where no profile is at hand.
pub const EXPERT_POPULARITY_EXPONENT: f64 = 1.2;

/// Chance that a drafted token is kept.
pub const DRAFT_ACCEPTANCE: f64 = 0.65;

/// Hand-off latency between two cards through the host.
pub const HAND_OFF_LATENCY_S: f64 = 30e-6;

/// Prompt chunks to choose from.
pub const CHUNKS: [u32; 6] = [256, 512, 1024, 2048, 4096, 8192];

/// The largest of them for the CPU: weights are unpacked to its caches, and more rows gain nothing.
pub const CPU_CHUNK: u32 = 512;

/// Sequences that the server computes in one window; the answers of more take several.
pub const JOINT_ROWS: u32 = 8;

/// Queries of a chunk that are scored at a time.
pub const SCORE_ROWS: u64 = 256;

/// Bytes of the program itself: code, tokenizer, heap.
pub const PROCESS_BYTES: u64 = 448 * MIB;

/// Rows of the embedding and n-gram tables that are kept in RAM.
pub const ROW_CACHE_BYTES: u64 = 64 * MIB;

/// Pinned buffers while loading: two reads in flight.
pub const LOAD_STAGING_BYTES: u64 = 2 * 64 * MIB;

/// Most cards that one model can be spread over: more than a PC has slots for. The scheduler has room for as many.
pub const MAX_STAGES: usize = 16;

/// Pictures whose rows are kept, so that the next turn of a conversation need not look again: as many as people show at a time.
pub const KEPT_PICTURES: u32 = 4;

/// Cap on what a user can ask for, so that products stay inside 64 bits.
pub const MAX_CONTEXT: u32 = 1 << 24;
pub const MAX_SLOTS: u32 = 256;
pub const MAX_DRAFT_WINDOW: u32 = 32;
pub const MAX_CHUNK: u32 = 1 << 16;
pub const MAX_CHECKPOINTS: u32 = 1 << 12;
