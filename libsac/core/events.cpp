// SPDX-License-Identifier: Apache-2.0
// Events and counters: what others may know of a namespace.
#include <algorithm>
#include <cstring>

#include "control.hpp"

namespace sac {

void CacheControl::event(sac_event_kind kind, std::uint32_t slot, std::uint32_t part,
                         std::uint64_t generation, const std::uint8_t *key,
                         const std::uint8_t *parent) noexcept {
    const std::uint64_t sequence = event_next_++;
    if (ring_.empty())
        return;
    sac_event &e = ring_[sequence % kEventRing];
    e.sequence = sequence, e.kind = kind, e.part = part;
    e.handle = {generation, slot, part};
    std::memcpy(e.key, key, sizeof e.key);
    std::memcpy(e.parent, parent, sizeof e.parent);
}

void CacheControl::events(std::uint64_t &next, sac_event *out, std::uint64_t &count,
                          std::uint64_t &lost) {
    const std::lock_guard lock(mutex_);
    lost = 0;
    if (next == UINT64_MAX)
        next = event_next_;
    if (ring_.empty()) {
        ring_.resize(kEventRing);
        ring_first_ = event_next_;
    }
    const std::uint64_t oldest =
        std::max(ring_first_, event_next_ > kEventRing ? event_next_ - kEventRing : 0);
    if (next < oldest)
        lost = oldest - next, next = oldest;
    else if (next > event_next_)  // counted by an earlier incarnation: who knows how many
        lost = 1, next = oldest;
    std::uint64_t n = 0;
    for (; n < count && next < event_next_; ++next)
        out[n++] = ring_[next % kEventRing];
    count = n;
}

void CacheControl::fill(sac_ns_stats &out) const {
    std::unique_lock lock(mutex_);
    out = stats_;
    out.pages = committed_[kBodyPart], out.tails = committed_[kTailPart];
    out.reserved = held_.size();
    out.quarantined = dead_slots_[kBodyPart] + dead_slots_[kTailPart];
    for (const auto &[slot, held] : held_)
        out.quarantined += held.expired;
    const auto tables = pins_;
    const auto ranges = slot_ranges();
    // A slot that is being written is pinned for its writer, which does not count.
    std::uint64_t writing = 0;
    for (const auto &[slot, held] : held_)
        writing += held.owner && held.owner->pinned(slot);
    lock.unlock();  // many slots: writers need not wait for the count
    out.pinned = 0;
    for (const auto &t : tables) {
        add_counters(*t, out);
        for (const auto &[first, count] : ranges)
            out.pinned += t->pinned_slots(first, count);
    }
    out.pinned -= std::min(out.pinned, writing);
}

}  // namespace sac
