// SPDX-License-Identifier: Apache-2.0
// What a block that only copies does: the first unit of each of its warps is on its way before
// the slot that it takes is known.
//
// Such a block does not number the selection. It counts the units that are missing by their
// bits, which gives them the same ranks, asks for its first ones, and ranks the victims while
// they come. Into registers: asynchronous copies to shared memory read the pool a third slower
// (docs/performance.md).
#ifndef SAC_HOTBUFFER_KERNELS_EARLY_CUH
#define SAC_HOTBUFFER_KERNELS_EARLY_CUH

#include "plan.cuh"

// A unit that a warp has read, plane by plane.
template <u32 P> struct Units {
    Units<P - 1> before;
    Span<Plane<P - 1>::UNIT_BYTES, Plane<P - 1>::ACCESS> span;
    static constexpr u32 REGISTERS = Units<P - 1>::REGISTERS + decltype(span)::REGISTERS;

    __device__ __forceinline__ void load(const HotPlane *planes, u64 page, u32 unit) {
        before.load(planes, page, unit);
        span.load(unit_in_pool<P - 1>(planes[P - 1], page, blockIdx.z, unit), lane_id());
    }
    __device__ __forceinline__ void store(const HotPlane *planes, u64 lane, u32 slot) const {
        before.store(planes, lane, slot);
        span.store(slot_of_lane<P - 1>(planes[P - 1], lane, slot), lane_id());
    }
};
template <> struct Units<0> {
    static constexpr u32 REGISTERS = 0;
    __device__ __forceinline__ void load(const HotPlane *, u64, u32) {}
    __device__ __forceinline__ void store(const HotPlane *, u64, u32) const {}
};
// Larger units would not stay in registers, and smaller ones share a warp when copied.
constexpr bool FETCH_EARLY =
    SAC_EARLY && Units<SAC_PLANES>::REGISTERS <= 12 && COPY_LANES == 32;

// Plans as step.plan() does, but for what only writers need, and copies.
__device__ __forceinline__ void fetch_early(Step<RESOLVE> &step, const Entries &entries,
                                            const Copier &copier) {
    Numbers &numbers = step.numbers;
    Bits<Numbers::EACH> missing(step.s.end());
    missing.clear();
    numbers.mark(entries.unit, step.sums[0]);

    // Bits of the units that are there or dead; what is left of the selection is missing.
    const Vec<NS, u8> hit = step.find_hits();
    store<NS>(step.s.touched, threadIdx.x, hit);
#pragma unroll
    for (u32 j = 0; j < NS; ++j)
        if (hit.v[j])
            missing.set(numbers.bit(step.held.v[j]));
    if (step.BOTH)
        step.look_at_pages();
#pragma unroll
    for (u32 j = 0; j < NK; ++j)
        if (step.dead >> j & 1)
            missing.set(numbers.bit(entries.unit[j]));
    __syncthreads();

    step.arrive();
    missing.complement(numbers.units);
    Scan scan;
    scan.begin(missing.count(), step.sums[1]);
    __syncthreads();

    missing.number_from(scan.end(step.sums[1], step.taken));
    __syncthreads();

#pragma unroll
    for (u32 j = 0; j < NK; ++j)
        if (entries.unit[j] >= 0 && missing.has(numbers.bit(entries.unit[j])))
            step.s.missed[missing.rank(numbers.bit(entries.unit[j]))] = entries.unit[j];
    __syncthreads();

    const u32 first = warp_id() * copier.all + copier.number;
    Units<SAC_PLANES> own;
    bool loaded = false;
    if (first < step.taken) {
        const u32 unit = step.s.missed[first];
        const u64 page = step.lane.pages[unit / PAGE_UNITS];
        loaded = page != 0;
        if (loaded)
            own.load(step.a.planes, page, unit);
    }
    if (!step.EARLY)
        step.choose_half();
    scan.begin(step.policy.weigh(step.s.touched, step.sums[3]), step.sums[2]);
    __syncthreads();

    const u32 before = scan.end(step.sums[2], step.candidates);
    step.policy.room(step.candidates, step.sums[3]);
    step.policy.choose(before, step.candidates, step.taken, step.s.victim, nullptr, step.s.list,
                       step.s.touched);
    __syncthreads();

    if (loaded)
        own.store(step.a.planes, step.lane.lane, step.s.victim[first]);
    step.copy(copier, WARPS * copier.all);
}

#endif
