//! A PC as the planner sees it: facts that probing found or that a person wrote into a machine file (TOML).
//! Everything optional that is absent becomes an [`Assumption`](super::rules::Assumption) in the report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::bounds;
use super::size::Size;
use crate::quant::{FORMATS, Format};

/// The version of the machine file that this program writes and reads.
pub const MACHINE_VERSION: u32 = 1;

/// A whole PC. Unknown keys are errors, so a misspelt one cannot be overlooked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub version: u32,
    /// For people: "office PC", "2x RTX 2080 Ti".
    pub name: String,
    pub host: Host,
    /// In the order in which the user counts them.
    #[serde(default, rename = "card")]
    pub cards: Vec<Card>,
    #[serde(default, rename = "disk")]
    pub disks: Vec<Disk>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Os {
    Linux,
    /// Linux inside Windows: pins little, sees a paravirtual card.
    Wsl,
    Windows,
    Macos,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    pub os: Os,
    pub ram_total: Size,
    /// What programs may still take without swapping (Linux `MemAvailable`).
    pub ram_available: Size,
    /// Memory limit of the container (cgroup) that the program runs in, and what is used of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_limit: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_used: Option<Size>,
    /// Most bytes that can be pinned, when known from a limit or a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_limit: Option<Size>,
    /// What `mlock` may lock; drivers pin past it. For the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock_limit: Option<Size>,
    /// Windows: RAM + page file, and how much is charged already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_limit: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_used: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_file: Option<Size>,
    /// Cores (not threads) that may be used.
    pub cores: u32,
    /// Threads with which the CPU was measured to multiply weights fastest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// `avx2`, `avx512-vnni`, `neon`; for the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simd: Option<String>,
    /// Measured GB/s (10^9) of reading RAM with all cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_read_gbs: Option<f64>,
    /// Measured GB/s of quantised weights that the CPU can multiply (all cores); at most the RAM's rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_weights_gbs: Option<f64>,
    /// Billions of multiply-adds a second on all cores, for prompts on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_gmacs: Option<f64>,
    /// The same as `cpu_weights_gbs` for single block formats, by their names in small letters: `cpu_format_gbs = { q4_k = 40.0 }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_format_gbs: BTreeMap<String, f64>,
}

impl Host {
    /// The key of a block format in [`Host::cpu_format_gbs`].
    pub fn format_key(format: Format) -> String {
        format.name().to_lowercase()
    }

    /// GB/s (10^9) of weights of a format that the CPU multiplies with one row of activations (all cores), where that is known.
    pub fn format_gbs(&self, format: Format) -> Option<f64> {
        self.cpu_format_gbs.get(&Host::format_key(format)).copied()
    }
}

/// Which interface drives a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    Cuda,
    Hip,
    Vulkan,
    Dx12,
    Metal,
    /// The host's own cores as a device: experts lie in place, in RAM.
    Cpu,
    /// A card played by the CPU, with limits of its own: for tests of splits and faults.
    Virtual,
}

impl BackendKind {
    /// Whether programs run as kernels, which need scratch, and not on the processor.
    pub fn has_kernels(self) -> bool {
        !matches!(self, BackendKind::Cpu | BackendKind::Virtual)
    }

    /// Whether buffers of prompts may lie on slots of experts. Where a kernel's operands are bound as whole buffers, either to
    /// read or to write, they may not; the CPU has its experts in place.
    pub fn lends_slots(self) -> bool {
        matches!(self, BackendKind::Cuda | BackendKind::Hip | BackendKind::Virtual)
    }
}

/// How the driver manages memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    Linux,
    /// Windows display driver model: over-commits silently, charges commit.
    Wddm,
    /// Windows without display model (NVIDIA TCC).
    Tcc,
    Macos,
    /// No driver: CPU and virtual cards.
    None,
}

impl DriverKind {
    /// As machine files write it.
    fn name(self) -> &'static str {
        match self {
            DriverKind::Linux => "linux",
            DriverKind::Wddm => "wddm",
            DriverKind::Tcc => "tcc",
            DriverKind::Macos => "macos",
            DriverKind::None => "none",
        }
    }

    /// Whether there is such a driver on the system. WSL has the card of its Windows.
    fn is_of(self, os: Os) -> bool {
        match self {
            DriverKind::Linux => matches!(os, Os::Linux | Os::Wsl),
            DriverKind::Wddm | DriverKind::Tcc => matches!(os, Os::Windows | Os::Wsl),
            DriverKind::Macos => os == Os::Macos,
            DriverKind::None => true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// How the user names it: `cuda:0`.
    pub id: String,
    pub name: String,
    pub backend: BackendKind,
    pub driver: DriverKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    pub total: Size,
    /// What the driver says is free now (on Windows: the smaller of that and the budget).
    pub free: Size,
    /// The free figure was read after context, modules and library handles were made, so they are in it already.
    #[serde(default)]
    pub opened: bool,
    #[serde(default)]
    pub drives_display: bool,
    /// Why the card takes part only if `--device` names it: another interface reaches it better, or the processor plays it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_name_only: Option<String>,
    /// The card's memory is the host's RAM (integrated graphics, the CPU itself).
    #[serde(default)]
    pub shares_host_memory: bool,
    /// GB/s (10^9) of reading the card's own memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gbs: Option<f64>,
    /// GB/s host to card from pinned memory, warm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_gbs: Option<f64>,
    /// The same as a median over a longer time, where it differs (shared lanes, power states). Plans use the smaller one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_median_gbs: Option<f64>,
    /// TFLOP/s in matrix products as the kernels reach them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_tflops: Option<f64>,
    /// Largest single buffer and largest piece of one that a kernel can see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_buffer: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_binding: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alignment: Option<u32>,
    /// Measured: what the driver takes for its context, the kernels' code, library handles with their workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_bytes: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module_bytes: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library_bytes: Option<Size>,
    /// Measured: what captured graphs take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph_bytes: Option<Size>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DiskKind>,
    /// GB/s (10^9) of reading large pieces in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_gbs: Option<f64>,
    /// Reads a second of one page at random places, one at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_reads_per_s: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskKind {
    Nvme,
    Ssd,
    Hdd,
    Network,
    /// A file system in RAM.
    Memory,
    Unknown,
}

impl DiskKind {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            DiskKind::Nvme => "NVMe",
            DiskKind::Ssd => "SSD",
            DiskKind::Hdd => "hard disk",
            DiskKind::Network => "network",
            DiskKind::Memory => "in RAM",
            DiskKind::Unknown => "of unknown kind",
        }
    }
}

#[derive(Debug, Error)]
pub enum MachineError {
    #[error("machine file: {problem}")]
    Syntax { problem: String },
    #[error("machine file: {0}")]
    Write(#[from] toml::ser::Error),
    #[error("machine file is of version {found}; this program reads version {MACHINE_VERSION}")]
    Version { found: u32 },
    #[error("machine file: {what} {problem}")]
    Invalid { what: String, problem: String },
}

impl Machine {
    pub fn from_toml(text: &str) -> Result<Machine, MachineError> {
        let parsed = toml::from_str(text);
        // The message quotes the file.
        let machine: Machine = parsed.map_err(|e| MachineError::Syntax { problem: bounds::harmless(&e.to_string()) })?;
        machine.check()?;
        Ok(machine)
    }

    pub fn to_toml(&self) -> Result<String, MachineError> {
        Ok(toml::to_string(self)?)
    }

    /// Facts that contradict each other are refused here, so that the planner need not doubt them.
    pub fn check(&self) -> Result<(), MachineError> {
        if self.version != MACHINE_VERSION {
            return Err(MachineError::Version { found: self.version });
        }
        bounds::text("name", &self.name)?;
        self.host.check()?;
        for (i, card) in self.cards.iter().enumerate() {
            card.check(self.host.os)?;
            if self.cards[..i].iter().any(|other| other.id == card.id) {
                return invalid(&format!("card '{}'", card.id), "is listed twice");
            }
        }
        for disk in &self.disks {
            bounds::text("the name of a disk", &disk.name)?;
            bounds::rates(&format!("disk '{}'", disk.name), &[disk.read_gbs, disk.random_reads_per_s])?;
        }
        Ok(())
    }

    pub fn card(&self, id: &str) -> Option<&Card> {
        self.cards.iter().find(|c| c.id == id)
    }
}

pub(super) fn invalid(what: &str, problem: &str) -> Result<(), MachineError> {
    Err(MachineError::Invalid { what: what.into(), problem: problem.into() })
}

impl Host {
    fn check(&self) -> Result<(), MachineError> {
        bounds::sizes(
            "host",
            &[
                ("ram_total", Some(self.ram_total)),
                ("ram_available", Some(self.ram_available)),
                ("container_limit", self.container_limit),
                ("container_used", self.container_used),
                ("pinned_limit", self.pinned_limit),
                ("memlock_limit", self.memlock_limit),
                ("commit_limit", self.commit_limit),
                ("commit_used", self.commit_used),
                ("page_file", self.page_file),
            ],
        )?;
        if self.ram_available > self.ram_total {
            return invalid("host.ram_available", "is larger than host.ram_total");
        }
        if !(1..=bounds::MAX_CORES).contains(&self.cores) {
            return invalid("host.cores", &format!("must be 1 to {}", bounds::MAX_CORES));
        }
        if self.commit_used.is_some() != self.commit_limit.is_some() {
            return invalid("host.commit_limit and host.commit_used", "must be given together");
        }
        if let Some(simd) = &self.simd {
            bounds::text("host.simd", simd)?;
        }
        let known = |key: &String| FORMATS.iter().any(|info| Host::format_key(info.format) == *key);
        if let Some(key) = self.cpu_format_gbs.keys().find(|key| !known(key)) {
            return invalid("host.cpu_format_gbs", &format!("has no block format '{}'", bounds::harmless(key)));
        }
        let of_formats = self.cpu_format_gbs.values().map(|rate| Some(*rate));
        let rates: Vec<Option<f64>> = of_formats.chain([self.ram_read_gbs, self.cpu_weights_gbs, self.cpu_gmacs]).collect();
        bounds::rates("host", &rates)
    }
}

impl Card {
    /// A card of which only name and memory are known; everything else is assumed.
    pub fn new(id: impl Into<String>, name: impl Into<String>, backend: BackendKind, driver: DriverKind, total: Size) -> Card {
        Card {
            id: id.into(),
            name: bounds::one_line(&name.into()),
            backend,
            driver,
            uuid: None,
            pci: None,
            total,
            free: total,
            opened: false,
            drives_display: false,
            by_name_only: None,
            shares_host_memory: false,
            memory_gbs: None,
            bus_gbs: None,
            bus_median_gbs: None,
            compute_tflops: None,
            max_buffer: None,
            max_binding: None,
            alignment: None,
            context_bytes: None,
            module_bytes: None,
            library_bytes: None,
            graph_bytes: None,
        }
    }

    /// Whether both are the same piece of hardware under two names.
    pub fn is_same_hardware(&self, other: &Card) -> bool {
        let same = |a: &Option<String>, b: &Option<String>| a.is_some() && a == b;
        same(&self.uuid, &other.uuid) || same(&self.pci, &other.pci)
    }

    fn check(&self, os: Os) -> Result<(), MachineError> {
        bounds::id(&self.id)?;
        let what = format!("card '{}'", self.id);
        for text in [Some(&self.name), self.uuid.as_ref(), self.pci.as_ref(), self.by_name_only.as_ref()].into_iter().flatten() {
            bounds::text(&what, text)?;
        }
        bounds::sizes(
            &what,
            &[
                ("total", Some(self.total)),
                ("free", Some(self.free)),
                ("max_buffer", self.max_buffer),
                ("max_binding", self.max_binding),
                ("context_bytes", self.context_bytes),
                ("module_bytes", self.module_bytes),
                ("library_bytes", self.library_bytes),
                ("graph_bytes", self.graph_bytes),
            ],
        )?;
        bounds::rates(&what, &[self.memory_gbs, self.bus_gbs, self.bus_median_gbs, self.compute_tflops])?;
        if self.free > self.total {
            return invalid(&what, "has more free than total memory");
        }
        if self.alignment.is_some_and(|a| !a.is_power_of_two()) {
            return invalid(&what, "has an alignment that is no power of two");
        }
        let limits = [self.max_buffer, self.max_binding];
        if limits.into_iter().flatten().any(|l| l.0 < super::size::MIB) {
            return invalid(&what, "has a buffer limit below 1 MiB");
        }
        if !self.driver.is_of(os) {
            return invalid(&what, &format!("has a driver of kind '{}', which this system does not have", self.driver.name()));
        }
        Ok(())
    }
}
