// SPDX-License-Identifier: Apache-2.0
// sac_put: rows from GPU memory into pages of the pool. Threads are told off by the words of
// the pages, not by rows: whatever a row's size, a warp writes one stretch of a page, in whole
// lines, as the bus likes it best. Reads from GPU memory may be as ragged as they are.
#include "put.h"

#include "access.cuh"

constexpr u32 WORDS = SAC_PUT_BYTES / SAC_PUT_ACCESS;  // of a row
constexpr u32 EACH = 4;                                // words of a thread on their way
static_assert(SAC_PUT_BYTES % SAC_PUT_ACCESS == 0, "");

struct PutSpot {
    const u8 *from;
    u8 *to;  // null: nothing to write
};

__device__ __forceinline__ PutSpot put_spot(const PutArgs &a, const PutLayer &layer, u64 word) {
    const u32 row = u32(word / WORDS), at = u32(word % WORDS);
    const long long *const slots = reinterpret_cast<const long long *>(a.slots);
    const long long slot = slots ? slots[row] : (long long)(row);
    if (u64(slot) >= a.source_rows) {
        *reinterpret_cast<volatile u32 *>(a.wrong) = 1;
        return {nullptr, nullptr};
    }
    const u32 page_row = a.first + row, page = page_row / a.page_rows;
    const u64 body = reinterpret_cast<const u64 *>(a.pages)[page];
    if (body == 0)
        return {nullptr, nullptr};
    const long long head = blockIdx.z;
    long long block = slot, in = 0;
    if (a.block_rows != 1) {
        block = slot / a.block_rows;
        in = slot - block * a.block_rows;
    }
    const u64 from = layer.source + block * a.block_stride + in * a.row_stride +
                     head * a.head_stride + at * u64{SAC_PUT_ACCESS};
    const u64 to = body + layer.offset + head * a.page_head +
                   u64{page_row - page * a.page_rows} * a.page_row_pitch +
                   at * u64{SAC_PUT_ACCESS};
    return {reinterpret_cast<const u8 *>(from), reinterpret_cast<u8 *>(to)};
}

// Four blocks a processor keep the bus busy; for eight, ptxas would spill (rows of 8 bytes,
// sm_90).
extern "C" __global__ void __launch_bounds__(256, 4)
    sac_put(const __grid_constant__ PutArgs a) {
    const PutLayer layer = reinterpret_cast<const PutLayer *>(a.layers)[blockIdx.y];
    const u64 words = u64{a.rows} * WORDS;
    const u64 stretch = u64{blockDim.x} * EACH;
    for (u64 base = blockIdx.x * stretch; base < words; base += gridDim.x * stretch) {
        PutSpot spots[EACH];
        Word<SAC_PUT_ACCESS> values[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; ++i) {
            const u64 word = base + i * u64{blockDim.x} + threadIdx.x;
            spots[i] = word < words ? put_spot(a, layer, word) : PutSpot{nullptr, nullptr};
            if (spots[i].to)
                values[i].load(spots[i].from);
        }
#pragma unroll
        for (u32 i = 0; i < EACH; ++i)
            if (spots[i].to)
                values[i].store(spots[i].to);
    }
}
