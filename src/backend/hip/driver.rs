//! [`Driver`] over `libamdhip64.so` or `amdhip64.dll`.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use hip_sys::hiprt::{
    hipDeviceAttribute_t, hipEvent_t, hipFunction_t, hipGraph_t, hipGraphExec_t, hipModule_t, hipStream_t, hipStreamCaptureMode,
    hipUUID,
};
use libloading::Library;

use super::functions::HipFunctions;
use super::properties::{Described, Properties};
use crate::backend::device::{
    Architecture, CardFacts, Cause, DeviceAddress, DeviceMemoryInfo, Driver, DriverError, Handle, LaunchShape, MemoryModel,
    MissingFunction, Unavailable, Vendor, leak_library, open_first, text, uuid_text,
};

/// Newest first: the interface is the same in all of them.
const NAMES: &[&str] = if cfg!(windows) {
    &["amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"]
} else {
    &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"]
};

const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
const HOST_PORTABLE: c_uint = 1;

#[derive(Debug)]
pub struct HipDriver {
    functions: HipFunctions,
    properties: Properties,
    version: String,
}

impl HipDriver {
    /// The installed runtime.
    ///
    /// # Errors
    /// There is none, or it cannot be used; each reason is one sentence.
    pub fn open() -> Result<Arc<HipDriver>, Unavailable> {
        open_first(Vendor::Amd, NAMES, HipDriver::with_library)
    }

    /// A runtime library at a place of its own.
    ///
    /// # Errors
    /// As [`HipDriver::open`].
    pub fn open_at(library: &Path) -> Result<Arc<HipDriver>, Unavailable> {
        let vendor = Vendor::Amd;
        HipDriver::with_library(leak_library(library).map_err(|error| Unavailable::Library { vendor, error })?)
    }

    fn with_library(library: &'static Library) -> Result<Arc<HipDriver>, Unavailable> {
        let vendor = Vendor::Amd;
        let missing = |MissingFunction(function)| Unavailable::MissingFunction { vendor, function };
        let failed = |error: DriverError| match error.cause {
            Cause::NoDevice => Unavailable::NoCards { vendor },
            _ => Unavailable::Driver { vendor, error },
        };
        let functions = HipFunctions::find(library).map_err(missing)?;
        let properties = Properties::find(library).map_err(missing)?;
        let mut version = 0;
        // SAFETY: flags must be 0; the version is one number.
        unsafe {
            functions.hipInit(0).map_err(failed)?;
            functions.hipRuntimeGetVersion(&mut version).map_err(failed)?;
        }
        let version = format!("{}.{}", version / 10_000_000, version / 100_000 % 100);
        Ok(Arc::new(HipDriver { functions, properties, version }))
    }

    fn attribute(&self, ordinal: u32, attribute: hipDeviceAttribute_t) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: writes one number.
        unsafe { self.functions.hipDeviceGetAttribute(&mut value, attribute, ordinal as c_int)? };
        Ok(value.try_into().unwrap_or(0))
    }
}

fn stream(handle: Handle) -> hipStream_t {
    handle.0 as hipStream_t
}

fn pointer(address: DeviceAddress) -> *mut c_void {
    address.0 as *mut c_void
}

impl Driver for HipDriver {
    fn vendor(&self) -> Vendor {
        Vendor::Amd
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn count(&self) -> Result<u32, DriverError> {
        let mut count = 0;
        // SAFETY: writes one number.
        match unsafe { self.functions.hipGetDeviceCount(&mut count) } {
            Err(error) if error.cause == Cause::NoDevice => Ok(0),
            Err(error) => Err(error),
            Ok(()) => Ok(count.try_into().unwrap_or(0)),
        }
    }

    fn card(&self, ordinal: u32) -> Result<CardFacts, DriverError> {
        use hipDeviceAttribute_t as A;
        let attribute = |a| self.attribute(ordinal, a);
        let (mut name, mut pci) = ([0; 256], [0; 32]);
        let mut uuid = hipUUID { bytes: [0; 16] };
        let (mut device, mut total_bytes) = (0, 0);
        let f = &self.functions;
        // SAFETY: each writes no more than it is told there is room for.
        let (pci_known, uuid_known) = unsafe {
            f.hipDeviceGet(&mut device, ordinal as c_int)?;
            f.hipDeviceGetName(name.as_mut_ptr(), name.len() as c_int - 1, device)?;
            f.hipDeviceTotalMem(&mut total_bytes, device)?;
            let pci_known = f.hipDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as c_int - 1, ordinal as c_int).is_ok();
            (pci_known, f.hipDeviceGetUuid(&mut uuid, device).is_ok())
        };
        let Described { architecture, luid } = self.properties.of_card(ordinal)?;
        Ok(CardFacts {
            vendor: Vendor::Amd,
            ordinal,
            name: text(&name),
            uuid: uuid_known.then(|| uuid_text(uuid.bytes.map(|b| b as u8))).flatten(),
            pci: pci_known.then(|| text(&pci).to_lowercase()),
            luid,
            architecture: Architecture::Gfx(architecture),
            multiprocessors: attribute(A::hipDeviceAttributeMultiprocessorCount)?,
            warp_threads: attribute(A::hipDeviceAttributeWarpSize)?,
            total_bytes: total_bytes as u64,
            drives_display: attribute(A::hipDeviceAttributeKernelExecTimeout)? != 0,
            integrated: attribute(A::hipDeviceAttributeIntegrated)? != 0,
            memory_model: if cfg!(windows) { MemoryModel::Wddm } else { MemoryModel::Direct },
        })
    }

    /// HIP has one context a card, which belongs to the process and opens with its first use.
    fn retain_context(&self, ordinal: u32) -> Result<Handle, DriverError> {
        // SAFETY: a card's number.
        unsafe { self.functions.hipSetDevice(ordinal as c_int)? };
        Ok(Handle(ordinal as usize))
    }

    unsafe fn release_context(&self, _ordinal: u32, _context: Handle) -> Result<(), DriverError> {
        Ok(())
    }

    unsafe fn make_current(&self, ordinal: u32, _context: Handle) -> Result<(), DriverError> {
        // SAFETY: the caller's; so it is in all methods below.
        unsafe { self.functions.hipSetDevice(ordinal as c_int) }
    }

    unsafe fn memory_info(&self) -> Result<DeviceMemoryInfo, DriverError> {
        let (mut free, mut total) = (0, 0);
        unsafe { self.functions.hipMemGetInfo(&mut free, &mut total)? };
        Ok(DeviceMemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    unsafe fn alloc(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        let mut address = ptr::null_mut();
        unsafe { self.functions.hipMalloc(&mut address, bytes as usize)? };
        Ok(DeviceAddress(address as u64))
    }

    unsafe fn free(&self, address: DeviceAddress) -> Result<(), DriverError> {
        unsafe { self.functions.hipFree(pointer(address)) }
    }

    unsafe fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8, DriverError> {
        let mut memory = ptr::null_mut();
        unsafe { self.functions.hipHostMalloc(&mut memory, bytes, HOST_PORTABLE)? };
        Ok(memory.cast())
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<(), DriverError> {
        unsafe { self.functions.hipHostFree(memory.cast()) }
    }

    unsafe fn pin(&self, memory: *mut u8, bytes: usize) -> Result<(), DriverError> {
        unsafe { self.functions.hipHostRegister(memory.cast(), bytes, HOST_PORTABLE) }
    }

    unsafe fn unpin(&self, memory: *mut u8) -> Result<(), DriverError> {
        unsafe { self.functions.hipHostUnregister(memory.cast()) }
    }

    unsafe fn copy_in(&self, to: DeviceAddress, from: *const u8, bytes: usize, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipMemcpyHtoDAsync(pointer(to), from.cast_mut().cast(), bytes, stream(on)) }
    }

    unsafe fn copy_out(&self, to: *mut u8, from: DeviceAddress, bytes: usize, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipMemcpyDtoHAsync(to.cast(), pointer(from), bytes, stream(on)) }
    }

    unsafe fn copy_within(&self, to: DeviceAddress, from: DeviceAddress, bytes: usize, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipMemcpyDtoDAsync(pointer(to), pointer(from), bytes, stream(on)) }
    }

    unsafe fn fill(&self, to: DeviceAddress, byte: u8, bytes: usize, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipMemsetD8Async(pointer(to), byte, bytes, stream(on)) }
    }

    unsafe fn create_stream(&self) -> Result<Handle, DriverError> {
        let mut stream: hipStream_t = ptr::null_mut();
        unsafe { self.functions.hipStreamCreateWithFlags(&mut stream, STREAM_NON_BLOCKING)? };
        Ok(Handle(stream as usize))
    }

    unsafe fn destroy_stream(&self, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipStreamDestroy(stream(on)) }
    }

    unsafe fn synchronise(&self, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipStreamSynchronize(stream(on)) }
    }

    unsafe fn wait_event(&self, on: Handle, event: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipStreamWaitEvent(stream(on), event.0 as hipEvent_t, 0) }
    }

    unsafe fn create_event(&self) -> Result<Handle, DriverError> {
        let mut event: hipEvent_t = ptr::null_mut();
        unsafe { self.functions.hipEventCreateWithFlags(&mut event, EVENT_DISABLE_TIMING)? };
        Ok(Handle(event as usize))
    }

    unsafe fn destroy_event(&self, event: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipEventDestroy(event.0 as hipEvent_t) }
    }

    unsafe fn record_event(&self, event: Handle, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipEventRecord(event.0 as hipEvent_t, stream(on)) }
    }

    unsafe fn wait_host(&self, event: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipEventSynchronize(event.0 as hipEvent_t) }
    }

    unsafe fn load_module(&self, image: &[u8]) -> Result<Handle, DriverError> {
        let mut module: hipModule_t = ptr::null_mut();
        unsafe { self.functions.hipModuleLoadData(&mut module, image.as_ptr().cast())? };
        Ok(Handle(module as usize))
    }

    unsafe fn unload_module(&self, module: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipModuleUnload(module.0 as hipModule_t) }
    }

    /// HIP has loaded the code with its module.
    unsafe fn function(&self, module: Handle, name: &str) -> Result<Handle, DriverError> {
        let name = CString::new(name).map_err(|_| DriverError::new("hipModuleGetFunction", 500))?;
        let mut function: hipFunction_t = ptr::null_mut();
        unsafe { self.functions.hipModuleGetFunction(&mut function, module.0 as hipModule_t, name.as_ptr())? };
        Ok(Handle(function as usize))
    }

    unsafe fn launch(
        &self,
        function: Handle,
        shape: LaunchShape,
        on: Handle,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let LaunchShape { grid: [gx, gy, gz], block: [bx, by, bz] } = shape;
        let f = function.0 as hipFunction_t;
        let (arguments, extra) = (arguments.as_mut_ptr(), ptr::null_mut());
        unsafe { self.functions.hipModuleLaunchKernel(f, gx, gy, gz, bx, by, bz, 0, stream(on), arguments, extra) }
    }

    unsafe fn begin_capture(&self, on: Handle) -> Result<(), DriverError> {
        let mode = hipStreamCaptureMode::hipStreamCaptureModeThreadLocal;
        unsafe { self.functions.hipStreamBeginCapture(stream(on), mode) }
    }

    unsafe fn end_capture(&self, on: Handle) -> Result<Handle, DriverError> {
        let (mut graph, mut ready): (hipGraph_t, hipGraphExec_t) = (ptr::null_mut(), ptr::null_mut());
        unsafe { self.functions.hipStreamEndCapture(stream(on), &mut graph)? };
        let made = unsafe { self.functions.hipGraphInstantiate(&mut ready, graph, ptr::null_mut(), ptr::null_mut(), 0) };
        // The description is not needed any more, however the instantiation went.
        let dropped = unsafe { self.functions.hipGraphDestroy(graph) };
        made?;
        let ready = Handle(ready as usize);
        if let Err(error) = dropped {
            let _ = unsafe { self.destroy_graph(ready) };
            return Err(error);
        }
        Ok(ready)
    }

    unsafe fn launch_graph(&self, graph: Handle, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipGraphLaunch(graph.0 as hipGraphExec_t, stream(on)) }
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.hipGraphExecDestroy(graph.0 as hipGraphExec_t) }
    }
}
