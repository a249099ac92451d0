// SPDX-License-Identifier: Apache-2.0
// A gather to GPU memory, checked: its requests as the core's gather has them, and prefixes
// that stay until the GPU is done.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "gather.hpp"
#include "prefix.hpp"
#include "sac_gpu.h"

namespace sac::gpu {

// Faults found behind a call, until somebody asks.
class Faults {
public:
    void add(std::uint64_t number, std::uint32_t request, std::uint32_t bits);
    std::uint64_t take(sac_gpu_fault *out, std::uint64_t room);

private:
    std::mutex mutex_;
    std::deque<sac_gpu_fault> faults_;
};

// Prefixes that no close takes the pages from.
class Borrowed {
public:
    // Throws Error: SAC_E_CLOSED, SAC_E_FORKED, SAC_E_ARG (a prefix of another namespace).
    Borrowed(const Namespace &ns, std::span<const sac_prefix *const> prefixes);
    ~Borrowed();
    Borrowed(const Borrowed &) = delete;
    Borrowed &operator=(const Borrowed &) = delete;

    // Tells of requests whose pages are not what they were.
    void check(std::uint64_t number, Faults &faults) const;

private:
    std::vector<std::shared_ptr<Prefix>> prefixes_;
};

class GatherRequest {
public:
    // Throws Error: as GatherCall; SAC_E_ARG.
    GatherRequest(Namespace &ns, const sac_gpu_gather_req &req);

    const sac_gpu_gather_req &what() const noexcept { return req_; }
    const sac_plane &plane() const noexcept { return plane_; }
    std::uint64_t rows() const noexcept { return req_.batch * req_.heads * req_.count; }
    // One a batch and head; without index and count where the rows are on the GPU.
    std::span<sac_gather_req> requests() noexcept { return reqs_; }
    // Prefixes are locked while it lives.
    GatherCall &call() noexcept { return *call_; }
    const std::shared_ptr<Borrowed> &borrowed() const noexcept { return borrowed_; }

private:
    const sac_gpu_gather_req req_;
    const sac_plane plane_;
    std::shared_ptr<Borrowed> borrowed_;
    std::vector<sac_gather_req> reqs_;
    std::unique_ptr<GatherCall> call_;
};

}  // namespace sac::gpu
