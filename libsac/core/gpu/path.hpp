// SPDX-License-Identifier: Apache-2.0
// What goes between a namespace's pages and one GPU's memory: puts, gathers, and which of two
// paths a gather takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gather_rows.hpp"
#include "gather_staged.hpp"
#include "path_addresses.hpp"
#include "put_rows.hpp"
#include "staging_flights.hpp"
#include "staging_tables.hpp"
#include "staging_team.hpp"

namespace sac::gpu {

class Mover {
public:
    // Begins to register the pool, unless the CPU's path is all that is wanted. Throws Error:
    // SAC_E_ARG, SAC_E_GPU, SAC_E_NO_MEMORY.
    Mover(std::shared_ptr<Device> device, std::shared_ptr<Namespace> ns,
          const sac_gpu_mover_options &options);
    // Waits for what was given to the GPU.
    ~Mover() { flights_.drain(); }
    Mover(const Mover &) = delete;
    Mover &operator=(const Mover &) = delete;

    void put(Put &put, const sac_gpu_rows &rows, std::uintptr_t stream);
    void put(const std::shared_ptr<Sequence> &sequence, const sac_gpu_rows &rows,
             std::uintptr_t stream);
    std::uint64_t gather(const sac_gpu_gather_req &req, std::uintptr_t stream);

    void info(sac_gpu_mover_info &out);
    Faults &faults() noexcept { return faults_; }
    // Waits for what was given to the GPU.
    void drain() noexcept { flights_.drain(); }

private:
    struct Choice {
        std::uint32_t path = SAC_GPU_PATH_AUTO;
        bool forced = false;
        std::uint32_t row_bytes = 0;
        std::uint64_t rows = 0;
        double gpu_us = 0, cpu_us = 0;
        std::string why;
    };
    void check() const;
    PoolAddresses &addresses();
    // The path for a gather like this one; measured with its rows, at the first.
    std::uint32_t path(const sac_gpu_gather_req &like);
    Choice measure(const sac_gpu_gather_req &like);
    double time(const sac_gpu_gather_req &req, bool on_gpu);

    std::shared_ptr<Device> device_;
    std::shared_ptr<Namespace> ns_;
    const std::vector<unsigned> cores_;
    Team team_;
    TablePool tables_;
    Faults faults_;
    Stream own_;  // of the measurement
    std::mutex mutex_;
    Choice choice_;
    std::atomic<std::uint64_t> calls_{0};
    // What follows is under way or uses what is above; the flights wait for the GPU at the end.
    Flights flights_;
    std::unique_ptr<PoolAddresses> addresses_;  // null: the CPU's path alone
    std::unique_ptr<PutRows> puts_;
    std::unique_ptr<GatherRows> rows_;
    GatherStaged staged_;
};

}  // namespace sac::gpu
