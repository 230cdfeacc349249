// libamdhip64.so / amdhip64_6.dll: the runtime calls that Strata makes.
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

namespace {

thread_local int current = 0;

bool is_card(int card) { return card >= 0 && card < static_cast<int>(world().cards.size()); }
/// 0, 1 and 2 are names of the default streams.
Stream* real(Stream* s) { return reinterpret_cast<uintptr_t>(s) <= 2 ? world().null_stream(current) : s; }
/// A context is made by the first call that needs one.
Error enter() {
    if (!is_card(current)) return INVALID_DEVICE;
    Card& card = world().cards[current];
    if (card.broken || card.contexts) return card.broken;
    if (world().fails(Taking::Context)) return OUT_OF_MEMORY;
    if (const Error e = world().charge(current, card.context_bytes)) return e;
    card.contexts = 1;
    world().live[static_cast<int>(Taking::Context)]++;
    return OK;
}

}  // namespace

namespace sim {
World& world() {
    // Never taken down: a worker may still run when the process ends.
    static World& w = *new World(Vendor::Hip);
    static bool ready = [] {
        std::string text = "card name=\"Simulated HIP card\" vram=8G sms=20 arch=gfx1100", error;
        if (const char* path = std::getenv("STRATA_SIM_HIP")) {
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
#define IN_CONTEXT \
    CALL;          \
    if (const Error broken = enter()) return broken

// --- cards ---

API hipInit(unsigned flags) {
    CALL;
    return flags ? INVALID_VALUE : world().cards.empty() ? NO_DEVICE : OK;
}
API hipRuntimeGetVersion(int* version) {
    CALL;
    *version = world().driver_version;
    return OK;
}
API hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }
API hipGetDeviceCount(int* count) {
    CALL;
    *count = static_cast<int>(world().cards.size());
    return *count ? OK : NO_DEVICE;
}
API hipDeviceGet(int* device, int ordinal) {
    CALL;
    if (!is_card(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}
API hipSetDevice(int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    current = device;
    return OK;
}
API hipGetDevice(int* device) {
    *device = current;
    return OK;
}
API hipDeviceGetName(char* name, int len, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    snprintf(name, static_cast<size_t>(len), "%s", world().cards[device].name.c_str());
    return OK;
}
API hipDeviceGetUuid(unsigned char* uuid, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    std::memcpy(uuid, world().cards[device].uuid, 16);
    return OK;
}
API hipDeviceGetPCIBusId(char* id, int len, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    snprintf(id, static_cast<size_t>(len), "%s", world().cards[device].pci.c_str());
    return OK;
}
API hipDeviceTotalMem(size_t* bytes, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    *bytes = world().cards[device].vram_bytes;
    return OK;
}
API hipDeviceGetAttribute(int* value, int attribute, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    const Card& card = world().cards[device];
    const std::map<int, int> attributes = {
        {2, 2},             // AsyncEngineCount
        {5, 2000000},       // ClockRate, kHz
        {18, card.display},                             // KernelExecTimeout
        {19, 6 << 20},      // L2CacheSize
        {23, 11},           // ComputeCapabilityMajor
        {26, 1024},         // MaxBlockDimX
        {29, 0x7fffffff},   // MaxGridDimX
        {56, 1024},         // MaxThreadsPerBlock
        {59, 256},          // MemoryBusWidth
        {60, 1000000},      // MemoryClockRate, kHz
        {61, 0},            // ComputeCapabilityMinor
        {63, static_cast<int>(card.multiprocessors)},   // MultiprocessorCount
        {67, static_cast<int>(std::strtol(card.pci.c_str() + 5, nullptr, 16))},  // PciBusId
        {68, 0},            // PciDeviceId
        {69, 0},            // PciDomainID
        {74, 64 << 10},     // MaxSharedMemoryPerBlock
        {87, static_cast<int>(card.wave)},              // WarpSize
        {10002, 64 << 10},  // MaxSharedMemoryPerMultiprocessor
    };
    const auto found = attributes.find(attribute);
    *value = found == attributes.end() ? 0 : found->second;
    return OK;
}
/// The properties of ROCm 6 and later: 1472 bytes, of which these fields are filled.
API hipGetDevicePropertiesR0600(unsigned char* properties, int device) {
    CALL;
    if (!is_card(device)) return INVALID_DEVICE;
    const Card& card = world().cards[device];
    std::memset(properties, 0, 1472);
    snprintf(reinterpret_cast<char*>(properties), 256, "%s", card.name.c_str());
    std::memcpy(properties + 256, card.uuid, 16);
    std::memcpy(properties + 288, &card.vram_bytes, 8);
    const char* features = card.arch == "gfx906" ? ":sramecc+:xnack-" : "";
    snprintf(reinterpret_cast<char*>(properties) + 1160, 256, "%s%s", card.arch.c_str(), features);
    return OK;
}
API hipDeviceSynchronize() {
    IN_CONTEXT;
    return world().synchronize_card(current);
}
API hipDeviceReset() {
    CALL;
    if (!is_card(current)) return INVALID_DEVICE;
    Card& card = world().cards[current];
    if (card.contexts) {
        world().drop_context(current);
        world().live[static_cast<int>(Taking::Context)]--;
    }
    card.contexts = 0;
    return OK;
}

// --- errors ---

namespace {
struct ErrorText {
    int code;
    const char *name, *text;
};
const ErrorText ERRORS[] = {
    {OK, "hipSuccess", "no error"},
    {INVALID_VALUE, "hipErrorInvalidValue", "invalid argument"},
    {OUT_OF_MEMORY, "hipErrorOutOfMemory", "out of memory"},
    {NOT_INITIALIZED, "hipErrorNotInitialized", "initialization error"},
    {NO_DEVICE, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {INVALID_DEVICE, "hipErrorInvalidDevice", "invalid device ordinal"},
    {INVALID_IMAGE, "hipErrorInvalidImage", "device kernel image is invalid"},
    {INVALID_CONTEXT, "hipErrorInvalidContext", "invalid device context"},
    {NO_BINARY_FOR_GPU, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {FILE_NOT_FOUND, "hipErrorFileNotFound", "file not found"},
    {INVALID_HANDLE, "hipErrorInvalidHandle", "invalid resource handle"},
    {NOT_FOUND, "hipErrorNotFound", "named symbol not found"},
    {NOT_READY, "hipErrorNotReady", "device not ready"},
    {ILLEGAL_ADDRESS, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "hipErrorLaunchOutOfResources", "out of resources"},
    {LAUNCH_FAILED, "hipErrorLaunchFailure", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {UNKNOWN, "hipErrorUnknown", "unknown error"},
};
const ErrorText& text_of(int code) {
    for (const auto& e : ERRORS)
        if (e.code == code) return e;
    return ERRORS[sizeof ERRORS / sizeof *ERRORS - 1];
}
}  // namespace

extern "C" {
#ifdef _WIN32
__declspec(dllexport) const char* hipGetErrorName(int code) { return text_of(code).name; }
__declspec(dllexport) const char* hipGetErrorString(int code) { return text_of(code).text; }
#else
__attribute__((visibility("default"))) const char* hipGetErrorName(int code) { return text_of(code).name; }
__attribute__((visibility("default"))) const char* hipGetErrorString(int code) { return text_of(code).text; }
#endif
}
API hipGetLastError() { return OK; }

// --- memory ---

API hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    IN_CONTEXT;
    world().memory_info(current, free_bytes, total_bytes);
    return OK;
}
API hipMalloc(void** out, size_t bytes) {
    IN_CONTEXT;
    return world().alloc(current, bytes, out);
}
API hipFree(void* p) {
    CALL;
    return p ? world().release(p) : OK;
}
API hipHostMalloc(void** out, size_t bytes, unsigned) {
    IN_CONTEXT;
    *out = std::malloc(bytes);
    if (!*out) return OUT_OF_MEMORY;
    std::memset(*out, world().fill_byte, bytes);
    const Error e = world().pin(*out, bytes, true);
    if (e) std::free(*out), *out = nullptr;
    return e;
}
API hipHostFree(void* p) {
    CALL;
    const Error e = world().unpin(p, true);
    if (!e) std::free(p);
    return e;
}
API hipHostRegister(void* p, size_t bytes, unsigned) {
    IN_CONTEXT;
    return world().pin(p, bytes, false);
}
API hipHostUnregister(void* p) {
    CALL;
    return world().unpin(p, false);
}
API hipHostGetDevicePointer(void** out, void* p, unsigned) {
    CALL;
    if (!world().pinned(p)) return INVALID_VALUE;
    *out = p;
    return OK;
}
/// `kind`: 1 host to device, 2 device to host, 3 device to device.
API hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
    IN_CONTEXT;
    return world().copy(real(nullptr), to, kind & 1, from, kind & 2, bytes, false);
}
API hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, Stream* stream) {
    IN_CONTEXT;
    return world().copy(real(stream), to, kind & 1, from, kind & 2, bytes, true);
}
API hipMemcpyHtoD(void* to, void* from, size_t bytes) { return hipMemcpy(to, from, bytes, 1); }
API hipMemcpyDtoH(void* to, void* from, size_t bytes) { return hipMemcpy(to, from, bytes, 2); }
API hipMemcpyHtoDAsync(void* to, void* from, size_t bytes, Stream* stream) { return hipMemcpyAsync(to, from, bytes, 1, stream); }
API hipMemcpyDtoHAsync(void* to, void* from, size_t bytes, Stream* stream) { return hipMemcpyAsync(to, from, bytes, 2, stream); }
API hipMemcpyDtoDAsync(void* to, void* from, size_t bytes, Stream* stream) { return hipMemcpyAsync(to, from, bytes, 3, stream); }
API hipMemsetD8Async(void* to, unsigned char value, size_t bytes, Stream* stream) {
    IN_CONTEXT;
    return world().fill(real(stream), to, value, bytes, true);
}
API hipMemsetAsync(void* to, int value, size_t bytes, Stream* stream) {
    return hipMemsetD8Async(to, static_cast<unsigned char>(value), bytes, stream);
}

// --- modules and launches ---

API hipModuleLoadData(Module** module, const void* image) {
    IN_CONTEXT;
    return world().load_module(current, image, module);
}
API hipModuleUnload(Module* module) {
    CALL;
    world().refund(module->card, world().cards[module->card].module_bytes);
    world().live[static_cast<int>(Taking::Module)]--;
    delete module;
    return OK;
}
API hipModuleGetFunction(Function** function, Module* module, const char* name) {
    IN_CONTEXT;
    return world().find_function(module, name, function);
}
API hipFuncGetAttribute(int* value, int attribute, Function* f) {
    CALL;
    *value = attribute == 0   ? 1024                                     // MAX_THREADS_PER_BLOCK
             : attribute == 4 ? 32                                       // NUM_REGS
             : attribute == 8 ? static_cast<int>(f->max_dynamic_shared)  // MAX_DYNAMIC_SHARED_SIZE_BYTES
                              : 0;
    return OK;
}
API hipModuleLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          Stream* stream, void** arguments, void**) {
    IN_CONTEXT;
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return world().launch(real(stream), f, grid, block, shared, arguments);
}

// --- streams and events ---

API hipStreamCreateWithFlags(Stream** stream, unsigned flags) {
    IN_CONTEXT;
    if (world().fails(Taking::Stream)) return OUT_OF_MEMORY;
    *stream = world().make_stream(current, !(flags & 1));
    return OK;
}
API hipStreamDestroy(Stream* stream) {
    CALL;
    world().drop_stream(stream);
    return OK;
}
API hipStreamSynchronize(Stream* stream) {
    IN_CONTEXT;
    return world().synchronize(real(stream));
}
API hipStreamQuery(Stream* stream) {
    IN_CONTEXT;
    return world().query(real(stream));
}
API hipStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    IN_CONTEXT;
    return world().wait_event(real(stream), event);
}
API hipEventCreateWithFlags(Event** event, unsigned) {
    IN_CONTEXT;
    if (world().fails(Taking::Event)) return OUT_OF_MEMORY;
    world().live[static_cast<int>(Taking::Event)]++;
    *event = new Event;
    return OK;
}
API hipEventRecord(Event* event, Stream* stream) {
    IN_CONTEXT;
    return world().record(event, real(stream));
}
API hipEventSynchronize(Event* event) {
    IN_CONTEXT;
    return world().synchronize_event(event);
}
API hipEventQuery(Event* event) {
    IN_CONTEXT;
    return world().query_event(event);
}
API hipEventElapsedTime(float* ms, Event* from, Event* to) {
    IN_CONTEXT;
    if (!from->state->asked || !to->state->asked) return INVALID_VALUE;
    *ms = static_cast<float>(to->state->at_ms - from->state->at_ms);
    return OK;
}
API hipEventDestroy(Event* event) {
    CALL;
    world().live[static_cast<int>(Taking::Event)]--;
    delete event;
    return OK;
}

// --- graphs; a driver built as an old one lacks them ---

#ifndef STRATA_SIM_OLD
API hipStreamBeginCapture(Stream* stream, int) {
    IN_CONTEXT;
    return world().begin_capture(real(stream));
}
API hipStreamIsCapturing(Stream* stream, int* status) {
    IN_CONTEXT;
    *status = real(stream)->recording ? 1 : 0;
    return OK;
}
API hipStreamEndCapture(Stream* stream, Graph** graph) {
    IN_CONTEXT;
    return world().end_capture(real(stream), graph);
}
API hipGraphInstantiate(Graph** executable, Graph* graph, void**, char*, size_t) {
    IN_CONTEXT;
    if (world().fails(Taking::Graph)) return OUT_OF_MEMORY;
    world().live[static_cast<int>(Taking::Graph)]++;
    *executable = new Graph{graph->tasks};
    return OK;
}
API hipGraphLaunch(Graph* executable, Stream* stream) {
    IN_CONTEXT;
    return world().launch_graph(real(stream), executable);
}
API hipGraphExecDestroy(Graph* executable) {
    CALL;
    world().live[static_cast<int>(Taking::Graph)]--;
    delete executable;
    return OK;
}
API hipGraphDestroy(Graph* graph) {
    CALL;
    delete graph;
    return OK;
}
#endif
