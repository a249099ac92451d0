// SPDX-License-Identifier: Apache-2.0
// The data of a pool as this process has it mapped, and whether it may still be used.
#pragma once

#include <atomic>
#include <memory>

#include "mapping.hpp"

namespace sac {

class Backing {
public:
    explicit Backing(std::unique_ptr<Mapping> data);
    virtual ~Backing();
    Backing(const Backing &) = delete;
    Backing &operator=(const Backing &) = delete;

    const Mapping &data() const noexcept { return *data_; }
    Mapping &data() noexcept { return *data_; }
    bool forked() const noexcept { return epoch_ != fork_epoch(); }
    bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
    void set_closed() noexcept { closed_.store(true, std::memory_order_release); }
    // SAC_E_FORKED or SAC_E_CLOSED where a call must not go on.
    void check_usable() const;

protected:
    std::unique_ptr<Mapping> data_;
    std::atomic<bool> closed_{false};
    std::uint64_t epoch_;
};

}  // namespace sac
