// SPDX-License-Identifier: Apache-2.0
// One client's table of a namespace: a pin count and a reservation token for each slot, a ring
// of slots read, and counters. In memory of the process, or a file that the client and the
// daemon share (docs/protocol.md): then whoever reads it believes nothing in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "latency.hpp"
#include "memory.hpp"

namespace sac {

class PinTable {
public:
    // In docs/protocol.md's order.
    struct Counters {
        std::atomic<std::uint64_t> lookups, hits, rows_gathered, bytes_gathered, bytes_written,
            puts, gathers, pins;
    };
    enum Timing { kLookup, kPin, kGather, kPut, kTimings };

    // In memory of this process.
    explicit PinTable(std::uint64_t capacity);
    // A file of file_bytes(capacity) bytes, which is made to have them (a new one is zeros).
    // Throws Error.
    PinTable(Fd file, std::uint64_t capacity, const std::string &name);
    static std::uint64_t file_bytes(std::uint64_t capacity) noexcept;
    // Its first part, header and ring: must have memory behind it before anybody maps it.
    static std::uint64_t first_bytes(std::uint64_t capacity) noexcept;

    std::uint64_t capacity() const noexcept { return capacity_; }
    bool shared() const noexcept { return static_cast<bool>(memory_.file()); }

    // Publishes one more pin of the slot; a full barrier, so that the caller's next look at
    // the record's word is ordered against an eviction's mark.
    void pin(std::uint32_t slot) noexcept {
        counts_[slot].fetch_add(1, std::memory_order_seq_cst);
    }
    void unpin(std::uint32_t slot) noexcept {
        counts_[slot].fetch_sub(1, std::memory_order_release);
    }
    bool pinned(std::uint32_t slot) const noexcept {
        return slot < capacity_ && there(&counts_[slot]) &&
               counts_[slot].load(std::memory_order_seq_cst) != 0;
    }
    void prefetch(std::uint32_t slot) const noexcept { __builtin_prefetch(&counts_[slot], 1); }
    std::uint64_t pinned_slots() const noexcept { return pinned_slots(0, capacity_); }
    // Of so many slots from the first on.
    std::uint64_t pinned_slots(std::uint64_t first, std::uint64_t count) const noexcept;

    // Sees to it that a grant of the slot finds memory. False: the file system is full.
    bool make_room(std::uint32_t slot) noexcept;
    // The owner of the pages (the daemon) hands the slot over: token, then the count.
    // Slots that the table has no place for are left alone: it may be of a smaller view.
    void grant(std::uint32_t slot, std::uint64_t token) noexcept {
        if (slot >= capacity_)
            return;
        tokens_[slot].store(token, std::memory_order_seq_cst);
        pin(slot);
    }
    std::uint64_t token(std::uint32_t slot) const noexcept {
        return slot < capacity_ && there(&tokens_[slot])
                   ? tokens_[slot].load(std::memory_order_seq_cst)
                   : 0;
    }
    void end_grant(std::uint32_t slot) noexcept {
        if (token(slot) != 0)
            tokens_[slot].store(0, std::memory_order_seq_cst);
    }
    // Calls fn(slot) for each slot that has a count or a token.
    template <class Fn> void each_used(Fn &&fn) const;

    // The view that the table belongs to takes no new pins from now on.
    void revoke() noexcept { head().revoked.store(1, std::memory_order_seq_cst); }
    // Also where a pin found no memory in a file system that is full: nobody else saw it, and
    // nobody will see the next.
    bool revoked() const noexcept {
        return head().revoked.load(std::memory_order_seq_cst) != 0 || died();
    }

    // Counts from now on are seen by this process alone.
    bool died() const noexcept { return memory_.died(); }

    // Of the pool, when the table's owner was last known to it.
    void set_incarnation(std::uint64_t n) noexcept {
        head().incarnation.store(n, std::memory_order_seq_cst);
    }
    std::uint64_t incarnation() const noexcept {
        return head().incarnation.load(std::memory_order_seq_cst);
    }

    // Notes accesses, coldest first; the oldest notes are overwritten when nobody reads.
    void note(const std::uint32_t *slots, std::uint64_t count) noexcept;
    // Calls fn(slot) for the notes since the last drain, at most the ring's. One drainer only.
    template <class Fn> void drain(Fn &&fn) noexcept {
        const std::uint64_t end = head().noted.load(std::memory_order_acquire);
        if (end - drained_ > ring_size_)
            drained_ = end - ring_size_;
        for (; drained_ != end; ++drained_)
            fn(ring_[drained_ & (ring_size_ - 1)].load(std::memory_order_relaxed));
    }

    Counters &counters() const noexcept { return head().counters; }
    Latency &latency(Timing what) const noexcept { return head().latency[what]; }

private:
    struct Head {
        char magic[8];
        std::uint64_t capacity, ring;
        std::uint8_t pad[40];
        std::atomic<std::uint32_t> revoked;  // at 64
        std::uint32_t pad1;
        std::atomic<std::uint64_t> incarnation;  // at 72
        std::uint8_t pad2[48];
        std::atomic<std::uint64_t> noted;  // at 128
        std::uint8_t pad3[56];
        Counters counters;  // at 192
        std::uint8_t pad4[4096 - 256];
        Latency latency[kTimings];  // at 4096
    };
    static_assert(sizeof(Head) == 8192);

    void place() noexcept;
    // Whether there is memory behind a count or token; a hole of the file reads as zero, and
    // is not to be touched: that takes memory, or fails where there is none.
    bool there(const void *at) const noexcept {
        return !known_ || known_[page_of(at)].load(std::memory_order_relaxed) || look(at);
    }
    bool look(const void *at) const noexcept;
    std::uint64_t page_of(const void *at) const noexcept {
        return static_cast<std::uint64_t>(static_cast<const std::uint8_t *>(at) -
                                          memory_.data()) /
               4096;
    }
    // From the file: a look at a hole through the mapping would take memory.
    void read(void *to, const void *from, std::size_t bytes) const noexcept;
    Head &head() const noexcept { return *reinterpret_cast<Head *>(memory_.data()); }
    // Marks the slots with something in them among so many; false: there is none.
    bool used_block(std::uint64_t first, std::uint64_t count, std::uint8_t *used) const;

    static constexpr std::uint64_t kMostRing = std::uint64_t{1} << 16;
    static constexpr std::uint64_t kBlock = 4096;

    std::uint64_t capacity_, ring_size_;
    std::uint64_t drained_ = 0;
    Memory memory_;
    std::atomic<std::uint32_t> *ring_;
    std::atomic<std::uint32_t> *counts_;
    std::atomic<std::uint64_t> *tokens_;
    // Of a file: by page, whether it is known to be no hole. It never becomes one again but by
    // somebody who harms himself.
    std::unique_ptr<std::atomic<bool>[]> known_;
};

template <class Fn> void PinTable::each_used(Fn &&fn) const {
    std::uint8_t used[kBlock];
    for (std::uint64_t first = 0; first < capacity_; first += kBlock) {
        const std::uint64_t count = std::min(kBlock, capacity_ - first);
        if (!used_block(first, count, used))
            continue;
        for (std::uint64_t i = 0; i < count; ++i)
            if (used[i])
                fn(static_cast<std::uint32_t>(first + i));
    }
}

}  // namespace sac
