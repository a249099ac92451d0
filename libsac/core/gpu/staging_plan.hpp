// SPDX-License-Identifier: Apache-2.0
// The CPU path of a hot buffer: what a plan names is gathered by threads into pinned memory,
// from where sac_scatter brings it to its slots. A host function in the stream does it, so
// nothing waits for the GPU and all of it goes into a captured graph.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "../../hotbuffer/kernels/args.h"
#include "memory.hpp"
#include "staging_team.hpp"

namespace sac::gpu {

struct PlanPlane {
    std::uint32_t unit_bytes, pool_pitch, slot_pitch;
};
struct PlanShape {
    std::uint32_t lanes = 0;       // of all requests and heads
    std::uint32_t top_k = 0;       // the most of a selection
    std::uint32_t threads = 0;     // of the planning kernels: hot_threads()
    std::uint32_t page_units = 0;  // units of a page
    std::vector<PlanPlane> planes;
};

class PlanStaging {
public:
    // Pinned memory for all units that a step can miss at most. cpu_threads: as team_size().
    // One object serves one stream at a time: what gather() gave is in use until the launch
    // that got it has ended. Throws Error: SAC_E_GPU, SAC_E_NO_MEMORY.
    PlanStaging(std::shared_ptr<Device> device, const PlanShape &shape,
                unsigned cpu_threads = 0);
    // No stream, and no graph that may be launched, uses it any more.
    ~PlanStaging();

    // Behind a launch of sac_resolve or sac_prefetch with HOT_PLAN_ONLY and these arguments.
    // What table, the lists of pages in it, and plan name is pinned memory of the host; the
    // pages are the host's addresses. Returns what sac_scatter is launched with, next in the
    // stream. Can be captured. Throws Error(SAC_E_GPU).
    HotScatter gather(const HotArgs &args, std::uintptr_t stream);

    std::uint64_t memory_bytes() const noexcept { return rows_.bytes() + numbers_bytes_; }
    unsigned threads() const noexcept { return team_.threads(); }

private:
    struct Job;
    struct Numbers {  // one call's requests and starts, in pinned memory
        std::uint8_t *data;
        Address address;
        bool busy;
    };
    struct Piece {
        const HotMove *moves;
        const HotRequest *request;
        std::uint32_t head, begin, end;  // of the lane's moves
        std::uint64_t at;                // unit of the staging that the lane begins at
    };

    std::size_t take_numbers(Numbers &out);
    void add_slab();
    static void run(void *job) noexcept;
    void copy(const Job &job) noexcept;
    void copy_piece(const HotArgs &args, const Piece &piece) const noexcept;

    std::shared_ptr<Device> device_;
    const PlanShape shape_;
    const std::uint32_t plan_bytes_;
    Team team_;
    PinnedBuffer rows_;
    std::vector<std::uint64_t> offsets_;  // of each plane in rows_
    std::vector<Piece> pieces_;           // of the job that runs now
    std::mutex mutex_;
    std::vector<PinnedBuffer> slabs_;  // of the numbers
    std::vector<Numbers> numbers_;
    std::uint64_t numbers_bytes_ = 0;
    static constexpr std::size_t kNone = SIZE_MAX;
    std::size_t used_last_ = kNone;               // numbers of the last call outside a graph
    std::vector<std::unique_ptr<Job>> captured_;  // graphs may run them again
};

}  // namespace sac::gpu
