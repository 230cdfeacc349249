// The prelude for AMD cards: clang's builtins only, neither HIP headers nor device libraries.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))

#define DEVICE __device__ inline __attribute__((always_inline))
#define DEVICE_TABLE static __device__ const
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define KERNEL(name, ARGS) \
    extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(THREADS, THREADS))) name(const Operands at, const ARGS a)
#define SHARED(T, name, count) static __shared__ T name[count]
#define HAS_MMA 0
#define HAS_MMA_BF16 0
#if defined(__GFX11__)
#define HAS_WMMA_GFX11 1
#else
#define HAS_WMMA_GFX11 0
#endif
#if defined(__GFX12__)
#define HAS_WMMA_GFX12 1
#else
#define HAS_WMMA_GFX12 0
#endif
#define HAS_COPY_ASYNC 0
constexpr bool LOADS_UNALIGNED = true;

DEVICE u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 block_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 block_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEVICE u32 block_z() { return __builtin_amdgcn_workgroup_id_z(); }
DEVICE void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

/// The lane's number in its wave of 32 or 64.
DEVICE u32 wave_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
template <class T>
DEVICE T from_wave_lane(T value, u32 lane) {
    static_assert(sizeof(T) == 4, "shuffles move words");
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(static_cast<int>(lane << 2), __builtin_bit_cast(int, value)));
}
/// `from` counts within the group of 32 lanes.
template <class T>
DEVICE T shuffle(T value, u32 from) {
    return from_wave_lane(value, (wave_lane() & 32) | (from & 31));
}
template <class T>
DEVICE T shuffle_xor(T value, u32 mask) {
    return from_wave_lane(value, wave_lane() ^ mask);
}

template <class T>
DEVICE T* global_pointer(u64 address) {
    return (T*)(__attribute__((address_space(1))) T*)address;
}

DEVICE float bits_to_float(u32 bits) { return __builtin_bit_cast(float, bits); }
DEVICE u32 float_to_bits(float value) { return __builtin_bit_cast(u32, value); }
DEVICE float half_to_float(u32 bits) { return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<u16>(bits))); }
DEVICE u16 float_to_half(float value) { return __builtin_bit_cast(u16, static_cast<_Float16>(value)); }
DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float square_root(float x) { return __builtin_sqrtf(x); }
DEVICE float abs_float(float x) { return __builtin_fabsf(x); }
DEVICE float max_float(float a, float b) { return __builtin_fmaxf(a, b); }
DEVICE float round_to_even(float x) { return __builtin_rintf(x); }
DEVICE u32 count_bits(u32 x) { return static_cast<u32>(__builtin_popcount(x)); }
DEVICE u32 add_shared(u32* at, u32 n) { return __atomic_fetch_add(at, n, __ATOMIC_RELAXED); }

DEVICE float sum_lanes(float value) {
    UNROLL
    for (u32 o = 16; o; o /= 2) value += shuffle_xor(value, o);
    return value;
}
DEVICE float max_lanes(float value) {
    UNROLL
    for (u32 o = 16; o; o /= 2) value = max_float(value, shuffle_xor(value, o));
    return value;
}
DEVICE int sum_half_lanes(int value) {
    UNROLL
    for (u32 o = 8; o; o /= 2) value += shuffle_xor(value, o);
    return value;
}

DEVICE int dot_bytes(u32 a, u32 b, int c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, static_cast<int>(a), true, static_cast<int>(b), c, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx1030__)
    return __builtin_amdgcn_sdot4(static_cast<int>(a), static_cast<int>(b), c, false);
#else
    for (int i = 0; i < 4; i++) c += static_cast<i8>(a >> 8 * i) * static_cast<i8>(b >> 8 * i);
    return c;
#endif
}
DEVICE u32 pick_bytes(u32 low, u32 high, u32 selector) { return __builtin_amdgcn_perm(high, low, selector); }

// The instructions of matrix products take the operands of a wave of 32 lanes: cards that have them run kernels in such waves.
#if HAS_WMMA_GFX11 || HAS_WMMA_GFX12
typedef int Ints2 __attribute__((ext_vector_type(2)));
typedef int Ints4 __attribute__((ext_vector_type(4)));
typedef int Ints8 __attribute__((ext_vector_type(8)));
DEVICE Ints2 ints2(const u32* w) { return {static_cast<int>(w[0]), static_cast<int>(w[1])}; }
DEVICE Ints4 ints4(const u32* w) { return {static_cast<int>(w[0]), static_cast<int>(w[1]), static_cast<int>(w[2]), static_cast<int>(w[3])}; }
DEVICE Ints8 ints8(const int* c) { return {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]}; }
#endif
#if HAS_WMMA_GFX11
DEVICE void wmma_bytes_gfx11(int c[8], const u32 a[4], const u32 b[4]) {
    const Ints8 sums = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, ints4(a), true, ints4(b), ints8(c), false);
    UNROLL
    for (u32 i = 0; i < 8; i++) c[i] = sums[i];
}
#endif
#if HAS_WMMA_GFX12
DEVICE void wmma_bytes_gfx12(int c[8], const u32 a[2], const u32 b[2]) {
    const Ints8 sums = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, ints2(a), true, ints2(b), ints8(c), false);
    UNROLL
    for (u32 i = 0; i < 8; i++) c[i] = sums[i];
}
#endif
