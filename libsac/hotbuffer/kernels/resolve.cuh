// SPDX-License-Identifier: Apache-2.0
// sac_resolve and sac_prefetch: plan a step; sac_resolve copies the rows that are missing and
// says where all are, sac_prefetch leaves them to sac_replay.
#ifndef SAC_HOTBUFFER_KERNELS_RESOLVE_CUH
#define SAC_HOTBUFFER_KERNELS_RESOLVE_CUH

#include "early.cuh"

// The row of a request that is not served.
__device__ __forceinline__ void refuse_row(const HotArgs &a, const Lane &lane, bool with_out) {
    if (blockIdx.x != 0)
        return;
    if (threadIdx.x == 0)
        lane.refuse(a);
    if (!with_out)
        return;
    Vec<NK, i32> none;
#pragma unroll
    for (u32 j = 0; j < NK; ++j)
        none.v[j] = -1;
    Entries::write(a, lane, none);
}

// All rows of the request lie in the slots of their numbers: only numbers are looked at.
// `seen`: SP / 8 bytes of shared memory.
__device__ __forceinline__ void resolve_direct(const HotArgs &a, const Lane &lane,
                                               const Entries &entries, u8 *seen) {
    const i32 *slot_token = reinterpret_cast<const i32 *>(a.slot_token) + lane.lane * SP;
    u32 *bits = reinterpret_cast<u32 *>(seen);
    fill<SP / 8>(seen, 0);
    __syncthreads();
    Vec<NK, i32> where;
    u32 errors = entries.errors, hits = 0;
#pragma unroll
    for (u32 j = 0; j < NK; ++j) {
        const i32 unit = entries.unit[j];
        where.v[j] = -1;
        if (unit < 0)
            continue;
        if (slot_token[unit] != unit) {  // not loaded: on a dead page, or not written yet
            errors |= lane.pages[u32(unit) / PAGE_UNITS] == 0 ? HOT_E_PAGE : HOT_E_RANGE;
            continue;
        }
        where.v[j] = i32(lane.lane * SLOTS + unit);
        const u32 bit = 1u << (unit & 31);
        hits += (atomicOr(&bits[unit >> 5], bit) & bit) == 0;
    }
    Entries::write(a, lane, where);
    report(a, lane, errors);
    hits = __reduce_add_sync(~0u, hits);
    if (lane_id() == 0)
        count(a, HOT_HITS, hits);
}

template <Mode MODE> __device__ __forceinline__ void step(const HotArgs &a) {
    extern __shared__ __align__(16) u8 memory[];
    __shared__ u32 sums[5][32];
    __shared__ u32 last;
    __shared__ HotState state;
    wait_for_previous_kernel();
    Entries entries(a);
    const Lane lane(a);
    Step<MODE> step(a, lane, memory, sums, last, state);
    step.load_lane();
    step.numbers.clear();
    fill<KP * 2>(step.s.slot_of, ~0u);
    entries.check(lane);
    step.load_pages(entries.unit);
    step.share_state();
    const bool twice = __syncthreads_or(lane.twice);
    if (!lane.bound() || twice)
        return refuse_row(a, lane, MODE == RESOLVE);
    if (lane.direct()) {
        if (blockIdx.x != 0)
            return;
        if (HotPlan *plan = threadIdx.x == 0 ? lane.plan(a) : nullptr)
            plan->count = 0;
        if (MODE == RESOLVE)
            resolve_direct(a, lane, entries, step.s.touched);
        return;
    }

    if (step.EARLY)
        step.choose_half();
    const Copier copier;
    const bool copies = MODE == RESOLVE && !(a.flags & HOT_PLAN_ONLY) && copier.copies();
    if constexpr (MODE == RESOLVE && FETCH_EARLY) {
        if (copies && gridDim.x > 1) {
            fetch_early(step, entries, copier);
            step.policy.advance(step.candidates, step.taken, step.s.victim);
            if (step.last != 0)
                step.write_state();
            return;
        }
    }
    step.plan(entries);
    if (copies)
        step.copy(copier, 0);
    if (step.writes_out()) {
        if (MODE == RESOLVE)
            step.write_out();
        step.write_plan();
        report(a, lane, step.errors);
    }
    if (step.writes_order())
        step.write_order();
    else
        step.policy.advance(step.candidates, step.taken, step.s.victim);
    if (last != 0)
        step.write_state();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sac_resolve(const __grid_constant__ HotArgs a) {
    step<RESOLVE>(a);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sac_prefetch(const __grid_constant__ HotArgs a) {
    step<PREFETCH>(a);
}

// What plans say is missing: of a prefetched layer, or of one that shares its leader's index,
// whose own rows these are. The blocks of the whole grid share the lanes.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sac_replay(const __grid_constant__ HotArgs a) {
    wait_for_previous_kernel();
    const u32 lanes = a.batch * a.heads, blocks = gridDim.x * gridDim.y * gridDim.z,
              block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const u32 each = blocks < lanes ? 1 : blocks / lanes, teams = blocks / each;
    if (block >= teams * each)
        return;
    for (u32 l = block / each; l < lanes; l += teams) {
        const Lane lane(a, l / a.heads, l % a.heads);
        const HotPlan *plan = lane.plan(a);
        if (!lane.bound() || plan == nullptr)
            continue;
        const HotMove *moves = reinterpret_cast<const HotMove *>(plan + 1);
        const u32 moved = plan->count;
        copy_units(a.planes, lane.pages, l % a.heads, lane.lane, moved, block % each, each,
                   [&](u32 m, u32 &unit, u32 &slot) {
                       const HotMove move = moves[m];
                       unit = move.unit;
                       slot = move.slot;
                   });
        // The plan has counted its own layer's.
        if (block % each == 0 && threadIdx.x == 0 && a.flags & HOT_FOLLOWER)
            count(a, HOT_BYTES, u64(moved) * GROUP_BYTES);
    }
}

// Rows that the CPU gathered by a plan go from its staging memory to their slots.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sac_scatter(const __grid_constant__ HotScatter a) {
    wait_for_previous_kernel();
    const Lane lane(a.hot);
    const HotPlan *plan = lane.plan(a.hot);
    if (!lane.bound() || plan == nullptr)
        return;
    const u32 at =
        reinterpret_cast<const u32 *>(a.starts)[blockIdx.y * a.hot.heads + blockIdx.z];
    scatter_units(a, lane.lane, at, plan->count, reinterpret_cast<const HotMove *>(plan + 1));
}

#endif
