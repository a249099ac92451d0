// SPDX-License-Identifier: Apache-2.0
// Room for pages that are to be written, and what to say where there is none.
#include <sys/random.h>

#include <algorithm>
#include <cinttypes>

#include "control.hpp"
#include "error.hpp"
#include "stop.hpp"

namespace sac {

std::uint64_t CacheControl::random_token() {
    if (tokens_.empty()) {
        tokens_.resize(32);  // getrandom gives 256 bytes at once without a short read
        if (getrandom(tokens_.data(), 256, 0) != 256)
            tokens_.clear(), throw_errno("getrandom", "cannot draw a reservation's token");
    }
    const std::uint64_t t = tokens_.back();
    tokens_.pop_back();
    return t;
}

void CacheControl::no_space(std::uint64_t bodies, std::uint64_t tails) const {
    std::uint64_t pins = 0, expired = 0;
    for (const PinTable *t : pins_)
        pins += t->pinned_slots();
    for (const auto &[slot, held] : held_)
        expired += held.expired;
    const std::uint64_t free = media_.free_bytes() / fmt::kDataSlab;
    const std::uint64_t others = media_.slab_count() - free - assigned_slabs_;
    const auto mib = [](std::uint64_t slabs) { return slabs * fmt::kDataSlab >> 20; };
    const std::string quota =
        block_.max_bytes ? format(" of a quota of %" PRIu64 " MiB", mib(max_slabs_)) : "";
    std::string why =
        format("namespace '%s': no space for %" PRIu64 " pages and %" PRIu64
               " tails: it holds %" PRIu64 " MiB%s with room for %" PRIu64 " pages and %" PRIu64
               " tails; %" PRIu64 " are pinned, %zu are being written (%" PRIu64
               " of them past their deadline), %" PRIu64
               " lie on dead memory; other namespaces hold %" PRIu64 " MiB, %" PRIu64
               " MiB are free. ",
               block_.name, bodies, tails, mib(assigned_slabs_), quota.c_str(), slots_[0],
               slots_[1], pins, held_.size(), expired, dead_slots_, mib(others), mib(free));
    if (metadata_full_)
        why += "The pool's metadata is full: create the pool with more metadata_bytes.";
    else if (bodies > slots_[0] || tails > slots_[1])
        why += others > 0 && block_.max_bytes == 0
                   ? "So much can never fit beside the other namespaces, which keep what they "
                     "have: drop one, give them quotas when you create them, or make the pool "
                     "larger."
                   : "So much can never fit: put fewer pages at a time, or create the pool, or "
                     "the quota, larger.";
    else
        why += "End pins and puts, or wait for them with a time-out.";
    throw Error(SAC_E_NO_SPACE, block_.name, why);
}

std::vector<Reservation> CacheControl::reserve(std::uint64_t bodies, std::uint64_t tails,
                                               Clock::time_point deadline) {
    const std::lock_guard lock(mutex_);
    SAC_STOP("reserve.begin");
    if (retired_)
        throw Error(SAC_E_CLOSED, block_.name,
                    format("namespace '%s' was dropped", block_.name));
    sweep(Clock::now());
    const std::array<std::uint64_t, 2> want{bodies, tails};
    std::vector<Reservation> out;
    out.reserve(bodies + tails);
    held_.reserve(held_.size() + bodies + tails);
    for (const std::uint32_t part : {kBodyPart, kTailPart}) {
        while (free_[part].size() < want[part] && grow(part)) {
        }
        // A put that can never fit must not empty the cache first.
        if (free_[part].size() + committed_[part] < want[part])
            no_space(bodies, tails);
        // Once is not enough where a slot that was freed turns out to lie on dead memory.
        while (free_[part].size() < want[part])
            if (evict_part(part, want[part] - free_[part].size()) == 0)
                no_space(bodies, tails);
    }
    for (const std::uint32_t part : {kBodyPart, kTailPart})
        for (std::uint64_t i = 0; i < want[part]; ++i)
            out.push_back({0, part, media_.generation(), random_token()});
    for (Reservation &r : out) {  // nothing fails from here on
        r.slot = free_[r.part].back();
        free_[r.part].pop_back();
        held_.emplace(r.slot, Held{r.token, r.generation, deadline, false});
    }
    next_deadline_ = std::min(next_deadline_, deadline);
    SAC_STOP("reserve.end");
    return out;
}

void CacheControl::renew(std::span<const Reservation> held, Clock::time_point deadline) {
    const std::lock_guard lock(mutex_);
    for (const Reservation &r : held) {
        const auto it = held_.find(r.slot);
        if (it != held_.end() && it->second.token == r.token && !it->second.expired)
            it->second.deadline = deadline;
    }
}

}  // namespace sac
