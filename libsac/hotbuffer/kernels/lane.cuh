// SPDX-License-Identifier: Apache-2.0
// Which lane a block of threads works for, and whether the request may be served.
#ifndef SAC_HOTBUFFER_KERNELS_LANE_CUH
#define SAC_HOTBUFFER_KERNELS_LANE_CUH

#include "common.cuh"

// Of the request that a row of the batch names, and a head.
struct Lane {
    u32 request;
    u32 flags;
    u32 units;
    u64 lane;
    const u64 *pages;
    bool known;  // the number lies in the table; otherwise the fields above are request 0's
    bool twice;  // seen by this thread: an earlier row of the batch names it, too

    __device__ __forceinline__ explicit Lane(const HotArgs &a)
        : Lane(a, blockIdx.y, blockIdx.z) {}
    __device__ __forceinline__ Lane(const HotArgs &a, u32 b, u32 head) {
        const u32 *requests = reinterpret_cast<const u32 *>(a.requests);
        const u32 number = requests[b];
        known = number < a.table_size;
        request = known ? number : 0;
        const uint4 entry = reinterpret_cast<const uint4 *>(a.table)[u64(request) * 2];
        pages = reinterpret_cast<const u64 *>(u64(entry.y) << 32 | entry.x);
        units = entry.z < SAC_UNITS_MAX ? entry.z : SAC_UNITS_MAX;
        flags = entry.w;
        lane = u64(request) * a.heads + head;
        twice = false;
        for (u32 i = threadIdx.x; i < b; i += THREADS)
            twice |= requests[i] == number;
    }
    __device__ __forceinline__ bool bound() const { return known && flags & HOT_BOUND; }
    // All rows have the slots of their numbers.
    __device__ __forceinline__ bool direct() const {
        return flags & HOT_DIRECT && units <= SLOTS;
    }
    // Where this lane's selection begins, and the positions of its outcome.
    __device__ static __forceinline__ u64 row(const HotArgs &a) {
        return (u64(blockIdx.y) * a.heads + blockIdx.z) * a.top_k;
    }
    __device__ __forceinline__ u32 *errors(const HotArgs &a) const {
        return reinterpret_cast<u32 *>(a.errors) + (known ? request : a.table_size);
    }
    __device__ __forceinline__ HotPlan *plan(const HotArgs &a) const {
        return a.plan == 0 ? nullptr
                           : reinterpret_cast<HotPlan *>(
                                 a.plan + lane * hot_plan_bytes(SAC_TOP_K, THREADS));
    }
    // Says in the errors why a request is not served; one thread of the lane's first block.
    __device__ __forceinline__ void refuse(const HotArgs &a) const {
        atomicOr(errors(a), bound() ? HOT_E_TWICE : HOT_E_UNBOUND);
        if (known && !bound())
            if (HotPlan *p = plan(a))
                p->count = 0;
    }
};

// A block's number among the blocks of its lane that copy. Two blocks write where there are
// others, and one that is alone does all.
struct Copier {
    u32 number, all;

    __device__ __forceinline__ Copier() {
        const u32 writers = gridDim.x < 3 ? gridDim.x - 1 : 2;
        number = blockIdx.x - writers;
        all = gridDim.x - writers;
    }
    __device__ __forceinline__ bool copies() const { return number < all; }
};

__device__ __forceinline__ void count(const HotArgs &a, HotCounter which, u64 n) {
    if (n != 0)
        atomicAdd(reinterpret_cast<u64 *>(a.counters) + which, n);
}
// Per-thread error bits of a lane.
__device__ __forceinline__ void report(const HotArgs &a, const Lane &lane, u32 errors) {
    if (errors != 0)
        atomicOr(lane.errors(a), errors);
}

// This thread's entries of a selection: -1 where there is none, or where it is none of the
// request's units (an error).
struct Entries {
    i32 unit[NK];
    u32 errors;

    // Rows whose length and address allow it are moved NK entries at a time.
    __device__ static __forceinline__ bool wide(const HotArgs &a, u64 address) {
        return a.top_k % NK == 0 && address % alignof(Vec<NK, i32>) == 0;
    }
    // Only loads: nothing waits for the entries before check().
    __device__ __forceinline__ explicit Entries(const HotArgs &a) : errors(0) {
        const i32 *row = reinterpret_cast<const i32 *>(a.selection) + Lane::row(a);
        const u32 first = threadIdx.x * NK;
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            unit[j] = -1;
        if (wide(a, a.selection)) {
            if (first < a.top_k) {
                const Vec<NK, i32> all = load<NK>(row, threadIdx.x);
#pragma unroll
                for (u32 j = 0; j < NK; ++j)
                    unit[j] = all.v[j];
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < NK; ++j)
                if (first + j < a.top_k)
                    unit[j] = row[first + j];
        }
    }
    __device__ __forceinline__ void check(const Lane &lane) {
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            if (u32(unit[j]) >= lane.units) {
                if (unit[j] != -1)
                    errors = HOT_E_RANGE;
                unit[j] = -1;
            }
    }
    // Writes where the entries' rows are.
    __device__ static __forceinline__ void write(const HotArgs &a, const Lane &lane,
                                                 const Vec<NK, i32> &where) {
        i32 *row = reinterpret_cast<i32 *>(a.out) + lane.row(a);
        const u32 first = threadIdx.x * NK;
        if (wide(a, a.out)) {
            if (first < a.top_k)
                store<NK>(row, threadIdx.x, where);
        } else {
#pragma unroll
            for (u32 j = 0; j < NK; ++j)
                if (first + j < a.top_k)
                    row[first + j] = where.v[j];
        }
    }
};

#endif
