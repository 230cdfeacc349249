//! Windows: physical memory and commit from `GlobalMemoryStatusEx`.

use crate::plan::{Host, Os, Size};

/// `MEMORYSTATUSEX` of the Windows API.
#[repr(C)]
struct MemoryStatus {
    length: u32,
    load_percent: u32,
    total_phys: u64,
    avail_phys: u64,
    /// RAM and page file: the limit of commit.
    total_page_file: u64,
    avail_page_file: u64,
    total_virtual: u64,
    avail_virtual: u64,
    avail_extended_virtual: u64,
}

const _: () = assert!(size_of::<MemoryStatus>() == 64);

#[link(name = "kernel32")]
unsafe extern "system" {
    fn GlobalMemoryStatusEx(status: *mut MemoryStatus) -> i32;
}

pub fn host() -> Host {
    let mut status = MemoryStatus {
        length: size_of::<MemoryStatus>() as u32,
        load_percent: 0,
        total_phys: 0,
        avail_phys: 0,
        total_page_file: 0,
        avail_page_file: 0,
        total_virtual: 0,
        avail_virtual: 0,
        avail_extended_virtual: 0,
    };
    // SAFETY: `status` has the layout of MEMORYSTATUSEX and says its own length, as the call demands.
    if unsafe { GlobalMemoryStatusEx(&mut status) } == 0 {
        return super::unknown_host();
    }
    Host {
        os: Os::Windows,
        ram_total: Size(status.total_phys),
        ram_available: Size(status.avail_phys.min(status.total_phys)),
        commit_limit: Some(Size(status.total_page_file)),
        commit_used: Some(Size(status.total_page_file.saturating_sub(status.avail_page_file))),
        page_file: Some(Size(status.total_page_file.saturating_sub(status.total_phys))),
        ..super::unknown_host()
    }
}
