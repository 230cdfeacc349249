//! [`Driver`] over `libcuda.so.1` or `nvcuda.dll`.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUevent, CUfunction, CUfunction_attribute, CUgraph, CUmodule, CUstream,
    CUstreamCaptureMode, CUuuid,
};
use libloading::Library;

use super::functions::CudaFunctions;
use crate::backend::device::{
    Architecture, CardFacts, DeviceAddress, DeviceMemoryInfo, Driver, DriverError, Handle, LaunchShape, MemoryModel,
    MissingFunction, Unavailable, Vendor, find, leak_library, open_first, text, uuid_text,
};

/// The library of the display driver.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// Version that has every function of the table, as the driver counts: 1000 × major + 10 × minor.
const NEEDED_VERSION: c_int = 11_040;

const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
const HOST_PORTABLE: c_uint = 1;

#[derive(Debug)]
pub struct CudaDriver {
    functions: CudaFunctions,
    /// Windows' driver alone has it.
    get_luid: Option<GetLuid>,
    version: String,
}

type GetLuid = unsafe extern "C" fn(*mut c_char, *mut c_uint, CUdevice) -> u32;

impl CudaDriver {
    /// The installed driver.
    ///
    /// # Errors
    /// There is none, or it cannot be used; each reason is one sentence.
    pub fn open() -> Result<Arc<CudaDriver>, Unavailable> {
        open_first(Vendor::Nvidia, NAMES, CudaDriver::with_library)
    }

    /// A driver library at a place of its own.
    ///
    /// # Errors
    /// As [`CudaDriver::open`].
    pub fn open_at(library: &Path) -> Result<Arc<CudaDriver>, Unavailable> {
        let vendor = Vendor::Nvidia;
        CudaDriver::with_library(leak_library(library).map_err(|error| Unavailable::Library { vendor, error })?)
    }

    fn with_library(library: &'static Library) -> Result<Arc<CudaDriver>, Unavailable> {
        let vendor = Vendor::Nvidia;
        let missing = |MissingFunction(function)| Unavailable::MissingFunction { vendor, function };
        let failed = |error| Unavailable::Driver { vendor, error };
        let functions = CudaFunctions::find(library).map_err(missing)?;
        // SAFETY: the type is that of cudarc's declaration, with the code as the number it is.
        let get_luid = if cfg!(windows) { unsafe { find(library, "cuDeviceGetLuid") }.ok() } else { None };
        let mut version = 0;
        // SAFETY: `cuDriverGetVersion` needs no initialisation and writes one number.
        unsafe { functions.cuDriverGetVersion(&mut version) }.map_err(failed)?;
        let shown = |v: c_int| format!("{}.{}", v / 1000, v % 1000 / 10);
        if version < NEEDED_VERSION {
            return Err(Unavailable::TooOld { vendor, found: shown(version), needed: shown(NEEDED_VERSION) });
        }
        // SAFETY: flags must be 0.
        match unsafe { functions.cuInit(0) } {
            Err(error) if error.cause == crate::backend::device::Cause::NoDevice => Err(Unavailable::NoCards { vendor }),
            Err(error) => Err(failed(error)),
            Ok(()) => Ok(Arc::new(CudaDriver { functions, get_luid, version: shown(version) })),
        }
    }

    fn device(&self, ordinal: u32) -> Result<CUdevice, DriverError> {
        let mut device = 0;
        // SAFETY: writes one number.
        unsafe { self.functions.cuDeviceGet(&mut device, ordinal as c_int)? };
        Ok(device)
    }

    fn luid(&self, device: CUdevice) -> Option<u64> {
        let (mut luid, mut nodes) = ([0; 8], 0);
        // SAFETY: writes eight bytes and one number.
        let code = unsafe { self.get_luid?(luid.as_mut_ptr(), &mut nodes, device) };
        (code == 0).then(|| u64::from_le_bytes(luid.map(|byte: c_char| byte as u8)))
    }

    fn attribute(&self, device: CUdevice, attribute: CUdevice_attribute) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: writes one number.
        unsafe { self.functions.cuDeviceGetAttribute(&mut value, attribute, device)? };
        Ok(value.try_into().unwrap_or(0))
    }
}

fn stream(handle: Handle) -> CUstream {
    handle.0 as CUstream
}

impl Driver for CudaDriver {
    fn vendor(&self) -> Vendor {
        Vendor::Nvidia
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn count(&self) -> Result<u32, DriverError> {
        let mut count = 0;
        // SAFETY: writes one number.
        unsafe { self.functions.cuDeviceGetCount(&mut count)? };
        Ok(count.try_into().unwrap_or(0))
    }

    fn card(&self, ordinal: u32) -> Result<CardFacts, DriverError> {
        use CUdevice_attribute as A;
        let device = self.device(ordinal)?;
        let attribute = |a| self.attribute(device, a);
        let (mut name, mut pci) = ([0 as c_char; 256], [0 as c_char; 32]);
        let mut uuid = CUuuid { bytes: [0; 16] };
        let mut total_bytes = 0;
        let f = &self.functions;
        // SAFETY: each writes no more than it is told there is room for.
        let (pci_known, uuid_known) = unsafe {
            f.cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int - 1, device)?;
            f.cuDeviceTotalMem_v2(&mut total_bytes, device)?;
            let pci_known = f.cuDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as c_int - 1, device).is_ok();
            (pci_known, f.cuDeviceGetUuid(&mut uuid, device).is_ok())
        };
        let capability = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
            + attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let memory_model = match (cfg!(windows), attribute(A::CU_DEVICE_ATTRIBUTE_TCC_DRIVER)?) {
            (false, _) => MemoryModel::Direct,
            (true, 0) => MemoryModel::Wddm,
            (true, _) => MemoryModel::Tcc,
        };
        Ok(CardFacts {
            vendor: Vendor::Nvidia,
            ordinal,
            name: text(&name),
            uuid: uuid_known.then(|| uuid_text(uuid.bytes.map(|b| b as u8))).flatten(),
            pci: pci_known.then(|| text(&pci).to_lowercase()),
            luid: self.luid(device),
            architecture: Architecture::Sm(capability),
            multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            warp_threads: attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
            total_bytes: total_bytes as u64,
            // The driver limits how long kernels may run where a picture depends on it.
            drives_display: attribute(A::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)? != 0,
            integrated: attribute(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
            memory_model,
        })
    }

    fn retain_context(&self, ordinal: u32) -> Result<Handle, DriverError> {
        let device = self.device(ordinal)?;
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { self.functions.cuDevicePrimaryCtxRetain(&mut context, device)? };
        Ok(Handle(context as usize))
    }

    unsafe fn release_context(&self, ordinal: u32, _context: Handle) -> Result<(), DriverError> {
        let device = self.device(ordinal)?;
        // SAFETY: it was retained once by `retain_context`.
        unsafe { self.functions.cuDevicePrimaryCtxRelease_v2(device) }
    }

    unsafe fn make_current(&self, _ordinal: u32, context: Handle) -> Result<(), DriverError> {
        // SAFETY: the caller's; so it is in all methods below.
        unsafe { self.functions.cuCtxSetCurrent(context.0 as CUcontext) }
    }

    unsafe fn memory_info(&self) -> Result<DeviceMemoryInfo, DriverError> {
        let (mut free, mut total) = (0, 0);
        unsafe { self.functions.cuMemGetInfo_v2(&mut free, &mut total)? };
        Ok(DeviceMemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    unsafe fn alloc(&self, bytes: u64) -> Result<DeviceAddress, DriverError> {
        let mut address = 0;
        unsafe { self.functions.cuMemAlloc_v2(&mut address, bytes as usize)? };
        Ok(DeviceAddress(address))
    }

    unsafe fn free(&self, address: DeviceAddress) -> Result<(), DriverError> {
        unsafe { self.functions.cuMemFree_v2(address.0) }
    }

    unsafe fn alloc_pinned(&self, bytes: usize) -> Result<*mut u8, DriverError> {
        let mut memory = ptr::null_mut();
        unsafe { self.functions.cuMemHostAlloc(&mut memory, bytes, HOST_PORTABLE)? };
        Ok(memory.cast())
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<(), DriverError> {
        unsafe { self.functions.cuMemFreeHost(memory.cast()) }
    }

    unsafe fn pin(&self, memory: *mut u8, bytes: usize) -> Result<(), DriverError> {
        unsafe { self.functions.cuMemHostRegister_v2(memory.cast(), bytes, HOST_PORTABLE) }
    }

    unsafe fn unpin(&self, memory: *mut u8) -> Result<(), DriverError> {
        unsafe { self.functions.cuMemHostUnregister(memory.cast()) }
    }

    unsafe fn copy_in(&self, to: DeviceAddress, from: *const u8, bytes: usize, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuMemcpyHtoDAsync_v2(to.0, from.cast(), bytes, stream(on)) }
    }

    unsafe fn copy_out(&self, to: *mut u8, from: DeviceAddress, bytes: usize, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuMemcpyDtoHAsync_v2(to.cast(), from.0, bytes, stream(on)) }
    }

    unsafe fn copy_within(&self, to: DeviceAddress, from: DeviceAddress, bytes: usize, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuMemcpyDtoDAsync_v2(to.0, from.0, bytes, stream(on)) }
    }

    unsafe fn fill(&self, to: DeviceAddress, byte: u8, bytes: usize, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuMemsetD8Async(to.0, byte, bytes, stream(on)) }
    }

    unsafe fn create_stream(&self) -> Result<Handle, DriverError> {
        let mut stream: CUstream = ptr::null_mut();
        unsafe { self.functions.cuStreamCreate(&mut stream, STREAM_NON_BLOCKING)? };
        Ok(Handle(stream as usize))
    }

    unsafe fn destroy_stream(&self, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuStreamDestroy_v2(stream(on)) }
    }

    unsafe fn synchronise(&self, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuStreamSynchronize(stream(on)) }
    }

    unsafe fn wait_event(&self, on: Handle, event: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuStreamWaitEvent(stream(on), event.0 as CUevent, 0) }
    }

    unsafe fn create_event(&self) -> Result<Handle, DriverError> {
        let mut event: CUevent = ptr::null_mut();
        unsafe { self.functions.cuEventCreate(&mut event, EVENT_DISABLE_TIMING)? };
        Ok(Handle(event as usize))
    }

    unsafe fn destroy_event(&self, event: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuEventDestroy_v2(event.0 as CUevent) }
    }

    unsafe fn record_event(&self, event: Handle, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuEventRecord(event.0 as CUevent, stream(on)) }
    }

    unsafe fn wait_host(&self, event: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuEventSynchronize(event.0 as CUevent) }
    }

    unsafe fn load_module(&self, image: &[u8]) -> Result<Handle, DriverError> {
        let mut module: CUmodule = ptr::null_mut();
        unsafe { self.functions.cuModuleLoadData(&mut module, image.as_ptr().cast())? };
        Ok(Handle(module as usize))
    }

    unsafe fn unload_module(&self, module: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuModuleUnload(module.0 as CUmodule) }
    }

    unsafe fn function(&self, module: Handle, name: &str) -> Result<Handle, DriverError> {
        let name = CString::new(name).map_err(|_| DriverError::new("cuModuleGetFunction", 500))?;
        let mut function: CUfunction = ptr::null_mut();
        unsafe { self.functions.cuModuleGetFunction(&mut function, module.0 as CUmodule, name.as_ptr())? };
        // A question that only loaded code can answer.
        let (mut local_bytes, asked) = (0, CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
        unsafe { self.functions.cuFuncGetAttribute(&mut local_bytes, asked, function)? };
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
        let function = function.0 as CUfunction;
        let arguments = arguments.as_mut_ptr();
        let extra = ptr::null_mut();
        unsafe { self.functions.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, 0, stream(on), arguments, extra) }
    }

    unsafe fn begin_capture(&self, on: Handle) -> Result<(), DriverError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        unsafe { self.functions.cuStreamBeginCapture_v2(stream(on), mode) }
    }

    unsafe fn end_capture(&self, on: Handle) -> Result<Handle, DriverError> {
        let (mut graph, mut ready): (CUgraph, _) = (ptr::null_mut(), ptr::null_mut());
        unsafe { self.functions.cuStreamEndCapture(stream(on), &mut graph)? };
        let made = unsafe { self.functions.cuGraphInstantiateWithFlags(&mut ready, graph, 0) };
        // The description is not needed any more, however the instantiation went.
        let dropped = unsafe { self.functions.cuGraphDestroy(graph) };
        made?;
        let ready = Handle(ready as usize);
        if let Err(error) = dropped {
            let _ = unsafe { self.destroy_graph(ready) };
            return Err(error);
        }
        Ok(ready)
    }

    unsafe fn launch_graph(&self, graph: Handle, on: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuGraphLaunch(graph.0 as sys::CUgraphExec, stream(on)) }
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), DriverError> {
        unsafe { self.functions.cuGraphExecDestroy(graph.0 as sys::CUgraphExec) }
    }
}
