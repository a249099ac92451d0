// SPDX-License-Identifier: Apache-2.0
// The pins and the accesses of one client of a namespace: a count for each slot and a ring
// of slots read. The client writes, who evicts reads; dropping the table drops the pins.
#pragma once

#include <atomic>
#include <cstdint>

#include "mapping.hpp"

namespace sac {

class PinTable {
public:
    explicit PinTable(std::uint64_t capacity);

    // Publishes one more pin of the slot; a full barrier, so that the caller's next look at
    // the record's word is ordered against an eviction's mark.
    void pin(std::uint32_t slot) noexcept {
        counts_[slot].fetch_add(1, std::memory_order_seq_cst);
    }
    void unpin(std::uint32_t slot) noexcept {
        counts_[slot].fetch_sub(1, std::memory_order_release);
    }
    bool pinned(std::uint32_t slot) const noexcept {
        return counts_[slot].load(std::memory_order_seq_cst) != 0;
    }
    void prefetch(std::uint32_t slot) const noexcept { __builtin_prefetch(&counts_[slot], 1); }
    std::uint64_t pinned_slots() const noexcept { return pinned_slots(0, capacity_); }
    // Of so many slots from the first on.
    std::uint64_t pinned_slots(std::uint64_t first, std::uint64_t count) const noexcept;

    // Notes accesses, coldest first; the oldest notes are overwritten when nobody reads.
    void note(const std::uint32_t *slots, std::uint64_t count) noexcept;
    // Calls fn(slot) for the notes since the last drain, at most kRing. One drainer only.
    template <class Fn> void drain(Fn &&fn) noexcept {
        const std::uint64_t head = head_->load(std::memory_order_acquire);
        if (head - drained_ > kRing)
            drained_ = head - kRing;
        for (; drained_ != head; ++drained_)
            fn(ring_[drained_ % kRing].load(std::memory_order_relaxed));
    }

private:
    static constexpr std::uint64_t kRing = std::uint64_t{1} << 16;

    std::uint64_t capacity_;
    std::uint64_t drained_ = 0;
    Memory memory_;
    std::atomic<std::uint64_t> *head_;
    std::atomic<std::uint32_t> *ring_;
    std::atomic<std::uint32_t> *counts_;
};

}  // namespace sac
