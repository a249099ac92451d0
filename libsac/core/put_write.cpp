// SPDX-License-Identifier: Apache-2.0
// Rows of a put on their way into its pages.
#include <cinttypes>
#include <cstring>

#include "copy.hpp"
#include "error.hpp"
#include "put.hpp"
#include "stop.hpp"
#include "threads.hpp"

namespace sac {
namespace {

// One page's rows of a plane and layer.
void write_page(std::uint8_t *to, const std::uint8_t *from, const sac_plane &plane,
                const PlaneGeometry &at, const sac_scatter_req &req) {
    const std::uint64_t row_stride = req.row_stride ? req.row_stride : plane.row_bytes;
    const bool rows_dense = row_stride == plane.row_bytes && plane.row_pitch == plane.row_bytes;
    if (rows_dense && (plane.heads == 1 || req.head_stride == at.head_stride)) {
        copy_bytes(to, from, at.layer_stride, true);
        return;
    }
    for (std::uint32_t h = 0; h < plane.heads; ++h) {
        std::uint8_t *const head = to + h * at.head_stride;
        const std::uint8_t *const src = from + h * req.head_stride;
        if (rows_dense) {
            copy_bytes(head, src, at.head_stride, true);
            continue;
        }
        for (std::uint32_t r = 0; r < at.rows; ++r)
            std::memcpy(head + std::uint64_t{r} * plane.row_pitch, src + r * row_stride,
                        plane.row_bytes);
    }
}

}  // namespace

void Put::write(std::span<const sac_scatter_req> reqs, std::uint32_t threads) {
    const auto held = lock_open();
    ns_->check_known(*view_);
    const Geometry &g = ns_->geometry();
    for (const sac_scatter_req &r : reqs) {
        (void)g.offset(r.plane, r.layer);
        const sac_plane &plane = g.planes[r.plane];
        const std::uint64_t have = pages_[g.at[r.plane].part].size();
        if (r.first > have || r.count > have - r.first)
            throw Error(SAC_E_RANGE, plane.name,
                        format("put: pages %" PRIu64 " to %" PRIu64
                               " of plane '%s' were given, %" PRIu64 " are missing",
                               r.first, r.first + r.count, plane.name, have));
        if (r.count != 0 && !r.src)
            throw Error(SAC_E_ARG, plane.name, "put: src is NULL");
        if (r.count > 1 && r.page_stride == 0)
            throw Error(SAC_E_ARG, plane.name,
                        "put: page_stride is 0: it must say where each page of src begins");
        if (r.row_stride != 0 && r.row_stride < plane.row_bytes)
            throw Error(SAC_E_ARG, plane.name,
                        format("put: rows of %u bytes, but row_stride is %" PRIu64,
                               plane.row_bytes, r.row_stride));
        if (plane.heads > 1 && r.count != 0 && r.head_stride == 0)
            throw Error(
                SAC_E_ARG, plane.name,
                format("put: plane '%s' has %u heads; head_stride must say where each begins",
                       plane.name, plane.heads));
    }
    std::vector<std::pair<const sac_scatter_req *, std::uint64_t>> tasks;  // page of a request
    std::uint64_t bytes = 0;
    for (const sac_scatter_req &r : reqs) {
        const sac_plane &plane = g.planes[r.plane];
        for (std::uint64_t i = 0; i < r.count; ++i)
            tasks.emplace_back(&r, i);
        bytes += r.count * g.at[r.plane].rows * plane.heads * plane.row_bytes;
    }
    const auto one = [&](std::size_t task) {
        const auto [r, i] = tasks[task];
        const PlaneGeometry &at = g.at[r->plane];
        const auto ordinal = static_cast<std::uint64_t>(at.ordinal[r->layer]);
        const Reservation &to = pages_[at.part][r->first + i].reservation;
        write_page(ns_->address(*view_, to.slot, at.part) + at.offset +
                       ordinal * at.layer_stride,
                   static_cast<const std::uint8_t *>(r->src) + i * r->page_stride,
                   g.planes[r->plane], at, *r);
        SAC_STOP("put.written");
    };
    const unsigned n = copy_threads(threads, bytes);
    if (n == 1)
        for (std::size_t i = 0; i < tasks.size(); ++i)
            one(i);
    else
        parallel_for(n, tasks.size(), one);
    for (const auto &[r, i] : tasks) {
        const std::uint32_t part = g.at[r->plane].part;
        written_[part][(r->first + i) * g.pairs[part] + g.pair(r->plane, r->layer)] = 1;
    }
    view_->pins().counters().bytes_written.fetch_add(bytes, std::memory_order_relaxed);
}

void Put::write_by(
    std::uint32_t plane, std::span<const std::uint32_t> layers, std::uint64_t first,
    std::uint64_t count,
    const std::function<std::shared_ptr<PutFence>(std::span<std::uint8_t *const> pages)>
        &launch) {
    const auto held = lock_open();
    ns_->check_known(*view_);
    const Geometry &g = ns_->geometry();
    for (const std::uint32_t layer : layers)
        (void)g.offset(plane, layer);
    const std::uint32_t part = g.at[plane].part;
    const std::uint64_t have = pages_[part].size();
    if (first > have || count > have - first)
        throw Error(SAC_E_RANGE, g.planes[plane].name,
                    format("put: pages %" PRIu64 " to %" PRIu64
                           " of plane '%s' were given, %" PRIu64 " are missing",
                           first, first + count, g.planes[plane].name, have));
    std::vector<std::uint8_t *> pages;
    for (std::uint64_t i = first; i < first + count; ++i)
        pages.push_back(ns_->address(*view_, pages_[part][i].reservation.slot, part));
    fences_.reserve(fences_.size() + 1);
    fences_.push_back(launch(pages));
    for (const std::uint32_t layer : layers)
        for (std::uint64_t i = first; i < first + count; ++i)
            written_[part][i * g.pairs[part] + g.pair(plane, layer)] = 1;
    const std::uint64_t bytes = std::uint64_t{g.at[plane].rows} * g.planes[plane].heads *
                                g.planes[plane].row_bytes * layers.size() * count;
    view_->pins().counters().bytes_written.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace sac
