// SPDX-License-Identifier: Apache-2.0
// What the host hands to the kernels: compiled by the host's compiler and by NVRTC.
//
// A unit is what a selection names and a slot holds: SAC_BLOCK rows of every plane, one span
// of memory in the pool and one in the slot. A lane is one (request, head); its number is
// request * heads + head. Every array that is "of a lane" belongs to one group and layer.
//
// Macros that every module is compiled with (N: 0 .. SAC_PLANES - 1):
//   SAC_SLOTS          slots of a lane, 1 .. HOT_SLOTS_MAX
//   SAC_TOP_K          most entries of a selection, at most SAC_SLOTS
//   SAC_UNITS_MAX      units that a request may have at most
//   SAC_THREADS        threads of a block: hot_threads()
//   SAC_POLICY         HOT_LRU ...
//   SAC_BLOCK          rows of a unit
//   SAC_PAGE_UNITS     units of a page
//   SAC_EARLY          1 where sac_resolve has hot_early_bytes() more of shared memory, or 0
//   SAC_PLANES         planes of the group, 1 .. SAC_GROUP_PLANES
//   SAC_ROW_BYTES_N    bytes of a row without its padding
//   SAC_UNIT_BYTES_N   bytes copied of a unit: (SAC_BLOCK - 1) * row pitch + row bytes, or more
//                      where the padding behind the last row makes a better access size
//   SAC_POOL_PITCH_N   bytes from unit to unit in the pool: SAC_BLOCK * row pitch
//   SAC_SLOT_PITCH_N   bytes from slot to slot, at least SAC_UNIT_BYTES_N
//   SAC_ACCESS_N       16, 8, 4, 2 or 1: divides all of the above but the row bytes, the
//                      offsets and head strides of all layers, and the addresses of rows
#ifndef SAC_HOTBUFFER_KERNELS_ARGS_H
#define SAC_HOTBUFFER_KERNELS_ARGS_H

#ifdef __CUDACC_RTC__
typedef int sac_i32;
typedef unsigned int sac_u32;
typedef long long sac_i64;
typedef unsigned long long sac_u64;
#else
#include <cstdint>
using sac_i32 = std::int32_t;
using sac_u32 = std::uint32_t;
using sac_i64 = std::int64_t;
using sac_u64 = std::uint64_t;
#endif

// Of functions that both sides call.
#ifdef __CUDACC_RTC__
#define SAC_BOTH __host__ __device__ constexpr
#else
#define SAC_BOTH constexpr
#endif

#define SAC_GROUP_PLANES 4

// Each thread keeps its slots in registers.
enum : sac_u32 { HOT_SLOTS_MAX = 8192 };

enum HotPolicy : sac_u32 { HOT_LRU, HOT_FIFO, HOT_RANDOM, HOT_CLOCK, HOT_LRU_SCORE };

// Bits of HotRequest.flags. Direct: each unit has the slot of its number. A request that gets
// more units than there are slots must lose that bit, in the same write, and not have it again
// before its lanes are reset: units have other slots from then on, also where it is truncated.
enum HotRequestFlags : sac_u32 { HOT_BOUND = 1, HOT_DIRECT = 2 };

// Bits of HotArgs.flags.
enum HotFlags : sac_u32 {
    HOT_PLAN_ONLY = 1,  // resolve: copy nothing; sac_scatter brings the rows
    // append, load: slot_token is the leader's, which knows its units already; replay: the plan
    // is the leader's, which has counted its own rows only
    HOT_FOLLOWER = 2
};

// Bits of errors[request]; the last word takes what no request can be blamed for.
enum HotError : sac_u32 {
    // A unit below -1, at or past the request's end, or, direct, one that has no rows yet; a
    // new
    // row at or past the end, or below HotRequest.open.
    HOT_E_RANGE = 1,
    HOT_E_UNBOUND = 2,  // a request that is not bound; in the last word: a number out of range
    HOT_E_PAGE = 4,     // a unit on a quarantined page
    HOT_E_TWICE = 8     // a request named twice in one call: only the first one counts
};

// Positions in counters.
enum HotCounter : sac_u32 {
    HOT_HITS,        // distinct units found
    HOT_MISSES,      // distinct units fetched by resolve
    HOT_BYTES,       // read from the pool by resolve, prefetch, replay and load
    HOT_EVICTIONS,   // units that gave their slot to another
    HOT_KEPT,        // units held now, in all lanes and layers
    HOT_PREFETCHED,  // units fetched by prefetch
    HOT_APPENDED,    // rows written by append (a plane, head and token each)
    HOT_COUNTERS = 8
};

struct HotPlane {
    sac_u64 rows;         // device address of this layer's slots: [lane][slot] of slot pitch
    sac_u64 offset;       // of the layer's rows (head 0) in a page
    sac_u64 head_stride;  // in a page, from head to head; 0: one head for all lanes
};

struct alignas(16) HotRequest {
    sac_u64 pages;  // device address of u64[]: page bodies as the GPU sees them; 0: dead
    sac_u32 units;  // that can be selected: all that have rows
    sac_u32 flags;  // HotRequestFlags
    sac_u64 rows;   // that the request has, appended ones included
    sac_u64 open;   // first row that append may write: what lies below is others', too
};

// One a lane. `turn`: bit 16 says which half of order is valid; below it, blocks of the
// running launch that have read the state. `counter`: HOT_RANDOM steps, HOT_CLOCK the hand.
struct alignas(16) HotState {
    sac_u32 turn;
    sac_u32 counter;
    sac_u32 spare[2];
};

// What a resolve fetched: a lane's plan is this and `count` pairs behind it.
struct alignas(16) HotPlan {
    sac_u32 count;
    sac_u32 spare[3];
};
struct HotMove {
    sac_i32 unit;
    sac_u32 slot;
};

// sac_resolve, sac_prefetch: grid (blocks, batch, heads). sac_replay: any grid, whose blocks
// share the lanes. What table and pages say must not change while a kernel that was given them
// runs.
struct HotArgs {
    sac_u64 selection;   // i32[batch][heads][top_k] unit numbers, -1: none
    sac_u64 scores;      // f32[batch][heads][top_k]; HOT_LRU_SCORE only
    sac_u64 requests;    // i32[batch]
    sac_u64 out;         // i32[batch][heads][top_k] lane * SAC_SLOTS + slot, or -1
    sac_u64 slot_token;  // i32[lanes][hot_slots_pitch()], -1: free
    sac_u64 order;       // u16[lanes][2][hot_slots_pitch()]
    sac_u64 state;       // HotState[lanes]
    sac_u64 plan;        // [lanes] of hot_plan_bytes(), or 0: none is kept
    sac_u64 table;       // HotRequest[table_size]
    sac_u64 counters;    // u64[HOT_COUNTERS]
    sac_u64 errors;      // u32[table_size + 1]
    HotPlane planes[SAC_GROUP_PLANES];
    sac_u32 batch;
    sac_u32 table_size;  // requests that can be bound
    sac_u32 heads;
    sac_u32 top_k;  // entries of a selection now, at most SAC_TOP_K
    sac_u32 flags;  // HotFlags
    sac_u32 spare;
};

// Rows of new tokens in GPU memory: of plane, request b, token i, head h at
// rows + b * request_stride + i * token_stride + h * head_stride, all multiples of the
// largest power of two up to 16 that divides SAC_ACCESS_N, row bytes and row pitch.
struct HotSource {
    sac_u64 rows;
    sac_i64 request_stride;
    sac_i64 token_stride;
    sac_i64 head_stride;
};

// sac_append: grid (1, batch, heads). The requests' units and rows count the new ones already.
struct HotAppend {
    HotArgs hot;    // without selection, scores, out and plan
    sac_u64 first;  // i32[batch]: number of the first new row, -1: none; or 0: the last ones
    HotSource sources[SAC_GROUP_PLANES];
    sac_u32 count;  // rows a request, 1 .. HOT_APPEND_MAX
    sac_u32 spare;
};
enum : sac_u32 { HOT_APPEND_MAX = 16 };

// sac_load: grid (blocks, batch, heads). Brings units first .. end - 1 of direct requests to
// the slots of their numbers; ends at the request's units and the lane's slots.
struct HotLoad {
    HotArgs hot;  // without selection, scores, out, order, state and plan
    sac_u32 first;
    sac_u32 end;
};

// sac_reset: grid (layers, lanes to reset).
enum HotResetMode : sac_u32 {
    HOT_RESET_FREE,     // as new: all slots free
    HOT_RESET_TRUNCATE  // units from `units` on leave their slots; the order stays
};
struct HotReset {
    sac_u64 slot_token;  // of the first layer; layers follow one another, as do lanes
    sac_u64 order;
    sac_u64 state;
    sac_u64 plan;  // [layers][lanes] of hot_plan_bytes(), emptied by HOT_RESET_FREE; or 0
    sac_u64 counters;
    sac_u32 lanes;  // of a layer in these arrays
    sac_u32 first;  // lane to reset
    sac_u32 mode;   // HotResetMode
    sac_u32 units;
    sac_u32 is_new;  // 1: the arrays were never reset: what they hold means nothing
    sac_u32 spare;
};

// sac_scatter: grid (blocks, batch, heads). Rows that the CPU staged go to their slots. Row m
// of the lane's plan is unit number starts[b * heads + h] + m of staging[plane].
struct HotScatter {
    HotArgs hot;
    sac_u64 staging[SAC_GROUP_PLANES];  // as the GPU sees it; slot pitch from unit to unit
    sac_u64 starts;                     // u32[batch][heads]
};

// sac_gather: grid (blocks, batch, heads). Units of plane 0 into a tensor. -1: zeros; wrong
// numbers and dead pages: zeros and an error bit.
struct HotGather {
    sac_u64 units;     // i32[batch][heads][count], or 0: units 0 .. count - 1
    sac_u64 requests;  // i32[batch], or 0: 0 .. batch - 1
    sac_u64 table;
    sac_u64 errors;
    sac_u64 out;        // unit i of request b and head h at ((b * heads + h) * count + i)
    sac_u64 out_pitch;  // * out_pitch; both multiples of SAC_ACCESS_0
    sac_u64 offset;     // as in HotPlane
    sac_u64 head_stride;
    sac_u32 count;
    sac_u32 table_size;
};

SAC_BOTH sac_u32 hot_ceil(sac_u32 n, sac_u32 d) { return (n + d - 1) / d; }

// Threads of a block of the planning kernels. Each owns consecutive slots, at most 32.
SAC_BOTH sac_u32 hot_threads(sac_u32 slots, sac_u32 top_k) {
    const sac_u32 most = slots > top_k ? slots : top_k;
    sac_u32 threads = 128;
    while (threads < 1024 && threads * 4 < most)
        threads *= 2;
    return threads;
}
// Entries of a lane in slot_token, and in one half of order.
SAC_BOTH sac_u32 hot_slots_pitch(sac_u32 slots, sac_u32 threads) {
    return hot_ceil(slots, threads) * threads;
}
SAC_BOTH sac_u32 hot_top_k_pitch(sac_u32 top_k, sac_u32 threads) {
    return hot_ceil(top_k, threads) * threads;
}
// Bytes of a lane's plan.
SAC_BOTH sac_u32 hot_plan_bytes(sac_u32 top_k, sac_u32 threads) {
    return sac_u32(sizeof(HotPlan)) +
           hot_top_k_pitch(top_k, threads) * sac_u32(sizeof(HotMove));
}

// Up to this many words of 32 units a thread, a selection is numbered in one level; beyond
// it in two, whose cost does not grow with the context.
constexpr sac_u32 HOT_FLAT_WORDS = 4;
SAC_BOTH bool hot_flat(sac_u32 units_max, sac_u32 threads) {
    return units_max <= HOT_FLAT_WORDS * 32 * threads;
}
// Bytes of shared memory for numbering a selection.
SAC_BOTH sac_u32 hot_numbers_bytes(sac_u32 top_k, sac_u32 threads, sac_u32 units_max) {
    const sac_u32 k = hot_top_k_pitch(top_k, threads);
    return hot_flat(units_max, threads)
               ? 6 * threads * hot_ceil(units_max, 32 * threads)
               : 6 * threads * hot_ceil(units_max, 1024 * threads) + 6 * k;
}
// Bytes of dynamic shared memory of sac_prefetch, and, with top_k HOT_APPEND_MAX, of
// sac_append.
SAC_BOTH sac_u32 hot_shared_bytes(sac_u32 slots, sac_u32 top_k, sac_u32 threads,
                                  sac_u32 units_max, sac_u32 policy) {
    const sac_u32 k = hot_top_k_pitch(top_k, threads), s = hot_slots_pitch(slots, threads);
    sac_u32 keys = 1;
    while (keys < k)
        keys *= 2;
    return hot_numbers_bytes(top_k, threads, units_max) + 14 * k + s +
           (policy == HOT_RANDOM ? 2 * s : 0) + (policy == HOT_LRU_SCORE ? 8 * keys : 0);
}
// What sac_resolve has beyond that where SAC_EARLY is 1.
SAC_BOTH sac_u32 hot_early_bytes(sac_u32 top_k, sac_u32 threads, sac_u32 units_max) {
    return 6 * (hot_flat(units_max, threads) ? threads * hot_ceil(units_max, 32 * threads)
                                             : hot_top_k_pitch(top_k, threads));
}

#endif
