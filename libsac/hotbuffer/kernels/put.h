// SPDX-License-Identifier: Apache-2.0
// What the host hands to sac_put: compiled by the host's compiler and by NVRTC.
//
// Macros that the module is compiled with:
//   SAC_PUT_BYTES   bytes of a row
//   SAC_PUT_ACCESS  16, 8, 4, 2 or 1: divides SAC_PUT_BYTES and every address, offset and
//                   stride below
#ifndef SAC_HOTBUFFER_KERNELS_PUT_H
#define SAC_HOTBUFFER_KERNELS_PUT_H

#include "args.h"

struct PutLayer {
    sac_u64 source;  // of slot 0 and head 0 in GPU memory
    sac_u64 offset;  // of the layer's row 0 and head 0 in a page
};

// sac_put: grid (blocks, layers, heads). Rows of one plane go from tensors into pages. Row i of
// a layer and head lies at source + (s / block_rows) * block_stride
// + (s % block_rows) * row_stride + head * head_stride, with s = slots[i], or i where slots is
// 0, and goes to row (first + i) % page_rows of page (first + i) / page_rows.
struct PutArgs {
    sac_u64 layers;  // PutLayer[gridDim.y]
    sac_u64 slots;   // i64[rows] or 0
    sac_u64 pages;   // u64[]: parts of pages as the GPU sees them; 0: not written
    sac_u64 wrong;   // u32: becomes 1 where a slot is below 0 or no less than source_rows;
                     // such a row is not written
    sac_u64 source_rows;
    sac_i64 block_stride;
    sac_i64 row_stride;
    sac_i64 head_stride;
    sac_u64 page_head;       // in a page, from head to head
    sac_u32 page_rows;       // rows of a page
    sac_u32 page_row_pitch;  // from row to row
    sac_u32 block_rows;      // of a block of the source
    sac_u32 first;           // less than page_rows
    sac_u32 rows;            // to write; first + rows is less than 2^31
    sac_u32 spare;
};

#endif
