// SPDX-License-Identifier: Apache-2.0
// What kill_child and the test that kills it agree on: the pool, its namespaces, the tokens,
// the stop points, and how a recovered pool is looked at.
#pragma once

#include "kit_pages.hpp"

namespace doomed {

constexpr std::uint64_t kPoolBytes = 32 * kit::kMiB;
constexpr std::uint64_t kQuota = 4 * kit::kMiB;  // one slab of bodies and one of tails
constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint64_t kChains = 48;

constexpr const char *kPoints[] = {
    "create.meta",        "create.files",  "format.tables",   "create.formatted",
    "superblock.written", "meta.prepared", "slab.assigned",   "slab.scrubbed",
    "slab.released",      "drop.marked",   "reserve.begin",   "reserve.end",
    "put.written",        "put.commit",    "sequence.commit", "commit.begin",
    "header.half",        "commit.header", "commit.end",      "evict.begin",
    "evict.marked",       "evict.raised",  "header.cleared",  "evict.end",
    "reserve.granted",    "abort.ended",
};

// Points that only a daemon or its clients pass begin so: tests/system/test_daemon_kill.py
// kills there; clear: pools over used memory, test_dirty.cpp kills there; bad: memory taken out
// of use, test_bad_memory.cpp.
constexpr const char *kServed[] = {"server.", "client.", "roster.", "adopt.", "detach.",
                                   "resize.", "extend.", "clear.",  "bad."};

// Pages of 16 KiB with a tail of 2.5 KiB: 128 bodies fill the quota.
inline kit::Layout main_layout() {
    kit::Layout l{kPageTokens, {kit::plane("k", 0x3, 192), kit::plane("v", 0x3, 128)}};
    l.planes[0].heads = 2;
    l.planes.push_back(kit::plane("window", 0x1, 160));
    l.planes[2].kind = SAC_PLANE_WINDOW;
    l.planes[2].window_tokens = 24;
    l.planes[1].group = 1, l.planes[2].group = 2;
    return l;
}

// Pages of 3 MiB: a chunk takes two slabs, and can be cut off between them.
inline kit::Layout other_layout() {
    return kit::plain(kPageTokens, (3 * kit::kMiB) / kPageTokens);
}

inline std::vector<std::uint32_t> chain(std::uint64_t number, std::uint64_t pages) {
    std::vector<std::uint32_t> out;
    for (std::uint64_t i = 0; i < pages * kPageTokens; ++i) {
        out.push_back(static_cast<std::uint32_t>(kit::mix(number << 32 | i)));
    }
    return out;
}

struct Page {
    kit::Bytes32 key;
    std::uint32_t part;
    std::uint64_t generation;
    bool intact;
};

struct State {
    std::vector<Page> pages;
    std::uint64_t slots = 0;       // of the chunks that the slab tables give the namespace
    std::uint64_t reservable = 0;  // of them, without evicting anything
    std::uint64_t assigned_bytes = 0;
};

// All pages of a namespace, and whether every slot that holds none can be reserved.
inline State look(const kit::PoolHandle &pool, const char *name) {
    const sac_ns_options o = kit::ns_options(nullptr);
    sac_ns *raw = nullptr;
    kit::must(sac_ns_open(pool.get(), name, &o, &raw), "sac_ns_open");
    const kit::NsHandle handle(raw);
    sac::OwnedNamespace &ns = kit::owned(raw);
    const auto view = ns.view();
    const sac::Index &index = view->index();
    State out;
    std::array<std::uint64_t, 2> used{}, slots{};
    for (std::uint32_t slot = 0; slot < index.capacity(); ++slot) {
        const std::uint64_t word = index.record(slot).word.load();
        if ((word & sac::Record::kGeneration) == 0 || (word & sac::Record::kAbsent) != 0) {
            continue;
        }
        Page p{};
        p.part = (word & sac::Record::kTailBit) != 0 ? sac::kTailPart : sac::kBodyPart;
        p.generation = word & sac::Record::kGeneration;
        const sac::Key key = index.key(slot);
        std::memcpy(p.key.data(), key.w, sizeof key.w);
        p.intact = kit::page_intact(ns.geometry(), p.part, ns.address(*view, slot, p.part),
                                    p.key.data());
        ++used[p.part];
        out.pages.push_back(p);
    }
    const auto all = ns.media().owned();
    if (const auto it = all.find(ns.block().id); it != all.end()) {
        for (const sac::Run &r : it->second.runs) {
            slots[r.role == sac::fmt::kTail] +=
                r.role == sac::fmt::kTail ? ns.block().tail_pages : ns.block().body_pages;
        }
    }
    out.slots = slots[0] + slots[1];
    out.assigned_bytes = ns.control().assigned_bytes();
    const std::uint64_t bodies = slots[0] - used[0], tails = slots[1] - used[1];
    const auto held =
        ns.control().reserve(bodies, tails, sac::Clock::now() + std::chrono::hours(1));
    const sac_ns_stats s = kit::stats(handle);
    if (s.pages == used[0] && s.tails == used[1] &&
        ns.control().assigned_bytes() == out.assigned_bytes) {
        out.reservable = held.size();
    }
    ns.control().abort(held);
    return out;
}

}  // namespace doomed
