// SPDX-License-Identifier: Apache-2.0
// Copies of rows, in accesses of a size known when the module is compiled. All loads of a
// piece are issued before its first store: a store that waits for its load would make the
// next load wait as well, which costs a third over PCIe.
#ifndef SAC_HOTBUFFER_KERNELS_ACCESS_CUH
#define SAC_HOTBUFFER_KERNELS_ACCESS_CUH

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// Rows are read once: they stay out of L1. 16-byte loads were as fast as bulk copies or
// faster at all sizes measured (docs/performance.md), so every architecture takes them. The
// tests run these files on a CPU, too: there __CUDA_ARCH__ is not defined.
template <u32 ACCESS> struct Word;
template <> struct Word<16> {
    uint4 v;
    __device__ __forceinline__ void load(const u8 *p) {
#ifdef __CUDA_ARCH__
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(p));
#else
        v = *reinterpret_cast<const uint4 *>(p);
#endif
    }
    __device__ __forceinline__ void store(u8 *p) const { *reinterpret_cast<uint4 *>(p) = v; }
    __device__ __forceinline__ void zero() { v = make_uint4(0, 0, 0, 0); }
};
template <> struct Word<8> {
    uint2 v;
    __device__ __forceinline__ void load(const u8 *p) {
#ifdef __CUDA_ARCH__
        asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                     : "=r"(v.x), "=r"(v.y)
                     : "l"(p));
#else
        v = *reinterpret_cast<const uint2 *>(p);
#endif
    }
    __device__ __forceinline__ void store(u8 *p) const { *reinterpret_cast<uint2 *>(p) = v; }
    __device__ __forceinline__ void zero() { v = make_uint2(0, 0); }
};
template <class T> struct PlainWord {
    T v;
    __device__ __forceinline__ void load(const u8 *p) {
        v = *reinterpret_cast<const volatile T *>(p);
    }
    __device__ __forceinline__ void store(u8 *p) const { *reinterpret_cast<T *>(p) = v; }
    __device__ __forceinline__ void zero() { v = 0; }
};
template <> struct Word<4> : PlainWord<u32> {};
template <> struct Word<2> : PlainWord<unsigned short> {};
template <> struct Word<1> : PlainWord<u8> {};

__device__ constexpr u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

// The widest access up to `most` that fits a multiple of all of these.
__device__ constexpr u32 access_of(u32 most, u32 a, u32 b, u32 c) {
    while ((a | b | c) & (most - 1))
        most /= 2;
    return most;
}

// `LANES` threads of a warp copy n bytes (a multiple of ACCESS, at most BYTES); `lane` is the
// thread's number among them.
template <u32 BYTES, u32 ACCESS, u32 LANES>
__device__ __forceinline__ void copy_span(const u8 *from, u8 *to, u32 n, u32 lane) {
    static_assert(BYTES % ACCESS == 0, "");
    constexpr u32 EACH = (BYTES / ACCESS + LANES - 1) / LANES, BATCH = smaller(EACH, 4);
    Word<ACCESS> words[BATCH];
    for (u32 k = lane * ACCESS; k < n; k += BATCH * LANES * ACCESS) {
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i)
            if (k + i * LANES * ACCESS < n)
                words[i].load(from + k + i * LANES * ACCESS);
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i)
            if (k + i * LANES * ACCESS < n)
                words[i].store(to + k + i * LANES * ACCESS);
    }
}
// BYTES that a warp has read and not stored yet: a copy whose target is not known.
template <u32 BYTES, u32 ACCESS> struct Span {
    static constexpr u32 EACH = (BYTES / ACCESS + 31) / 32;
    static constexpr u32 REGISTERS = EACH * (ACCESS < 4 ? 1 : ACCESS / 4);
    Word<ACCESS> words[EACH];

    __device__ __forceinline__ void load(const u8 *from, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
            if ((i * 32 + lane) * ACCESS < BYTES)
                words[i].load(from + (i * 32 + lane) * ACCESS);
    }
    __device__ __forceinline__ void store(u8 *to, u32 lane) const {
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
            if ((i * 32 + lane) * ACCESS < BYTES)
                words[i].store(to + (i * 32 + lane) * ACCESS);
    }
};
template <u32 ACCESS, u32 LANES>
__device__ __forceinline__ void zero_span(u8 *to, u32 n, u32 lane) {
    Word<ACCESS> word;
    word.zero();
    for (u32 k = lane * ACCESS; k < n; k += LANES * ACCESS)
        word.store(to + k);
}

#endif
