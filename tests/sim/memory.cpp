// Device memory, pinned memory, and their limits.
#include <algorithm>
#include <cstdlib>

#include "world.h"
#ifdef _WIN32
#include <windows.h>
#else
#include <sys/mman.h>
#endif

namespace sim {

static constexpr size_t GRANULE_BYTES = 512, PAGE_BYTES = 4096;
/// Fresh memory is filled up to this; beyond it the cost would show.
static constexpr size_t FILL_LIMIT_BYTES = 256 << 20;

bool World::fails(Taking kind) {
    const int k = static_cast<int>(kind);
    calls[k]++;
    taking_calls++;
    return calls[k] == fail_at[k] || taking_calls == fail_any_at;
}

Error World::charge(int card, uint64_t bytes) {
    Card& c = cards[card];
    const uint64_t taken = c.used_bytes + c.other_processes_bytes;
    if (taken > c.vram_bytes || bytes > c.vram_bytes - taken) return OUT_OF_MEMORY;
    if (bytes > commit_limit_bytes - committed_bytes) return OUT_OF_MEMORY;
    c.used_bytes += bytes;
    committed_bytes += bytes;
    return OK;
}

void World::refund(int card, uint64_t bytes) {
    cards[card].used_bytes -= bytes;
    committed_bytes -= bytes;
}

void World::drop_context(int card) {
    Card& c = cards[card];
    refund(card, c.context_bytes + (c.touched ? c.late_bytes : 0));
    c.touched = false;
}

void World::memory_info(int card, size_t* free_bytes, size_t* total_bytes) const {
    const Card& c = cards[card];
    const uint64_t taken = c.used_bytes + c.other_processes_bytes;
    const uint64_t truth = taken > c.vram_bytes ? 0 : c.vram_bytes - taken;
    *total_bytes = c.vram_bytes;
    *free_bytes = c.touched ? truth : std::min<uint64_t>(truth + c.optimism_bytes, c.vram_bytes);
}

/// Address space; with guard pages the end (to 16 bytes) is followed by a page that faults.
static void* map_pages(size_t bytes, bool guard, void** base, size_t* mapped) {
#ifdef _WIN32
    (void)guard;
    *mapped = bytes;
    return *base = VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
    *mapped = (bytes + 2 * PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    void* start = mmap(nullptr, *mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    *base = start;
    if (!guard) return start;
    const uintptr_t end = reinterpret_cast<uintptr_t>(start) + *mapped - PAGE_BYTES;
    mprotect(reinterpret_cast<void*>(end), PAGE_BYTES, PROT_NONE);
    return reinterpret_cast<void*>((end - bytes) & ~static_cast<uintptr_t>(255));
#endif
}

static void unmap_pages(const Allocation& a) {
#ifdef _WIN32
    VirtualFree(a.base, 0, MEM_RELEASE);
#else
    munmap(a.base, a.mapped);
#endif
}

Error World::alloc(int card, size_t bytes, void** out) {
    if (!bytes) return INVALID_VALUE;
    if (fails(Taking::Alloc)) return OUT_OF_MEMORY;
    const size_t charged = (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES * GRANULE_BYTES;
    if (const Error e = charge(card, charged)) return e;
    Allocation a{bytes, charged, card, nullptr, 0};
    void* address = map_pages(bytes, guard, &a.base, &a.mapped);
    if (!address) {
        refund(card, charged);
        return OUT_OF_MEMORY;
    }
    std::memset(address, fill_byte, std::min(bytes, FILL_LIMIT_BYTES));
    memory[reinterpret_cast<uintptr_t>(address)] = a;
    live[static_cast<int>(Taking::Alloc)]++;
    *out = address;
    return OK;
}

Error World::release(void* address) {
    const auto found = memory.find(reinterpret_cast<uintptr_t>(address));
    if (found == memory.end() || found->second.card < 0) return INVALID_VALUE;
    synchronize_card(found->second.card);
    refund(found->second.card, found->second.charged);
    unmap_pages(found->second);
    memory.erase(found);
    live[static_cast<int>(Taking::Alloc)]--;
    return OK;
}

Error World::pin(void* address, size_t bytes, bool own) {
    if (fails(Taking::Pin)) return OUT_OF_MEMORY;
    if (own && bytes > commit_limit_bytes - committed_bytes) return OUT_OF_MEMORY;
    if (own) committed_bytes += bytes;
    memory[reinterpret_cast<uintptr_t>(address)] = {bytes, own ? bytes : 0, -1, address, bytes};
    pinned_bytes += bytes;
    live[static_cast<int>(Taking::Pin)]++;
    return OK;
}

Error World::unpin(void* address, bool own) {
    const auto found = memory.find(reinterpret_cast<uintptr_t>(address));
    if (found == memory.end() || found->second.card >= 0) return INVALID_VALUE;
    for (size_t card = 0; card < cards.size(); card++) synchronize_card(static_cast<int>(card));
    if (own) committed_bytes -= found->second.charged;
    pinned_bytes -= found->second.bytes;
    memory.erase(found);
    live[static_cast<int>(Taking::Pin)]--;
    return OK;
}

bool World::owner(const void* address, size_t bytes, int* card) const {
    auto after = memory.upper_bound(reinterpret_cast<uintptr_t>(address));
    if (after == memory.begin()) return false;
    const auto& [start, a] = *--after;
    const size_t offset = reinterpret_cast<uintptr_t>(address) - start;
    if (offset > a.bytes || bytes > a.bytes - offset) return false;
    *card = a.card;
    return true;
}

bool World::pinned(const void* address) const {
    int card;
    return owner(address, 1, &card) && card < 0;
}

}  // namespace sim
