//! What the system says of this process and this machine: memory.

/// Memory of this process as the system counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    pub resident_bytes: u64,
    /// The largest that `resident_bytes` ever was.
    pub peak_bytes: u64,
}

/// `None` where the system does not tell.
pub fn process_memory() -> Option<ProcessMemory> {
    Some(ProcessMemory { resident_bytes: status_bytes("VmRSS:")?, peak_bytes: status_bytes("VmHWM:")? })
}

#[cfg(target_os = "linux")]
fn status_bytes(key: &str) -> Option<u64> {
    kib_line(&std::fs::read_to_string("/proc/self/status").ok()?, key)
}

#[cfg(not(target_os = "linux"))]
fn status_bytes(_key: &str) -> Option<u64> {
    None
}

/// Bytes that programs may still take without swapping; `None` where the system does not tell.
#[cfg(target_os = "linux")]
pub fn available_memory_bytes() -> Option<u64> {
    kib_line(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

#[cfg(not(target_os = "linux"))]
pub fn available_memory_bytes() -> Option<u64> {
    None
}

/// `Key:   1234 kB` in a file of the kernel.
#[cfg(target_os = "linux")]
fn kib_line(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let text = "VmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(kib_line(text, "VmRSS:"), Some(1 << 20));
        assert_eq!(kib_line(text, "VmSwap:"), None);
        assert!(process_memory().is_some_and(|m| m.peak_bytes >= m.resident_bytes && m.resident_bytes > 0));
    }
}
