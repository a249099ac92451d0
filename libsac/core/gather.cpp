// SPDX-License-Identifier: Apache-2.0
#include "gather.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cinttypes>
#include <shared_mutex>
#include <vector>

#include "copy.hpp"
#include "error.hpp"
#include "handles.hpp"
#include "threads.hpp"

namespace sac {
namespace {

// A request resolved: where its rows lie.
struct Job {
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

[[noreturn]] void refuse(std::uint64_t number, sac_status status, const std::string &object,
                         const std::string &why) {
    throw Error(status, object, format("gather request %" PRIu64 ": %s", number, why.c_str()));
}

// The first position whose row is neither -1 nor in the prefix, or count.
template <class T> std::uint64_t check_range(const Job &job, std::uint64_t &absent) noexcept {
    const T *const index = static_cast<const T *>(job.req->index);
    // One more than the row, so that -1 is 0 and what lies below is huge.
    const auto above = [&](std::uint64_t i) {
        return static_cast<std::uint64_t>(std::int64_t{index[i]}) + 1;
    };
    std::uint64_t most = 0;
    for (std::uint64_t i = 0; i < job.req->count; ++i) {
        absent += above(i) == 0;
        most = std::max(most, above(i));
    }
    if (most <= job.limit)
        return job.req->count;
    std::uint64_t bad = 0;
    while (above(bad) <= job.limit)
        ++bad;
    return bad;
}

Job resolve(Namespace &ns, const sac_gather_req &req, std::uint64_t number,
            std::uint64_t &absent) {
    const Geometry &g = ns.geometry();
    const Prefix &prefix = *req.prefix->it;
    if (&prefix.ns() != &ns)
        refuse(number, SAC_E_ARG, "prefix", "its prefix belongs to another namespace");
    const std::uint64_t base = g.offset(req.plane, req.layer);
    const sac_plane &plane = g.planes[req.plane];
    const PlaneGeometry &at = g.at[req.plane];
    if (req.head >= plane.heads)
        refuse(number, SAC_E_RANGE, plane.name,
               format("plane '%s' has %u heads, there is no head %u", plane.name, plane.heads,
                      req.head));
    Job j{};
    j.req = &req;
    j.pages = prefix.addresses(at.part);
    j.offset = base + req.head * at.head_stride;
    j.pitch = plane.row_pitch, j.row_bytes = plane.row_bytes;
    j.dst_pitch = req.dst_pitch ? req.dst_pitch : plane.row_bytes;
    j.rows_per_page = at.rows;
    j.shift = std::has_single_bit(j.rows_per_page) ? std::countr_zero(j.rows_per_page) : -1;
    j.limit = prefix.rows(req.plane, req.layer);
    if (req.count == 0)
        return j;
    if (j.dst_pitch < j.row_bytes)
        refuse(number, SAC_E_ARG, plane.name,
               format("rows of %" PRIu64 " bytes do not fit a pitch of %" PRIu64, j.row_bytes,
                      j.dst_pitch));
    if (!req.dst)
        refuse(number, SAC_E_ARG, plane.name, "dst is NULL");
    if (req.index && req.index_bytes != 4 && req.index_bytes != 8)
        refuse(number, SAC_E_ARG, plane.name, "index_bytes must be 4 or 8");
    std::uint64_t bad = req.count;
    if (!req.index)
        bad = std::min(req.count, j.limit);
    else if (req.index_bytes == 4)
        bad = check_range<std::int32_t>(j, absent);
    else
        bad = check_range<std::int64_t>(j, absent);
    if (bad != req.count)
        refuse(number, SAC_E_RANGE, plane.name,
               format("row %" PRId64 " (position %" PRIu64
                      ") of plane '%s', layer %u is not there: the "
                      "prefix has rows 0 to %" PRId64,
                      j.row(bad), bad, plane.name, req.layer,
                      static_cast<std::int64_t>(j.limit) - 1));
    if (at.part == kTailPart)
        for (std::uint64_t i = 0; i < req.count; ++i) {
            const std::int64_t row = j.row(i);
            if (row >= 0 && !j.pages[static_cast<std::uint64_t>(row) / j.rows_per_page])
                refuse(number, SAC_E_RANGE, plane.name,
                       format("row %" PRId64
                              " of plane '%s' lies outside the window that is kept",
                              row, plane.name));
        }
    return j;
}

// Where n rows of a job lie, from position `from` of its index on.
template <class T, bool kShift>
void addresses(const Job &job, std::uint64_t from, std::size_t n,
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

void addresses(const Job &job, std::uint64_t from, std::size_t n,
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
void copy_scattered(const Job &job, std::uint64_t from, std::uint64_t to, bool stream) {
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
void copy_dense(const Job &job, std::uint64_t from, std::uint64_t to, bool stream) {
    while (from < to) {
        const std::uint64_t n =
            std::min(to - from, job.rows_per_page - from % job.rows_per_page);
        copy_bytes(static_cast<std::uint8_t *>(job.req->dst) + from * job.dst_pitch,
                   job.source(static_cast<std::int64_t>(from)), n * job.row_bytes, stream);
        from += n;
    }
}

// Rows [from, to) of the call.
void copy_range(std::span<const Job> jobs, std::uint64_t from, std::uint64_t to, bool stream) {
    auto job = std::upper_bound(jobs.begin(), jobs.end(), from,
                                [](std::uint64_t row, const Job &j) { return row < j.first; }) -
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

// Every thread has a segment of its own, the same one in every call of this size, so that a
// target that is used again stays in its core's cache; who is done helps the others.
void copy_threaded(std::span<const Job> jobs, std::uint64_t rows, unsigned threads,
                   bool stream) {
    struct alignas(64) Segment {
        std::atomic<std::uint64_t> next{0};
    };
    constexpr std::uint64_t kParts = 4;
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

// The first request that read dead memory, or reqs.size().
std::uint64_t find_dead(const Mapping &data, std::span<const Job> jobs, std::uint64_t &offset) {
    for (std::uint64_t n = 0; n < jobs.size(); ++n)
        for (std::uint64_t i = 0; i < jobs[n].req->count; ++i) {
            const std::uint8_t *const p = jobs[n].source(jobs[n].row(i));
            if (!p)
                continue;
            offset = static_cast<std::uint64_t>(p - data.data());
            if (data.guard().next_dead(offset) < offset + jobs[n].row_bytes)
                return n;
        }
    return jobs.size();
}

}  // namespace

void gather(Namespace &ns, std::span<const sac_gather_req> reqs, std::uint32_t flags,
            std::uint32_t threads, std::uint64_t &failed) {
    ns.check();
    failed = reqs.size();
    if (flags & ~static_cast<std::uint32_t>(SAC_GATHER_STREAM))
        throw Error(SAC_E_ARG, "gather", format("unknown flags 0x%x", flags));
    std::vector<const Prefix *> prefixes;
    for (std::uint64_t i = 0; i < reqs.size(); ++i) {
        if (!reqs[i].prefix)
            refuse(i, SAC_E_ARG, "prefix", "it has no prefix");
        prefixes.push_back(reqs[i].prefix->it.get());
    }
    // Each prefix is locked once, in the order of addresses: nobody closes it meanwhile.
    std::sort(prefixes.begin(), prefixes.end());
    prefixes.erase(std::unique(prefixes.begin(), prefixes.end()), prefixes.end());
    std::vector<std::shared_lock<std::shared_mutex>> locks;
    locks.reserve(prefixes.size());
    for (const Prefix *p : prefixes)
        locks.push_back(p->lock());

    std::vector<Job> jobs;
    jobs.reserve(reqs.size());
    std::uint64_t rows = 0, bytes = 0, absent = 0, copied = 0;
    for (std::uint64_t i = 0; i < reqs.size(); ++i) {
        std::uint64_t zeros = 0;
        jobs.push_back(resolve(ns, reqs[i], i, zeros));
        jobs.back().first = rows;
        rows += reqs[i].count;
        absent += zeros;
        copied += (reqs[i].count - zeros) * jobs.back().row_bytes;
        bytes += reqs[i].count * jobs.back().row_bytes;
    }
    if (rows == 0)
        return;
    for (const Prefix *p : prefixes)
        p->check_current();

    const Mapping &data = ns.media().data();
    const unsigned n = copy_threads(threads, bytes);
    const bool stream = flags & SAC_GATHER_STREAM;
    if (n == 1) {
        copy_range(jobs, 0, rows, stream);
    } else {
        copy_threaded(jobs, rows, n, stream);
    }
    ns.counters.rows_gathered.fetch_add(rows - absent, std::memory_order_relaxed);
    ns.counters.bytes_gathered.fetch_add(copied, std::memory_order_relaxed);

    if (data.guard().faults() != 0) {
        std::uint64_t offset = 0;
        failed = find_dead(data, jobs, offset);
        if (failed != jobs.size()) {
            ns.control().drop_dead();
            const Job &j = jobs[failed];
            data.check_alive(offset, j.row_bytes);
        }
    }
    // Checked again behind the copy: what was forced out meanwhile may be anything.
    for (const Prefix *p : prefixes)
        p->check_current();
}

}  // namespace sac
