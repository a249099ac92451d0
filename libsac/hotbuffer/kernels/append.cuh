// SPDX-License-Identifier: Apache-2.0
// sac_append: rows of new tokens go to their pages and into the hot buffer.
//
// A unit that is there is written in place and keeps its position. One that is not takes a
// slot as the policy says, but joins as one that no resolve used; with blocks of several rows
// it does not (the rest of the block would have to be read) and the pool alone has it. Direct
// requests have the slot of its number. Nothing of a row on a dead page is written, nor of one
// below the request's first open row: other requests and processes read those.
#ifndef SAC_HOTBUFFER_KERNELS_APPEND_CUH
#define SAC_HOTBUFFER_KERNELS_APPEND_CUH

#include "lane.cuh"
#include "planes.cuh"
#include "policy.cuh"
#include "shared.cuh"

struct NewRows {
    i32 unit[HOT_APPEND_MAX];  // -1: none
    u32 row[HOT_APPEND_MAX];   // in the unit
    u64 page[HOT_APPEND_MAX];
    u16 slot[HOT_APPEND_MAX];  // NONE: none
    u32 missing;               // a bit an entry: units that want a slot

    // By the first warp: which rows there are, and that they may be written.
    __device__ __forceinline__ void read(const HotAppend &a, const Lane &lane) {
        const u32 i = threadIdx.x;
        if (i >= HOT_APPEND_MAX)
            return;
        const HotRequest &entry =
            reinterpret_cast<const HotRequest *>(a.hot.table)[lane.request];
        const u64 rows = entry.rows;
        const i64 first = a.first == 0
                              ? i64(rows) - i64(a.count)
                              : i64(reinterpret_cast<const i32 *>(a.first)[blockIdx.y]);
        const i64 number = first + i;
        unit[i] = -1;
        slot[i] = NONE;
        if (i >= a.count || (a.first == 0 ? number < 0 : first == -1))
            return;
        const u64 at = u64(number) / SAC_BLOCK;
        if (first < 0 && a.first != 0)
            return report(a.hot, lane, HOT_E_RANGE);
        if (u64(number) < entry.open || u64(number) >= rows || at >= lane.units)
            return report(a.hot, lane, HOT_E_RANGE);
        page[i] = lane.pages[at / PAGE_UNITS];
        if (page[i] == 0)
            return report(a.hot, lane, HOT_E_PAGE);
        unit[i] = i32(at);
        row[i] = u32(u64(number) % SAC_BLOCK);
    }
    __device__ __forceinline__ bool begins(u32 i) const { return unit[i] >= 0 && row[i] == 0; }
    // Rows to write, by any warp.
    __device__ __forceinline__ u32 count() const {
        const u32 i = lane_id();
        return __popc(__ballot_sync(~0u, i < HOT_APPEND_MAX && unit[i % HOT_APPEND_MAX] >= 0));
    }
};

// Direct: a unit has the slot of its number, once it was begun or loaded there.
__device__ __forceinline__ void place_direct(const HotAppend &a, const Lane &lane,
                                             NewRows &rows) {
    i32 *slot_token = reinterpret_cast<i32 *>(a.hot.slot_token) + lane.lane * SP;
    const u32 i = threadIdx.x;
    if (i < HOT_APPEND_MAX && rows.unit[i] >= 0) {
        const i32 unit = rows.unit[i];
        // Rows of a unit follow one another: it was begun by the entry `row` before this one,
        // which may be written if this one may: they share a page.
        const bool begun = rows.row[i] <= i;
        if (begun || slot_token[unit] == unit)
            rows.slot[i] = u16(unit);
        if (rows.begins(i) && !(a.hot.flags & HOT_FOLLOWER)) {
            if (slot_token[unit] < 0)
                count(a.hot, HOT_KEPT, 1);
            slot_token[unit] = unit;
        }
    }
    __syncthreads();
    if constexpr (SAC_BLOCK > 1) {
        for (u32 k = warp_id(); k < HOT_APPEND_MAX; k += WARPS)
            if (rows.begins(k))
                zero_unit<0>(a, lane.lane, rows.slot[k]);
        __syncthreads();
    }
}

// Units that are there; returns what this thread's slots hold.
__device__ __forceinline__ Vec<NS, i32> find(const HotAppend &a, const Lane &lane,
                                             NewRows &rows, u8 *touched) {
    const Vec<NS, i32> held =
        load<NS>(reinterpret_cast<const i32 *>(a.hot.slot_token) + lane.lane * SP, threadIdx.x);
    Vec<NS, u8> hit;
#pragma unroll
    for (u32 j = 0; j < NS; ++j)
        hit.v[j] = 0;
    for (u32 i = 0; i < a.count; ++i)
#pragma unroll
        for (u32 j = 0; j < NS; ++j)
            if (held.v[j] >= 0 && held.v[j] == rows.unit[i]) {
                rows.slot[i] = u16(threadIdx.x * NS + j);
                hit.v[j] = HIT;
            }
    store<NS>(touched, threadIdx.x, hit);
    return held;
}

// Slots for the units that are missing.
__device__ __forceinline__ void insert(const HotAppend &a, const Lane &lane, NewRows &rows,
                                       const Shared<THREADS> &s, const Vec<NS, i32> &held) {
    __shared__ u32 sums[4][32];
    i32 *slot_token = reinterpret_cast<i32 *>(a.hot.slot_token) + lane.lane * SP;
    HotState *state = reinterpret_cast<HotState *>(a.hot.state) + lane.lane;
    u16 *order = reinterpret_cast<u16 *>(a.hot.order) + lane.lane * 2 * SP;
    const HotState old = load_state(state);
    const u32 half = old.turn >> 16;
    u16 *next = order + (1 - half) * SP;
    Policy<APPEND> policy;
    policy.words = load<NS>(order + half * SP, threadIdx.x);
    policy.counter = old.counter;
    const u32 waiting = policy.weigh(s.touched, sums[1]);
    Scan scan;
    scan.begin(waiting, sums[0]);
    __syncthreads();
    u32 candidates;
    const u32 before = scan.end(sums[0], candidates);
    const u32 taken = smaller(policy.room(candidates, sums[1]), __popc(rows.missing));
    policy.choose(before, candidates, taken, s.victim, next, s.list, s.touched);
    __syncthreads();

    policy.advance(candidates, taken, s.victim);
    const u32 i = threadIdx.x, rank = __popc(rows.missing & below(i & 31));
    if (i < 32 && rows.missing >> i & 1 && rank < taken) {
        const u32 slot = s.victim[rank];
        rows.slot[i] = u16(slot);
        s.touched[slot] |= TAKEN;
        slot_token[slot] = rows.unit[i];
    }
    __syncthreads();
    const Vec<NS, u8> touched = load<NS>(s.touched, threadIdx.x);
    u32 to_end = 0, evicted = 0;
#pragma unroll
    for (u32 j = 0; j < NS; ++j) {
        to_end += (touched.v[j] & policy.to_end()) != 0;
        evicted += touched.v[j] & TAKEN && held.v[j] >= 0;
    }
    scan.begin(to_end | evicted << 16, sums[2]);
    __syncthreads();
    u32 total;
    const u32 at = scan.end(sums[2], total) & 0xffff;
    policy.finish(touched, at, total & 0xffff, next);
    if (threadIdx.x != 0)
        return;
    state->counter = policy.counter;
    state->turn = (1 - half) << 16;
    count(a.hot, HOT_EVICTIONS, total >> 16);
    count(a.hot, HOT_KEPT, taken - (total >> 16));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sac_append(const __grid_constant__ HotAppend a) {
    extern __shared__ __align__(16) u8 append_memory[];
    __shared__ NewRows rows;
    const Shared<THREADS> s(append_memory, 0);
    wait_for_previous_kernel();
    const Lane lane(a.hot);
    const bool twice = __syncthreads_or(lane.twice);
    if (!lane.bound() || twice) {
        if (threadIdx.x == 0)
            lane.refuse(a.hot);
        return;
    }
    rows.read(a, lane);
    __syncthreads();
    if (lane.direct()) {
        place_direct(a, lane, rows);
    } else {
        const Vec<NS, i32> held = find(a, lane, rows, s.touched);
        __syncthreads();
        if (warp_id() == 0) {
            const u32 i = lane_id();
            const bool wants =
                i < HOT_APPEND_MAX && SAC_BLOCK == 1 && !(a.hot.flags & HOT_FOLLOWER) &&
                rows.unit[i % HOT_APPEND_MAX] >= 0 && rows.slot[i % HOT_APPEND_MAX] == NONE;
            const u32 missing = __ballot_sync(~0u, wants);
            if (i == 0)
                rows.missing = missing;
        }
        __syncthreads();
        if (rows.missing != 0)
            insert(a, lane, rows, s, held);
        __syncthreads();
    }
    for (u32 i = warp_id(); i < a.count * SAC_PLANES; i += WARPS) {
        const u32 entry = i / SAC_PLANES;
        if (rows.unit[entry] >= 0)
            write_row_of<0>(i % SAC_PLANES, a, rows.page[entry], lane.lane, entry,
                            rows.unit[entry], rows.row[entry], rows.slot[entry]);
    }
    const u32 written = rows.count();
    if (threadIdx.x == 0)
        count(a.hot, HOT_APPENDED, u64(written) * SAC_PLANES);
}

#endif
