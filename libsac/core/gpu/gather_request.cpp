// SPDX-License-Identifier: Apache-2.0
#include "gather_request.hpp"

#include <algorithm>
#include <cinttypes>

#include "error.hpp"
#include "handles.hpp"

namespace sac::gpu {
namespace {

constexpr std::size_t kFaultsKept = 1024;
constexpr std::uint64_t kBatchMost = 65535;  // of a launch's grid
constexpr std::uint64_t kRowsMost = std::uint64_t{1} << 31;

const sac_plane &plane_of(Namespace &ns, const sac_gpu_gather_req &r) {
    ns.check();
    (void)ns.geometry().offset(r.plane, r.layer);
    const sac_plane &plane = ns.geometry().planes[r.plane];
    const auto refuse = [&](const char *why) {
        throw Error(SAC_E_ARG, plane.name, format("gather of plane '%s': %s", plane.name, why));
    };
    if (r.heads == 0 || r.first_head >= plane.heads || r.heads > plane.heads - r.first_head)
        throw Error(SAC_E_RANGE, plane.name,
                    format("plane '%s' has %u heads; %u from head %u on are not there",
                           plane.name, plane.heads, r.heads, r.first_head));
    if (r.batch != 0 && !r.prefixes)
        refuse("prefixes is NULL");
    if (r.batch > kBatchMost)
        refuse("more than 65535 prefixes");
    if (r.count != 0 && r.batch > kRowsMost / r.count / r.heads)
        refuse("more than 2^31 rows");
    if (r.batch != 0 && r.count != 0 && r.out == 0)
        refuse("out is NULL");
    if (r.rows_on_gpu && !r.rows)
        refuse("rows on the GPU, but their address is 0");
    if (r.path > SAC_GPU_PATH_CPU)
        refuse("there is no such path");
    return plane;
}

}  // namespace

void Faults::add(std::uint64_t number, std::uint32_t request, std::uint32_t bits) {
    const std::lock_guard lock(mutex_);
    if (faults_.size() == kFaultsKept)
        faults_.pop_front();
    faults_.push_back({number, request, bits});
}

std::uint64_t Faults::take(sac_gpu_fault *out, std::uint64_t room) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t n = std::min<std::uint64_t>(room, faults_.size());
    const auto end = faults_.begin() + static_cast<std::ptrdiff_t>(n);
    std::copy(faults_.begin(), end, out);
    faults_.erase(faults_.begin(), end);
    return n;
}

Borrowed::Borrowed(const Namespace &ns, std::span<const sac_prefix *const> prefixes) {
    prefixes_.reserve(prefixes.size());
    try {
        for (const sac_prefix *p : prefixes) {
            if (!p)
                throw Error(SAC_E_ARG, "prefix", "gather: a prefix is NULL");
            if (&p->it->ns() != &ns)
                throw Error(SAC_E_ARG, "prefix",
                            "gather: a prefix belongs to another namespace");
            p->it->borrow();
            prefixes_.push_back(p->it);
        }
    } catch (...) {
        for (const auto &p : prefixes_)
            p->give_back();
        throw;
    }
}

Borrowed::~Borrowed() {
    for (const auto &p : prefixes_)
        p->give_back();
}

void Borrowed::check(std::uint64_t number, Faults &faults) const {
    for (std::size_t i = 0; i < prefixes_.size(); ++i) {
        try {
            const auto held = prefixes_[i]->lock();
            prefixes_[i]->check_current();
        } catch (const Error &e) {
            if (e.status == SAC_E_STALE || e.status == SAC_E_MEDIA)
                faults.add(number, static_cast<std::uint32_t>(i), SAC_GPU_FAULT_PAGE);
        }
    }
}

GatherRequest::GatherRequest(Namespace &ns, const sac_gpu_gather_req &req)
    : req_(req), plane_(plane_of(ns, req)),
      borrowed_(std::make_shared<Borrowed>(
          ns, std::span<const sac_prefix *const>(req.prefixes, req.batch))) {
    reqs_.reserve(req.batch * req.heads);
    for (std::uint64_t b = 0; b < req.batch; ++b)
        for (std::uint32_t h = 0; h < req.heads; ++h) {
            sac_gather_req r{};
            r.prefix = req.prefixes[b];
            r.plane = req.plane, r.layer = req.layer, r.head = req.first_head + h;
            r.index_bytes = 4;
            if (!req.rows_on_gpu) {
                r.count = req.count;
                if (req.rows)
                    r.index = req.rows + (b * req.heads + h) * req.count;
            }
            reqs_.push_back(r);
        }
    call_ = std::make_unique<GatherCall>(ns, reqs_, false);
}

}  // namespace sac::gpu
