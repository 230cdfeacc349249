//! What this PC is: the facts that the planner needs, read from the system. Cards are found by their backends; here they
//! become cards of the planner, beside the host and, as the device that is always there, its CPU.

mod cache;
mod cards;
mod disk;
mod folders;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(target_os = "macos", test))]
mod macos;
mod report;
mod speeds;
#[cfg(windows)]
mod windows;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use cards::{interface_of, kind_of};
pub use folders::{cache_folder, runtime_folder};
pub use report::DevicesReport;
pub use speeds::HostSpeeds;

use self::cache::{CardSpeeds, Measurements};
use self::disk::DiskSpeeds;
use crate::backend::cpu::Topology;
use crate::backend::discovery::{CardRates, FoundCard, Survey, survey};
use crate::backend::{FINDERS, Finder};
use crate::plan::{BackendKind, Card, Disk, DiskKind, DriverKind, Host, MACHINE_VERSION, Machine, Os, Size};
use crate::quant::{FORMATS, Format};

/// How much time probing may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Read what the system says: a few milliseconds, and what the drivers take to start. Nothing is measured.
    Read,
    /// Also use what was measured earlier. What of RAM, cards and disk was not is measured now (half a second, and as much for a
    /// card) and kept.
    Known,
    /// Measure everything again.
    Measure,
}

/// What to look at, and how closely.
#[derive(Clone)]
pub struct Probe<'a> {
    pub effort: Effort,
    /// Backends that may have cards.
    pub finders: &'a [&'a dyn Finder],
    /// A file whose disk is of interest: the model.
    pub file: Option<&'a Path>,
    /// Block formats of the model's matrices: how fast the CPU multiplies each.
    pub formats: Vec<Format>,
    /// Folder in which measurements are kept; `None` keeps none.
    pub cache: Option<PathBuf>,
}

/// This PC for the planner, and for people what was found on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct Probed {
    pub machine: Machine,
    pub survey: Survey,
    /// Sentences for the user: what did not work, though nothing fails because of it.
    pub notes: Vec<String>,
}

/// This PC: its host, the cards of all backends, and its CPU, which is always there.
pub fn probe(effort: Effort) -> Probed {
    Probe::new(effort).look()
}

impl<'a> Probe<'a> {
    /// All backends, and the user's own cache.
    pub fn new(effort: Effort) -> Probe<'a> {
        Probe { effort, finders: FINDERS, file: None, formats: vec![], cache: cache_folder() }
    }

    /// Also the disk on which `file` lies.
    pub fn with_file(self, file: Option<&'a Path>) -> Probe<'a> {
        Probe { file, ..self }
    }

    /// Also how fast the CPU multiplies weights of some formats.
    pub fn with_formats(self, formats: Vec<Format>) -> Probe<'a> {
        Probe { formats, ..self }
    }

    pub fn look(&self) -> Probed {
        let mut host = read_host();
        let mut known = Measurements::read(self.cache.as_deref().filter(|_| self.effort != Effort::Read));
        if let Some(speeds) = self.host_speeds(&host, &mut known) {
            host.ram_read_gbs = Some(speeds.ram_read_gbs);
            host.cpu_weights_gbs = Some(speeds.cpu_weights_gbs);
            host.cpu_gmacs = Some(speeds.cpu_gmacs);
            host.workers = Some(speeds.workers).filter(|workers| *workers > 0);
        }
        host.cpu_format_gbs = self.format_speeds(&host, &mut known);
        let survey = survey(self.finders);
        let mut cards = cards::planned(&survey, &host, |card| self.card_rates(card, &mut known));
        cards.push(cpu_card(&host));
        let disks = self.disks(&mut known);
        let machine = Machine { version: MACHINE_VERSION, name: "this PC".into(), host, cards, disks };
        Probed { machine, survey, notes: known.write().err().into_iter().collect() }
    }

    fn host_speeds(&self, host: &Host, known: &mut Measurements) -> Option<HostSpeeds> {
        let key = host_key(host);
        let measure = || HostSpeeds::measure(&Topology::here());
        match (self.effort, known.host(&key)) {
            (Effort::Read, _) => None,
            (Effort::Known, Some(speeds)) if speeds.workers > 0 => Some(speeds),
            (Effort::Known | Effort::Measure, _) => measure().map(|speeds| known.keep_host(&key, speeds)),
        }
    }

    /// How fast the CPU multiplies weights of each format, with as many threads as are best. Without formats, all that were ever
    /// measured.
    fn format_speeds(&self, host: &Host, known: &mut Measurements) -> BTreeMap<String, f64> {
        let key = host_key(host);
        let wanted: Vec<Format> = match (self.effort, self.formats.as_slice()) {
            (Effort::Read, _) => vec![],
            (_, []) => FORMATS.iter().map(|info| info.format).filter(|f| known.format(&key, *f).is_some()).collect(),
            (_, formats) => formats.to_vec(),
        };
        let order = Topology::here().order();
        let workers = host.workers.map_or(order.len(), |n| n as usize).min(order.len());
        let rate = |format: Format| match (self.effort, known.format(&key, format)) {
            (Effort::Known, Some(rate)) => Some(rate),
            (_, earlier) => match speeds::format_gbs(format, &order[..workers]) {
                Some(rate) => Some(known.keep_format(&key, format, rate)),
                None => earlier,
            },
        };
        let found: Vec<(Format, Option<f64>)> = wanted.iter().copied().zip(wanted.iter().copied().map(rate)).collect();
        found.into_iter().filter_map(|(format, rate)| Some((Host::format_key(format), rate?))).collect()
    }

    /// Rates of a card with this driver. A card that is too full to be measured is tried again the next time.
    fn card_rates(&self, card: &FoundCard, known: &mut Measurements) -> CardRates {
        let place = card.pci.map(|place| place.to_string());
        let key = card.uuid.clone().or(place).unwrap_or_else(|| card.name.clone());
        let key = format!("{} {key}, {}", card.interface.id(), card.driver);
        let measure = |known: &mut Measurements| {
            let finder = self.finders.iter().find(|finder| finder.interface() == card.interface)?;
            let rates = Some(finder.measure(card)).filter(|rates| *rates != CardRates::default())?;
            Some(known.keep_card(&key, CardSpeeds::of(rates)))
        };
        let speeds = match (self.effort, known.card(&key)) {
            (Effort::Read, _) => None,
            (_, earlier) if card.unusable.is_some() => earlier,
            (Effort::Known, Some(earlier)) => Some(earlier),
            (Effort::Known | Effort::Measure, earlier) => measure(known).or(earlier),
        };
        speeds.unwrap_or_default().rates()
    }

    /// The disk of the file first: it is the one that counts. Without a file, every disk that was ever measured.
    fn disks(&self, known: &mut Measurements) -> Vec<Disk> {
        let Some(file) = self.file.filter(|_| self.effort != Effort::Read) else {
            let measured = known.disks().iter();
            return measured.map(|entry| planned_disk(&entry.of, None, Some(entry.speeds))).collect();
        };
        let Some(identity) = disk::identify(file) else { return vec![] };
        let speeds = match (self.effort, known.disk(&identity.key)) {
            (Effort::Known, Some(speeds)) => Some(speeds),
            (_, earlier) => disk::measure(file).map(|speeds| known.keep_disk(&identity.key, speeds)).or(earlier),
        };
        vec![planned_disk(&identity.name, Some(identity.kind), speeds)]
    }
}

fn planned_disk(name: &str, kind: Option<DiskKind>, speeds: Option<DiskSpeeds>) -> Disk {
    Disk {
        name: name.to_owned(),
        kind,
        read_gbs: speeds.map(|s| s.read_gbs),
        random_reads_per_s: speeds.map(|s| s.random_reads_per_s),
    }
}

/// The same PC has the same key, until its processor or its memory is another.
fn host_key(host: &Host) -> String {
    let simd = host.simd.as_deref().unwrap_or("no vector instructions");
    let ram_gib = host.ram_total.0.div_ceil(1 << 30);
    format!("{}, {} cores, {simd}, {ram_gib} GiB", processor_name(), host.cores)
}

fn processor_name() -> String {
    let text =
        if cfg!(target_os = "linux") { std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default() } else { String::new() };
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

fn cpu_card(host: &Host) -> Card {
    let container = host.container_limit.map(|limit| limit.0.saturating_sub(host.container_used.unwrap_or_default().0));
    let free = container.map_or(host.ram_available.0, |left| left.min(host.ram_available.0));
    let name = host.simd.as_ref().map_or_else(|| "CPU".to_string(), |simd| format!("CPU, {simd}"));
    Card {
        free: Size(free),
        shares_host_memory: true,
        ..Card::new("cpu", name, BackendKind::Cpu, DriverKind::None, host.ram_total)
    }
}

/// The widest vector instructions that this program could use.
fn simd() -> Option<String> {
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("avx512-vnni", std::is_x86_feature_detected!("avx512vnni")),
            ("avx512", std::is_x86_feature_detected!("avx512bw")),
            ("avx2", std::is_x86_feature_detected!("avx2")),
        ];
        known.into_iter().find(|(_, there)| *there).map(|(name, _)| name.to_string())
    }
    #[cfg(target_arch = "aarch64")]
    {
        Some("neon".to_string())
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        None
    }
}

fn read_host() -> Host {
    #[cfg(target_os = "linux")]
    {
        linux::host()
    }
    #[cfg(windows)]
    {
        windows::host()
    }
    #[cfg(target_os = "macos")]
    {
        macos::host()
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
    {
        unknown_host()
    }
}

/// A host of which nothing is known but its cores. Sizes of zero make every plan a refusal until a machine file says more.
fn unknown_host() -> Host {
    let os = if cfg!(windows) {
        Os::Windows
    } else if cfg!(target_os = "macos") {
        Os::Macos
    } else {
        Os::Linux
    };
    Host {
        os,
        ram_total: Size(0),
        ram_available: Size(0),
        container_limit: None,
        container_used: None,
        pinned_limit: None,
        memlock_limit: None,
        commit_limit: None,
        commit_used: None,
        page_file: None,
        cores: Topology::here().cores() as u32,
        workers: None,
        simd: simd(),
        ram_read_gbs: None,
        cpu_weights_gbs: None,
        cpu_gmacs: None,
        cpu_format_gbs: BTreeMap::new(),
    }
}
