// SPDX-License-Identifier: Apache-2.0
// Where the GPU sees pages, for those who launch kernels that read or write them: memory that
// leaves its registration waits for what was launched, and is not given to what comes later.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "mapping.hpp"
#include "registration.hpp"
#include "staging_flights.hpp"

namespace sac::gpu {

class PoolAddresses final : public RegistrationUser {
public:
    // flights: where every launch is added.
    PoolAddresses(std::shared_ptr<Registration> registration, Flights &flights,
                  std::uint64_t timeout_ms)
        : registration_(std::move(registration)), flights_(flights), timeout_ms_(timeout_ms) {
        registration_->add(*this);
    }
    ~PoolAddresses() override { registration_->remove(*this); }
    PoolAddresses(const PoolAddresses &) = delete;
    PoolAddresses &operator=(const PoolAddresses &) = delete;

    const Registration &registration() const noexcept { return *registration_; }
    // Throws Error(SAC_E_GPU, SAC_E_BUSY) where not all is registered within the time.
    void require() {
        look_again();
        registration_->require(timeout_ms_);
    }
    // Held from the first address() until the launch was added to the flights.
    std::shared_lock<std::shared_mutex> lock() const { return std::shared_lock(mutex_); }
    // 0: not registered, or leaving.
    Address address(const std::uint8_t *memory, std::uint64_t bytes) const noexcept {
        const Address at = registration_->address(memory, bytes);
        const auto touches = [&](const Range &r) {
            return memory < r.first + r.second && r.first < memory + bytes;
        };
        return std::any_of(leaving_.begin(), leaving_.end(), touches) ? 0 : at;
    }

    // Of parts of pages, all of so many bytes; 0 for null, dead memory, and what address() does
    // not know. Returns the bits that occur in any.
    std::uint64_t list(std::span<std::uint8_t *const> parts, std::uint64_t bytes,
                       const Mapping &data, std::uint64_t *out) const noexcept {
        const bool faults = data.guard().faults() != 0;
        // Asked once instead of for each page: thousands, at every call.
        const bool whole = leaving_.empty() && address(data.data(), data.bytes()) != 0;
        std::uint64_t bits = 0;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            std::uint8_t *const part = parts[i];
            const bool dead =
                !part || (faults && data.guard().any_dead(
                                        static_cast<std::uint64_t>(part - data.data()), bytes));
            out[i] = dead    ? 0
                     : whole ? reinterpret_cast<std::uintptr_t>(part)
                             : address(part, bytes);
            bits |= out[i];
        }
        return bits;
    }

    void going(const std::uint8_t *memory, std::uint64_t bytes) noexcept override {
        const std::unique_lock held(mutex_);
        leaving_.emplace_back(memory, bytes);
        flights_.quiet();
    }

private:
    using Range = std::pair<const std::uint8_t *, std::uint64_t>;

    // Memory that has left may be registered anew.
    void look_again() noexcept {
        const std::unique_lock held(mutex_);
        std::erase_if(leaving_, [this](const Range &r) {
            return registration_->address(r.first, 1) == 0;
        });
    }

    std::shared_ptr<Registration> registration_;
    Flights &flights_;
    const std::uint64_t timeout_ms_;
    mutable std::shared_mutex mutex_;
    std::vector<Range> leaving_;
};

}  // namespace sac::gpu
