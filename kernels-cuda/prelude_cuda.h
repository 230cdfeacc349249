// The prelude for NVIDIA cards, compiled by NVRTC.
#pragma once

#define DEVICE __device__ __forceinline__
#define DEVICE_TABLE static __device__ const
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define KERNEL(name, ARGS) extern "C" __global__ void __launch_bounds__(THREADS) name(const Operands at, const ARGS a)
#define SHARED(T, name, count) __shared__ T name[count]
#define HAS_MMA (__CUDA_ARCH__ >= 750)
#define HAS_MMA_BF16 (__CUDA_ARCH__ >= 800)
#define HAS_WMMA_GFX11 0
#define HAS_WMMA_GFX12 0
#define HAS_COPY_ASYNC (__CUDA_ARCH__ >= 800)
/// Whether the compiler makes one load of neighbouring halves of a word.
constexpr bool LOADS_UNALIGNED = false;

DEVICE u32 thread_index() { return threadIdx.x; }
DEVICE u32 block_x() { return blockIdx.x; }
DEVICE u32 block_y() { return blockIdx.y; }
DEVICE u32 block_z() { return blockIdx.z; }
DEVICE void barrier() { __syncthreads(); }

template <class T>
DEVICE T shuffle(T value, u32 from) {
    return __shfl_sync(0xffffffffu, value, static_cast<int>(from));
}
template <class T>
DEVICE T shuffle_xor(T value, u32 mask) {
    return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
}

template <class T>
DEVICE T* global_pointer(u64 address) {
    return reinterpret_cast<T*>(__cvta_global_to_generic(address));
}

#if HAS_COPY_ASYNC
DEVICE void copy_async(void* shared, const void* global) {
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(global) : "memory");
}
DEVICE void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif

DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 float_to_bits(float value) { return __float_as_uint(value); }
DEVICE float half_to_float(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(bits)));
    return value;
}
DEVICE u16 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float square_root(float x) { return __fsqrt_rn(x); }
DEVICE float abs_float(float x) { return fabsf(x); }
DEVICE float max_float(float a, float b) { return fmaxf(a, b); }
DEVICE float round_to_even(float x) { return rintf(x); }
DEVICE u32 count_bits(u32 x) { return __popc(x); }
DEVICE u32 add_shared(u32* at, u32 n) { return atomicAdd(at, n); }

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
    int d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEVICE u32 pick_bytes(u32 low, u32 high, u32 selector) {
    // One digit of four bits a byte.
    const u32 pairs = selector | selector >> 4;
    u32 picked;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(low), "r"(high), "r"((pairs & 0xff) | (pairs >> 8 & 0xff00)));
    return picked;
}

#if HAS_MMA
DEVICE void mma_bytes(int c[4], const u32 a[2], u32 b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[0]), "+r"(c[1]) : "r"(a[0]), "r"(b));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[2]), "+r"(c[3]) : "r"(a[1]), "r"(b));
#endif
}
DEVICE void mma_f16(float* c, const u32 a[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}
#if HAS_MMA_BF16
DEVICE void mma_bf16(float* c, const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
DEVICE void mma_bytes_32(int c[4], const u32 a0[2], const u32 a1[2], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0[0]), "r"(a0[1]), "r"(a1[0]), "r"(a1[1]), "r"(b0), "r"(b1));
#else
    mma_bytes(c, a0, b0);
    mma_bytes(c, a1, b1);
#endif
}
#endif
