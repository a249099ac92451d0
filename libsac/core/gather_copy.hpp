// SPDX-License-Identifier: Apache-2.0
// The copying of a gather whose requests were checked and resolved.
#pragma once

#include <cstdint>
#include <span>

#include "sac.h"

namespace sac {

// A request resolved: where its rows lie.
struct GatherJob {
    const sac_gather_req *req;
    std::uint8_t *const *pages;
    std::uint64_t offset;  // of the plane, layer and head in a page's part
    std::uint64_t pitch, row_bytes, dst_pitch;
    std::uint64_t rows_per_page, limit;
    std::uint64_t first;  // number of its first row among all rows of the call
    int shift;            // log2 of rows_per_page, or -1

    const std::uint8_t *source(std::int64_t row) const noexcept {
        if (row < 0)
            return nullptr;
        const auto r = static_cast<std::uint64_t>(row);
        const std::uint64_t page = shift >= 0 ? r >> shift : r / rows_per_page;
        return pages[page] + offset + (r - page * rows_per_page) * pitch;
    }
    std::int64_t row(std::uint64_t i) const noexcept {
        if (!req->index)
            return static_cast<std::int64_t>(i);
        return req->index_bytes == 4 ? static_cast<const std::int32_t *>(req->index)[i]
                                     : static_cast<const std::int64_t *>(req->index)[i];
    }
};

// Copies rows [from, to) of the call.
void copy_range(std::span<const GatherJob> jobs, std::uint64_t from, std::uint64_t to,
                bool stream);

// Copies the rows of all jobs, so many in all.
void copy_jobs(std::span<const GatherJob> jobs, std::uint64_t rows, unsigned threads,
               bool stream);

}  // namespace sac
