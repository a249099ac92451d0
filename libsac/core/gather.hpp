// SPDX-License-Identifier: Apache-2.0
// Copies selected rows of several prefixes into given buffers.
#pragma once

#include <chrono>
#include <cstdint>
#include <shared_mutex>
#include <span>
#include <vector>

#include "fair_mutex.hpp"
#include "gather_copy.hpp"
#include "namespace.hpp"

namespace sac {

class Prefix;

// A gather in its parts, for those who copy in a way of their own: requests are checked and
// resolved, the caller copies, finish() says whether what was copied is right.
class GatherCall {
public:
    // The requests stay the caller's, who may set dst until the copy. to: whether dst and
    // dst_pitch are looked at. Nobody closes the prefixes until this object ends. Throws Error.
    GatherCall(Namespace &ns, std::span<const sac_gather_req> reqs, bool to = true);

    std::span<const GatherJob> jobs() const noexcept { return jobs_; }
    std::uint64_t rows() const noexcept { return rows_; }    // of all requests, -1 included
    std::uint64_t bytes() const noexcept { return bytes_; }  // of those rows
    // Behind the copy. Throws Error: SAC_E_MEDIA, SAC_E_STALE; failed is then the first
    // request hit.
    void finish(std::uint64_t &failed);

private:
    const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
    Namespace &ns_;
    std::vector<const Prefix *> prefixes_;
    std::vector<std::shared_lock<FairMutex>> locks_;
    std::vector<GatherJob> jobs_;
    std::uint64_t rows_ = 0, bytes_ = 0, absent_ = 0, copied_ = 0;
};

// As sac_gather. Throws Error before a byte is written, but for SAC_E_MEDIA and SAC_E_STALE,
// which are found while copying; failed is then the first request hit.
void gather(Namespace &ns, std::span<const sac_gather_req> reqs, std::uint32_t flags,
            std::uint32_t threads, std::uint64_t &failed);

}  // namespace sac
