// SPDX-License-Identifier: Apache-2.0
#include "gather_copy.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "copy.hpp"
#include "threads.hpp"

namespace sac {
namespace {

// Where n rows of a job lie, from position `from` of its index on.
template <class T, bool kShift>
void addresses(const GatherJob &job, std::uint64_t from, std::size_t n,
               const std::uint8_t **src) noexcept {
    const T *const index = static_cast<const T *>(job.req->index) + from;
    for (std::size_t i = 0; i < n; ++i) {
        const auto row = static_cast<std::uint64_t>(std::int64_t{index[i]});
        const std::uint64_t page = kShift ? row >> job.shift : row / job.rows_per_page;
        src[i] = index[i] < 0 ? nullptr
                              : job.pages[page] + job.offset +
                                    (row - page * job.rows_per_page) * job.pitch;
    }
}

void addresses(const GatherJob &job, std::uint64_t from, std::size_t n,
               const std::uint8_t **src) noexcept {
    if (!job.req->index)
        for (std::size_t i = 0; i < n; ++i)
            src[i] = job.source(static_cast<std::int64_t>(from + i));
    else if (job.req->index_bytes == 4)
        (job.shift >= 0 ? addresses<std::int32_t, true>
                        : addresses<std::int32_t, false>)(job, from, n, src);
    else
        (job.shift >= 0 ? addresses<std::int64_t, true>
                        : addresses<std::int64_t, false>)(job, from, n, src);
}

// Rows [from, to) of one job, by their addresses.
void copy_scattered(const GatherJob &job, std::uint64_t from, std::uint64_t to, bool stream) {
    // Addresses are computed a batch at a time, while rows of the batch before are on their
    // way from memory.
    constexpr std::size_t kBatch = 256;
    const std::uint8_t *src[kBatch + kCopyAhead];
    std::size_t known = 0;
    bool primed = false;
    auto *dst = static_cast<std::uint8_t *>(job.req->dst) + from * job.dst_pitch;
    for (std::uint64_t next = from; from < to; primed = true) {
        const std::size_t more =
            std::min<std::uint64_t>(kBatch + kCopyAhead - known, to - next);
        addresses(job, next, more, src + known);
        known += more, next += more;
        const std::size_t n = std::min(known, kBatch);
        copy_rows({src, n, job.row_bytes, dst, job.dst_pitch, stream, known - n, primed});
        std::copy(src + n, src + known, src);
        known -= n, from += n, dst += n * job.dst_pitch;
    }
}

// Rows [from, to) of one job without an index: those of a page lie together.
void copy_dense(const GatherJob &job, std::uint64_t from, std::uint64_t to, bool stream) {
    while (from < to) {
        const std::uint64_t n =
            std::min(to - from, job.rows_per_page - from % job.rows_per_page);
        copy_bytes(static_cast<std::uint8_t *>(job.req->dst) + from * job.dst_pitch,
                   job.source(static_cast<std::int64_t>(from)), n * job.row_bytes, stream);
        from += n;
    }
}

}  // namespace

void copy_range(std::span<const GatherJob> jobs, std::uint64_t from, std::uint64_t to,
                bool stream) {
    auto job =
        std::upper_bound(jobs.begin(), jobs.end(), from,
                         [](std::uint64_t row, const GatherJob &j) { return row < j.first; }) -
        1;
    for (; from < to; ++job) {
        const std::uint64_t end = std::min(to, job->first + job->req->count);
        const bool dense = !job->req->index && job->pitch == job->row_bytes &&
                           job->dst_pitch == job->row_bytes;
        if (from < end)
            (dense ? copy_dense : copy_scattered)(*job, from - job->first, end - job->first,
                                                  stream);
        from = std::max(from, end);
    }
}

namespace {

// Every thread has a segment of its own, the same one in every call of this size, so that a
// target that is used again stays in its core's cache; who is done helps the others.
void copy_threaded(std::span<const GatherJob> jobs, std::uint64_t rows, unsigned threads,
                   bool stream) {
    struct alignas(64) Segment {
        std::atomic<std::uint64_t> next{0};
    };
    constexpr std::uint64_t kParts = 8;
    std::vector<Segment> segments(threads);
    const std::uint64_t parts = kParts * threads;
    parallel_for(threads, threads, [&](std::size_t mine) {
        for (std::size_t s = 0; s < threads; ++s) {
            const std::size_t segment = (mine + s) % threads;
            for (;;) {
                const std::uint64_t p =
                    segments[segment].next.fetch_add(1, std::memory_order_relaxed);
                if (p >= kParts)
                    break;
                const std::uint64_t part = segment * kParts + p;
                copy_range(jobs, rows * part / parts, rows * (part + 1) / parts, stream);
            }
        }
    });
}

}  // namespace

void copy_jobs(std::span<const GatherJob> jobs, std::uint64_t rows, unsigned threads,
               bool stream) {
    if (threads == 1)
        copy_range(jobs, 0, rows, stream);
    else
        copy_threaded(jobs, rows, threads, stream);
}

}  // namespace sac
