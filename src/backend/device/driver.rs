//! What CUDA's driver interface and HIP's have in common, call by call. Nothing above this trait knows the vendor.

use std::ffi::c_void;
use std::fmt::{self, Debug};

use super::DriverError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vendor {
    Nvidia,
    Amd,
}

impl Vendor {
    /// Of the interface.
    pub fn name(self) -> &'static str {
        match self {
            Vendor::Nvidia => "CUDA",
            Vendor::Amd => "HIP",
        }
    }

    pub fn maker(self) -> &'static str {
        match self {
            Vendor::Nvidia => "NVIDIA",
            Vendor::Amd => "AMD",
        }
    }

    /// What the processors of a card are called.
    pub fn processors(self) -> &'static str {
        match self {
            Vendor::Nvidia => "multiprocessors",
            Vendor::Amd => "compute units",
        }
    }

    /// What a user installs.
    pub fn driver(self) -> &'static str {
        match self {
            Vendor::Nvidia => "NVIDIA driver",
            Vendor::Amd => "AMD HIP runtime",
        }
    }
}

/// What machine code a card runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// NVIDIA's compute capability: 86 for 8.6.
    Sm(u32),
    /// AMD's name, without the features behind it: `gfx1100`.
    Gfx(String),
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Architecture::Sm(capability) => write!(f, "sm_{capability}"),
            Architecture::Gfx(name) => f.write_str(name),
        }
    }
}

/// How the system manages a card's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryModel {
    /// What is allocated is there.
    Direct,
    /// Windows' display driver model: over-commits, and charges the system's commit.
    Wddm,
    /// Windows without the display model.
    Tcc,
}

/// What a driver says of a card without opening a context on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardFacts {
    pub vendor: Vendor,
    /// The driver's number.
    pub ordinal: u32,
    pub name: String,
    /// `GPU-...`
    pub uuid: Option<String>,
    /// `0000:01:00.0`
    pub pci: Option<String>,
    /// Windows' number of the adapter.
    pub luid: Option<u64>,
    pub architecture: Architecture,
    /// Streaming multiprocessors or compute units.
    pub multiprocessors: u32,
    /// Threads that run in step.
    pub warp_threads: u32,
    pub total_bytes: u64,
    /// A picture is shown by this card, so kernels must be short.
    pub drives_display: bool,
    /// The card's memory is the host's.
    pub integrated: bool,
    pub memory_model: MemoryModel,
}

/// A card's memory as its driver counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemoryInfo {
    pub free_bytes: u64,
    pub total_bytes: u64,
}

/// A driver's own number for a thing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub usize);

/// An address in a card's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceAddress(pub u64);

impl DeviceAddress {
    pub fn plus(self, bytes: u64) -> DeviceAddress {
        DeviceAddress(self.0 + bytes)
    }
}

/// Blocks of a launch and threads of a block. Kernels ask for no shared memory beyond what they declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

/// One vendor's driver.
///
/// # Safety of its methods
/// Handles, addresses and host pointers must come from this driver, belong to the context that is current on this thread
/// (`make_current`), and be alive; host memory given to an asynchronous copy must stay untouched until the stream has passed it.
/// The owning types of `owned.rs` see to that; nothing else calls these methods.
#[allow(clippy::missing_safety_doc)] // one contract for all, above
pub trait Driver: Debug + Send + Sync {
    fn vendor(&self) -> Vendor;
    /// As the vendor counts: `12.4`.
    fn version(&self) -> &str;
    fn count(&self) -> Result<u32, DriverError>;
    fn card(&self, ordinal: u32) -> Result<CardFacts, DriverError>;

    /// Opens the card's context, shared by all users of the process.
    fn retain_context(&self, ordinal: u32) -> Result<Handle, DriverError>;
    unsafe fn release_context(&self, ordinal: u32, context: Handle) -> Result<(), DriverError>;
    unsafe fn make_current(&self, ordinal: u32, context: Handle) -> Result<(), DriverError>;
    unsafe fn memory_info(&self) -> Result<DeviceMemoryInfo, DriverError>;

    /// Memory straight from the card: no pool keeps it when it is freed, so that free memory is the truth.
    unsafe fn alloc(&self, bytes: u64) -> Result<DeviceAddress, DriverError>;
    unsafe fn free(&self, address: DeviceAddress) -> Result<(), DriverError>;
    /// Host memory that all cards copy from and to without a detour.
    unsafe fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8, DriverError>;
    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<(), DriverError>;
    /// Pins memory that lies already where it is.
    unsafe fn pin(&self, memory: *mut u8, bytes: usize) -> Result<(), DriverError>;
    unsafe fn unpin(&self, memory: *mut u8) -> Result<(), DriverError>;

    unsafe fn copy_in(&self, to: DeviceAddress, from: *const u8, bytes: usize, stream: Handle) -> Result<(), DriverError>;
    unsafe fn copy_out(&self, to: *mut u8, from: DeviceAddress, bytes: usize, stream: Handle) -> Result<(), DriverError>;
    unsafe fn copy_within(&self, to: DeviceAddress, from: DeviceAddress, bytes: usize, on: Handle) -> Result<(), DriverError>;
    unsafe fn fill(&self, to: DeviceAddress, byte: u8, bytes: usize, stream: Handle) -> Result<(), DriverError>;

    /// A stream that waits for no other one.
    unsafe fn create_stream(&self) -> Result<Handle, DriverError>;
    unsafe fn destroy_stream(&self, stream: Handle) -> Result<(), DriverError>;
    unsafe fn synchronise(&self, stream: Handle) -> Result<(), DriverError>;
    unsafe fn wait_event(&self, stream: Handle, event: Handle) -> Result<(), DriverError>;

    /// An event that takes no time stamps.
    unsafe fn create_event(&self) -> Result<Handle, DriverError>;
    unsafe fn destroy_event(&self, event: Handle) -> Result<(), DriverError>;
    unsafe fn record_event(&self, event: Handle, stream: Handle) -> Result<(), DriverError>;
    unsafe fn wait_host(&self, event: Handle) -> Result<(), DriverError>;

    unsafe fn load_module(&self, image: &[u8]) -> Result<Handle, DriverError>;
    unsafe fn unload_module(&self, module: Handle) -> Result<(), DriverError>;
    /// A kernel with its code on the card: drivers that put that off until the first launch are asked not to.
    unsafe fn function(&self, module: Handle, name: &str) -> Result<Handle, DriverError>;
    /// `arguments` point at the kernel's parameters, in order.
    unsafe fn launch(
        &self,
        function: Handle,
        shape: LaunchShape,
        stream: Handle,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError>;

    /// Until `end_capture`, work on the stream is written down and not done.
    unsafe fn begin_capture(&self, stream: Handle) -> Result<(), DriverError>;
    /// The captured work, ready to be launched.
    unsafe fn end_capture(&self, stream: Handle) -> Result<Handle, DriverError>;
    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<(), DriverError>;
    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), DriverError>;
}
