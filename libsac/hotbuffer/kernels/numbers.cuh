// SPDX-License-Identifier: Apache-2.0
// Numbers the distinct units of a selection in ascending order, in shared memory.
//
// A unit is a bit; its number is the count of bits before it. That is a hash without
// collisions in which duplicates fall together. Flat: a bit a unit of the context. Two levels:
// a bit for each 32 units that have one selected, and words of bits for those alone: its cost
// follows the selection's size, not the context's.
#ifndef SAC_HOTBUFFER_KERNELS_NUMBERS_CUH
#define SAC_HOTBUFFER_KERNELS_NUMBERS_CUH

#include "common.cuh"

// Words of bits, each with the count of bits in the words before it. A thread owns N words.
template <u32 N> struct Bits {
    static constexpr u32 WORDS = N * THREADS, BYTES = 6 * WORDS;
    u32 *bits;
    u16 *before;

    __device__ __forceinline__ explicit Bits(u8 *shared)
        : bits(reinterpret_cast<u32 *>(shared)), before(reinterpret_cast<u16 *>(bits + WORDS)) {
    }
    __device__ __forceinline__ void clear() { fill<WORDS * 4>(bits, 0); }
    __device__ __forceinline__ void set(u32 i) { atomicOr(&bits[i >> 5], 1u << (i & 31)); }
    __device__ __forceinline__ bool has(u32 i) const { return bits[i >> 5] >> (i & 31) & 1; }
    __device__ __forceinline__ u32 rank(u32 i) const {
        return before[i >> 5] + __popc(bits[i >> 5] & below(i & 31));
    }
    // How many bits this thread's words have.
    __device__ __forceinline__ u32 count() const {
        const Vec<N, u32> own = load<N>(bits, threadIdx.x);
        u32 sum = 0;
#pragma unroll
        for (u32 k = 0; k < N; ++k)
            sum += __popc(own.v[k]);
        return sum;
    }
    // `at`: bits in the words before this thread's. `rank` is right behind a barrier.
    __device__ __forceinline__ void number_from(u32 at) {
        const Vec<N, u32> own = load<N>(bits, threadIdx.x);
        Vec<N, u16> to;
#pragma unroll
        for (u32 k = 0; k < N; ++k) {
            to.v[k] = u16(at);
            at += __popc(own.v[k]);
        }
        store<N>(before, threadIdx.x, to);
    }
    // Of this thread's words the bits that `all` has and this has not.
    __device__ __forceinline__ void complement(const Bits &all) {
        const Vec<N, u32> of = load<N>(all.bits, threadIdx.x);
        Vec<N, u32> own = load<N>(bits, threadIdx.x);
#pragma unroll
        for (u32 k = 0; k < N; ++k)
            own.v[k] = of.v[k] & ~own.v[k];
        store<N>(bits, threadIdx.x, own);
    }
};

struct FlatNumbers {
    static constexpr u32 EACH = hot_ceil(SAC_UNITS_MAX, 32 * THREADS);
    Bits<EACH> units;
    static constexpr u32 BYTES = decltype(units)::BYTES;

    __device__ __forceinline__ explicit FlatNumbers(u8 *shared) : units(shared) {}
    __device__ __forceinline__ void clear() { units.clear(); }
    // Call after a barrier behind clear(); `has` is right when it returns.
    __device__ __forceinline__ void mark(const i32 (&unit)[NK], u32 *) {
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            if (unit[j] >= 0)
                units.set(unit[j]);
        __syncthreads();
    }
    __device__ __forceinline__ bool has(u32 unit) const { return units.has(unit); }
    // Of a selected unit, its own in `units`.
    __device__ __forceinline__ u32 bit(u32 unit) const { return unit; }
    // Behind a barrier behind units.number_from().
    __device__ __forceinline__ u32 number(u32 unit) const { return units.rank(unit); }
};

struct TwoLevelNumbers {
    Bits<hot_ceil(SAC_UNITS_MAX, 1024 * THREADS)> words;  // those that have a unit selected
    static constexpr u32 EACH = NK;
    Bits<EACH> units;  // of those words
    static constexpr u32 BYTES = decltype(words)::BYTES + decltype(units)::BYTES;

    __device__ __forceinline__ explicit TwoLevelNumbers(u8 *shared)
        : words(shared), units(shared + decltype(words)::BYTES) {}
    __device__ __forceinline__ u32 bit(u32 unit) const {
        return words.rank(unit >> 5) * 32 + (unit & 31);
    }
    __device__ __forceinline__ void clear() {
        words.clear();
        units.clear();
    }
    __device__ __forceinline__ void mark(const i32 (&unit)[NK], u32 *sums) {
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            if (unit[j] >= 0)
                words.set(u32(unit[j]) >> 5);
        __syncthreads();
        Scan scan;
        scan.begin(words.count(), sums);
        __syncthreads();
        u32 total;
        words.number_from(scan.end(sums, total));
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            if (unit[j] >= 0)
                units.set(bit(unit[j]));
        __syncthreads();
    }
    __device__ __forceinline__ bool has(u32 unit) const {
        return words.has(unit >> 5) && units.has(bit(unit));
    }
    __device__ __forceinline__ u32 number(u32 unit) const { return units.rank(bit(unit)); }
};

template <bool FLAT> struct NumbersOf {
    using Type = FlatNumbers;
};
template <> struct NumbersOf<false> {
    using Type = TwoLevelNumbers;
};
using Numbers = NumbersOf<hot_flat(SAC_UNITS_MAX, THREADS)>::Type;
static_assert(Numbers::BYTES == hot_numbers_bytes(SAC_TOP_K, THREADS, SAC_UNITS_MAX), "");
static_assert(Numbers::BYTES % 16 == 0, "");

#endif
