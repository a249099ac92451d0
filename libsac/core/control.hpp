// SPDX-License-Identifier: Apache-2.0
// Cache control of one namespace: the only writer of its headers and index. Reservations,
// commits, eviction, recovery. Calls are serialised by one mutex, which no reader takes.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "authority.hpp"
#include "index.hpp"
#include "layout.hpp"
#include "media.hpp"
#include "pins.hpp"
#include "policy.hpp"

namespace sac {

using Clock = std::chrono::steady_clock;

class CacheControl {
public:
    CacheControl(Media &media, const fmt::NamespaceBlock &block, const Geometry &geometry,
                 std::shared_ptr<Index> index, std::uint64_t max_slabs);

    // Reads all headers and fills the index. Throws Error(SAC_E_CORRUPT) where the slabs do
    // not fit together. Uses no generation.
    void recover(const Owned &owned, bool rebooted);

    // One more client's table, whose pins count from now on.
    void attach(std::shared_ptr<PinTable> pins);
    // The client has gone: its reservations end, its pins do not count any more.
    void detach(const PinTable &pins);
    // Tables that clients of an earlier incarnation use still: what they pin stays, what they
    // write stays theirs. To be called before anything is reserved or evicted.
    void adopt(std::span<const std::shared_ptr<PinTable>> tables);
    // So many slabs from now on, and an index for them; what lies on dead memory does not
    // count. Evicts where that is less than it holds, and throws Error(SAC_E_BUSY) where pins
    // are in the way. A larger index revokes all views.
    void resize(std::uint64_t max_slabs);
    // Another index of the same content: all views are old, and nothing is granted in them.
    void renew_index();
    // Who has a view asks for another, and is told what has changed.
    void revoke_views();
    // The index that is current.
    std::shared_ptr<Index> index() const;

    // Room for so many parts, by growing, then evicting. Throws Error(SAC_E_NO_SPACE) and
    // reserves nothing where there is not enough. owner: the table of the client that it is
    // for, granted there; none for this process.
    std::vector<Reservation> reserve(std::uint64_t bodies, std::uint64_t tails,
                                     Clock::time_point deadline, PinTable *owner = nullptr);
    void renew(std::span<const Reservation> held, Clock::time_point deadline);
    // Ends the reservations; throws Error(SAC_E_RESERVATION) before anything is visible if
    // one of them is not valid any more. Their slots stay with the writer, who may still be
    // writing, until it aborts.
    // With pins, each page is pinned there as it becomes visible.
    void commit(std::span<CommitItem> items, PinTable *pins = nullptr);
    // For a client: COMMIT of docs/protocol.md. Repeated, it gives the same answer.
    void commit(std::span<CommitItem> items, PinTable &table, bool keep);
    void abort(std::span<const Reservation> held) noexcept;

    std::uint64_t evict(std::uint64_t count);
    void verify(std::uint64_t &checked, std::uint64_t &dropped);
    // Takes the pages of dead blocks out of the index, for ever; how many. Their slabs do not
    // count any more: the index grows, and revokes all views, where others may be had instead.
    std::uint64_t drop_dead();

    void events(std::uint64_t &next, sac_event *out, std::uint64_t &count, std::uint64_t &lost);
    void fill(sac_ns_stats &out) const;
    // Of slabs held, but for those on dead memory.
    std::uint64_t assigned_bytes() const;
    // Pinned or reserved parts. 0: from now on nothing is reserved, evicted or checked, so that
    // the slabs can be given to others.
    // Then all views are revoked.
    std::uint64_t retire();
    // Whether another process has a table here.
    bool has_clients() const;
    // Slots that a table's client is writing to.
    std::uint64_t reservations_of(const PinTable &table) const;

private:
    struct Held {
        std::uint64_t token, generation;
        Clock::time_point deadline;
        bool expired;
        PinTable *owner;  // where it was granted; null: in this process
    };
    struct Shape {
        std::uint32_t slabs, pages;  // of a chunk
        std::uint32_t role;
    };

    // What could leave, by chunk: what a reservation can count on before it evicts anything.
    struct ChunkState {
        std::uint64_t newest = 0;                        // stamp of its page used last
        std::uint32_t there = 0, avail = 0, pinned = 0;  // slots: free or committed; of them
    };
    struct Survey {
        std::vector<ChunkState> chunks;        // by position
        std::array<std::uint64_t, 2> avail{};  // slots that are free or whose page can leave
        std::uint64_t pinned = 0;
    };
    using Want = std::array<std::uint64_t, 2>;

    std::string name() const { return block_.name; }
    std::uint64_t page_offset(std::uint32_t slot, std::uint32_t part) const noexcept;
    fmt::PageHeader *header(std::uint32_t slot) const noexcept;
    std::uint32_t header_crc(const fmt::PageHeader *h) const noexcept;
    bool header_valid(const fmt::PageHeader *h, std::uint32_t slot,
                      std::uint32_t part) const noexcept;
    void write_header(std::uint32_t slot, const fmt::PageHeader &h,
                      const std::uint32_t *tokens) noexcept;
    void clear_header(std::uint32_t slot, std::uint64_t generation) noexcept;

    void check_header(std::uint32_t slot) const;
    bool grow(std::uint32_t part);
    void make_lists(std::uint64_t pages, std::uint32_t part);
    void check_held(const CommitItem &item, const PinTable *table) const;
    bool done_already(const CommitItem &item, const PinTable &table) const;
    void add_counters(const PinTable &pins, sac_ns_stats &out) const noexcept;
    void revoke_all() noexcept;
    void replace_index(std::uint64_t capacity);
    void make_positions(std::uint64_t max_slabs);
    void trim(std::uint64_t max_slabs);
    void shrink(std::uint64_t max_slabs);
    // Slabs that count against the quota.
    std::uint64_t held_slabs() const noexcept { return assigned_slabs_ - dead_slabs_; }
    // Of a chunk: how many of its slabs lie on dead memory.
    std::uint64_t dead_slabs(std::uint64_t position) const noexcept;
    void count_dead_slabs() noexcept;
    void make_room(const Want &want);
    // Whether so many pages can leave, by a short look at the coldest ones; false: not known.
    bool enough(std::uint32_t part, std::uint64_t count) const noexcept;
    void quick_refusal(const Want &want) const;
    Survey survey();
    std::vector<std::uint64_t> candidates(std::uint32_t part, std::uint64_t keep,
                                          const Survey &s) const;
    void convert(std::uint32_t part, const Want &want, Survey &s);
    std::vector<Run> window(std::uint32_t part,
                            const std::vector<std::uint64_t> &coldest) const;
    bool take_back(const Run &run, std::uint32_t part);
    void add_chunk(std::uint64_t position, std::uint32_t part, std::uint64_t offset);
    // A pin of a reader who came too late for the page does not matter: it looks, and unpins.
    void free_slot(std::uint32_t slot, std::uint32_t part) noexcept;
    void free_unread(std::uint32_t slot, std::uint32_t part) noexcept;
    bool pinned(std::uint32_t slot) const noexcept;
    // Whether the memory of the slot's page is dead.
    bool dead(std::uint32_t slot, std::uint32_t part) const noexcept;
    void sweep(Clock::time_point now) noexcept;
    void drain() noexcept;
    std::uint64_t evict_part(std::uint32_t part, std::uint64_t count) noexcept;
    std::uint64_t next_generation() noexcept;
    bool try_evict(std::uint32_t slot, std::uint32_t part) noexcept;
    // Takes a committed part out of everything but its pins; the slot is freed by the caller.
    // lost: with its memory.
    void take_out(std::uint32_t slot, std::uint32_t part, std::uint64_t generation,
                  bool lost = false) noexcept;
    void link_parent(std::uint32_t slot, const Key &parent) noexcept;
    void evict_tail(std::uint32_t body) noexcept;
    std::vector<bool> parents(const std::vector<std::uint32_t> &victims) const;
    void detach_children(const std::vector<bool> &leaving) noexcept;
    void force_out(const std::vector<std::uint32_t> &victims);
    bool good(std::uint32_t slot, std::uint32_t part) const;
    std::uint64_t drop_bad(const std::vector<std::pair<std::uint32_t, std::uint64_t>> &bad);
    // First and count, by chunk. The mutex is needed here, not for a look at their pins.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> slot_ranges() const;
    bool committed(std::uint32_t slot, std::uint32_t part) const noexcept;
    void publish(const CommitItem &item) noexcept;
    void event(sac_event_kind kind, std::uint32_t slot, std::uint32_t part,
               std::uint64_t generation, const std::uint8_t *key,
               const std::uint8_t *parent) noexcept;
    std::uint64_t random_token();
    [[noreturn]] void no_space(const Want &want, std::uint64_t pins) const;
    void check_runs(const Owned &owned, std::vector<Run> &whole,
                    std::vector<Run> &partial) const;
    template <class Fn> void each_slot(Fn &&fn) const;

    Media &media_;
    const fmt::NamespaceBlock &block_;
    const Geometry &geometry_;
    std::shared_ptr<Index> index_;
    std::uint64_t max_slabs_, headers_per_slab_;
    std::uint32_t uuid_crc_;
    std::array<Shape, 2> shape_;

    mutable std::mutex mutex_;
    std::vector<std::shared_ptr<PinTable>> pins_;
    std::array<std::unique_ptr<EvictionPolicy>, 2> policy_;
    std::array<std::vector<std::uint32_t>, 2> free_;
    std::array<std::uint64_t, 2> committed_{}, slots_{}, dead_slots_{};
    std::vector<std::uint64_t> header_slabs_;  // offset in the metadata extent, by position
    std::vector<std::uint8_t> chunk_part_;     // by position: 0, 1, or kNoChunk
    std::vector<std::uint32_t> limbo_;         // forced out while pinned
    std::unordered_map<std::uint32_t, Held> held_;
    Clock::time_point next_deadline_ = Clock::time_point::max(), next_trim_;
    std::uint64_t assigned_slabs_ = 0, dead_slabs_ = 0, next_chunk_ = 0, clock_ = 0,
                  faults_seen_ = 0;
    bool metadata_full_ = false, retired_ = false;
    std::vector<std::uint64_t> tokens_;
    std::vector<sac_event> ring_;
    std::uint64_t event_next_ = 0, ring_first_ = 0;
    sac_ns_stats stats_{};

    static constexpr std::uint8_t kNoChunk = 0xff;
    static constexpr std::uint64_t kEventRing = 16384;
};

template <class Fn> void CacheControl::each_slot(Fn &&fn) const {
    for (std::uint64_t c = 0; c < chunk_part_.size(); ++c) {
        if (chunk_part_[c] == kNoChunk)
            continue;
        for (std::uint32_t i = 0; i < shape_[chunk_part_[c]].pages; ++i)
            fn(static_cast<std::uint32_t>(c * block_.chunk_slots + i),
               std::uint32_t{chunk_part_[c]});
    }
}

}  // namespace sac
