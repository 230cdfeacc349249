// The cards of a simulated driver: memory and its limits, modules, streams, graphs, and faults on demand. The two drivers
// (cuda.cpp, hip.cpp) are thin: they translate their calls to these.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "simt.h"

namespace sim {

/// Error numbers that both vendors share.
enum Error {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    FILE_NOT_FOUND = 301,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    UNKNOWN = 999,
};

enum class Vendor { Cuda, Hip };

struct Card {
    std::string name = "Simulated card", pci, arch;
    unsigned char uuid[16] = {};
    uint64_t vram_bytes = 8ull << 30;
    unsigned multiprocessors = 16, wave = 32;
    bool display = false;
    /// Taken when a context is made, when a module is loaded, and by the first launch.
    uint64_t context_bytes = 0, module_bytes = 0, late_bytes = 0;
    /// What the driver reports as free beyond the truth, until the first launch.
    uint64_t optimism_bytes = 0;
    uint64_t other_processes_bytes = 0;

    uint64_t used_bytes = 0;
    int contexts = 0;
    bool touched = false;
    Error broken = OK;
};

struct Allocation {
    size_t bytes, charged;
    int card;  // -1: pinned or registered host memory
    void* base;
    size_t mapped;
};

struct Task {
    enum Kind { Launch, Copy, Other } kind;
    std::function<void()> run;
};

struct EventState {
    uint64_t asked = 0, done = 0;
    double at_ms = 0;
    struct Stream* stream = nullptr;
};
struct Event {
    std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

using Recording = std::shared_ptr<std::vector<Task>>;

struct Stream {
    int card;
    bool blocking;  // waits for, and holds up, the null stream
    std::deque<Task> tasks;
    bool stuck = false;
    Recording recording;
};

struct Module {
    std::string image;
    int card;
};
struct Function {
    const simt::Kernel* kernel;
    int card;
    size_t max_dynamic_shared;
};
struct Graph {
    Recording tasks;
};

/// Calls that take something from the machine; each can be made to fail.
enum class Taking { Context, Alloc, Pin, Module, Stream, Event, Graph };
constexpr int TAKING_KINDS = 7;

struct World {
    explicit World(Vendor);

    // --- settings (settings.cpp) ---
    /// Tears everything down and sets it up by `text`; the first bad line is the error.
    bool configure(const char* text, std::string& error);
    /// One line: a fault or a change.
    bool command(const std::string& line, std::string& error);
    long counter(const std::string& name);

    // --- memory (memory.cpp) ---
    Error alloc(int card, size_t bytes, void** out);
    Error release(void* address);
    Error pin(void* address, size_t bytes, bool own);
    Error unpin(void* address, bool own);
    /// Who owns all of `[address, address + bytes)`; false: nobody.
    bool owner(const void* address, size_t bytes, int* card) const;
    bool pinned(const void* address) const;
    void memory_info(int card, size_t* free_bytes, size_t* total_bytes) const;
    Error charge(int card, uint64_t bytes);
    void refund(int card, uint64_t bytes);
    /// The context's own memory, and what the first launch took.
    void drop_context(int card);
    /// Counts a call; true: it fails on purpose.
    bool fails(Taking);

    // --- modules and launches (modules.cpp) ---
    Error load_module(int card, const void* image, Module** out);
    Error find_function(Module*, const char* name, Function** out);
    Error launch(Stream*, Function*, const unsigned grid[3], const unsigned block[3], size_t shared, void** arguments);

    // --- streams (streams.cpp) ---
    Stream* null_stream(int card);
    Stream* make_stream(int card, bool blocking);
    void drop_stream(Stream*);
    Error enqueue(Stream*, Task);
    Error synchronize(Stream*);
    Error synchronize_card(int card);
    Error query(Stream*);
    Error record(Event*, Stream*);
    Error wait_event(Stream*, Event*);
    Error synchronize_event(Event*);
    Error query_event(Event*);
    /// `async` false: done when it returns, without regard to streams that do not block.
    Error copy(Stream*, void* to, bool to_device, const void* from, bool from_device, size_t bytes, bool async);
    Error fill(Stream*, void* to, unsigned char value, size_t bytes, bool async);
    Error begin_capture(Stream*);
    Error end_capture(Stream*, Graph** out);
    Error launch_graph(Stream*, Graph*);

    /// What an error of this card is, if it is broken.
    Error health(int card) const { return cards[card].broken; }

    Vendor vendor;
    std::mutex mutex;
    std::condition_variable released;
    std::vector<Card> cards;
    std::map<uintptr_t, Allocation> memory;
    std::map<int, std::unique_ptr<Stream>> null_streams;
    std::vector<Stream*> streams;
    /// With the destroyed ones, which events may still point to.
    std::vector<std::unique_ptr<Stream>> every_stream;

    bool lazy = false, reversed = false, guard = false;
    /// A thread of ours runs streams while the program does something else. Each has a number; only the newest goes on.
    long background = 0;
    unsigned workers = 1;
    unsigned char fill_byte = 0xff;
    int driver_version = 12040;
    bool pools = true;
    uint64_t commit_limit_bytes = UINT64_MAX, committed_bytes = 0;
    std::string kernels_path;
    SimgpuFind find_kernel = nullptr;
    SimgpuLaunchFn run_kernel = nullptr;

    long calls[TAKING_KINDS] = {}, taking_calls = 0;
    long fail_at[TAKING_KINDS] = {}, fail_any_at = 0;
    long launches = 0, copies = 0, graph_launches = 0, background_launches = 0;
    long break_at_launch = 0, stick_at_copy = 0;
    Error break_with = OK;
    bool holding_copies = false;
    long live[TAKING_KINDS] = {};
    uint64_t pinned_bytes = 0;

private:
    void reset();
    void work_in_background(long number);
    bool run_one_task();
    void run_tasks(Stream*);
    Error run_all(Stream*);
    void settle(Stream*);
    void load_kernels();
    bool card_line(const std::string& line, std::string& error);
    void perform(Task&, int card);
};

/// Held during every call of a driver.
struct Call {
    explicit Call(World& world) : hold(world.mutex) { current() = &hold; }
    ~Call() { current() = nullptr; }
    static std::unique_lock<std::mutex>*& current() {
        static thread_local std::unique_lock<std::mutex>* held = nullptr;
        return held;
    }
    std::unique_lock<std::mutex> hold;
};

/// The world of this library; its first use reads the file named by STRATA_SIM, if set.
World& world();
double now_ms();

}  // namespace sim
