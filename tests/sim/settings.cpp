// Settings, faults and counters: what a test says to a simulated driver. README.md lists them.
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <sstream>
#include <thread>

#include "world.h"
#ifdef _WIN32
#include <windows.h>
#define EXPORT extern "C" __declspec(dllexport)
#else
#include <dlfcn.h>
#include <sys/mman.h>
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace sim {

static const char* const TAKING_NAMES[TAKING_KINDS] = {"context", "alloc", "pin", "module", "stream", "event", "graph"};

static uint64_t parse_bytes(const std::string& text) {
    const double number = std::atof(text.c_str());
    switch (text.empty() ? 0 : text.back()) {
        case 'G': return static_cast<uint64_t>(number * (1ull << 30));
        case 'M': return static_cast<uint64_t>(number * (1 << 20));
        case 'K': return static_cast<uint64_t>(number * 1024);
        default: return static_cast<uint64_t>(number);
    }
}

/// Words; a word may hold a "quoted part". What follows # is a remark.
static std::vector<std::string> words(const std::string& line) {
    std::vector<std::string> found;
    bool quoted = false, open = false;
    for (const char c : line) {
        if (c == '#' && !quoted) break;
        if (!quoted && std::isspace(static_cast<unsigned char>(c))) {
            open = false;
            continue;
        }
        if (!open) found.emplace_back();
        open = true;
        if (c == '"') quoted = !quoted;
        else found.back() += c;
    }
    return found;
}

World::World(Vendor v) : vendor(v) {}

void World::reset() {
    for (auto& [address, a] : memory)
        if (a.card >= 0) {
#ifdef _WIN32
            VirtualFree(a.base, 0, MEM_RELEASE);
#else
            munmap(a.base, a.mapped);
#endif
        }
    memory.clear();
    null_streams.clear();
    streams.clear();
    every_stream.clear();
    cards.clear();
    lazy = reversed = guard = holding_copies = false;
    background = 0;
    pools = true;
    workers = 1;
    fill_byte = 0xff;
    driver_version = vendor == Vendor::Cuda ? 12040 : 60000000;
    commit_limit_bytes = UINT64_MAX;
    committed_bytes = pinned_bytes = 0;
    for (int i = 0; i < TAKING_KINDS; i++) calls[i] = fail_at[i] = live[i] = 0;
    taking_calls = fail_any_at = launches = copies = graph_launches = background_launches = break_at_launch = stick_at_copy = 0;
}

static void own_directory(std::string& path) {
#ifdef _WIN32
    char name[MAX_PATH] = "";
    HMODULE self = nullptr;
    GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                       reinterpret_cast<LPCSTR>(&own_directory), &self);
    GetModuleFileNameA(self, name, sizeof name);
    path = name;
#else
    Dl_info info;
    path = dladdr(reinterpret_cast<void*>(&own_directory), &info) ? info.dli_fname : "";
#endif
    const size_t slash = path.find_last_of("/\\");
    path = slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

void World::load_kernels() {
    std::string path = kernels_path;
#ifdef _WIN32
    if (path.empty()) own_directory(path), path += "strata_kernels_host.dll";
    HMODULE library = LoadLibraryA(path.c_str());
    if (library) {
        find_kernel = reinterpret_cast<SimgpuFind>(reinterpret_cast<void*>(GetProcAddress(library, "simgpu_find")));
        run_kernel = reinterpret_cast<SimgpuLaunchFn>(reinterpret_cast<void*>(GetProcAddress(library, "simgpu_launch")));
    }
#else
    if (path.empty()) own_directory(path), path += "libstrata_kernels_host.so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library) {
        find_kernel = reinterpret_cast<SimgpuFind>(dlsym(library, "simgpu_find"));
        run_kernel = reinterpret_cast<SimgpuLaunchFn>(dlsym(library, "simgpu_launch"));
    } else {
        fprintf(stderr, "simulated driver: %s\n", dlerror());
    }
#endif
    kernels_path = path;
}

bool World::card_line(const std::string& line, std::string& error) {
    Card card;
    const int number = static_cast<int>(cards.size());
    card.arch = vendor == Vendor::Cuda ? "8.6" : "gfx1100";
    char pci[16];
    snprintf(pci, sizeof pci, "0000:%02x:00.0", number + 1);
    card.pci = pci;
    card.uuid[0] = vendor == Vendor::Cuda ? 0xc0 : 0xa0;
    card.uuid[15] = static_cast<unsigned char>(number + 1);
    const std::map<std::string, std::function<void(const std::string&)>> fields = {
        {"name", [&](auto& v) { card.name = v; }},
        {"arch", [&](auto& v) { card.arch = v; }},
        {"pci", [&](auto& v) { card.pci = v; }},
        {"vram", [&](auto& v) { card.vram_bytes = parse_bytes(v); }},
        {"sms", [&](auto& v) { card.multiprocessors = std::atoi(v.c_str()); }},
        {"wave", [&](auto& v) { card.wave = std::atoi(v.c_str()); }},
        {"display", [&](auto& v) { card.display = v == "1"; }},
        {"context", [&](auto& v) { card.context_bytes = parse_bytes(v); }},
        {"module", [&](auto& v) { card.module_bytes = parse_bytes(v); }},
        {"late", [&](auto& v) { card.late_bytes = parse_bytes(v); }},
        {"optimism", [&](auto& v) { card.optimism_bytes = parse_bytes(v); }},
        {"other", [&](auto& v) { card.other_processes_bytes = parse_bytes(v); }},
        {"uuid",
         [&](auto& v) {
             for (size_t i = 0; i < 16 && 2 * i + 1 < v.size(); i++)
                 card.uuid[i] = static_cast<unsigned char>(std::strtol(v.substr(2 * i, 2).c_str(), nullptr, 16));
         }},
    };
    const auto all = words(line);
    for (size_t i = 1; i < all.size(); i++) {
        const size_t equals = all[i].find('=');
        const auto field = fields.find(all[i].substr(0, equals));
        if (equals == std::string::npos || field == fields.end()) return error = "card: what is '" + all[i] + "'?", false;
        field->second(all[i].substr(equals + 1));
    }
    if (card.wave != 32 && card.wave != 64) return error = "card: a wave has 32 or 64 lanes", false;
    cards.push_back(card);
    return true;
}

bool World::command(const std::string& line, std::string& error) {
    const auto w = words(line);
    if (w.empty()) return true;
    const std::string& verb = w[0];
    auto argument = [&](size_t i) { return i < w.size() ? w[i] : std::string(); };
    auto number = [&](size_t i) { return std::atol(argument(i).c_str()); };
    auto card = [&](size_t i) -> Card* {
        const long n = number(i);
        return n >= 0 && n < static_cast<long>(cards.size()) ? &cards[n] : nullptr;
    };
    auto bad = [&] { return error = "what is '" + line + "'?", false; };
    if (verb == "card") return card_line(line, error);
    if (verb == "lazy") return lazy = number(1), true;
    if (verb == "background") {
        static long started = 0;
        lazy = number(1);
        background = lazy ? ++started : 0;
        if (lazy) std::thread(&World::work_in_background, this, background).detach();
        return true;
    }
    if (verb == "reversed") return reversed = number(1), true;
    if (verb == "guard") return guard = number(1), true;
    if (verb == "pools") return pools = number(1), true;
    if (verb == "fill") return fill_byte = static_cast<unsigned char>(number(1)), true;
    if (verb == "workers") return workers = static_cast<unsigned>(std::max(1l, number(1))), true;
    if (verb == "driver") return driver_version = static_cast<int>(number(1)), true;
    if (verb == "commit") return commit_limit_bytes = parse_bytes(argument(1)), true;
    if (verb == "kernels") return kernels_path = argument(1), true;
    if (verb == "hold-copy") return stick_at_copy = copies + number(1), true;
    if (verb == "release-copies") {
        holding_copies = false;
        stick_at_copy = 0;
        for (auto* stream : streams) stream->stuck = false;
        released.notify_all();
        return true;
    }
    if (verb == "break") {  // break CODE LAUNCH: the LAUNCH-th launch from now breaks its card
        break_with = static_cast<Error>(number(1));
        break_at_launch = launches + number(2);
        return true;
    }
    if (verb == "fail") {
        if (argument(1) == "any") return fail_any_at = taking_calls + number(2), true;
        for (int kind = 0; kind < TAKING_KINDS; kind++)
            if (argument(1) == TAKING_NAMES[kind]) return fail_at[kind] = calls[kind] + number(2), true;
        return bad();
    }
    Card* which = card(1);
    if (!which) return bad();
    if (verb == "lose") which->broken = UNKNOWN;
    else if (verb == "take") which->other_processes_bytes += parse_bytes(argument(2));
    else if (verb == "give") which->other_processes_bytes -= std::min(which->other_processes_bytes, parse_bytes(argument(2)));
    else return bad();
    released.notify_all();
    return true;
}

bool World::configure(const char* text, std::string& error) {
    reset();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        if (!command(line, error)) return false;
    if (!run_kernel) load_kernels();
    return true;
}

/// `bytes`, `bytes:1` (of card 1), `allocs`, `alloc-calls`, `taking-calls`, ...
long World::counter(const std::string& name) {
    if (name == "bytes") {
        uint64_t sum = 0;
        for (auto& card : cards) sum += card.used_bytes;
        return static_cast<long>(sum);
    }
    if (name.compare(0, 6, "bytes:") == 0) {
        const size_t card = std::atoi(name.c_str() + 6);
        return card < cards.size() ? static_cast<long>(cards[card].used_bytes) : -1;
    }
    if (name == "pinned-bytes") return static_cast<long>(pinned_bytes);
    if (name == "committed-bytes") return static_cast<long>(committed_bytes);
    if (name == "taking-calls") return taking_calls;
    if (name == "launches") return launches;
    if (name == "copies") return copies;
    if (name == "held-copies") return holding_copies;
    if (name == "graph-launches") return graph_launches;
    if (name == "background-launches") return background_launches;
    for (int kind = 0; kind < TAKING_KINDS; kind++) {
        if (name == std::string(TAKING_NAMES[kind]) + "s") return live[kind];
        if (name == std::string(TAKING_NAMES[kind]) + "-calls") return calls[kind];
    }
    return -1;
}

static std::string& last_error() {
    static std::string text;
    return text;
}

}  // namespace sim

/// 0: done; else `strata_sim_error` says which line was not understood.
EXPORT int strata_sim_configure(const char* settings) {
    sim::Call call(sim::world());
    return sim::world().configure(settings, sim::last_error()) ? 0 : 1;
}

/// One line: a fault or a change, taking effect from here on.
EXPORT int strata_sim_command(const char* line) {
    sim::Call call(sim::world());
    return sim::world().command(line, sim::last_error()) ? 0 : 1;
}

EXPORT long strata_sim_counter(const char* name) {
    sim::Call call(sim::world());
    return sim::world().counter(name);
}

EXPORT const char* strata_sim_error() { return sim::last_error().c_str(); }
