// The prelude for the processor: kernels run on the simulated cards of the tests (tests/sim/simt.h).
#pragma once
#include <cmath>

#include "simt.h"

struct Operands;
template <>
struct simt::Pointers<Operands> {
    static constexpr unsigned COUNT = 7;
};

#define DEVICE inline
#define DEVICE_TABLE static const
#define UNROLL
#define NO_UNROLL
#define KERNEL(name, ARGS)                                   \
    extern "C" void name(Operands at, ARGS a);               \
    static simt::Registration<&name> registered_##name(#name); \
    extern "C" void name([[maybe_unused]] Operands at, [[maybe_unused]] ARGS a)
#define SHARED(T, name, count)     \
    static const char name##_key = 0; \
    T* const name = static_cast<T*>(simt::shared_array(&name##_key, sizeof(T) * (count)))
#define HAS_MMA 1

inline u32 thread_index() { return simt::current->thread.x; }
inline u32 block_x() { return simt::current->block.x; }
inline u32 block_y() { return simt::current->block.y; }
inline u32 block_z() { return simt::current->block.z; }
inline void barrier() { simt::sync_block(); }

// The 32 lanes of the caller's group, wherever it lies in its wave.
inline unsigned group_base() { return simt::current->lane & 32; }
inline const simt::Exchange* group_exchange(const void* value, size_t bytes) {
    return simt::exchange(0xffffffffull << group_base(), value, bytes) + group_base();
}
template <class T>
inline T lane_value(const simt::Exchange* all, u32 lane) {
    T value;
    std::memcpy(&value, all[lane], sizeof value);
    return value;
}
template <class T>
inline T shuffle(T value, u32 from) {
    return lane_value<T>(group_exchange(&value, sizeof value), from & 31);
}
template <class T>
inline T shuffle_xor(T value, u32 mask) {
    return shuffle(value, (simt::current->lane & 31) ^ mask);
}
/// A butterfly over `WIDTH` neighbouring lanes; all of them get the same bits.
template <u32 WIDTH, class T, class F>
inline T butterfly(T value, F join) {
    const simt::Exchange* all = group_exchange(&value, sizeof value);
    const u32 first = (simt::current->lane & 31) / WIDTH * WIDTH;
    T v[WIDTH];
    for (u32 i = 0; i < WIDTH; i++) v[i] = lane_value<T>(all, first + i);
    for (u32 o = WIDTH / 2; o; o /= 2)
        for (u32 i = 0; i < o; i++) v[i] = join(v[i], v[i + o]);
    return v[0];
}

/// A pointer of which the compiler knows that it is neither to shared nor to local memory.
template <class T>
inline T* global_pointer(u64 address) {
    return reinterpret_cast<T*>(address);
}

inline float bits_to_float(u32 bits) { return __builtin_bit_cast(float, bits); }
inline u32 float_to_bits(float value) { return __builtin_bit_cast(u32, value); }
inline float half_to_float(u32 bits) { return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<u16>(bits))); }
inline u16 float_to_half(float value) { return __builtin_bit_cast(u16, static_cast<_Float16>(value)); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float square_root(float x) { return __builtin_sqrtf(x); }
inline float abs_float(float x) { return __builtin_fabsf(x); }
inline float max_float(float a, float b) { return a > b || b != b ? a : b; }
inline float round_to_even(float x) { return __builtin_nearbyintf(x); }
inline u32 count_bits(u32 x) { return static_cast<u32>(__builtin_popcount(x)); }
inline u32 add_shared(u32* at, u32 n) { return __atomic_fetch_add(at, n, __ATOMIC_RELAXED); }

inline float sum_lanes(float value) {
    return butterfly<32>(value, [](float a, float b) { return a + b; });
}
inline float max_lanes(float value) {
    return butterfly<32>(value, [](float a, float b) { return max_float(a, b); });
}
/// Sum over the caller's 16 lanes.
inline int sum_half_lanes(int value) {
    return butterfly<16>(value, [](int a, int b) { return a + b; });
}

/// c + the dot product of four signed bytes.
inline int dot_bytes(u32 a, u32 b, int c) {
    for (int i = 0; i < 4; i++) c += static_cast<i8>(a >> 8 * i) * static_cast<i8>(b >> 8 * i);
    return c;
}
/// Four bytes of the eight in `low`, `high`, chosen by the bytes of `selector` (0 to 7).
inline u32 pick_bytes(u32 low, u32 high, u32 selector) {
    const u64 all = low | static_cast<u64>(high) << 32;
    u32 picked = 0;
    for (int i = 0; i < 4; i++) picked |= static_cast<u32>(all >> 8 * (selector >> 8 * i & 7) & 0xff) << 8 * i;
    return picked;
}

/// c += a * b: a is 16 x 16 signed bytes (row l/4 in a[0], row l/4 + 8 in a[1], columns 4 (l%4) and up), b is 16 x 8
/// (column l/4, rows 4 (l%4) and up), c is 16 x 8 (rows as a, columns 2 (l%4) and one more).
inline void mma_bytes(int c[4], const u32 a[2], u32 b) {
    const u32 mine[3] = {a[0], a[1], b};
    const simt::Exchange* all = group_exchange(mine, sizeof mine);
    const u32 lane = simt::current->lane & 31;
    auto word = [&](u32 from, int i) {
        u32 value;
        std::memcpy(&value, all[from] + 4 * i, 4);
        return value;
    };
    for (int i = 0; i < 4; i++) {
        const u32 row = lane / 4, column = 2 * (lane % 4) + (i & 1);
        for (u32 k = 0; k < 4; k++) c[i] = dot_bytes(word(4 * row + k, i / 2), word(4 * column + k, 2), c[i]);
    }
}
