// SPDX-License-Identifier: Apache-2.0
// sac_gather: units of one plane, straight from the pool's mapping into a tensor. Compiled with
// the macros of plane 0, SAC_PAGE_UNITS, SAC_BLOCK and SAC_THREADS.
#include "args.h"

#include "access.cuh"

typedef int i32;
typedef long long i64;

constexpr u32 PIECE = 2048;
constexpr u32 BYTES = SAC_UNIT_BYTES_0, ACCESS = SAC_ACCESS_0;
constexpr u32 PIECES = (BYTES + PIECE - 1) / PIECE, LONGEST = PIECES > 1 ? PIECE : BYTES;
constexpr u32 LANES = LONGEST / ACCESS > 16 ? 32 : LONGEST / ACCESS > 8 ? 16 : 8;

struct Request {
    const u64 *pages;
    u32 units;
    u32 number;  // in the table; its size for a number that is not in it
};
__device__ __forceinline__ Request request_of_row(const HotGather &a) {
    const u32 *requests = reinterpret_cast<const u32 *>(a.requests);
    const u32 number = requests == nullptr ? blockIdx.y : requests[blockIdx.y];
    if (number >= a.table_size)
        return Request{nullptr, 0, a.table_size};
    const HotRequest &entry = reinterpret_cast<const HotRequest *>(a.table)[number];
    if (!(entry.flags & HOT_BOUND))
        return Request{nullptr, 0, number};
    return Request{reinterpret_cast<const u64 *>(entry.pages), entry.units, number};
}

// Where a unit lies, or null after the reason was reported.
__device__ __forceinline__ const u8 *find(const HotGather &a, const Request &request,
                                          i32 unit) {
    if (unit == -1)
        return nullptr;
    u32 error = request.pages == nullptr     ? HOT_E_UNBOUND
                : u32(unit) >= request.units ? HOT_E_RANGE
                                             : 0;
    const u64 page = error != 0 ? 0 : request.pages[u32(unit) / SAC_PAGE_UNITS];
    if (error == 0 && page == 0)
        error = HOT_E_PAGE;
    if (error != 0) {
        atomicOr(reinterpret_cast<u32 *>(a.errors) + request.number, error);
        return nullptr;
    }
    return reinterpret_cast<const u8 *>(page + a.offset + blockIdx.z * a.head_stride +
                                        u64(u32(unit) % SAC_PAGE_UNITS) * SAC_POOL_PITCH_0);
}

extern "C" __global__ void __launch_bounds__(SAC_THREADS)
    sac_gather(const __grid_constant__ HotGather a) {
    constexpr u32 GROUPS = 32 / LANES;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, thread = lane % LANES;
    const Request request = request_of_row(a);
    const u64 row = (u64(blockIdx.y) * gridDim.z + blockIdx.z) * a.count;
    const u64 step = u64(SAC_THREADS / 32) * gridDim.x * GROUPS;
    for (u64 i = (u64(warp) * gridDim.x + blockIdx.x) * GROUPS + lane / LANES;
         i < u64(a.count) * PIECES; i += step) {
        const u64 entry = i / PIECES;
        const u32 at = u32(i % PIECES) * PIECE, n = smaller(LONGEST, BYTES - at);
        const i32 unit =
            a.units == 0 ? i32(entry) : reinterpret_cast<const i32 *>(a.units)[row + entry];
        u8 *to = reinterpret_cast<u8 *>(a.out + (row + entry) * a.out_pitch) + at;
        const u8 *from = find(a, request, unit);
        if (from != nullptr)
            copy_span<LONGEST, ACCESS, LANES>(from + at, to, n, thread);
        else
            zero_span<ACCESS, LANES>(to, n, thread);
    }
}
