//! What this PC is: the facts that the planner needs, read from the system. Cards are added by their backends; here is
//! the host and, as the device that is always there, its CPU.

mod bandwidth;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

use crate::plan::{BackendKind, Card, DriverKind, Host, MACHINE_VERSION, Machine, Os, Size};

/// How much time probing may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Read what the system says: a few milliseconds.
    Read,
    /// Also measure how fast RAM is read: about a second.
    Measure,
}

/// This PC with its CPU as the only device.
pub fn probe(effort: Effort) -> Machine {
    let mut host = read_host();
    if effort == Effort::Measure {
        host.ram_read_gbs = bandwidth::ram_read_gbs(host.cores as usize);
    }
    let cpu = cpu_card(&host);
    Machine { version: MACHINE_VERSION, name: "this PC".into(), host, cards: vec![cpu], disks: vec![] }
}

fn cpu_card(host: &Host) -> Card {
    let container = host.container_limit.map(|limit| limit.0.saturating_sub(host.container_used.unwrap_or_default().0));
    let free = container.map_or(host.ram_available.0, |left| left.min(host.ram_available.0));
    Card {
        id: "cpu".into(),
        name: host.simd.as_ref().map_or_else(|| "CPU".to_string(), |simd| format!("CPU, {simd}")),
        backend: BackendKind::Cpu,
        driver: DriverKind::None,
        uuid: None,
        pci: None,
        total: host.ram_total,
        free: Size(free),
        opened: false,
        drives_display: false,
        shares_host_memory: true,
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
    #[cfg(not(any(target_os = "linux", windows)))]
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
