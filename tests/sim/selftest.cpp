// Tests the simulated drivers through their own calls, as a program would make them.
//
//   selftest FOLDER    the folder of tests/sim/build
#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

int failures = 0;
#define CHECK(condition)                                             \
    do {                                                             \
        if (!(condition)) {                                          \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            failures++;                                              \
        }                                                            \
    } while (0)

struct Library {
    void* handle;
    explicit Library(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (!handle) printf("%s\n", dlerror()), exit(1);
    }
    template <class... A>
    int operator()(const char* name, A... arguments) const {
        auto* function = reinterpret_cast<int (*)(A...)>(dlsym(handle, name));
        if (!function) return printf("no symbol %s\n", name), failures++, -1;
        return function(arguments...);
    }
    long counter(const char* name) const { return reinterpret_cast<long (*)(const char*)>(dlsym(handle, "strata_sim_counter"))(name); }
    void configure(const char* text) const { CHECK((*this)("strata_sim_configure", text) == 0); }
    void command(const char* line) const { CHECK((*this)("strata_sim_command", line) == 0); }
};

constexpr int OUT_OF_MEMORY = 2, NOT_READY = 600, NO_BINARY = 209, BAD_PTX = 222, NOT_FOUND = 500, LAUNCH_FAILED = 719, ILLEGAL = 700;
constexpr char EVERY_KERNEL[] = "strata-sim-kernels";
using Handle = void*;
using Ptr = uint64_t;
struct Operands {
    Ptr run, w0, w1, w2, state, work, scratch;
};

/// One CUDA card in use.
struct Cuda {
    const Library& cu;
    Handle context = nullptr, stream = nullptr, module = nullptr;
    explicit Cuda(const Library& library) : cu(library) {
        CHECK(cu("cuInit", 0u) == 0);
        CHECK(cu("cuDevicePrimaryCtxRetain", &context, 0) == 0);
        CHECK(cu("cuCtxSetCurrent", context) == 0);
        CHECK(cu("cuStreamCreate", &stream, 1u) == 0);
        CHECK(cu("cuModuleLoadData", &module, EVERY_KERNEL) == 0);
    }
    Ptr alloc(size_t bytes) {
        Ptr p = 0;
        CHECK(cu("cuMemAlloc_v2", &p, bytes) == 0);
        return p;
    }
    int launch(const char* name, Ptr state, Ptr work, uint32_t count, unsigned blocks = 1) {
        Handle f = nullptr;
        CHECK(cu("cuModuleGetFunction", &f, module, name) == 0);
        Operands at = {0, 0, 0, 0, state, work, 0};
        void* arguments[] = {&at, &count};
        return cu("cuLaunchKernel", f, blocks, 1u, 1u, 128u, 1u, 1u, 0u, stream, arguments, Handle{nullptr});
    }
    int wait() { return cu("cuStreamSynchronize", stream); }
    std::vector<float> read(Ptr from, size_t n) {
        std::vector<float> values(n);
        CHECK(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(values.data()), from, n * 4, stream) == 0);
        CHECK(wait() == 0);
        return values;
    }
    void write(Ptr to, const void* from, size_t bytes) {
        CHECK(cu("cuMemcpyHtoDAsync_v2", to, from, bytes, stream) == 0);
        CHECK(wait() == 0);
    }
};

void kernels_run(const Library& cu, const char* settings) {
    cu.configure(settings);
    Cuda card(cu);
    const Ptr in = card.alloc(1000 * 4), out = card.alloc(8 * 4);
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<float>(i % 37);
    card.write(in, values.data(), 4000);
    CHECK(card.launch("selftest_sum", in, out, 1000, 8) == 0);
    const auto sums = card.read(out, 8);
    for (size_t b = 0; b < 8; b++) {
        float sum = 0;
        for (size_t i = b * 128; i < 1000 && i < b * 128 + 128; i++) sum += values[i];
        CHECK(sums[b] == sum);
    }
    std::vector<int8_t> tiles(16 * 16 + 8 * 16);
    for (size_t i = 0; i < tiles.size(); i++) tiles[i] = static_cast<int8_t>(i * 37 % 255 - 127);
    const Ptr mma_in = card.alloc(tiles.size()), mma_out = card.alloc(128 * 4);
    card.write(mma_in, tiles.data(), tiles.size());
    CHECK(card.launch("selftest_mma", mma_in, mma_out, 0) == 0);
    const auto c = card.read(mma_out, 128);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            int sum = 0;
            for (int k = 0; k < 16; k++) sum += tiles[row * 16 + k] * tiles[256 + column * 16 + k];
            CHECK(c[row * 8 + column] == static_cast<float>(sum));
        }
}

void wrong_kernels_are_noticed(const Library& cu) {
    cu.configure("card arch=8.6\ncard arch=8.6");
    {
        Cuda card(cu);
        const Ptr out = card.alloc(512);
        CHECK(card.launch("selftest_divergent", out, out, 16) == 0);
        CHECK(card.wait() == LAUNCH_FAILED);
        size_t free_bytes, total;
        CHECK(cu("cuMemGetInfo_v2", &free_bytes, &total) == LAUNCH_FAILED);
    }
    cu.configure("card\ncard");
    {
        Cuda card(cu);
        Handle other = nullptr;
        CHECK(cu("cuDevicePrimaryCtxRetain", &other, 1) == 0);
        CHECK(cu("cuCtxSetCurrent", other) == 0);
        const Ptr foreign = card.alloc(512);
        CHECK(cu("cuCtxSetCurrent", card.context) == 0);
        CHECK(card.launch("selftest_sum", foreign, foreign, 16) == 0);
        CHECK(card.wait() == ILLEGAL);
    }
    std::vector<float> results[2];
    for (int reversed = 0; reversed < 2; reversed++) {
        cu.configure(reversed ? "card\nreversed 1" : "card");
        Cuda card(cu);
        const Ptr out = card.alloc(512);
        CHECK(card.launch("selftest_race", out, out, 0) == 0);
        results[reversed] = card.read(out, 128);
    }
    CHECK(std::memcmp(results[0].data(), results[1].data(), 512) != 0);
}

void memory_has_limits(const Library& cu) {
    cu.configure("card vram=1G context=100M module=10M late=50M optimism=30M other=200M\ncommit 900M");
    Cuda card(cu);
    size_t free_bytes, total;
    CHECK(cu("cuMemGetInfo_v2", &free_bytes, &total) == 0);
    CHECK(total == 1024u << 20 && free_bytes == (1024u - 100 - 10 - 200 + 30) << 20);
    const Ptr out = card.alloc(1 << 20);
    CHECK(card.launch("selftest_race", out, out, 0) == 0);
    CHECK(cu("cuMemGetInfo_v2", &free_bytes, &total) == 0);
    CHECK(free_bytes == (1024u - 100 - 10 - 200 - 50 - 1) << 20);
    Ptr p = 0;
    CHECK(cu("cuMemAlloc_v2", &p, size_t{700} << 20) == OUT_OF_MEMORY);
    cu.command("give 0 200M");
    CHECK(cu("cuMemAlloc_v2", &p, size_t{700} << 20) == 0);
    void* pinned = nullptr;
    CHECK(cu("cuMemHostAlloc", &pinned, size_t{100} << 20, 0u) == OUT_OF_MEMORY);  // the commit limit
    CHECK(cu("cuMemFree_v2", p) == 0);
    CHECK(cu("cuMemHostAlloc", &pinned, size_t{100} << 20, 0u) == 0);
    CHECK(cu.counter("pinned-bytes") == 100 << 20 && cu.counter("allocs") == 1);
    CHECK(cu("cuMemFreeHost", pinned) == 0);
    const long before = cu.counter("alloc-calls");
    cu.command("fail alloc 2");
    CHECK(cu("cuMemAlloc_v2", &p, size_t{512}) == 0);
    CHECK(cu("cuMemAlloc_v2", &p, size_t{512}) == OUT_OF_MEMORY);
    CHECK(cu("cuMemAlloc_v2", &p, size_t{512}) == 0);
    CHECK(cu.counter("alloc-calls") == before + 3);
}

void lazy_streams_find_missing_waits(const Library& cu) {
    cu.configure("card\nlazy 1");
    Cuda card(cu);
    void* pinned = nullptr;
    CHECK(cu("cuMemHostAlloc", &pinned, size_t{64}, 0u) == 0);
    auto* values = static_cast<float*>(pinned);
    const Ptr in = card.alloc(512), out = card.alloc(64);
    CHECK(cu("cuMemsetD8Async", in, static_cast<unsigned char>(0), size_t{512}, card.stream) == 0);
    values[0] = 5;
    CHECK(cu("cuMemcpyHtoDAsync_v2", in, pinned, size_t{4}, card.stream) == 0);
    CHECK(card.launch("selftest_sum", in, out, 128) == 0);
    CHECK(cu("cuMemcpyDtoHAsync_v2", pinned, out, size_t{4}, card.stream) == 0);
    values[0] = 7;  // too early: the copy in has not run
    CHECK(cu("cuStreamQuery", card.stream) == NOT_READY);
    CHECK(card.wait() == 0);
    CHECK(values[0] == 0 || values[0] == 7);
    // Another stream sees it only behind an event.
    Handle second = nullptr, event = nullptr;
    CHECK(cu("cuStreamCreate", &second, 1u) == 0 && cu("cuEventCreate", &event, 2u) == 0);
    CHECK(cu("cuMemsetD8Async", out, static_cast<unsigned char>(0), size_t{4}, card.stream) == 0);
    CHECK(cu("cuEventRecord", event, card.stream) == 0);
    CHECK(cu("cuEventQuery", event) == NOT_READY);
    CHECK(cu("cuStreamWaitEvent", second, event, 0u) == 0);
    CHECK(cu("cuMemcpyDtoHAsync_v2", pinned, out, size_t{4}, second) == 0);
    values[0] = 3;
    CHECK(cu("cuStreamSynchronize", second) == 0);
    CHECK(values[0] == 0);
}

void graphs_replay(const Library& cu) {
    cu.configure("card\nlazy 1");
    Cuda card(cu);
    const Ptr in = card.alloc(512), out = card.alloc(64);
    Handle graph = nullptr, executable = nullptr;
    CHECK(cu("cuStreamBeginCapture_v2", card.stream, 0) == 0);
    CHECK(card.launch("selftest_sum", in, out, 128) == 0);
    CHECK(cu("cuStreamSynchronize", card.stream) != 0);
    CHECK(cu("cuStreamEndCapture", card.stream, &graph) == 0);
    CHECK(cu("cuGraphInstantiateWithFlags", &executable, graph, 0ull) == 0);
    CHECK(cu("cuGraphDestroy", graph) == 0);
    for (float value = 1; value < 4; value++) {
        const std::vector<float> values(128, value);
        card.write(in, values.data(), 512);
        CHECK(cu("cuGraphLaunch", executable, card.stream) == 0);
        CHECK(card.read(out, 1)[0] == 128 * value);
    }
    CHECK(cu("cuGraphExecDestroy", executable) == 0);
    CHECK(cu.counter("graphs") == 0 && cu.counter("launches") == 3);
}

void cards_break_and_copies_hang(const Library& cu) {
    cu.configure("card");
    {
        Cuda card(cu);
        const Ptr out = card.alloc(512);
        cu.command("break 700 2");
        CHECK(card.launch("selftest_race", out, out, 0) == 0 && card.wait() == 0);
        CHECK(card.launch("selftest_race", out, out, 0) == 0 && card.wait() == ILLEGAL);
    }
    cu.configure("card");
    Cuda card(cu);
    const Ptr out = card.alloc(512);
    cu.command("hold-copy 1");
    const std::vector<float> values(128, 1.0f);
    CHECK(cu("cuMemcpyHtoDAsync_v2", out, static_cast<const void*>(values.data()), size_t{512}, card.stream) == 0);
    CHECK(cu("cuStreamQuery", card.stream) == NOT_READY);
    std::thread helper([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        cu.command("release-copies");
    });
    CHECK(card.wait() == 0);
    helper.join();
    CHECK(card.read(out, 1)[0] == 1);
    cu.command("lose 0");
    CHECK(card.wait() == 999);
}

void images_are_checked(const Library& cu, const Library& hip) {
    cu.configure("card arch=7.5\ndriver 12020");
    Cuda card(cu);
    Handle module = nullptr, function = nullptr;
    CHECK(cu("cuModuleLoadData", &module, ".version 8.2\n.target sm_75\n.entry selftest_sum(") == 0);
    CHECK(cu("cuModuleGetFunction", &function, module, "selftest_sum") == 0);
    CHECK(cu("cuModuleGetFunction", &function, module, "selftest_race") == NOT_FOUND);
    CHECK(cu("cuModuleLoadData", &module, ".version 8.2\n.target sm_80\n") == NO_BINARY);
    CHECK(cu("cuModuleLoadData", &module, ".version 8.8\n.target sm_75\n") == BAD_PTX);
    CHECK(dlsym(cu.handle, "cuGraphLaunch") && dlsym(hip.handle, "hipGraphLaunch"));
}

void hip_runs(const Library& hip, unsigned wave) {
    hip.configure(wave == 64 ? "card name=\"Simulated Radeon VII\" arch=gfx906 wave=64 vram=1G" : "card arch=gfx1100 vram=1G");
    CHECK(hip("hipInit", 0u) == 0 && hip("hipSetDevice", 0) == 0);
    int width = 0;
    CHECK(hip("hipDeviceGetAttribute", &width, 87, 0) == 0 && width == static_cast<int>(wave));
    std::vector<char> properties(1472);
    CHECK(hip("hipGetDevicePropertiesR0600", properties.data(), 0) == 0);
    CHECK(std::string(&properties[1160]).find(wave == 64 ? "gfx906" : "gfx1100") == 0);
    Handle module = nullptr, f = nullptr;
    CHECK(hip("hipModuleLoadData", &module, EVERY_KERNEL) == 0);
    CHECK(hip("hipModuleGetFunction", &f, module, "selftest_sum") == 0);
    void *in = nullptr, *out = nullptr;
    CHECK(hip("hipMalloc", &in, size_t{512}) == 0 && hip("hipMalloc", &out, size_t{4}) == 0);
    std::vector<float> values(128);
    for (size_t i = 0; i < 128; i++) values[i] = static_cast<float>(i);
    CHECK(hip("hipMemcpyHtoDAsync", in, static_cast<void*>(values.data()), size_t{512}, Handle{nullptr}) == 0);
    Operands at = {0, 0, 0, 0, reinterpret_cast<Ptr>(in), reinterpret_cast<Ptr>(out), 0};
    uint32_t count = 128;
    void* arguments[] = {&at, &count};
    CHECK(hip("hipModuleLaunchKernel", f, 1u, 1u, 1u, 128u, 1u, 1u, 0u, Handle{nullptr}, arguments, Handle{nullptr}) == 0);
    float sum = 0;
    CHECK(hip("hipMemcpyDtoHAsync", static_cast<void*>(&sum), out, size_t{4}, Handle{nullptr}) == 0);
    CHECK(hip("hipStreamSynchronize", Handle{nullptr}) == 0);
    CHECK(sum == 127 * 64);
    void* p = nullptr;
    CHECK(hip("hipMalloc", &p, size_t{1} << 30) == OUT_OF_MEMORY);
}

}  // namespace

int main(int count, char** arguments) {
    const std::string folder = count > 1 ? arguments[1] : "target/sim";
    const Library cu(folder + "/libcuda.so.1"), hip(folder + "/libamdhip64.so.6"), old(folder + "/old/libcuda.so.1");
    kernels_run(cu, "card arch=8.6");
    kernels_run(cu, "card\nreversed 1\nguard 1\nworkers 2");
    kernels_run(cu, "card\nlazy 1");
    wrong_kernels_are_noticed(cu);
    memory_has_limits(cu);
    lazy_streams_find_missing_waits(cu);
    graphs_replay(cu);
    cards_break_and_copies_hang(cu);
    images_are_checked(cu, hip);
    hip_runs(hip, 32);
    hip_runs(hip, 64);
    CHECK(!dlsym(old.handle, "cuGraphLaunch") && dlsym(old.handle, "cuLaunchKernel"));
    printf(failures ? "%d checks failed\n" : "the simulated drivers do what they promise\n", failures);
    return failures ? 1 : 0;
}
