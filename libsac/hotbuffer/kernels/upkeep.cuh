// SPDX-License-Identifier: Apache-2.0
// sac_reset and sac_load: a lane as new, and short contexts brought in whole.
#ifndef SAC_HOTBUFFER_KERNELS_UPKEEP_CUH
#define SAC_HOTBUFFER_KERNELS_UPKEEP_CUH

#include "lane.cuh"
#include "planes.cuh"
#include "policy.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sac_reset(const __grid_constant__ HotReset a) {
    __shared__ u32 freed;
    const u64 lane = u64(blockIdx.x) * a.lanes + a.first + blockIdx.y;
    i32 *slot_token = reinterpret_cast<i32 *>(a.slot_token) + lane * SP;
    u16 *order = reinterpret_cast<u16 *>(a.order) + lane * 2 * SP;
    const bool all = a.mode == HOT_RESET_FREE;
    if (threadIdx.x == 0)
        freed = 0;
    __syncthreads();
    u32 mine = 0;
    for (u32 i = threadIdx.x; i < SP; i += THREADS) {
        const i32 unit = a.is_new ? -1 : slot_token[i];
        if (unit >= 0 && (all || u32(unit) >= a.units))
            ++mine;
        if (all || (unit >= 0 && u32(unit) >= a.units))
            slot_token[i] = -1;
        if (all)
            order[i] = order[SP + i] = LISTED ? u16(i) : u16(0);
    }
    if (mine != 0)
        atomicAdd(&freed, mine);
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (all) {
        reinterpret_cast<HotState *>(a.state)[lane] = HotState{0, 0, {0, 0}};
        // A replay must not go by what another request's step planned.
        if (a.plan != 0)
            reinterpret_cast<HotPlan *>(a.plan + lane * hot_plan_bytes(SAC_TOP_K, THREADS))
                ->count = 0;
    }
    if (freed != 0)
        atomicAdd(reinterpret_cast<u64 *>(a.counters) + HOT_KEPT, ~u64(freed) + 1);
}

// Units of direct requests go to the slots of their numbers; what is on a dead page stays out,
// and a resolve says so.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sac_load(const __grid_constant__ HotLoad a) {
    const Lane lane(a.hot);
    if (!lane.bound()) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            lane.refuse(a.hot);
        return;
    }
    const u32 end = smaller(smaller(lane.units, SLOTS), a.end);
    if (!lane.direct() || a.first >= end)
        return;
    copy_units(a.hot.planes, lane.pages, blockIdx.z, lane.lane, end - a.first, blockIdx.x,
               gridDim.x, [&](u32 m, u32 &unit, u32 &slot) { unit = slot = a.first + m; });
    if (blockIdx.x != 0)
        return;
    i32 *slot_token = reinterpret_cast<i32 *>(a.hot.slot_token) + lane.lane * SP;
    const bool follower = a.hot.flags & HOT_FOLLOWER;
    u32 loaded = 0, kept = 0;
    for (u32 unit = a.first + threadIdx.x; unit < end; unit += THREADS) {
        if (lane.pages[unit / PAGE_UNITS] == 0)
            continue;
        ++loaded;
        if (follower)
            continue;
        kept += slot_token[unit] < 0;
        slot_token[unit] = i32(unit);
    }
    loaded = __reduce_add_sync(~0u, loaded);
    kept = __reduce_add_sync(~0u, kept);
    if (lane_id() != 0)
        return;
    count(a.hot, HOT_BYTES, u64(loaded) * GROUP_BYTES);
    count(a.hot, HOT_KEPT, kept);
}

#endif
