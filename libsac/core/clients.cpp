// SPDX-License-Identifier: Apache-2.0
// The tables of a namespace's clients: attached, adopted from an earlier incarnation, gone.
#include <algorithm>

#include "control.hpp"
#include "error.hpp"
#include "namespace_block.hpp"
#include "stop.hpp"

namespace sac {

void CacheControl::attach(std::shared_ptr<PinTable> pins) {
    const std::lock_guard lock(mutex_);
    pins_.push_back(std::move(pins));
}

void CacheControl::detach(const PinTable &pins) {
    const std::lock_guard lock(mutex_);
    const auto it = std::find_if(pins_.begin(), pins_.end(),
                                 [&](const auto &t) { return t.get() == &pins; });
    if (it == pins_.end())
        return;
    drain();
    const std::shared_ptr<PinTable> table = *it;
    pins_.erase(it);
    add_counters(*table, stats_);
    for (auto held = held_.begin(); held != held_.end();) {
        if (held->second.owner != table.get()) {
            ++held;
            continue;
        }
        const std::uint32_t slot = held->first;
        held = held_.erase(held);
        ++stats_.aborts;
        free_unread(slot, chunk_part_[slot / block_.chunk_slots]);
    }
    SAC_STOP("detach.end");
}

void CacheControl::add_counters(const PinTable &pins, sac_ns_stats &out) const noexcept {
    const PinTable::Counters &c = pins.counters();
    const auto add = [](std::uint64_t &to, const std::atomic<std::uint64_t> &from) {
        to += from.load(std::memory_order_relaxed);
    };
    add(out.lookups, c.lookups), add(out.hits, c.hits);
    add(out.rows_gathered, c.rows_gathered), add(out.bytes_gathered, c.bytes_gathered);
    add(out.bytes_written, c.bytes_written);
}

void CacheControl::revoke_all() noexcept {
    for (const auto &t : pins_)
        t->revoke();
}

bool CacheControl::has_clients() const {
    const std::lock_guard lock(mutex_);
    return std::any_of(pins_.begin(), pins_.end(), [](const auto &t) { return t->shared(); });
}

std::uint64_t CacheControl::reservations_of(const PinTable &table) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint64_t>(std::count_if(
        held_.begin(), held_.end(), [&](const auto &h) { return h.second.owner == &table; }));
}

void CacheControl::adopt(std::span<const std::shared_ptr<PinTable>> tables) {
    constexpr std::chrono::seconds kGrace{60};  // as long as a new reservation has
    const std::lock_guard lock(mutex_);
    // First no new pin in the views of the last incarnation, then a look at the pins.
    for (const auto &t : tables) {
        t->revoke();
        pins_.push_back(t);
    }
    SAC_STOP("adopt.revoked");
    struct Use {
        std::uint32_t slot, part;
        PinTable *table;
    };
    std::vector<Use> written, read;
    for (const auto &t : tables)
        t->each_used([&](std::uint32_t slot) {
            const std::uint8_t part =
                slot < index_->capacity() ? chunk_part_[slot / block_.chunk_slots] : kNoChunk;
            // A committed page needs nothing: its pin counts as it is.
            if (part == kNoChunk || committed(slot, part))
                return;
            (t->token(slot) != 0 ? written : read).push_back({slot, part, t.get()});
        });
    std::array<std::vector<bool>, 2> free;  // by slot
    for (const std::uint32_t part : {kBodyPart, kTailPart}) {
        free[part].resize(index_->capacity());
        for (const std::uint32_t slot : free_[part])
            free[part][slot] = true;
    }
    const auto deadline = Clock::now() + kGrace;
    held_.reserve(held_.size() + written.size());
    for (const Use &u : written) {
        if (!free[u.part][u.slot])
            continue;  // another's claim came first, or the memory is dead
        if (!u.table->pinned(u.slot)) {
            u.table->end_grant(u.slot);  // it was about to give it up
            continue;
        }
        const std::uint64_t token = u.table->token(u.slot);
        held_.emplace(u.slot, Held{token, media_.generation(), deadline, false, u.table});
        free[u.part][u.slot] = false;
        next_deadline_ = std::min(next_deadline_, deadline);
    }
    // Read still, or written by somebody who was told to stop: nobody's until the pin ends.
    for (const Use &u : read) {
        if (!free[u.part][u.slot])
            continue;
        free[u.part][u.slot] = false;
        limbo_.push_back(u.slot);
    }
    for (const std::uint32_t part : {kBodyPart, kTailPart})
        std::erase_if(free_[part], [&](std::uint32_t slot) { return !free[part][slot]; });
    SAC_STOP("adopt.end");
}

// The largest change that is always possible: slots keep their numbers, so that pins and
// reservations mean what they did.
void CacheControl::resize(std::uint64_t max_slabs) {
    const std::lock_guard lock(mutex_);
    if (max_slabs < held_slabs())
        shrink(max_slabs);
    make_positions(max_slabs);
    max_slabs_ = max_slabs;
}

// Chunks on dead memory keep their slots, and need others in their place.
void CacheControl::make_positions(std::uint64_t max_slabs) {
    const std::uint64_t capacity =
        slot_capacity(block_, std::min(media_.slab_count(), max_slabs + dead_slabs_));
    if (capacity > index_->capacity())
        replace_index(capacity);
}

void CacheControl::replace_index(std::uint64_t capacity) {
    auto other = std::make_shared<Index>(*index_, capacity);
    chunk_part_.resize(capacity / block_.chunk_slots, kNoChunk);
    for (auto &p : policy_)
        p->moved(*other);
    index_ = std::move(other);
    revoke_all();
}

void CacheControl::renew_index() {
    const std::lock_guard lock(mutex_);
    replace_index(index_->capacity());
}

void CacheControl::revoke_views() {
    const std::lock_guard lock(mutex_);
    revoke_all();
}

// Gives the coldest chunks back until no more than so many slabs are held, as far as pins let
// it.
void CacheControl::trim(std::uint64_t max_slabs) {
    for (bool again = true; again && held_slabs() > max_slabs;) {
        again = false;
        Survey s = survey();
        const auto all = media_.owned();
        const auto own = all.find(block_.id);
        for (const std::uint32_t part : {kBodyPart, kTailPart})
            for (const std::uint64_t position : candidates(part, 0, s)) {
                const auto run =
                    std::find_if(own->second.runs.begin(), own->second.runs.end(),
                                 [&](const Run &r) { return r.position == position; });
                if (held_slabs() > max_slabs && run != own->second.runs.end())
                    again |= take_back(*run, part);
            }
    }
}

void CacheControl::shrink(std::uint64_t max_slabs) {
    sweep(Clock::now());
    trim(max_slabs);
    if (held_slabs() <= max_slabs)
        return;
    std::uint64_t pins = 0;
    for (const auto &[first, count] : slot_ranges())
        for (const auto &t : pins_)
            pins += t->pinned_slots(first, count);
    throw Error(
        SAC_E_BUSY, block_.name,
        format("namespace '%s': it holds %llu MiB and cannot be made smaller than that now: "
               "%llu pages are pinned or being written, spread over its chunks. What could be "
               "evicted was; try again when they have ended.",
               block_.name,
               static_cast<unsigned long long>(held_slabs() * fmt::kDataSlab >> 20),
               static_cast<unsigned long long>(pins)));
}

}  // namespace sac
