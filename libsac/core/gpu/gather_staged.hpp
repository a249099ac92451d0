// SPDX-License-Identifier: Apache-2.0
// The CPU path of a gather: threads gather rows into pinned memory near the GPU, the copy
// engine brings them on; both work at the same time, on different pieces.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "gather_request.hpp"
#include "memory.hpp"
#include "staging_flights.hpp"
#include "staging_tables.hpp"
#include "staging_team.hpp"
#include "stream.hpp"

namespace sac::gpu {

struct StagedOptions {
    std::uint64_t staging_bytes = 0;  // of pinned memory, two halves in turn
    std::uint64_t chunk_bytes = 0;    // of a copy; 0: chosen by size
    bool plain_stores = false;
};

// Bytes of each copy to the GPU, a whole number of rows: one that the threads fill while the
// one before is on its way.
std::uint64_t chunk_rows(std::uint64_t rows, std::uint64_t row_bytes,
                         std::uint64_t chunk_bytes) noexcept;

class GatherStaged {
public:
    GatherStaged(std::shared_ptr<Device> device, Team &team, Flights &flights, Faults &faults,
                 const StagedOptions &options);

    // Rows named by the host, or none named: gathered when it returns, copied in the order of
    // the stream. Throws Error: as GatherCall::finish(); SAC_E_GPU, SAC_E_NO_MEMORY.
    void gather(GatherRequest &request, std::uintptr_t stream);
    // Jobs that the caller resolved, their rows in all; for the measurement.
    void copy(std::span<sac_gather_req> reqs, std::span<const GatherJob> jobs,
              std::uint64_t rows, Address out, std::uintptr_t stream);
    // Rows named on the GPU: a host function in the stream gathers them. Returns at once.
    // Throws Error: SAC_E_GPU, SAC_E_NO_MEMORY.
    void gather_later(GatherRequest &request, std::uint64_t number, std::uintptr_t stream);

    std::uint64_t pinned_bytes() const noexcept;

private:
    struct Later;
    struct Half {
        PinnedBuffer memory;
        Event free;  // what was copied from it has arrived
    };
    Half &half(std::uint64_t row_bytes);
    void round(std::span<sac_gather_req> reqs, std::span<const GatherJob> jobs,
               std::uint64_t from, std::uint64_t to, Address out, std::uintptr_t stream);

    std::shared_ptr<Device> device_;
    Team &team_;
    Flights &flights_;
    Faults &faults_;
    const StagedOptions options_;
    TablePool pieces_;  // pinned, for gather_later
    Stream side_;       // of its copies
    mutable std::mutex mutex_;
    std::array<Half, 2> halves_;
    unsigned turn_ = 0;
};

}  // namespace sac::gpu
