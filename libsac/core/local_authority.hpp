// SPDX-License-Identifier: Apache-2.0
// The authority where this process owns the pool: cache control itself.
#pragma once

#include <memory>
#include <mutex>

#include "authority.hpp"
#include "control.hpp"

namespace sac {

class LocalAuthority final : public Authority {
public:
    // control outlives this.
    LocalAuthority(CacheControl &control, const Backing &backing);

    std::shared_ptr<View> view() override;
    std::vector<Reservation> reserve(const std::shared_ptr<View> &view, std::uint64_t bodies,
                                     std::uint64_t tails, std::uint64_t deadline_ms) override;
    void renew(View &view, std::span<const Reservation> held,
               std::uint64_t deadline_ms) override;
    void commit(View &view, std::span<CommitItem> items, bool keep) override;
    void abort(View &view, std::span<const Reservation> held) noexcept override;
    std::uint64_t evict(std::uint64_t count) override { return control_.evict(count); }
    void verify(std::uint64_t &checked, std::uint64_t &dropped) override {
        control_.verify(checked, dropped);
    }
    void drop_dead() override { (void)control_.drop_dead(); }
    void events(std::uint64_t &next, sac_event *out, std::uint64_t &count,
                std::uint64_t &lost) override {
        control_.events(next, out, count, lost);
    }
    std::uint64_t assigned_bytes() override { return control_.assigned_bytes(); }
    void stats(sac_ns_stats &out, std::uint64_t &assigned) override;

private:
    CacheControl &control_;
    const Backing &backing_;
    std::mutex mutex_;
    std::shared_ptr<View> view_;
};

}  // namespace sac
