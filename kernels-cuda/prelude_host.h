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
#define HAS_MMA_BF16 1
#define HAS_WMMA_GFX11 1
#define HAS_WMMA_GFX12 1
#define HAS_COPY_ASYNC 1
constexpr bool LOADS_UNALIGNED = false;

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

/// Starts a copy of eight bytes from global to shared memory; it is there for its thread after `wait_copies`.
inline void copy_async(void* shared, const void* global) { simt::copy_later(shared, global, 8); }
inline void wait_copies() { simt::make_copies(); }

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

/// Words that the lanes of a group give to a product of matrices.
template <u32 COUNT>
struct LaneWords {
    const simt::Exchange* all;
    explicit LaneWords(const u32 (&mine)[COUNT]) : all(group_exchange(mine, sizeof mine)) {}
    u32 get(u32 lane, u32 word) const {
        u32 value;
        std::memcpy(&value, all[lane] + 4 * word, 4);
        return value;
    }
};

/// c += a * b: a is 16 x 16 signed bytes (row l/4 in a[0], row l/4 + 8 in a[1], columns 4 (l%4) and up), b is 16 x 8
/// (column l/4, rows 4 (l%4) and up), c is 16 x 8 (rows as a, columns 2 (l%4) and one more).
inline void mma_bytes(int c[4], const u32 a[2], u32 b) {
    const u32 mine[3] = {a[0], a[1], b};
    const LaneWords<3> words(mine);
    const u32 lane = simt::current->lane & 31;
    for (u32 i = 0; i < 4; i++) {
        const u32 row = lane / 4, column = 2 * (lane % 4) + (i & 1);
        for (u32 k = 0; k < 4; k++) c[i] = dot_bytes(words.get(4 * row + k, i / 2), words.get(4 * column + k, 2), c[i]);
    }
}

/// c += a * b: a is 16 x 16 halves (row l/4 in a[0] and a[2], row l/4 + 8 in a[1] and a[3], columns 2 (l%4) and one more, 8 further in a[2] and
/// a[3]), b is 16 x 8 (column l/4, rows 2 (l%4) and one more, 8 further in b1), c is as that of bytes. Exact but for one rounding;
/// cards may round every addition.
template <class TO_FLOAT>
inline void mma_halves(float* c, const u32 a[4], u32 b0, u32 b1, TO_FLOAT to_float) {
    const u32 mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const LaneWords<6> words(mine);
    const u32 lane = simt::current->lane & 31;
    for (u32 i = 0; i < 4; i++) {
        const u32 row = lane / 4, column = 2 * (lane % 4) + (i & 1);
        double sum = c[i];
        for (u32 k = 0; k < 16; k++) {
            const u32 x = words.get(4 * row + k % 8 / 2, i / 2 + k / 8 * 2) >> (16 * (k % 2)) & 0xffff;
            const u32 y = words.get(4 * column + k % 8 / 2, 4 + k / 8) >> (16 * (k % 2)) & 0xffff;
            sum += static_cast<double>(to_float(x)) * to_float(y);
        }
        c[i] = static_cast<float>(sum);
    }
}
inline void mma_f16(float* c, const u32 a[4], u32 b0, u32 b1) { mma_halves(c, a, b0, b1, half_to_float); }
inline void mma_bf16(float* c, const u32 a[4], u32 b0, u32 b1) {
    mma_halves(c, a, b0, b1, [](u32 bits) { return bits_to_float(bits << 16); });
}

/// c += a * b of 32 columns: two of the products above side by side.
inline void mma_bytes_32(int c[4], const u32 a0[2], const u32 a1[2], u32 b0, u32 b1) {
    mma_bytes(c, a0, b0);
    mma_bytes(c, a1, b1);
}

/// c += a * b: a is 16 x 16 signed bytes, a row in each lane (row l%16, the same in lanes l and l + 16), b is 16 x 16 (a column in
/// each lane in the same way), c is 16 x 16 (element i in row 2 i + l/16, column l%16).
inline void wmma_bytes_gfx11(int c[8], const u32 a[4], const u32 b[4]) {
    const u32 mine[8] = {a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]};
    const LaneWords<8> words(mine);
    const u32 lane = simt::current->lane & 31;
    for (u32 i = 0; i < 8; i++) {
        const u32 row = 2 * i + lane / 16, column = lane % 16;
        for (u32 k = 0; k < 4; k++) {
            const u32 x = words.get(row, k), y = words.get(column, 4 + k);
            const bool twice = words.get(row + 16, k) == x && words.get(column + 16, 4 + k) == y;
            c[i] = twice ? dot_bytes(x, y, c[i]) : -0x7fffffff - 1;
        }
    }
}

/// c += a * b: a is 16 x 16 signed bytes (row l%16, columns 8 (l/16) and up), b is 16 x 16 (column l%16, rows 8 (l/16) and up), c is
/// 16 x 16 (element i in row i + 8 (l/16), column l%16).
inline void wmma_bytes_gfx12(int c[8], const u32 a[2], const u32 b[2]) {
    const u32 mine[4] = {a[0], a[1], b[0], b[1]};
    const LaneWords<4> words(mine);
    const u32 lane = simt::current->lane & 31;
    for (u32 i = 0; i < 8; i++) {
        const u32 row = i + 8 * (lane / 16), column = lane % 16;
        for (u32 k = 0; k < 4; k++) c[i] = dot_bytes(words.get(row + 16 * (k / 2), k % 2), words.get(column + 16 * (k / 2), 2 + k % 2), c[i]);
    }
}
