// SPDX-License-Identifier: Apache-2.0
// sac_put, row by row.
#include "put.h"

#include <cstring>

#include "kernel.hpp"

// Row i of each layer and head, as put.h says where it comes from and goes to.
FAKE_KERNEL(sac_put, PutArgs) {
    const auto bytes = static_cast<std::uint64_t>(build.number("SAC_PUT_BYTES"));
    const auto access = static_cast<std::uint64_t>(build.number("SAC_PUT_ACCESS"));
    const auto aligned = [&](std::uint64_t address) {
        if (address % access != 0)
            throw fake::IllegalAddress();
        return address;
    };
    for (unsigned l = 0; l < grid.y; ++l)
        for (unsigned h = 0; h < grid.z; ++h)
            for (std::uint32_t i = 0; i < args.rows; ++i) {
                const PutLayer layer = fake::at<PutLayer>(args.layers)[l];
                const std::int64_t slot =
                    args.slots ? fake::at<std::int64_t>(args.slots)[i] : std::int64_t{i};
                if (slot < 0 || static_cast<std::uint64_t>(slot) >= args.source_rows) {
                    const std::uint32_t one = 1;
                    std::memcpy(fake::pool(args.wrong, 4, true), &one, 4);
                    continue;
                }
                const std::uint64_t row = std::uint64_t{args.first} + i;
                const std::uint64_t body =
                    fake::at<std::uint64_t>(args.pages)[row / args.page_rows];
                if (body == 0)
                    continue;
                const std::int64_t block = slot / args.block_rows, in = slot % args.block_rows;
                const std::uint64_t from =
                    layer.source + static_cast<std::uint64_t>(
                                       block * args.block_stride + in * args.row_stride +
                                       std::int64_t{h} * args.head_stride);
                const std::uint64_t to = body + layer.offset + h * args.page_head +
                                         row % args.page_rows * args.page_row_pitch;
                std::memcpy(fake::pool(aligned(to), bytes, true),
                            fake::at<std::uint8_t>(aligned(from)), bytes);
            }
}
