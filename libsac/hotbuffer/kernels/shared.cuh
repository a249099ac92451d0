// SPDX-License-Identifier: Apache-2.0
// The dynamic shared memory of the planning kernels: hot_shared_bytes() of it.
#ifndef SAC_HOTBUFFER_KERNELS_SHARED_CUH
#define SAC_HOTBUFFER_KERNELS_SHARED_CUH

#include "common.cuh"

__device__ constexpr u32 power_of_two(u32 least) {
    u32 n = 1;
    while (n < least)
        n *= 2;
    return n;
}

// K: entries of a selection, padded.
template <u32 K> struct Shared {
    static constexpr u32 KEYS = power_of_two(K);
    u8 *numbers;
    u64 *keys;     // LRU with scores: by number; then sorted
    i32 *unit_of;  // by number; GONE: its page is dead
    i32 *missed;   // by rank among the units to fetch
    u16 *slot_of;  // by number: NONE where it has none
    u16 *rank_of;  // by number, of units to fetch
    u16 *victim;   // by rank
    u16 *list;     // random: the candidates
    u8 *touched;   // by slot

    __device__ __forceinline__ explicit Shared(u8 *memory, u32 numbers_bytes) {
        numbers = memory;
        keys = reinterpret_cast<u64 *>(memory + numbers_bytes);
        unit_of = reinterpret_cast<i32 *>(keys + (POLICY == HOT_LRU_SCORE ? KEYS : 0));
        missed = unit_of + K;
        slot_of = reinterpret_cast<u16 *>(missed + K);
        rank_of = slot_of + K;
        victim = rank_of + K;
        list = victim + K;
        touched = reinterpret_cast<u8 *>(list + (POLICY == HOT_RANDOM ? SP : 0));
    }
    __device__ __forceinline__ u8 *end() const { return touched + SP; }
};

#endif
