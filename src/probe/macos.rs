//! macOS: memory from `sysctl` and `vm_stat`, kinds of disks from `diskutil`, which every installation has. Parsers take text, so tests
//! can feed them.

use crate::plan::{DiskKind, Host, Size};

#[cfg(target_os = "macos")]
pub fn host() -> Host {
    host_from(&output("/usr/sbin/sysctl", &["-n", "hw.memsize"]), &output("/usr/bin/vm_stat", &[]))
}

#[cfg(target_os = "macos")]
fn output(program: &str, args: &[&str]) -> String {
    let output = std::process::Command::new(program).args(args).stdin(std::process::Stdio::null()).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}

/// What is mounted where a file lies, and its file system: `/dev/disk3s5`, `apfs`.
#[cfg(target_os = "macos")]
pub fn mounted(path: &std::path::Path) -> Option<(String, String)> {
    use std::ffi::{CStr, CString, c_char};
    use std::os::unix::ffi::OsStrExt as _;
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all bytes of the structure are numbers, for which zero is a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and `stat` has room for what the call writes.
    if unsafe { libc::statfs(path.as_ptr(), &mut stat) } != 0 {
        return None;
    }
    let text = |field: &[c_char]| {
        let bytes: Vec<u8> = field.iter().map(|c| *c as u8).collect();
        CStr::from_bytes_until_nul(&bytes).ok().map(|text| text.to_string_lossy().into_owned())
    };
    Some((text(&stat.f_mntfromname)?, text(&stat.f_fstypename)?))
}

#[cfg(target_os = "macos")]
pub fn disk_kind(source: &str, file_system: &str) -> DiskKind {
    if source.starts_with("/dev/") {
        return kind_from(&output("/usr/sbin/diskutil", &["info", source]));
    }
    match file_system {
        "smbfs" | "nfs" | "afpfs" | "webdav" => DiskKind::Network,
        _ => DiskKind::Unknown,
    }
}

/// What `diskutil info` says of the bus and of moving parts.
fn kind_from(info: &str) -> DiskKind {
    let value = |key: &str| info.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(':').map(str::trim));
    let on_pci = value("Protocol").is_some_and(|p| p.contains("PCI") || p.contains("NVMe") || p == "Apple Fabric");
    match value("Solid State") {
        Some("Yes") if on_pci => DiskKind::Nvme,
        Some("Yes") => DiskKind::Ssd,
        Some("No") => DiskKind::Hdd,
        _ => DiskKind::Unknown,
    }
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
    fn kinds_of_disks_are_read_from_what_diskutil_prints() {
        let info = |protocol: &str, solid: &str| {
            kind_from(&format!(
                "   Device Node:               /dev/disk3s5\n   Protocol:                  {protocol}\n\n   Solid State:               {solid}\n"
            ))
        };
        assert_eq!(info("Apple Fabric", "Yes"), DiskKind::Nvme);
        assert_eq!(info("PCI-Express", "Yes"), DiskKind::Nvme);
        assert_eq!(info("USB", "Yes"), DiskKind::Ssd);
        assert_eq!(info("SATA", "No"), DiskKind::Hdd);
        assert_eq!(info("USB", "Info not available"), DiskKind::Unknown);
        assert_eq!(kind_from(""), DiskKind::Unknown);
    }

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
