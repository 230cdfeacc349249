// libcuda.so.1 / nvcuda.dll: the driver calls that Strata makes, and those that cudarc's safe layer adds.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "world.h"

#ifdef _WIN32
#define API extern "C" __declspec(dllexport) int
#else
#define API extern "C" __attribute__((visibility("default"))) int
#endif

using namespace sim;
using DevicePtr = uint64_t;

namespace {

struct Context {
    int card;
};
Context contexts[64];
thread_local Context* current = nullptr;
bool started = false;

void* address(DevicePtr p) { return reinterpret_cast<void*>(static_cast<uintptr_t>(p)); }
bool is_card(int card) { return card >= 0 && card < static_cast<int>(world().cards.size()); }
/// 0, 1 and 2 are names of the default streams.
Stream* real(Stream* s) { return reinterpret_cast<uintptr_t>(s) <= 2 ? world().null_stream(current->card) : s; }

}  // namespace

namespace sim {
World& world() {
    // Never taken down: a worker may still run when the process ends.
    static World& w = *new World(Vendor::Cuda);
    static bool ready = [] {
        for (int i = 0; i < 64; i++) contexts[i].card = i;
        std::string text = "card name=\"Simulated CUDA card\" vram=8G sms=20 arch=8.6", error;
        if (const char* path = std::getenv("STRATA_SIM_CUDA")) {
            std::stringstream content;
            content << std::ifstream(path).rdbuf();
            text = content.str();
        }
        if (!w.configure(text.c_str(), error)) fprintf(stderr, "simulated driver: %s\n", error.c_str());
        return true;
    }();
    (void)ready;
    return w;
}
}  // namespace sim

#define CALL Call call(world())
/// For calls that need a context, which a broken card answers with its error.
#define IN_CONTEXT                                             \
    CALL;                                                      \
    if (!current || !is_card(current->card)) return INVALID_CONTEXT; \
    if (const Error broken = world().health(current->card)) return broken

// --- cards ---

API cuInit(unsigned flags) {
    CALL;
    started = true;
    return flags ? INVALID_VALUE : world().cards.empty() ? NO_DEVICE : OK;
}
API cuDriverGetVersion(int* version) {
    CALL;
    *version = world().driver_version;
    return OK;
}
API cuDeviceGetCount(int* count) {
    CALL;
    if (!started) return NOT_INITIALIZED;
    *count = static_cast<int>(world().cards.size());
    return OK;
}
API cuDeviceGet(int* device, int ordinal) {
    CALL;
    if (!is_card(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}
API cuDeviceGetName(char* name, int len, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    snprintf(name, static_cast<size_t>(len), "%s", world().cards[device].name.c_str());
    return OK;
}
API cuDeviceGetUuid(unsigned char* uuid, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    std::memcpy(uuid, world().cards[device].uuid, 16);
    return OK;
}
API cuDeviceGetUuid_v2(unsigned char* uuid, int device) { return cuDeviceGetUuid(uuid, device); }
API cuDeviceGetPCIBusId(char* id, int len, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    snprintf(id, static_cast<size_t>(len), "%s", world().cards[device].pci.c_str());
    return OK;
}
API cuDeviceTotalMem_v2(size_t* bytes, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    *bytes = world().cards[device].vram_bytes;
    return OK;
}
API cuDeviceGetAttribute(int* value, int attribute, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    const Card& card = world().cards[device];
    const int tenths = static_cast<int>(std::strtod(card.arch.c_str(), nullptr) * 10 + 0.5);
    const std::map<int, int> attributes = {
        {1, 1024},          // MAX_THREADS_PER_BLOCK
        {2, 1024},          // MAX_BLOCK_DIM_X
        {3, 1024},          // MAX_BLOCK_DIM_Y
        {4, 64},            // MAX_BLOCK_DIM_Z
        {5, 0x7fffffff},    // MAX_GRID_DIM_X
        {6, 65535},         // MAX_GRID_DIM_Y
        {7, 65535},         // MAX_GRID_DIM_Z
        {8, 48 << 10},      // MAX_SHARED_MEMORY_PER_BLOCK
        {10, static_cast<int>(card.wave)},              // WARP_SIZE
        {12, 65536},        // MAX_REGISTERS_PER_BLOCK
        {13, 1500000},      // CLOCK_RATE, kHz
        {16, static_cast<int>(card.multiprocessors)},   // MULTIPROCESSOR_COUNT
        {17, card.display},                             // KERNEL_EXEC_TIMEOUT
        {33, static_cast<int>(std::strtol(card.pci.c_str() + 5, nullptr, 16))},  // PCI_BUS_ID
        {34, 0},            // PCI_DEVICE_ID
        {36, 7000000},      // MEMORY_CLOCK_RATE, kHz
        {37, 256},          // GLOBAL_MEMORY_BUS_WIDTH
        {38, 4 << 20},      // L2_CACHE_SIZE
        {39, 1536},         // MAX_THREADS_PER_MULTIPROCESSOR
        {40, 2},            // ASYNC_ENGINE_COUNT
        {41, 1},            // UNIFIED_ADDRESSING
        {50, 0},            // PCI_DOMAIN_ID
        {75, tenths / 10},  // COMPUTE_CAPABILITY_MAJOR
        {76, tenths % 10},  // COMPUTE_CAPABILITY_MINOR
        {81, 100 << 10},    // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        {97, 99 << 10},     // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        {115, world().pools},                           // MEMORY_POOLS_SUPPORTED
    };
    const auto found = attributes.find(attribute);
    *value = found == attributes.end() ? 0 : found->second;
    return OK;
}
API cuDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return OK;
}

// --- contexts ---

API cuDevicePrimaryCtxRetain(Context** context, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    Card& card = world().cards[device];
    if (card.broken) return card.broken;
    if (world().fails(Taking::Context)) return OUT_OF_MEMORY;
    if (!card.contexts)
        if (const Error e = world().charge(device, card.context_bytes)) return e;
    card.contexts++;
    world().live[static_cast<int>(Taking::Context)]++;
    *context = &contexts[device];
    return OK;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
    CALL;
    if (!is_card(device) || !world().cards[device].contexts) return INVALID_CONTEXT;
    Card& card = world().cards[device];
    if (!--card.contexts) world().drop_context(device);
    world().live[static_cast<int>(Taking::Context)]--;
    return OK;
}
API cuCtxSetCurrent(Context* context) {
    current = context;
    return OK;
}
API cuCtxGetCurrent(Context** context) {
    *context = current;
    return OK;
}
API cuCtxGetDevice(int* device) {
    IN_CONTEXT;
    *device = current->card;
    return OK;
}
API cuCtxSynchronize() {
    IN_CONTEXT;
    return world().synchronize_card(current->card);
}
API cuCtxSetFlags(unsigned) { return OK; }
API cuCtxSetLimit(int, size_t) { return OK; }
API cuCtxGetLimit(size_t* value, int) {
    *value = 0;
    return OK;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return OK;
}

// --- errors ---

namespace {
struct ErrorText {
    int code;
    const char *name, *text;
};
const ErrorText ERRORS[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
}  // namespace

API cuGetErrorName(int code, const char** name) {
    for (const auto& e : ERRORS)
        if (e.code == code) return *name = e.name, OK;
    return INVALID_VALUE;
}
API cuGetErrorString(int code, const char** text) {
    for (const auto& e : ERRORS)
        if (e.code == code) return *text = e.text, OK;
    return INVALID_VALUE;
}

// --- memory ---

API cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    IN_CONTEXT;
    world().memory_info(current->card, free_bytes, total_bytes);
    return OK;
}
API cuMemAlloc_v2(DevicePtr* out, size_t bytes) {
    IN_CONTEXT;
    void* made = nullptr;
    const Error e = world().alloc(current->card, bytes, &made);
    *out = static_cast<DevicePtr>(reinterpret_cast<uintptr_t>(made));
    return e;
}
API cuMemAllocAsync(DevicePtr* out, size_t bytes, Stream*) { return cuMemAlloc_v2(out, bytes); }
API cuMemFree_v2(DevicePtr p) {
    CALL;
    return world().release(address(p));
}
API cuMemFreeAsync(DevicePtr p, Stream*) { return cuMemFree_v2(p); }
API cuMemHostAlloc(void** out, size_t bytes, unsigned) {
    IN_CONTEXT;
    *out = std::malloc(bytes);
    if (!*out) return OUT_OF_MEMORY;
    std::memset(*out, world().fill_byte, bytes);
    const Error e = world().pin(*out, bytes, true);
    if (e) std::free(*out), *out = nullptr;
    return e;
}
API cuMemFreeHost(void* p) {
    CALL;
    const Error e = world().unpin(p, true);
    if (!e) std::free(p);
    return e;
}
API cuMemHostRegister_v2(void* p, size_t bytes, unsigned) {
    IN_CONTEXT;
    return world().pin(p, bytes, false);
}
API cuMemHostUnregister(void* p) {
    CALL;
    return world().unpin(p, false);
}
API cuMemHostGetDevicePointer_v2(DevicePtr* out, void* p, unsigned) {
    CALL;
    if (!world().pinned(p)) return INVALID_VALUE;
    *out = static_cast<DevicePtr>(reinterpret_cast<uintptr_t>(p));
    return OK;
}
API cuMemcpyHtoD_v2(DevicePtr to, const void* from, size_t bytes) {
    IN_CONTEXT;
    return world().copy(real(nullptr), address(to), true, from, false, bytes, false);
}
API cuMemcpyDtoH_v2(void* to, DevicePtr from, size_t bytes) {
    IN_CONTEXT;
    return world().copy(real(nullptr), to, false, address(from), true, bytes, false);
}
API cuMemcpyDtoD_v2(DevicePtr to, DevicePtr from, size_t bytes) {
    IN_CONTEXT;
    return world().copy(real(nullptr), address(to), true, address(from), true, bytes, false);
}
API cuMemcpyHtoDAsync_v2(DevicePtr to, const void* from, size_t bytes, Stream* stream) {
    IN_CONTEXT;
    return world().copy(real(stream), address(to), true, from, false, bytes, true);
}
API cuMemcpyDtoHAsync_v2(void* to, DevicePtr from, size_t bytes, Stream* stream) {
    IN_CONTEXT;
    return world().copy(real(stream), to, false, address(from), true, bytes, true);
}
API cuMemcpyDtoDAsync_v2(DevicePtr to, DevicePtr from, size_t bytes, Stream* stream) {
    IN_CONTEXT;
    return world().copy(real(stream), address(to), true, address(from), true, bytes, true);
}
API cuMemcpyPeerAsync(DevicePtr to, Context*, DevicePtr from, Context*, size_t bytes, Stream* stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
API cuMemsetD8_v2(DevicePtr to, unsigned char value, size_t bytes) {
    IN_CONTEXT;
    return world().fill(real(nullptr), address(to), value, bytes, false);
}
API cuMemsetD8Async(DevicePtr to, unsigned char value, size_t bytes, Stream* stream) {
    IN_CONTEXT;
    return world().fill(real(stream), address(to), value, bytes, true);
}

// --- modules and launches ---

API cuModuleLoadData(Module** module, const void* image) {
    IN_CONTEXT;
    return world().load_module(current->card, image, module);
}
API cuModuleLoadDataEx(Module** module, const void* image, unsigned, int*, void**) { return cuModuleLoadData(module, image); }
API cuModuleLoad(Module** module, const char* path) {
    std::stringstream content;
    content << std::ifstream(path, std::ios::binary).rdbuf();
    if (content.str().empty()) return FILE_NOT_FOUND;
    return cuModuleLoadData(module, content.str().c_str());
}
API cuModuleUnload(Module* module) {
    CALL;
    world().refund(module->card, world().cards[module->card].module_bytes);
    world().live[static_cast<int>(Taking::Module)]--;
    delete module;
    return OK;
}
API cuModuleGetFunction(Function** function, Module* module, const char* name) {
    IN_CONTEXT;
    return world().find_function(module, name, function);
}
API cuFuncGetAttribute(int* value, int attribute, Function* f) {
    CALL;
    *value = attribute == 0   ? 1024                                     // MAX_THREADS_PER_BLOCK
             : attribute == 4 ? 32                                       // NUM_REGS
             : attribute == 8 ? static_cast<int>(f->max_dynamic_shared)  // MAX_DYNAMIC_SHARED_SIZE_BYTES
                              : 0;
    return OK;
}
API cuFuncSetAttribute(Function* f, int attribute, int value) {
    CALL;
    if (attribute != 8) return OK;
    if (value > 99 << 10) return INVALID_VALUE;
    f->max_dynamic_shared = static_cast<size_t>(value);
    return OK;
}
API cuFuncSetCacheConfig(Function*, int) { return OK; }
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function*, int threads, size_t) {
    *blocks = threads > 0 ? 1536 / threads : 0;
    return OK;
}
API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Function* f, int threads, size_t shared, unsigned) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared);
}
API cuLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   Stream* stream, void** arguments, void**) {
    IN_CONTEXT;
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return world().launch(real(stream), f, grid, block, shared, arguments);
}

// --- streams and events ---

API cuStreamCreate(Stream** stream, unsigned flags) {
    IN_CONTEXT;
    if (world().fails(Taking::Stream)) return OUT_OF_MEMORY;
    *stream = world().make_stream(current->card, !(flags & 1));
    return OK;
}
API cuStreamCreateWithPriority(Stream** stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
API cuStreamDestroy_v2(Stream* stream) {
    CALL;
    world().drop_stream(stream);
    return OK;
}
API cuStreamSynchronize(Stream* stream) {
    IN_CONTEXT;
    return world().synchronize(real(stream));
}
API cuStreamQuery(Stream* stream) {
    IN_CONTEXT;
    return world().query(real(stream));
}
API cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    IN_CONTEXT;
    return world().wait_event(real(stream), event);
}
API cuEventCreate(Event** event, unsigned) {
    IN_CONTEXT;
    if (world().fails(Taking::Event)) return OUT_OF_MEMORY;
    world().live[static_cast<int>(Taking::Event)]++;
    *event = new Event;
    return OK;
}
API cuEventRecord(Event* event, Stream* stream) {
    IN_CONTEXT;
    return world().record(event, real(stream));
}
API cuEventSynchronize(Event* event) {
    IN_CONTEXT;
    return world().synchronize_event(event);
}
API cuEventQuery(Event* event) {
    IN_CONTEXT;
    return world().query_event(event);
}
API cuEventElapsedTime(float* ms, Event* from, Event* to) {
    IN_CONTEXT;
    if (!from->state->asked || !to->state->asked) return INVALID_VALUE;
    *ms = static_cast<float>(to->state->at_ms - from->state->at_ms);
    return OK;
}
API cuEventElapsedTime_v2(float* ms, Event* from, Event* to) { return cuEventElapsedTime(ms, from, to); }
API cuEventDestroy_v2(Event* event) {
    CALL;
    world().live[static_cast<int>(Taking::Event)]--;
    delete event;
    return OK;
}

// --- graphs; a driver built as an old one lacks them ---

#ifndef STRATA_SIM_OLD
API cuStreamBeginCapture_v2(Stream* stream, int) {
    IN_CONTEXT;
    return world().begin_capture(real(stream));
}
API cuStreamIsCapturing(Stream* stream, int* status) {
    IN_CONTEXT;
    *status = real(stream)->recording ? 1 : 0;
    return OK;
}
API cuStreamEndCapture(Stream* stream, Graph** graph) {
    IN_CONTEXT;
    return world().end_capture(real(stream), graph);
}
API cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
    IN_CONTEXT;
    if (world().fails(Taking::Graph)) return OUT_OF_MEMORY;
    world().live[static_cast<int>(Taking::Graph)]++;
    *executable = new Graph{graph->tasks};
    return OK;
}
API cuGraphUpload(Graph*, Stream*) { return OK; }
API cuGraphLaunch(Graph* executable, Stream* stream) {
    IN_CONTEXT;
    return world().launch_graph(real(stream), executable);
}
API cuGraphExecDestroy(Graph* executable) {
    CALL;
    world().live[static_cast<int>(Taking::Graph)]--;
    delete executable;
    return OK;
}
API cuGraphDestroy(Graph* graph) {
    CALL;
    delete graph;
    return OK;
}
#endif
