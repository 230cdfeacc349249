//! The functions of the HIP runtime that we call. Their types have not changed from HIP 5.4 to 7.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

use hip_sys::hiprt::{
    self, hipDevice_t, hipDeviceAttribute_t, hipDeviceptr_t, hipError_t, hipEvent_t, hipFunction_t, hipGraph_t, hipGraphExec_t,
    hipGraphNode_t, hipModule_t, hipStream_t, hipStreamCaptureMode, hipUUID,
};

use crate::backend::device::function_table;

function_table! {
    /// All of them exist since HIP 5.2. What hip-sys declares of device properties has changed since; see `properties`.
    pub struct HipFunctions: hiprt extern "C" -> hipError_t;
    fn hipInit(flags: c_uint);
    fn hipRuntimeGetVersion(version: *mut c_int);
    fn hipGetDeviceCount(count: *mut c_int);
    fn hipDeviceGet(device: *mut hipDevice_t, ordinal: c_int);
    fn hipDeviceGetName(name: *mut c_char, len: c_int, device: hipDevice_t);
    fn hipDeviceGetUuid(uuid: *mut hipUUID, device: hipDevice_t);
    fn hipDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int);
    fn hipDeviceGetAttribute(value: *mut c_int, attribute: hipDeviceAttribute_t, device: c_int);
    fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t);
    fn hipSetDevice(device: c_int);
    fn hipMemGetInfo(free: *mut usize, total: *mut usize);
    fn hipMalloc(address: *mut *mut c_void, bytes: usize);
    fn hipFree(address: *mut c_void);
    fn hipHostMalloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn hipHostFree(memory: *mut c_void);
    fn hipHostRegister(memory: *mut c_void, bytes: usize, flags: c_uint);
    fn hipHostUnregister(memory: *mut c_void);
    fn hipMemcpyHtoDAsync(to: hipDeviceptr_t, from: *mut c_void, bytes: usize, stream: hipStream_t);
    fn hipMemcpyDtoHAsync(to: *mut c_void, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
    fn hipMemcpyDtoDAsync(to: hipDeviceptr_t, from: hipDeviceptr_t, bytes: usize, stream: hipStream_t);
    fn hipMemsetD8Async(to: hipDeviceptr_t, byte: c_uchar, bytes: usize, stream: hipStream_t);
    fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint);
    fn hipStreamDestroy(stream: hipStream_t);
    fn hipStreamSynchronize(stream: hipStream_t);
    fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint);
    fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint);
    fn hipEventRecord(event: hipEvent_t, stream: hipStream_t);
    fn hipEventSynchronize(event: hipEvent_t);
    fn hipEventDestroy(event: hipEvent_t);
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void);
    fn hipModuleUnload(module: hipModule_t);
    fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char);
    fn hipModuleLaunchKernel(
        function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: hipStream_t, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode);
    fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t);
    fn hipGraphInstantiate(
        ready: *mut hipGraphExec_t, graph: hipGraph_t, error_node: *mut hipGraphNode_t, log: *mut c_char, log_bytes: usize,
    );
    fn hipGraphLaunch(ready: hipGraphExec_t, stream: hipStream_t);
    fn hipGraphExecDestroy(ready: hipGraphExec_t);
    fn hipGraphDestroy(graph: hipGraph_t);
}
