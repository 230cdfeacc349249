//! What was found, for people and for scripts: `strata devices`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::cards::shares_host_memory;
use super::{Probed, interface_of, kind_of};
use crate::backend::cpu::Topology;
use crate::backend::discovery::{FoundCard, Standing};
use crate::plan::{BackendKind, Card, Disk, DriverKind, Host, Os, Size};
use crate::units::HumanBytes;

/// Everything that `strata devices --json` prints.
#[derive(Debug, Serialize)]
pub struct DevicesReport<'a> {
    name: &'a str,
    host: HostReport<'a>,
    cards: Vec<CardReport<'a>>,
    /// Interfaces by which no card can be reached.
    absent: Vec<AbsentReport<'a>>,
    disks: &'a [Disk],
}

/// A size as a number to compute with and as text to read.
#[derive(Debug, Serialize)]
struct SizeReport {
    bytes: u64,
    text: String,
}

impl From<Size> for SizeReport {
    fn from(size: Size) -> SizeReport {
        SizeReport { bytes: size.0, text: HumanBytes(size.0).to_string() }
    }
}

#[derive(Debug, Serialize)]
struct HostReport<'a> {
    os: Os,
    cores: u32,
    /// Hardware threads that this process may use, and the nodes of memory that they are near to.
    threads: usize,
    /// Cores of each kind, the fastest first.
    core_groups: Vec<usize>,
    memory_nodes: usize,
    simd: Option<&'a str>,
    ram_total: SizeReport,
    ram_available: SizeReport,
    container_limit: Option<SizeReport>,
    container_used: Option<SizeReport>,
    pinned_limit: Option<SizeReport>,
    memlock_limit: Option<SizeReport>,
    commit_limit: Option<SizeReport>,
    commit_used: Option<SizeReport>,
    page_file: Option<SizeReport>,
    ram_read_gbs: Option<f64>,
    cpu_weights_gbs: Option<f64>,
    cpu_gmacs: Option<f64>,
    cpu_format_gbs: &'a BTreeMap<String, f64>,
}

impl<'a> From<&'a Host> for HostReport<'a> {
    fn from(host: &'a Host) -> HostReport<'a> {
        let size = |size: Option<Size>| size.map(SizeReport::from);
        let topology = Topology::here();
        HostReport {
            os: host.os,
            cores: host.cores,
            threads: topology.threads(),
            core_groups: topology.core_groups(),
            memory_nodes: topology.nodes().len(),
            simd: host.simd.as_deref(),
            ram_total: host.ram_total.into(),
            ram_available: host.ram_available.into(),
            container_limit: size(host.container_limit),
            container_used: size(host.container_used),
            pinned_limit: size(host.pinned_limit),
            memlock_limit: size(host.memlock_limit),
            commit_limit: size(host.commit_limit),
            commit_used: size(host.commit_used),
            page_file: size(host.page_file),
            ram_read_gbs: host.ram_read_gbs,
            cpu_weights_gbs: host.cpu_weights_gbs,
            cpu_gmacs: host.cpu_gmacs,
            cpu_format_gbs: &host.cpu_format_gbs,
        }
    }
}

/// `used`, or why not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Part {
    Usable,
    ByNameOnly,
    Unusable,
}

#[derive(Debug, Serialize)]
struct CardReport<'a> {
    id: &'a str,
    name: &'a str,
    backend: BackendKind,
    driver_kind: Option<DriverKind>,
    part: Part,
    /// Why the card takes no part, or only by its name.
    why: Option<&'a str>,
    total: SizeReport,
    free: SizeReport,
    shares_host_memory: bool,
    drives_display: bool,
    uuid: Option<&'a str>,
    pci: Option<String>,
    vendor: Option<&'a str>,
    driver: Option<&'a str>,
    capability: Option<&'a str>,
    compute_units: Option<u32>,
    features: &'a [String],
    max_buffer: Option<SizeReport>,
    max_binding: Option<SizeReport>,
    alignment_bytes: Option<u32>,
    memory_gbs: Option<f64>,
    bus_gbs: Option<f64>,
    bus_median_gbs: Option<f64>,
    compute_tflops: Option<f64>,
}

#[derive(Debug, Serialize)]
struct AbsentReport<'a> {
    interface: &'static str,
    why: &'a str,
}

impl<'a> CardReport<'a> {
    /// A card that the planner knows, with what its driver said of it.
    fn planned(card: &'a Card, found: Option<&'a FoundCard>) -> CardReport<'a> {
        CardReport {
            driver_kind: Some(card.driver),
            part: if card.by_name_only.is_some() { Part::ByNameOnly } else { Part::Usable },
            why: card.by_name_only.as_deref(),
            total: card.total.into(),
            free: card.free.into(),
            shares_host_memory: card.shares_host_memory,
            drives_display: card.drives_display,
            uuid: card.uuid.as_deref(),
            pci: card.pci.clone(),
            max_buffer: card.max_buffer.map(SizeReport::from),
            max_binding: card.max_binding.map(SizeReport::from),
            alignment_bytes: card.alignment,
            memory_gbs: card.memory_gbs,
            bus_gbs: card.bus_gbs,
            bus_median_gbs: card.bus_median_gbs,
            compute_tflops: card.compute_tflops,
            ..CardReport::told(&card.id, &card.name, card.backend, found)
        }
    }

    /// A card that no plan can use.
    fn unusable(id: &'a str, found: &'a FoundCard, why: &'a str) -> CardReport<'a> {
        CardReport {
            why: Some(why),
            total: Size(found.total_bytes).into(),
            free: Size(found.free_bytes).into(),
            shares_host_memory: shares_host_memory(found),
            drives_display: found.drives_display,
            uuid: found.uuid.as_deref(),
            pci: found.pci.map(|p| p.to_string()),
            ..CardReport::told(id, &found.name, kind_of(found.interface), Some(found))
        }
    }

    /// What only the driver says of a card, and nothing of what a plan needs.
    fn told(id: &'a str, name: &'a str, backend: BackendKind, found: Option<&'a FoundCard>) -> CardReport<'a> {
        let text = |text: &'a str| Some(text).filter(|t| !t.is_empty());
        CardReport {
            id,
            name,
            backend,
            driver_kind: None,
            part: Part::Unusable,
            why: None,
            total: Size(0).into(),
            free: Size(0).into(),
            shares_host_memory: false,
            drives_display: false,
            uuid: None,
            pci: None,
            vendor: found.and_then(|f| text(&f.vendor)),
            driver: found.and_then(|f| text(&f.driver)),
            capability: found.and_then(|f| f.capability.as_deref()),
            compute_units: found.and_then(|f| f.compute_units),
            features: found.map_or(&[], |f| &f.features),
            max_buffer: None,
            max_binding: None,
            alignment_bytes: None,
            memory_gbs: None,
            bus_gbs: None,
            bus_median_gbs: None,
            compute_tflops: None,
        }
    }
}

/// Cards that no plan can use, with the reason.
fn unusable(probed: &Probed) -> impl Iterator<Item = (&str, &FoundCard, &str)> {
    probed.survey.cards.iter().filter_map(|named| match &named.standing {
        Standing::Unusable(why) => Some((named.id.as_str(), &named.card, why.as_str())),
        Standing::Usable | Standing::ByName(_) => None,
    })
}

impl Probed {
    /// What the driver said of a card of the machine.
    fn found(&self, card: &Card) -> Option<&FoundCard> {
        let interface = interface_of(card.backend)?;
        self.survey.cards.iter().find(|n| n.card.interface == interface && n.id == card.id).map(|n| &n.card)
    }

    pub fn report(&self) -> DevicesReport<'_> {
        let machine = &self.machine;
        let mut cards: Vec<CardReport<'_>> = machine.cards.iter().map(|c| CardReport::planned(c, self.found(c))).collect();
        cards.extend(unusable(self).map(|(id, found, why)| CardReport::unusable(id, found, why)));
        let absent = self.survey.absent.iter();
        let absent = absent.map(|(interface, why)| AbsentReport { interface: interface.id(), why: &why.0 }).collect();
        DevicesReport { name: &machine.name, host: HostReport::from(&machine.host), cards, absent, disks: &machine.disks }
    }

    /// For people.
    pub fn render(&self) -> String {
        let mut out = format!("{}\n", self.machine.name);
        host_text(&mut out, &self.machine.host);
        for card in &self.machine.cards {
            card_text(&mut out, card, self.found(card));
        }
        for (id, card, why) in unusable(self) {
            let _ = writeln!(out, "{id}: {}: cannot be used: {why}", card.name);
        }
        for (interface, absent) in &self.survey.absent {
            let _ = writeln!(out, "no {} cards: {}", interface.name(), absent.0);
        }
        for disk in &self.machine.disks {
            let kind = disk.kind.map_or(String::new(), |kind| format!(" ({})", kind.text()));
            let _ = writeln!(out, "disk {}{kind}", disk.name);
            match (disk.read_gbs, disk.random_reads_per_s) {
                (None, None) => out += "  not measured\n",
                (read, random) => {
                    rates(&mut out, &[("read in order", read, "GB/s"), ("pages at random", random, "a second")]);
                }
            }
        }
        out
    }
}

fn host_text(out: &mut String, host: &Host) {
    let simd = host.simd.as_deref().unwrap_or("no known vector instructions");
    let (total, available) = (HumanBytes(host.ram_total.0), HumanBytes(host.ram_available.0));
    let topology = Topology::here();
    let (threads, nodes) = (topology.threads(), topology.nodes().len());
    let kinds: Vec<String> = topology.core_groups().iter().map(ToString::to_string).collect();
    let kinds = if kinds.len() > 1 { format!(" (by speed {})", kinds.join(" + ")) } else { String::new() };
    let _ = writeln!(
        out,
        "host: {} core(s){kinds}, {threads} thread(s), {nodes} memory node(s), {simd}; RAM {total}, {available} available",
        host.cores
    );
    let limits = [
        ("container limit", host.container_limit),
        ("container used", host.container_used),
        ("pinned limit", host.pinned_limit),
        ("mlock limit", host.memlock_limit),
        ("commit limit", host.commit_limit),
        ("commit used", host.commit_used),
        ("page file", host.page_file),
    ];
    for (name, size) in limits.into_iter().filter_map(|(name, size)| Some((name, size?))) {
        let _ = writeln!(out, "  {name}: {}", HumanBytes(size.0));
    }
    let measured = [
        ("RAM read", host.ram_read_gbs, "GB/s"),
        ("weights multiplied", host.cpu_weights_gbs, "GB/s"),
        ("multiply-adds of a prompt", host.cpu_gmacs, "G/s"),
    ];
    rates(out, &measured);
    if !host.cpu_format_gbs.is_empty() {
        let all: Vec<String> = host.cpu_format_gbs.iter().map(|(format, gbs)| format!("{format} {gbs:.1}")).collect();
        let _ = writeln!(out, "  weights multiplied, by format: {} GB/s", all.join(", "));
    }
}

fn card_text(out: &mut String, card: &Card, found: Option<&FoundCard>) {
    let (free, total) = (HumanBytes(card.free.0), HumanBytes(card.total.0));
    let _ = writeln!(out, "{}: {}, {free} free of {total}", card.id, card.name);
    if let Some(why) = &card.by_name_only {
        let _ = writeln!(out, "  used only with --device {}: {why}", card.id);
    }
    let units = found.and_then(|f| f.compute_units).map(|n| n.to_string());
    let features = found.map(|f| f.features.join(", ")).filter(|f| !f.is_empty());
    let lines = [
        ("vendor", found.map(|f| f.vendor.clone()).filter(|v| !v.is_empty())),
        ("driver", found.map(|f| f.driver.clone()).filter(|d| !d.is_empty())),
        ("pci", card.pci.clone()),
        ("uuid", card.uuid.clone()),
        ("capability", found.and_then(|f| f.capability.clone())),
        ("compute units", units),
        ("largest buffer", card.max_buffer.map(|s| HumanBytes(s.0).to_string())),
        ("largest binding", card.max_binding.map(|s| HumanBytes(s.0).to_string())),
        ("features", features),
    ];
    for (name, text) in lines.into_iter().filter_map(|(name, text)| Some((name, text?))) {
        let _ = writeln!(out, "  {name}: {text}");
    }
    if card.shares_host_memory && card.backend != BackendKind::Cpu {
        *out += "  its memory is the host's RAM\n";
    }
    if card.drives_display {
        *out += "  drives a display\n";
    }
    rates(
        out,
        &[
            ("memory", card.memory_gbs, "GB/s"),
            ("host to card, warm", card.bus_gbs, "GB/s"),
            ("host to card, median", card.bus_median_gbs, "GB/s"),
            ("matrix products", card.compute_tflops, "TFLOP/s"),
        ],
    );
}

fn rates(out: &mut String, rates: &[(&str, Option<f64>, &str)]) {
    for (name, rate, unit) in rates.iter().filter_map(|(name, rate, unit)| Some((name, (*rate)?, unit))) {
        let _ = writeln!(out, "  {name}: {rate:.1} {unit}");
    }
}
