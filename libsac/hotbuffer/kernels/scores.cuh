// SPDX-License-Identifier: Apache-2.0
// Scores as keys of an order, and the sort by them.
#ifndef SAC_HOTBUFFER_KERNELS_SCORES_CUH
#define SAC_HOTBUFFER_KERNELS_SCORES_CUH

#include "common.cuh"

// A number that grows with the score. NaN comes first; both zeros are one.
__device__ __forceinline__ u32 ordered(float score) {
    if (score != score)
        return 0;
    const u32 bits = __float_as_uint(score + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Sorts N keys (a power of two, a multiple of the threads) in shared memory, ascending: a
// bitonic network. Thread t holds keys t * E .. t * E + E - 1, so that most exchanges are
// within a thread or a warp. A barrier must come before; the result is right behind another.
template <u32 N> struct Sort {
    static constexpr u32 E = N / THREADS;
    static_assert(E >= 1 && N % THREADS == 0, "");
    u64 own[E];

    __device__ __forceinline__ static bool ascending(u32 i, u32 length) {
        return !(i & length);
    }
    // What key i keeps, given the key that it is compared with.
    __device__ __forceinline__ static u64 keep(u64 mine, u64 other, u32 i, u32 apart,
                                               u32 length) {
        const bool smaller_one = ascending(i, length) == !(i & apart);
        return (mine < other) == smaller_one ? mine : other;
    }
    __device__ __forceinline__ void across_warps(u64 *keys, u32 apart, u32 length) {
        const u32 first = threadIdx.x * E;
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < E; ++j)
            keys[first + j] = own[j];
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < E; ++j)
            own[j] = keep(own[j], keys[(first + j) ^ apart], first + j, apart, length);
    }
    __device__ __forceinline__ void in_warp(u32 apart, u32 length) {
#pragma unroll
        for (u32 j = 0; j < E; ++j) {
            const u64 other = __shfl_xor_sync(~0u, own[j], apart / E);
            own[j] = keep(own[j], other, threadIdx.x * E + j, apart, length);
        }
    }
    template <u32 APART> __device__ __forceinline__ void in_thread(u32 length) {
        if constexpr (APART > 0) {
            if (APART < length) {
                u64 next[E];
#pragma unroll
                for (u32 j = 0; j < E; ++j)
                    next[j] = keep(own[j], own[j ^ APART], threadIdx.x * E + j, APART, length);
#pragma unroll
                for (u32 j = 0; j < E; ++j)
                    own[j] = next[j];
            }
            in_thread<APART / 2>(length);
        }
    }
    __device__ __forceinline__ void run(u64 *keys) {
        const u32 first = threadIdx.x * E;
#pragma unroll
        for (u32 j = 0; j < E; ++j)
            own[j] = keys[first + j];
#pragma unroll 1
        for (u32 length = 2; length <= N; length *= 2) {
            u32 apart = length / 2;
#pragma unroll 1
            for (; apart >= 32 * E; apart /= 2)
                across_warps(keys, apart, length);
#pragma unroll 1
            for (; apart >= E && apart > 0; apart /= 2)
                in_warp(apart, length);
            in_thread<E / 2>(length);
        }
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < E; ++j)
            keys[first + j] = own[j];
    }
};

#endif
