// Runs a kernel source on the processor: the threads of a block are fibers, blocks are spread over OS threads.
// Kernels see it through the host form of the prelude (kernels-cuda/prelude_host.h); drivers call `simgpu_find` and
// `simgpu_launch`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace simt {

struct Index3 {
    unsigned x, y, z;
};

/// A copy that a thread has started and not waited for.
struct AsyncCopy {
    void* to;
    const void* from;
    size_t bytes;
};

/// What a running device thread can see.
struct Thread {
    Index3 thread, block, block_dim, grid_dim;
    unsigned lane;    // in its wave
    unsigned linear;  // in its block
    unsigned copy_count;
    AsyncCopy copies[8];
};

/// The fiber that is running on this OS thread.
extern thread_local Thread* current;

/// Bytes that a lane can give to a collective.
constexpr size_t EXCHANGE_BYTES = 32;
using Exchange = unsigned char[EXCHANGE_BYTES];

/// All threads of the block meet.
void sync_block();
/// Every lane of `mask` gives `bytes` and gets the table of all lanes' bytes, valid until its next collective.
const Exchange* exchange(uint64_t mask, const void* in, size_t bytes);
/// A copy that is made when its thread waits, no earlier.
void copy_later(void* to, const void* from, size_t bytes);
void make_copies();
unsigned wave_size();
/// Dynamic shared memory of this block.
void* dynamic_shared();
/// A shared array of the kernel that runs; `key` tells the arrays of a kernel apart.
void* shared_array(const void* key, size_t bytes);

// --- registration ---------------------------------------------------------------------------------------------------

/// Where a pointer stands among the arguments.
struct PointerPlace {
    unsigned short argument, offset;
};

/// Pointers inside an argument: the argument itself, or the first `COUNT` words of a struct that specialises this.
template <class T>
struct Pointers {
    static constexpr unsigned COUNT = std::is_pointer_v<T> ? 1 : 0;
};

struct Kernel {
    const char* name;
    void (*call)(void** arguments);
    unsigned arguments;
    const unsigned short* argument_bytes;
    const PointerPlace* pointers;
    unsigned pointer_count;
};
void register_kernel(const Kernel&);

template <class... A>
struct Signature {
    static constexpr unsigned POINTERS = (0u + ... + Pointers<A>::COUNT);
    struct Places {
        PointerPlace at[POINTERS + 1];
    };
    static constexpr Places places() {
        Places found{};
        unsigned next = 0;
        unsigned short argument = 0;
        auto add = [&](unsigned count) {
            for (unsigned i = 0; i < count; i++) found.at[next++] = {argument, static_cast<unsigned short>(8 * i)};
            argument++;
        };
        (add(Pointers<A>::COUNT), ...);
        return found;
    }
    static constexpr unsigned short BYTES[sizeof...(A) + 1] = {sizeof(A)..., 0};
    static constexpr Places PLACES = places();

    template <void (*F)(A...), size_t... I>
    static void unpack(void** p, std::index_sequence<I...>) {
        F(*static_cast<std::remove_reference_t<A>*>(p[I])...);
    }
    template <void (*F)(A...)>
    static void call(void** p) {
        unpack<F>(p, std::index_sequence_for<A...>{});
    }
};

template <auto F>
struct Registration;
template <class... A, void (*F)(A...)>
struct Registration<F> {
    explicit Registration(const char* name) {
        using S = Signature<A...>;
        register_kernel({name, &S::template call<F>, sizeof...(A), S::BYTES, S::PLACES.at, S::POINTERS});
    }
};

}  // namespace simt

/// How a launch ended.
enum SimgpuEnd { SIMGPU_DONE = 0, SIMGPU_DEADLOCK = 1 };

extern "C" {
struct SimgpuLaunch {
    unsigned grid[3], block[3];
    size_t shared_bytes;
    void** arguments;
    unsigned wave;
    int reversed;  // threads of a block and blocks of a grid run last to first
    unsigned workers;
    unsigned char fill;  // what shared memory holds at the start
};
typedef const simt::Kernel* (*SimgpuFind)(const char* name);
typedef int (*SimgpuLaunchFn)(const simt::Kernel*, const SimgpuLaunch*);
}
