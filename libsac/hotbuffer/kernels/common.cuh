// SPDX-License-Identifier: Apache-2.0
// Shapes that follow from the macros, and what a warp and a block of threads do together.
#ifndef SAC_HOTBUFFER_KERNELS_COMMON_CUH
#define SAC_HOTBUFFER_KERNELS_COMMON_CUH

#include "args.h"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

constexpr u32 THREADS = SAC_THREADS, WARPS = THREADS / 32;
constexpr u32 SLOTS = SAC_SLOTS;
constexpr u32 NS = hot_ceil(SLOTS, THREADS), SP = NS * THREADS;      // slots a thread; padded
constexpr u32 NK = hot_ceil(SAC_TOP_K, THREADS), KP = NK * THREADS;  // entries a thread
constexpr u32 PAGE_UNITS = SAC_PAGE_UNITS;
constexpr u32 POLICY = SAC_POLICY;
constexpr u16 NONE = 0xffff;
static_assert(THREADS % 32 == 0 && THREADS >= 128 && THREADS <= 1024, "");
static_assert(SLOTS >= 1 && SLOTS <= HOT_SLOTS_MAX && SAC_TOP_K <= SLOTS, "");

// N values that lie behind one another, moved by accesses as wide as their size allows.
template <u32 N, class T>
struct alignas(N * sizeof(T) % 16 == 0  ? 16
               : N * sizeof(T) % 8 == 0 ? 8
               : N * sizeof(T) % 4 == 0 ? 4
               : N * sizeof(T) % 2 == 0 ? 2
                                        : sizeof(T)) Vec {
    T v[N];
};
template <u32 N, class T> __device__ __forceinline__ Vec<N, T> load(const T *at, u32 i) {
    return reinterpret_cast<const Vec<N, T> *>(at)[i];
}
template <u32 N, class T>
__device__ __forceinline__ void store(T *at, u32 i, const Vec<N, T> &v) {
    reinterpret_cast<Vec<N, T> *>(at)[i] = v;
}

__device__ __forceinline__ u32 lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ u32 warp_id() { return threadIdx.x >> 5; }

// The bits below bit `b` of a word.
__device__ __forceinline__ u32 below(u32 b) { return (1u << b) - 1; }

// Sets `bytes` (a multiple of 16) of shared memory to one byte repeated.
template <u32 BYTES> __device__ __forceinline__ void fill(void *at, u32 word) {
    static_assert(BYTES % 16 == 0, "");
    for (u32 i = threadIdx.x; i < BYTES / 16; i += THREADS)
        static_cast<uint4 *>(at)[i] = make_uint4(word, word, word, word);
}

// A sum over the threads before this one, in two steps with a barrier of the caller between
// them: what a warp has goes to `sums`, then each warp adds up those before it. `sums` must
// not be written again before another barrier.
struct Scan {
    u32 before;  // in this warp

    __device__ __forceinline__ void begin(u32 value, u32 *sums) {
        u32 sum = value;
#pragma unroll
        for (u32 d = 1; d < 32; d <<= 1) {
            const u32 other = __shfl_up_sync(~0u, sum, d);
            if (lane_id() >= d)
                sum += other;
        }
        if (lane_id() == 31)
            sums[warp_id()] = sum;
        before = sum - value;
    }
    __device__ __forceinline__ u32 end(const u32 *sums, u32 &total) const {
        const u32 of_warp = lane_id() < WARPS ? sums[lane_id()] : 0;
        total = __reduce_add_sync(~0u, of_warp);
        return before + __reduce_add_sync(~0u, lane_id() < warp_id() ? of_warp : 0);
    }
};

// Where the kernel was launched to begin while the one before it ends (programmatic dependent
// launch): waits for that end. Otherwise does nothing. No kernel lets the next one start
// early: blocks that wait would take the place of blocks that copy.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A state whose `turn` other blocks may be adding to.
__device__ __forceinline__ HotState load_state(const HotState *at) {
#ifdef __CUDA_ARCH__
    HotState s;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(s.turn), "=r"(s.counter), "=r"(s.spare[0]), "=r"(s.spare[1])
                 : "l"(at));
    return s;
#else
    return *at;
#endif
}

#endif
