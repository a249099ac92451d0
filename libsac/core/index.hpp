// SPDX-License-Identifier: Apache-2.0
// The lookup index of one namespace: derived, in ordinary memory, one writer, readers
// without locks. Offsets only, so that the block can be a memfd that other processes map.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "memory.hpp"
#include "sac.h"

namespace sac {

struct Key {
    std::uint64_t w[4];
    static Key load(const std::uint8_t *bytes) noexcept;
    bool operator==(const Key &) const noexcept = default;
    bool zero() const noexcept { return (w[0] | w[1] | w[2] | w[3]) == 0; }
};

// One page part, one cache line: what readers need, and the writer's links beside it.
struct alignas(64) Record {
    static constexpr std::uint64_t kMark = std::uint64_t{1} << 63;    // being evicted
    static constexpr std::uint64_t kAbsent = std::uint64_t{1} << 62;  // not committed
    static constexpr std::uint64_t kTailBit = std::uint64_t{1} << 61;
    static constexpr std::uint64_t kGeneration = kTailBit - 1;
    // Both: the page left because its memory is dead. Nobody gets the slot again.
    static constexpr std::uint64_t kLost = kMark | kAbsent;
    static constexpr bool lost(std::uint64_t w) noexcept { return (w & kLost) == kLost; }

    std::atomic<std::uint64_t> word;  // generation and the three bits above
    std::atomic<std::uint64_t> key[4];
    std::uint64_t stamp;  // of the last access, for eviction order (writer only, as below)
    std::uint32_t parent, children;
    std::uint32_t colder, hotter;
};
static_assert(sizeof(Record) == 64);

constexpr std::uint32_t kNoSlot = UINT32_MAX;

class Index {
public:
    // Room for slots 0 .. capacity-1, in chunks of chunk_slots slot numbers. shared: in a memfd
    // that other processes may map.
    Index(std::uint64_t capacity, std::uint32_t chunk_slots, std::uint64_t seed,
          std::uint64_t incarnation, bool shared);
    // What is in another one, which has less room. Slots keep their numbers.
    Index(const Index &other, std::uint64_t capacity);
    // Another process' index, to read. Throws Error: SAC_E_CORRUPT, SAC_E_VERSION,
    // SAC_E_SYSTEM.
    Index(Fd file, std::uint64_t bytes, const std::string &name);

    std::uint64_t capacity() const noexcept { return capacity_; }
    std::uint64_t bytes() const noexcept { return memory_.bytes(); }
    int fd() const noexcept { return memory_.file().get(); }  // -1: in this process only
    Record &record(std::uint32_t slot) const noexcept { return records_[slot]; }
    // Changes when pages left although they may be pinned, and differs between incarnations
    // of the pool.
    std::uint64_t forced() const noexcept {
        return head().forced.load(std::memory_order_acquire);
    }
    // In a memfd: puts huge pages behind the records of these slots; buckets: behind those,
    // too. Takes a while. One thread at a time.
    void make_huge(std::uint64_t first, std::uint64_t count, bool buckets) noexcept;
    void count_forced() noexcept { head().forced.fetch_add(1, std::memory_order_acq_rel); }

    // ---- readers, any thread
    // The slot that holds the key, with its generation word (kAbsent never set), or kNoSlot.
    std::uint32_t find(const Key &key, std::uint32_t part, std::uint64_t &word) const noexcept;
    // find for many keys with memory accesses overlapped. keys: 32 bytes each.
    std::uint64_t find_batch(const std::uint8_t *keys, std::uint64_t count, std::uint32_t part,
                             sac_handle *out) const noexcept;
    // Where a slot's page lies in the data range.
    std::uint64_t chunk(std::uint32_t slot, std::uint32_t &within) const noexcept {
        within = slot % chunk_slots_;
        return chunks_[slot / chunk_slots_].load(std::memory_order_relaxed);
    }

    // ---- the writer
    void set_chunk(std::uint64_t position, std::uint64_t offset) noexcept {
        chunks_[position].store(offset, std::memory_order_release);
    }
    // Makes the slot found under key; word: generation and part, without kAbsent.
    void insert(std::uint32_t slot, const Key &key, std::uint64_t word) noexcept;
    // Takes the slot out; word is what its record holds from now on.
    void remove(std::uint32_t slot, std::uint64_t word) noexcept;
    // A slot that holds nothing, and whose memory is dead.
    void set_lost(std::uint32_t slot) noexcept {
        records_[slot].word.store(Record::kLost, std::memory_order_seq_cst);
    }
    void prefetch(const Key &key, std::uint32_t part) const noexcept;
    Key key(std::uint32_t slot) const noexcept;

private:
    static constexpr int kEntries = 7;
    struct Head {
        char magic[8];
        std::uint64_t capacity, buckets;
        std::uint32_t chunk_slots, reserved;
        std::uint64_t seed[2];
        std::uint8_t pad[16];
        std::atomic<std::uint64_t> forced;  // at 64
        std::uint8_t pad2[4096 - 72];
    };
    static_assert(sizeof(Head) == 4096);
    struct alignas(64) Bucket {
        // Low half: slot + 1 (0: empty); high half: tag. Never moved once written, so a
        // reader needs no lock: what it finds it checks against the record.
        std::atomic<std::uint64_t> entry[kEntries];
        std::atomic<std::uint64_t> passed;  // entries that found this bucket full
    };

    Head &head() const noexcept { return *reinterpret_cast<Head *>(memory_.data()); }
    void place() noexcept;
    void write_head(std::uint64_t forced) noexcept;
    void enter(std::uint64_t hash, std::uint32_t slot) noexcept;
    std::uint64_t hash(const Key &key, std::uint32_t part) const noexcept;
    std::uint64_t home(std::uint64_t hash) const noexcept {
        return (hash >> 32) * buckets_ >> 32;
    }
    bool check(std::uint32_t slot, const Key &key, std::uint32_t part,
               std::uint64_t &word) const noexcept;
    std::uint32_t search(std::uint64_t hash, const Key &key, std::uint32_t part,
                         std::uint64_t &word) const noexcept;

    std::uint64_t capacity_, buckets_;
    std::uint32_t chunk_slots_;
    std::uint64_t seed_[2];
    Memory memory_;
    std::vector<bool> huge_;  // by block of 2 MiB: tried already
    Bucket *bucket_;
    Record *records_;
    std::atomic<std::uint64_t> *chunks_;
};

}  // namespace sac
