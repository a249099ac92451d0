// SPDX-License-Identifier: Apache-2.0
// Rows of a growing sequence on their way into its open pages.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <mutex>
#include <utility>

#include "copy.hpp"
#include "error.hpp"
#include "sequence.hpp"
#include "threads.hpp"

namespace sac {

namespace {

// Rows of one request that lie in one page.
struct Piece {
    const sac_scatter_req *req;
    std::uint64_t page, in, count, done;  // rows: in the page, so many, of the request before
};

}  // namespace

void Sequence::check_request(const sac_scatter_req &r) const {
    const Geometry &g = ns_->geometry();
    (void)g.offset(r.plane, r.layer);
    const sac_plane &plane = g.planes[r.plane];
    const std::uint64_t lowest = committed_ * g.at[r.plane].rows, end = rows_exist(r.plane);
    if (r.first < lowest || r.first > end || r.count > end - r.first)
        throw Error(SAC_E_RANGE, plane.name,
                    format("sequence: rows %" PRIu64 " to %" PRIu64 " of plane '%s' cannot be "
                           "written: rows %" PRIu64 " to %" PRId64 " are open",
                           r.first, r.first + r.count, plane.name, lowest,
                           static_cast<std::int64_t>(end) - 1));
    if (r.count != 0 && !r.src)
        throw Error(SAC_E_ARG, plane.name, "sequence: src is NULL");
    if (r.row_stride != 0 && r.row_stride < plane.row_bytes)
        throw Error(SAC_E_ARG, plane.name,
                    format("sequence: rows of %u bytes, but row_stride is %" PRIu64,
                           plane.row_bytes, r.row_stride));
    if (plane.heads > 1 && r.count != 0 && r.head_stride == 0)
        throw Error(SAC_E_ARG, plane.name,
                    format("sequence: plane '%s' has %u heads; head_stride must say where each "
                           "begins",
                           plane.name, plane.heads));
}

void Sequence::write(std::span<const sac_scatter_req> reqs, std::uint32_t threads) {
    const auto held = lock_alone();
    for (const Open &page : open_)
        ns_->check_known(*page.view);
    const Geometry &g = ns_->geometry();
    for (const sac_scatter_req &r : reqs)
        check_request(r);
    std::vector<Piece> pieces;
    std::uint64_t bytes = 0;
    for (const sac_scatter_req &r : reqs) {
        const PlaneGeometry &at = g.at[r.plane];
        const std::uint64_t row_bytes =
            std::uint64_t{g.planes[r.plane].heads} * g.planes[r.plane].row_bytes;
        for (std::uint64_t done = 0, n = 0; done < r.count; done += n) {
            const std::uint64_t page = (r.first + done) / at.rows,
                                in = (r.first + done) % at.rows;
            n = std::min(r.count - done, at.rows - in);
            if (!open_[page - committed_].has[at.part])
                continue;  // outside the window: not kept
            pieces.push_back({&r, page, in, n, done});
            bytes += n * row_bytes;
        }
    }
    const auto copy = [&](std::size_t i) {
        const Piece &p = pieces[i];
        copy_piece(*p.req, p.page, p.in, p.count, p.done);
    };
    const unsigned n = copy_threads(threads, bytes);
    if (n == 1)
        for (std::size_t i = 0; i < pieces.size(); ++i)
            copy(i);
    else
        parallel_for(n, pieces.size(), copy);
    for (const Piece &p : pieces) {
        const std::uint32_t part = g.at[p.req->plane].part;
        std::uint64_t *const bits = open_[p.page - committed_].written[part].data() +
                                    first_word(p.req->plane, p.req->layer);
        for (std::uint64_t i = p.in; i < p.in + p.count; ++i)
            bits[i / 64] |= std::uint64_t{1} << (i % 64);
    }
    view_->pins().counters().bytes_written.fetch_add(bytes, std::memory_order_relaxed);
}

void Sequence::copy_piece(const sac_scatter_req &r, std::uint64_t page, std::uint64_t in,
                          std::uint64_t count, std::uint64_t done) const noexcept {
    const Geometry &g = ns_->geometry();
    const sac_plane &plane = g.planes[r.plane];
    const PlaneGeometry &at = g.at[r.plane];
    const std::uint64_t row_stride = r.row_stride ? r.row_stride : plane.row_bytes;
    const bool dense = row_stride == plane.row_bytes && plane.row_pitch == plane.row_bytes;
    // The layer's place in the page; the request was checked, so the layer is there.
    const auto ordinal = static_cast<std::uint64_t>(at.ordinal[r.layer]);
    std::uint8_t *const to =
        at_[at.part][page] + at.offset + ordinal * at.layer_stride + in * plane.row_pitch;
    const auto *const from = static_cast<const std::uint8_t *>(r.src) + done * row_stride;
    for (std::uint32_t h = 0; h < plane.heads; ++h) {
        std::uint8_t *const head = to + h * at.head_stride;
        const std::uint8_t *const src = from + h * r.head_stride;
        if (dense) {
            copy_bytes(head, src, count * plane.row_bytes);
            continue;
        }
        for (std::uint64_t i = 0; i < count; ++i)
            copy_bytes(head + i * plane.row_pitch, src + i * row_stride, plane.row_bytes);
    }
}

void Sequence::written_by(std::span<const std::uint32_t> planes, std::uint64_t first,
                          std::uint64_t end, const std::shared_ptr<Fence> &fence) {
    const auto held = lock_alone();
    const Geometry &g = ns_->geometry();
    if (first > end || end > tokens_)
        throw Error(SAC_E_RANGE, "sequence",
                    format("sequence: tokens %" PRIu64 " to %" PRIu64
                           " cannot be written: it has %" PRIu64,
                           first, end, tokens_));
    first = std::max(first, committed_ * g.page_tokens);
    if (first >= end)
        return;
    const std::uint64_t last = (end - 1) / g.page_tokens - committed_;
    for (std::uint64_t i = first / g.page_tokens - committed_; i <= last; ++i) {
        quiet(open_[i]);
        open_[i].fences.push_back(fence);
    }
    for (const std::uint32_t p : planes)
        mark(p, first, end, true);
}

// Of the rows whose tokens end among first .. end-1.
void Sequence::mark(std::uint32_t plane, std::uint64_t first, std::uint64_t end,
                    bool is_written) noexcept {
    const Geometry &g = ns_->geometry();
    const PlaneGeometry &at = g.at[plane];
    const std::uint64_t per_row = g.planes[plane].kind == SAC_PLANE_STATE
                                      ? g.page_tokens
                                      : g.planes[plane].tokens_per_row;
    for (std::uint64_t row = first / per_row; row < end / per_row; ++row) {
        Open &page = open_[row / at.rows - committed_];
        if (!page.has[at.part])
            continue;  // outside the window: not kept
        const std::uint64_t in = row % at.rows, bit = std::uint64_t{1} << (in % 64);
        for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l) {
            if (at.ordinal[l] < 0)
                continue;
            std::uint64_t &word = page.written[at.part][first_word(plane, l) + in / 64];
            word = is_written ? word | bit : word & ~bit;
        }
    }
}

bool Sequence::quiet(Open &page) noexcept {
    std::erase_if(page.fences, [](const auto &fence) { return fence->done(); });
    return page.fences.empty();
}

void Sequence::truncate(std::uint64_t tokens) {
    const auto held = lock_alone();
    const Geometry &g = ns_->geometry();
    if (tokens < committed_ * g.page_tokens || tokens > tokens_)
        throw Error(SAC_E_RANGE, "sequence",
                    format("sequence: it cannot be cut to %" PRIu64 " tokens: it has %" PRIu64
                           ", and %" PRIu64 " of them are in committed pages",
                           tokens, tokens_, committed_ * g.page_tokens));
    // Rows that are begun as well: whole pages, for the end of the last one is not full.
    const std::uint64_t end = (tokens_ + g.page_tokens - 1) / g.page_tokens * g.page_tokens;
    for (std::uint32_t p = 0; p < g.planes.size(); ++p)
        mark(p, tokens, end, false);
    ids_.resize(tokens - committed_ * g.page_tokens);
    tokens_ = tokens;
    for (Follower *const f : followers_) {
        f->cut = std::min(f->cut, tokens);
        // Those of the new tokens will be written to.
        if (f->sealed != UINT64_MAX)
            f->sealed = std::min(f->sealed, tokens / g.page_tokens);
    }
}

void Sequence::join(Follower &follower) {
    const auto held = lock_alone();
    followers_.push_back(&follower);
}

void Sequence::leave(Follower &follower) noexcept {
    if (ns_->backing().forked())
        return;
    const std::unique_lock held(mutex_);
    std::erase(followers_, &follower);
}

std::uint64_t Sequence::follow(Follower &follower, std::uint64_t &cut) {
    const auto held = lock_alone();
    cut = std::min(cut, std::exchange(follower.cut, UINT64_MAX));
    return tokens_;
}

void Sequence::seal(Follower &follower, std::uint64_t pages,
                    const std::shared_ptr<Fence> &fence) {
    const std::unique_lock held(mutex_);
    const std::uint64_t end = std::min(pages, committed_ + open_.size());
    for (std::uint64_t i = std::max(follower.sealed, committed_); i < end; ++i)
        open_[i - committed_].fences.push_back(fence);
    follower.sealed = pages;
}

std::uint64_t Sequence::sealed() const noexcept {
    std::uint64_t pages = UINT64_MAX;
    for (const Follower *const f : followers_)
        pages = std::min(pages, f->sealed);
    return pages;
}

}  // namespace sac
