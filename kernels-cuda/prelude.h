// What every kernel sees, whoever compiles it: NVRTC for NVIDIA, clang for AMD, a C++ compiler for the simulated cards of the
// tests. Inline PTX and vendor builtins live in the three vendor files alone, and each of their functions has a host twin.
//
// A block has 128 threads: four groups of 32 lanes. Groups, not waves: on AMD cards whose waves have 64 lanes two groups share
// a wave, and no kernel lets lanes of different groups exchange anything but through shared memory. So results have the
// same bits on waves of either width.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 THREADS = 128;
constexpr u32 LANES = 32;
constexpr u32 GROUPS = THREADS / LANES;

#if defined(STRATA_HOST)
#include "prelude_host.h"
#elif defined(__HIP__)
#include "../kernels-hip/prelude_hip.h"
#else
#include "prelude_cuda.h"
#endif

#include "args.h"
#include "functions.h"

DEVICE u32 lane() { return thread_index() % LANES; }
DEVICE u32 group() { return thread_index() / LANES; }

DEVICE const u32* run_words(const Operands& at) { return global_pointer<const u32>(at.run); }
DEVICE const u8* w0_bytes(const Operands& at) { return global_pointer<const u8>(at.w0); }
DEVICE const u8* w1_bytes(const Operands& at) { return global_pointer<const u8>(at.w1); }
DEVICE const float* w2_floats(const Operands& at) { return global_pointer<const float>(at.w2); }
DEVICE float* state_floats(const Operands& at) { return global_pointer<float>(at.state); }
DEVICE const u32* state_words(const Operands& at) { return global_pointer<const u32>(at.state); }
DEVICE float* work_floats(const Operands& at) { return global_pointer<float>(at.work); }
DEVICE u32* work_words(const Operands& at) { return global_pointer<u32>(at.work); }
DEVICE float* scratch_floats(const Operands& at) { return global_pointer<float>(at.scratch); }
DEVICE u32* scratch_words(const Operands& at) { return global_pointer<u32>(at.scratch); }

/// Row `row` of a matrix whose first element is word `first`.
DEVICE u64 row_at(u32 first, u32 row, u32 stride) { return first + static_cast<u64>(row) * stride; }

/// Sum over the block, the same bits in all threads: lanes as a butterfly, then the groups in order.
DEVICE float sum_block(float value) {
    SHARED(float, partial, GROUPS);
    const float mine = sum_lanes(value);
    barrier();
    if (lane() == 0) partial[group()] = mine;
    barrier();
    float sum = partial[0];
    for (u32 g = 1; g < GROUPS; g++) sum += partial[g];
    return sum;
}

DEVICE float max_block(float value) {
    SHARED(float, partial, GROUPS);
    const float mine = max_lanes(value);
    barrier();
    if (lane() == 0) partial[group()] = mine;
    barrier();
    float most = partial[0];
    for (u32 g = 1; g < GROUPS; g++) most = max_float(most, partial[g]);
    return most;
}

/// One of two types.
template <bool FIRST, class A, class B>
struct Pick {
    using Type = A;
};
template <class A, class B>
struct Pick<false, A, B> {
    using Type = B;
};

/// Four bytes at an address that is a multiple of `ALIGN`.
template <u32 ALIGN>
DEVICE u32 load_word(const u8* at) {
    if constexpr (ALIGN >= 4) {
        return *reinterpret_cast<const u32*>(at);
    } else if constexpr (ALIGN == 2) {
        const u16* halves = reinterpret_cast<const u16*>(at);
        return halves[0] | static_cast<u32>(halves[1]) << 16;
    } else {
        return at[0] | static_cast<u32>(at[1]) << 8 | static_cast<u32>(at[2]) << 16 | static_cast<u32>(at[3]) << 24;
    }
}

struct alignas(16) Quad {
    float v[4];
};
struct alignas(8) Words2 {
    u32 x, y;
};
struct alignas(16) Words4 {
    u32 x, y, z, w;
};

/// Eight bytes at an even address, out of the aligned words that they lie in: three loads instead of four, for more arithmetic.
DEVICE Words2 load_words_at_halves(const u8* at) {
    if constexpr (LOADS_UNALIGNED) return {load_word<2>(at), load_word<2>(at + 4)};
    const u32 before = reinterpret_cast<u64>(at) & 2, shift = 8 * before;
    const u32* words = reinterpret_cast<const u32*>(at - before);
    const u32 middle = words[1], last = before ? words[2] : 0;
    return {static_cast<u32>((words[0] | static_cast<u64>(middle) << 32) >> shift), static_cast<u32>((middle | static_cast<u64>(last) << 32) >> shift)};
}

/// Eight bytes at an address that is a multiple of `ALIGN`.
template <u32 ALIGN>
DEVICE Words2 load_words(const u8* at) {
    if constexpr (ALIGN >= 8) return *reinterpret_cast<const Words2*>(at);
    else return {load_word<ALIGN>(at), load_word<ALIGN>(at + 4)};
}
DEVICE u32 load_half_word(const u8* at) { return *reinterpret_cast<const u16*>(at); }
