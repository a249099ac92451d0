// SPDX-License-Identifier: Apache-2.0
// The GPU path of a gather: one kernel reads the pool's memory in place.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "gather_request.hpp"
#include "module.hpp"
#include "path_addresses.hpp"
#include "staging_tables.hpp"

namespace sac::gpu {

class GatherRows {
public:
    GatherRows(std::shared_ptr<Device> device, PoolAddresses &addresses, TablePool &tables,
               Flights &flights, Faults &faults);

    // In the order of the stream; returns at once. Throws Error: SAC_E_GPU, SAC_E_BUSY,
    // SAC_E_NO_MEMORY.
    void gather(GatherRequest &request, std::uint64_t number, std::uintptr_t stream);

private:
    Function kernel(std::uint32_t row_bytes, std::uint32_t pitch, std::uint32_t page_rows,
                    std::uint32_t access);

    std::shared_ptr<Device> device_;
    PoolAddresses &addresses_;
    TablePool &tables_;
    Flights &flights_;
    Faults &faults_;
    std::mutex mutex_;
    using Shape = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
    std::map<Shape, Function> kernels_;
};

}  // namespace sac::gpu
