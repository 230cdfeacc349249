// A Vulkan layer that refuses one allocation of a process: the k-th vkAllocateMemory fails with VK_ERROR_OUT_OF_DEVICE_MEMORY, where
// k is in STRATA_LAYER_REFUSES. It lies between the loader and any driver, so that what is refused takes the way of a real refusal
// through wgpu. At the end of the process it writes how often memory was asked for to the file named by STRATA_LAYER_COUNTS.
//
// The few declarations of the interface that are needed stand here; they are part of Vulkan's binary interface.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

namespace {

using Result = int32_t;
using Function = void (*)();
using GetInstanceProcAddr = Function (*)(void* instance, const char* name);
using GetDeviceProcAddr = Function (*)(void* device, const char* name);

constexpr Result OUT_OF_DEVICE_MEMORY = -2, INITIALIZATION_FAILED = -3;
constexpr int32_t LOADER_INSTANCE_CREATE_INFO = 47, LOADER_DEVICE_CREATE_INFO = 48, LINK_INFO = 0;

struct Header {
    int32_t type;
    Header* next;
};

struct InstanceLink {
    InstanceLink* next;
    GetInstanceProcAddr get_instance;
    Function get_physical_device;
};

struct DeviceLink {
    DeviceLink* next;
    GetInstanceProcAddr get_instance;
    GetDeviceProcAddr get_device;
};

template <typename Link> struct LoaderInfo : Header {
    int32_t function;
    Link* link;
};

// The loader's link for this layer among the structs that a create call chains.
template <typename Link> LoaderInfo<Link>* loader_info(const void* create_info, int32_t type) {
    for (Header* at = static_cast<const Header*>(create_info)->next; at; at = at->next) {
        auto* info = static_cast<LoaderInfo<Link>*>(at);
        if (at->type == type && info->function == LINK_INFO) return info;
    }
    return nullptr;
}

using Create = Result (*)(void* parent, const void* info, const void* allocator, void** out);
using CreateInstance = Result (*)(const void* info, const void* allocator, void** out);
using AllocateMemory = Result (*)(void* device, const void* info, const void* allocator, uint64_t* out);

struct Instance {
    void* key;
    GetInstanceProcAddr get;
};
struct Device {
    void* key;
    GetDeviceProcAddr get;
    AllocateMemory allocate;
};

std::mutex guard;
std::vector<Instance> instances;
std::vector<Device> devices;
std::atomic<long> asked{0};

// All handles of an instance or device begin with the same pointer.
void* key_of(void* handle) { return *static_cast<void**>(handle); }

template <typename T> T find(const std::vector<T>& all, void* handle) {
    std::lock_guard<std::mutex> lock(guard);
    for (auto at = all.rbegin(); at != all.rend(); ++at)
        if (at->key == key_of(handle)) return *at;
    return T{};
}

Result create_instance(const void* info, const void* allocator, void** out) {
    auto* loader = loader_info<InstanceLink>(info, LOADER_INSTANCE_CREATE_INFO);
    if (!loader) return INITIALIZATION_FAILED;
    GetInstanceProcAddr get = loader->link->get_instance;
    loader->link = loader->link->next;
    Result result = reinterpret_cast<CreateInstance>(get(nullptr, "vkCreateInstance"))(info, allocator, out);
    if (result != 0) return result;
    std::lock_guard<std::mutex> lock(guard);
    instances.push_back({key_of(*out), get});
    return result;
}

Result create_device(void* card, const void* info, const void* allocator, void** out) {
    auto* loader = loader_info<DeviceLink>(info, LOADER_DEVICE_CREATE_INFO);
    if (!loader) return INITIALIZATION_FAILED;
    auto [next, get_instance, get_device] = *loader->link;
    loader->link = next;
    Result result = reinterpret_cast<Create>(get_instance(nullptr, "vkCreateDevice"))(card, info, allocator, out);
    if (result != 0) return result;
    auto allocate = reinterpret_cast<AllocateMemory>(get_device(*out, "vkAllocateMemory"));
    std::lock_guard<std::mutex> lock(guard);
    devices.push_back({key_of(*out), get_device, allocate});
    return result;
}

Result allocate_memory(void* device, const void* info, const void* allocator, uint64_t* out) {
    const char* refused = std::getenv("STRATA_LAYER_REFUSES");
    if (++asked == (refused ? std::atol(refused) : 0)) return OUT_OF_DEVICE_MEMORY;
    return find(devices, device).allocate(device, info, allocator, out);
}

struct Report {
    ~Report() {
        const char* path = std::getenv("STRATA_LAYER_COUNTS");
        FILE* file = path ? std::fopen(path, "w") : nullptr;
        if (!file) return;
        std::fprintf(file, "%ld\n", asked.load());
        std::fclose(file);
    }
} report;

Function own(const char* name) {
    const std::pair<const char*, Function> functions[] = {
        {"vkCreateInstance", reinterpret_cast<Function>(create_instance)},
        {"vkCreateDevice", reinterpret_cast<Function>(create_device)},
        {"vkAllocateMemory", reinterpret_cast<Function>(allocate_memory)},
    };
    for (auto [known, function] : functions)
        if (!std::strcmp(known, name)) return function;
    return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) Function strata_layer_device(void* device, const char* name) {
    if (!std::strcmp(name, "vkGetDeviceProcAddr")) return reinterpret_cast<Function>(strata_layer_device);
    if (Function function = own(name)) return function;
    return find(devices, device).get(device, name);
}

extern "C" __attribute__((visibility("default"))) Function strata_layer_instance(void* instance, const char* name) {
    if (!std::strcmp(name, "vkGetInstanceProcAddr")) return reinterpret_cast<Function>(strata_layer_instance);
    if (!std::strcmp(name, "vkGetDeviceProcAddr")) return reinterpret_cast<Function>(strata_layer_device);
    if (Function function = own(name)) return function;
    return instance ? find(instances, instance).get(instance, name) : nullptr;
}
