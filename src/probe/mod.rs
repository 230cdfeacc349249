//! What this PC is: the facts that the planner needs, read from the system. Cards are found by their backends; here they
//! become cards of the planner, beside the host and, as the device that is always there, its CPU.

mod bandwidth;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(target_os = "macos", test))]
mod macos;
#[cfg(windows)]
mod windows;

mod cards;
mod report;

pub use cards::{interface_of, kind_of};
pub use report::DevicesReport;

use crate::backend::discovery::{Survey, survey};
use crate::backend::{FINDERS, Finder};
use crate::plan::{BackendKind, Card, DriverKind, Host, MACHINE_VERSION, Machine, Os, Size};

/// How much time probing may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Read what the system says: a few milliseconds, and what the drivers take to start.
    Read,
    /// Also measure how fast RAM and cards are: about a second each.
    Measure,
}

/// This PC for the planner, and for people what was found on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct Probed {
    pub machine: Machine,
    pub survey: Survey,
}

/// This PC: its host, the cards of all backends, and its CPU, which is always there.
pub fn probe(effort: Effort) -> Probed {
    probe_with(effort, FINDERS)
}

/// The same with the given backends only.
pub fn probe_with(effort: Effort, finders: &[&dyn Finder]) -> Probed {
    let mut host = read_host();
    if effort == Effort::Measure {
        host.ram_read_gbs = bandwidth::ram_read_gbs(host.cores as usize);
    }
    let survey = survey(finders);
    let mut cards = cards::planned(&survey, &host, |card| {
        let finder = finders.iter().find(|f| f.interface() == card.interface);
        finder.filter(|_| effort == Effort::Measure).map(|f| f.measure(card)).unwrap_or_default()
    });
    cards.push(cpu_card(&host));
    let machine = Machine { version: MACHINE_VERSION, name: "this PC".into(), host, cards, disks: vec![] };
    Probed { machine, survey }
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
        cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        simd: simd(),
        ram_read_gbs: None,
        cpu_weights_gbs: None,
        cpu_gmacs: None,
    }
}
