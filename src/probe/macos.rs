//! macOS: memory from `sysctl` and `vm_stat`, which every installation has. Parsers take text, so tests can feed them.

use crate::plan::{Host, Size};

#[cfg(target_os = "macos")]
pub fn host() -> Host {
    host_from(&output("/usr/sbin/sysctl", &["-n", "hw.memsize"]), &output("/usr/bin/vm_stat", &[]))
}

#[cfg(target_os = "macos")]
fn output(program: &str, args: &[&str]) -> String {
    let output = std::process::Command::new(program).args(args).stdin(std::process::Stdio::null()).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}

fn host_from(memsize: &str, vm_stat: &str) -> Host {
    let total = memsize.trim().parse().unwrap_or(0);
    let available = available_bytes(vm_stat).unwrap_or(0).min(total);
    Host { ram_total: Size(total), ram_available: Size(available), ..super::unknown_host() }
}

/// What can be had without swapping: free pages, and those that the system only keeps for later.
fn available_bytes(vm_stat: &str) -> Option<u64> {
    let page: u64 = vm_stat.split_once("page size of ")?.1.split_whitespace().next()?.parse().ok()?;
    let pages = |key: &str| -> Option<u64> {
        let line = vm_stat.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches(':').trim().trim_end_matches('.').parse().ok()
    };
    let kept = ["Pages inactive", "Pages speculative", "Pages purgeable"];
    let sum = kept.iter().filter_map(|key| pages(key)).fold(pages("Pages free")?, u64::saturating_add);
    sum.checked_mul(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM_STAT: &str = "Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12000.
Pages active:                            800000.
Pages inactive:                          700000.
Pages speculative:                         3000.
Pages wired down:                        300000.
Pages purgeable:                           5000.
";

    #[test]
    fn memory_is_read_from_what_the_tools_print() {
        let host = host_from("68719476736\n", VM_STAT);
        assert_eq!(host.ram_total, Size(64 << 30));
        assert_eq!(host.ram_available, Size(720_000 * 16384));
        let unknown = host_from("", "");
        assert_eq!((unknown.ram_total, unknown.ram_available), (Size(0), Size(0)));
        assert_eq!(available_bytes("page size of x"), None);
    }
}
