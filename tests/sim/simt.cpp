// The scheduler of simt.h: fibers, barriers, collectives of a wave.
#include "simt.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>
#ifdef _WIN32
#include <windows.h>
#define EXPORT extern "C" __declspec(dllexport)
#else
#include <csignal>
#include <sys/mman.h>
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace simt {

thread_local Thread* current = nullptr;

static std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> all;
    return all;
}
void register_kernel(const Kernel& kernel) { kernels()[kernel.name] = kernel; }

// --- switching fibers -----------------------------------------------------------------------------------------------

static constexpr size_t STACK_BYTES = 64 << 10;
/// Most shared memory of a block that any card of the list has.
static constexpr size_t SHARED_BYTES = 256 << 10;

#if defined(_WIN32)
struct Context {
    void* fiber = nullptr;
};
static void switch_to(Context&, Context& to) { SwitchToFiber(to.fiber); }
#elif defined(__x86_64__)
extern "C" void simt_switch(void** save, void* load);
// Ends in a jump: a `ret` to another stack is always mispredicted, which costs twice as much.
asm(R"(.text
.globl simt_switch
.hidden simt_switch
simt_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp,(%rdi); mov %rsi,%rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  pop %rdx; jmp *%rdx
)");
struct Context {
    void* stack_pointer = nullptr;
};
static void switch_to(Context& from, Context& to) { simt_switch(&from.stack_pointer, to.stack_pointer); }
#else
#error "the simulated drivers need a context switch for this processor"
#endif

enum class Wait : uint8_t { Nothing, Barrier, Wave, Finished };

/// One exchange of a wave under way.
struct Meeting {
    uint64_t mask = 0, arrived = 0, left = 0;
    Exchange data[64];
};
/// Lanes of a wave may be in different collectives at once, of different masks.
struct Wave {
    Meeting meetings[8];
    uint64_t lanes = 0;
};
struct Fiber {
    Thread thread;
    Context context;
    Wait wait;
    uint64_t generation;
    Meeting* meeting;
    unsigned wave;
};

struct SharedArray {
    const void* key;
    size_t offset;
};

/// The block that an OS thread works on; kept for the next one.
struct Block {
    std::vector<Fiber> fibers;
    std::vector<Wave> waves;
    std::vector<unsigned char> dynamic_shared, shared;
    std::vector<SharedArray> arrays;
    size_t shared_used = 0;
    Context scheduler;
    unsigned threads = 0, alive = 0, arrived = 0, wave_size = 32;
    uint64_t generation = 0;
    const Kernel* kernel = nullptr;
    void** arguments = nullptr;
    unsigned char* stacks = nullptr;
    size_t stack_count = 0;
    bool abandoned = false;  // fibers hang in a deadlocked block
    ~Block();
};
static thread_local Block* block = nullptr;
static thread_local Fiber* running = nullptr;

static void yield() { switch_to(running->context, block->scheduler); }

static void open_barrier() {
    block->arrived = 0;
    block->generation++;
}

void sync_block() {
    const uint64_t generation = block->generation;
    if (++block->arrived == block->alive) return open_barrier();
    running->wait = Wait::Barrier;
    running->generation = generation;
    yield();
}

void copy_later(void* to, const void* from, size_t bytes) {
    if (current->copy_count == std::size(current->copies)) {
        fprintf(stderr, "simt: kernel %s: more copies under way than the simulation has room for\n", block->kernel->name);
        abort();
    }
    current->copies[current->copy_count++] = {to, from, bytes};
}

void make_copies() {
    for (unsigned i = 0; i < current->copy_count; i++) std::memcpy(current->copies[i].to, current->copies[i].from, current->copies[i].bytes);
    current->copy_count = 0;
}

unsigned wave_size() { return block->wave_size; }
void* dynamic_shared() { return block->dynamic_shared.data(); }

void* shared_array(const void* key, size_t bytes) {
    for (const auto& array : block->arrays)
        if (array.key == key) return block->shared.data() + array.offset;
    const size_t offset = (block->shared_used + 63) / 64 * 64;
    if (offset + bytes > block->shared.size()) {
        fprintf(stderr, "simt: kernel %s uses more than %zu bytes of shared memory\n", block->kernel->name, SHARED_BYTES);
        abort();
    }
    block->shared_used = offset + bytes;
    block->arrays.push_back({key, offset});
    return block->shared.data() + offset;
}

static Meeting* find_meeting(Wave& wave, uint64_t mask, uint64_t lane) {
    for (auto& m : wave.meetings)
        if (m.mask == mask && !(m.arrived & lane)) return &m;
    for (auto& m : wave.meetings)
        if (!m.mask || m.left == m.mask) {
            m.mask = mask;
            m.arrived = m.left = 0;
            return &m;
        }
    fprintf(stderr, "simt: kernel %s: too many divergent collectives in a wave\n", block->kernel->name);
    abort();
}

const Exchange* exchange(uint64_t mask, const void* in, size_t bytes) {
    Wave& wave = block->waves[running->wave];
    const uint64_t lane = 1ull << running->thread.lane;
    Meeting* meeting = find_meeting(wave, mask & wave.lanes, lane);
    std::memcpy(meeting->data[running->thread.lane], in, bytes);
    meeting->arrived |= lane;
    if (meeting->arrived != meeting->mask) {
        running->wait = Wait::Wave;
        running->meeting = meeting;
        yield();
    }
    meeting->left |= lane;
    return meeting->data;
}

static void fiber_body() {
    for (;;) {
        block->kernel->call(block->arguments);
        running->wait = Wait::Finished;
        block->alive--;
        if (block->alive && block->arrived == block->alive) open_barrier();
        yield();  // resumed to run the next block
    }
}

static bool may_run(const Block& b, const Fiber& fiber) {
    switch (fiber.wait) {
        case Wait::Finished: return false;
        case Wait::Barrier: return b.generation != fiber.generation;
        case Wait::Wave: return fiber.meeting->arrived == fiber.meeting->mask;
        case Wait::Nothing: return true;
    }
    return false;
}

/// False: a barrier or a collective that some threads never reach.
static bool run_block(Block& b, Index3 at, const SimgpuLaunch& launch) {
    const Index3 dim = {launch.block[0], launch.block[1], launch.block[2]};
    const Index3 grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
    b.alive = b.threads;
    b.arrived = 0;
    for (auto& wave : b.waves)
        for (auto& meeting : wave.meetings) meeting.mask = 0;
    std::memset(b.dynamic_shared.data(), launch.fill, b.dynamic_shared.size());
    std::memset(b.shared.data(), launch.fill, b.shared_used);
    for (unsigned i = 0; i < b.threads; i++) {
        Fiber& fiber = b.fibers[i];
        const Index3 thread = {i % dim.x, i / dim.x % dim.y, i / (dim.x * dim.y)};
        fiber.thread = {thread, at, dim, grid, i % b.wave_size, i, 0, {}};
        fiber.wait = Wait::Nothing;
        fiber.wave = i / b.wave_size;
    }
    while (b.alive) {
        bool moved = false;
        for (unsigned j = 0; j < b.threads; j++) {
            Fiber& fiber = b.fibers[launch.reversed ? b.threads - 1 - j : j];
            if (!may_run(b, fiber)) continue;
            fiber.wait = Wait::Nothing;
            running = &fiber;
            current = &fiber.thread;
            moved = true;
            switch_to(b.scheduler, fiber.context);
        }
        if (!moved) return false;
    }
    return true;
}

// --- stacks ---------------------------------------------------------------------------------------------------------

#ifdef _WIN32
static void __stdcall entry(void*) { fiber_body(); }
static void delete_fibers(Block& b) {
    for (auto& fiber : b.fibers)
        if (fiber.context.fiber) DeleteFiber(fiber.context.fiber);
    b.fibers.clear();
}
Block::~Block() { delete_fibers(*this); }
static void make_fibers(Block& b, unsigned count) {
    if (!b.scheduler.fiber) b.scheduler.fiber = ConvertThreadToFiber(nullptr);
    if (!b.scheduler.fiber) b.scheduler.fiber = GetCurrentFiber();
    if (b.abandoned) delete_fibers(b);
    b.abandoned = false;
    if (b.fibers.size() < count) b.fibers.resize(count);
    for (unsigned i = 0; i < count; i++)
        if (!b.fibers[i].context.fiber) b.fibers[i].context.fiber = CreateFiberEx(16 << 10, STACK_BYTES, 0, entry, nullptr);
}
#else
static void entry() { fiber_body(); }
Block::~Block() {
    if (stacks) munmap(stacks, stack_count * STACK_BYTES);
}
static void make_fibers(Block& b, unsigned count) {
    if (b.stack_count >= count && !b.abandoned) return;
    const size_t wanted = b.stack_count > count ? b.stack_count : count;
    if (b.stacks) munmap(b.stacks, b.stack_count * STACK_BYTES);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    b.stacks = static_cast<unsigned char*>(mmap(nullptr, wanted * STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0));
    if (b.stacks == MAP_FAILED) abort();
    madvise(b.stacks, wanted * STACK_BYTES, MADV_HUGEPAGE);
    b.stack_count = wanted;
    b.fibers.assign(wanted, Fiber{});
    b.abandoned = false;
    for (unsigned i = 0; i < wanted; i++) {
        // The tops are staggered over the cache sets; `entry` starts with a stack pointer of 8 modulo 16.
        void** top = reinterpret_cast<void**>(b.stacks + (i + 1) * STACK_BYTES - 16 - (i * 208) % 8192 / 16 * 16);
        *top = reinterpret_cast<void*>(entry);
        b.fibers[i].context.stack_pointer = top - 6;
    }
}

/// A fault in a kernel: say where, then die as usual.
static void on_fault(int, siginfo_t* info, void*) {
    if (block && block->kernel && current)
        fprintf(stderr, "simt: kernel %s faults at %p, block (%u,%u,%u) thread (%u,%u,%u)\n", block->kernel->name, info->si_addr,
                current->block.x, current->block.y, current->block.z, current->thread.x, current->thread.y, current->thread.z);
    signal(SIGSEGV, SIG_DFL);
}
static void report_faults() {
    static const bool installed = [] {
        struct sigaction previous {};
        sigaction(SIGSEGV, nullptr, &previous);
        struct sigaction action {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO;
        return sigaction(SIGSEGV, &action, nullptr) == 0;
    }();
    (void)installed;
}
#endif

static void set_up(Block& b, const Kernel* kernel, const SimgpuLaunch& launch) {
    const unsigned count = launch.block[0] * launch.block[1] * launch.block[2];
    b.kernel = kernel;
    b.arguments = launch.arguments;
    b.threads = count;
    b.wave_size = launch.wave;
    b.dynamic_shared.assign(launch.shared_bytes, 0);
    if (b.shared.empty()) b.shared.assign(SHARED_BYTES, launch.fill);
    b.arrays.clear();
    b.shared_used = 0;
    b.waves.assign((count + launch.wave - 1) / launch.wave, Wave{});
    for (unsigned i = 0; i < count; i++) b.waves[i / launch.wave].lanes |= 1ull << i % launch.wave;
    make_fibers(b, count);
}

}  // namespace simt

EXPORT const simt::Kernel* simgpu_find(const char* name) {
    const auto found = simt::kernels().find(name);
    return found == simt::kernels().end() ? nullptr : &found->second;
}

EXPORT int simgpu_launch(const simt::Kernel* kernel, const SimgpuLaunch* launch) {
    using namespace simt;
#ifndef _WIN32
    report_faults();
#endif
    const unsigned* grid = launch->grid;
    const uint64_t blocks = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
    std::atomic<uint64_t> next{0};
    std::atomic<bool> deadlock{false};
    auto work = [&] {
        static thread_local Block mine;
        block = &mine;
        set_up(mine, kernel, *launch);
        for (uint64_t taken; !deadlock && (taken = next++) < blocks;) {
            const uint64_t i = launch->reversed ? blocks - 1 - taken : taken;
            const Index3 at = {static_cast<unsigned>(i % grid[0]), static_cast<unsigned>(i / grid[0] % grid[1]),
                               static_cast<unsigned>(i / (static_cast<uint64_t>(grid[0]) * grid[1]))};
            if (!run_block(mine, at, *launch)) deadlock = mine.abandoned = true;
        }
        block = nullptr;
    };
    std::vector<std::thread> others;
    if (blocks >= 64)
        for (unsigned i = 1; i < launch->workers; i++) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
    return deadlock ? SIMGPU_DEADLOCK : SIMGPU_DONE;
}
