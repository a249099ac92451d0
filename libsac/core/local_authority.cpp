// SPDX-License-Identifier: Apache-2.0
#include "local_authority.hpp"

#include <algorithm>

#include "error.hpp"

namespace sac {
namespace {

// Centuries are as good as for ever, and do not overflow the clock.
Clock::time_point from_now(std::uint64_t ms) {
    return Clock::now() +
           std::chrono::milliseconds(std::min<std::uint64_t>(ms, std::uint64_t{1} << 42));
}

}  // namespace

LocalAuthority::LocalAuthority(CacheControl &control, const Backing &backing)
    : control_(control), backing_(backing) {}

std::shared_ptr<View> LocalAuthority::view() {
    const std::lock_guard lock(mutex_);
    if (view_ && !view_->revoked())
        return view_;
    auto index = control_.index();
    auto pins = std::make_shared<PinTable>(index->capacity());
    control_.attach(pins);
    // The table counts as long as somebody holds the view. At the pool's end nobody counts.
    CacheControl *const control = &control_;
    view_ = std::shared_ptr<View>(new View(std::move(index), std::move(pins), backing_.data()),
                                  [control, backing = &backing_](View *v) {
                                      if (!backing->forked() && v->revoked())
                                          control->detach(v->pins());
                                      delete v;
                                  });
    return view_;
}

std::vector<Reservation> LocalAuthority::reserve(const std::shared_ptr<View> &view,
                                                 std::uint64_t bodies, std::uint64_t tails,
                                                 std::uint64_t deadline_ms) {
    auto held = control_.reserve(bodies, tails, from_now(deadline_ms));
    if (view->revoked()) {  // its index may not know their chunks
        control_.abort(held);
        throw Error(SAC_E_STALE, "view", "the namespace has a new view");
    }
    return held;
}

void LocalAuthority::renew(View &, std::span<const Reservation> held,
                           std::uint64_t deadline_ms) {
    control_.renew(held, from_now(deadline_ms));
}

void LocalAuthority::commit(View &view, std::span<CommitItem> items, bool keep) {
    control_.commit(items, keep ? &view.pins() : nullptr);
}

void LocalAuthority::abort(View &, std::span<const Reservation> held) noexcept {
    control_.abort(held);
}

void LocalAuthority::stats(sac_ns_stats &out, std::uint64_t &assigned) {
    control_.fill(out);
    assigned = control_.assigned_bytes();
}

}  // namespace sac
