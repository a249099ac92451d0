// SPDX-License-Identifier: Apache-2.0
#include "gather.hpp"

#include <algorithm>
#include <bit>
#include <cinttypes>

#include "error.hpp"
#include "handles.hpp"
#include "threads.hpp"

namespace sac {
namespace {

[[noreturn]] void refuse(std::uint64_t number, sac_status status, const std::string &object,
                         const std::string &why) {
    throw Error(status, object, format("gather request %" PRIu64 ": %s", number, why.c_str()));
}

// The first position whose row is neither -1 nor in the prefix, or count.
template <class T>
std::uint64_t check_range(const GatherJob &job, std::uint64_t &absent) noexcept {
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

GatherJob resolve(Namespace &ns, const sac_gather_req &req, std::uint64_t number, bool to,
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
    GatherJob j{};
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
    if (to && j.dst_pitch < j.row_bytes)
        refuse(number, SAC_E_ARG, plane.name,
               format("rows of %" PRIu64 " bytes do not fit a pitch of %" PRIu64, j.row_bytes,
                      j.dst_pitch));
    if (to && !req.dst)
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
    if (bad != req.count) {
        const std::string have =
            j.limit == 0 ? "there is none" : format("there are 0 to %" PRIu64, j.limit - 1);
        const std::string tokens = plane.tokens_per_row == 1
                                       ? ""
                                       : format(" (of %u tokens each)", plane.tokens_per_row);
        refuse(number, SAC_E_RANGE, plane.name,
               format("row %" PRId64 " (at position %" PRIu64
                      ") of plane '%s', layer %u is not there: of its rows%s %s. Rows of a "
                      "sequence are there once they are written.",
                      j.row(bad), bad, plane.name, req.layer, tokens.c_str(), have.c_str()));
    }
    if (at.part == kTailPart)
        for (std::uint64_t i = 0; i < req.count; ++i) {
            const std::int64_t row = j.row(i);
            if (row >= 0 && !j.pages[static_cast<std::uint64_t>(row) / j.rows_per_page])
                refuse(number, SAC_E_RANGE, plane.name,
                       format("row %" PRId64 " of plane '%s' is not kept: of window and state "
                              "planes only the last pages are",
                              row, plane.name));
        }
    return j;
}

// The first request that read dead memory, or reqs.size().
std::uint64_t find_dead(std::span<const GatherJob> jobs, std::uint64_t &offset) {
    for (std::uint64_t n = 0; n < jobs.size(); ++n) {
        const Mapping &data = jobs[n].req->prefix->it->view().data();
        if (data.guard().faults() == 0)
            continue;
        for (std::uint64_t i = 0; i < jobs[n].req->count; ++i) {
            const std::uint8_t *const p = jobs[n].source(jobs[n].row(i));
            if (!p)
                continue;
            offset = static_cast<std::uint64_t>(p - data.data());
            if (data.guard().any_dead(offset, jobs[n].row_bytes))
                return n;
        }
    }
    return jobs.size();
}

}  // namespace

GatherCall::GatherCall(Namespace &ns, std::span<const sac_gather_req> reqs, bool to) : ns_(ns) {
    ns.check();
    for (std::uint64_t i = 0; i < reqs.size(); ++i) {
        if (!reqs[i].prefix)
            refuse(i, SAC_E_ARG, "prefix", "it has no prefix");
        prefixes_.push_back(reqs[i].prefix->it.get());
    }
    // Each prefix is locked once, in the order of addresses: nobody closes it meanwhile.
    std::sort(prefixes_.begin(), prefixes_.end());
    prefixes_.erase(std::unique(prefixes_.begin(), prefixes_.end()), prefixes_.end());
    locks_.reserve(prefixes_.size());
    for (const Prefix *p : prefixes_)
        locks_.push_back(p->lock());

    jobs_.reserve(reqs.size());
    for (std::uint64_t i = 0; i < reqs.size(); ++i) {
        std::uint64_t zeros = 0;
        jobs_.push_back(resolve(ns, reqs[i], i, to, zeros));
        jobs_.back().first = rows_;
        rows_ += reqs[i].count;
        absent_ += zeros;
        copied_ += (reqs[i].count - zeros) * jobs_.back().row_bytes;
        bytes_ += reqs[i].count * jobs_.back().row_bytes;
    }
    if (rows_ != 0)
        for (const Prefix *p : prefixes_)
            p->check_current();
}

void GatherCall::finish(std::uint64_t &failed) {
    failed = jobs_.size();
    if (rows_ == 0)
        return;
    PinTable &table = prefixes_.front()->view().pins();
    PinTable::Counters &counters = table.counters();
    counters.gathers.fetch_add(1, std::memory_order_relaxed);
    counters.rows_gathered.fetch_add(rows_ - absent_, std::memory_order_relaxed);
    counters.bytes_gathered.fetch_add(copied_, std::memory_order_relaxed);
    table.latency(PinTable::kGather).add(begun_);

    bool faults = false;
    for (const Prefix *p : prefixes_)
        faults |= p->view().data().guard().faults() != 0;
    if (faults) {
        std::uint64_t offset = 0;
        failed = find_dead(jobs_, offset);
        if (failed != jobs_.size()) {
            ns_.authority().drop_dead();
            const GatherJob &j = jobs_[failed];
            j.req->prefix->it->view().data().check_alive(offset, j.row_bytes);
        }
    }
    // Checked again behind the copy: what was forced out meanwhile may be anything.
    for (const Prefix *p : prefixes_)
        p->check_current();
}

void gather(Namespace &ns, std::span<const sac_gather_req> reqs, std::uint32_t flags,
            std::uint32_t threads, std::uint64_t &failed) {
    failed = reqs.size();
    ns.check();
    if (flags & ~static_cast<std::uint32_t>(SAC_GATHER_STREAM))
        throw Error(SAC_E_ARG, "gather", format("unknown flags 0x%x", flags));
    GatherCall call(ns, reqs);
    if (call.rows() == 0)
        return;
    copy_jobs(call.jobs(), call.rows(), copy_threads(threads, call.bytes()),
              flags & SAC_GATHER_STREAM);
    call.finish(failed);
}

}  // namespace sac
