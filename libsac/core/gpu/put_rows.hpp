// SPDX-License-Identifier: Apache-2.0
// Rows of a plane on their way from GPU memory into pages: one launch of sac_put.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "module.hpp"
#include "path_addresses.hpp"
#include "put.hpp"
#include "sac_gpu.h"
#include "sequence.hpp"
#include "staging_tables.hpp"

namespace sac::gpu {

// A launch of sac_put under way. A put asks it, and so does a sequence.
class PutFlight final : public PutFence, public Fence {
public:
    PutFlight(std::shared_ptr<Device> device, std::string plane)
        : device_(std::move(device)), plane_(std::move(plane)) {}

    // What follows is called once, behind the launch. wrong: of the table, set by the kernel.
    void launched(std::shared_ptr<Event> event, std::shared_ptr<Table> table,
                  std::uint64_t wrong);
    // Ended well. False for ever where a slot was wrong, or the launch did not come about: rows
    // that are not right never count as written.
    bool done() noexcept override;
    void wait() override;

private:
    bool wrong() const noexcept;

    const std::shared_ptr<Device> device_;
    const std::string plane_;
    std::mutex mutex_;
    std::shared_ptr<Event> event_;
    std::shared_ptr<Table> table_;
    std::uint64_t wrong_ = 0;
};

class PutRows {
public:
    PutRows(std::shared_ptr<Device> device, PoolAddresses &addresses, TablePool &tables,
            Flights &flights);

    // Whole missing pages of a put. Throws Error: SAC_E_ARG, SAC_E_RANGE, SAC_E_GPU,
    // SAC_E_BUSY; SAC_E_CLOSED.
    void put(Put &put, const sac_gpu_rows &rows, std::uintptr_t stream);
    // Rows of a sequence's open pages, all layers of the plane. Throws as put().
    void put(const std::shared_ptr<Sequence> &sequence, const sac_gpu_rows &rows,
             std::uintptr_t stream);

private:
    struct Target {
        const Geometry &geometry;
        const Mapping &data;                   // where the pages lie
        std::span<std::uint8_t *const> pages;  // null: not written
        std::uint64_t first, rows;             // first: of the first page
    };
    void check(const Geometry &g, const sac_gpu_rows &rows, std::uintptr_t stream) const;
    void launch(const Target &to, const sac_gpu_rows &rows, std::uintptr_t stream,
                const std::shared_ptr<PutFlight> &flight, std::function<void()> landed);
    Function kernel(std::uint32_t row_bytes, std::uint32_t access);

    std::shared_ptr<Device> device_;
    PoolAddresses &addresses_;
    TablePool &tables_;
    Flights &flights_;
    std::mutex mutex_;
    std::map<std::pair<std::uint32_t, std::uint32_t>, Function> kernels_;  // bytes, access
};

}  // namespace sac::gpu
