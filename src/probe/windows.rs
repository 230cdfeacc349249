//! Windows: physical memory and commit from `GlobalMemoryStatusEx`, kinds of disks from `DeviceIoControl`.

use std::fs::File;
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::{AsRawHandle as _, RawHandle};
use std::ptr;

use super::disk::kind_by_bus;
use crate::plan::{DiskKind, Host, Os, Size};

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
    fn DeviceIoControl(
        device: RawHandle,
        code: u32,
        input: *const u8,
        input_bytes: u32,
        output: *mut u8,
        output_bytes: u32,
        returned_bytes: *mut u32,
        overlapped: *mut u8,
    ) -> i32;
}

const IOCTL_STORAGE_QUERY_PROPERTY: u32 = 0x002D_1400;
/// `StorageDeviceProperty` and `StorageDeviceSeekPenaltyProperty`.
const DEVICE: u32 = 0;
const SEEK_PENALTY: u32 = 7;
/// Where `STORAGE_DEVICE_DESCRIPTOR` has the type of the bus, and `DEVICE_SEEK_PENALTY_DESCRIPTOR` its answer.
const BUS_AT: usize = 28;
const SEEKS_AT: usize = 8;

/// The kind of disk under a volume: of the one disk of a simple volume. Volumes over several disks do not tell.
pub fn disk_kind(letter: char) -> DiskKind {
    const SHARE_READ_AND_WRITE: u32 = 3;
    // A volume is asked for its properties without the right to read it, which only administrators have.
    let mut options = File::options();
    let volume = options.access_mode(0).share_mode(SHARE_READ_AND_WRITE).open(format!(r"\\.\{letter}:"));
    let Ok(volume) = volume else { return DiskKind::Unknown };
    let bus =
        property(&volume, DEVICE, BUS_AT + 4).and_then(|d| Some(u32::from_le_bytes(d.get(BUS_AT..BUS_AT + 4)?.try_into().ok()?)));
    let seeks = property(&volume, SEEK_PENALTY, SEEKS_AT + 1).and_then(|d| d.get(SEEKS_AT).map(|b| *b != 0));
    kind_by_bus(bus, seeks)
}

/// The descriptor of a property, if it has at least so many bytes.
fn property(volume: &File, property: u32, least_bytes: usize) -> Option<Vec<u8>> {
    // `STORAGE_PROPERTY_QUERY`: the property, a standard query, and nothing more.
    let query = [property, 0, 0].map(u32::to_le_bytes).concat();
    let mut descriptor = vec![0u8; 1024];
    let mut returned = 0u32;
    // SAFETY: both buffers are as long as is said, the handle is open as long as `volume` lives, and without an overlapped structure
    // the call is over when it returns.
    let fine = unsafe {
        DeviceIoControl(
            volume.as_raw_handle(),
            IOCTL_STORAGE_QUERY_PROPERTY,
            query.as_ptr(),
            query.len() as u32,
            descriptor.as_mut_ptr(),
            descriptor.len() as u32,
            &mut returned,
            ptr::null_mut(),
        )
    };
    descriptor.truncate(returned as usize);
    (fine != 0 && descriptor.len() >= least_bytes).then_some(descriptor)
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
