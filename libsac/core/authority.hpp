// SPDX-License-Identifier: Apache-2.0
// Who decides about a namespace's pages: cache control of this process, or the daemon's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "index.hpp"
#include "view.hpp"

namespace sac {

struct Reservation {
    std::uint32_t slot, part;
    std::uint64_t generation;
    std::uint64_t token;  // random: only the writer of this reservation can end it
};

struct CommitItem {
    Reservation reservation;
    Key key, parent;              // parent zero: none
    const std::uint32_t *tokens;  // page_tokens ids, or nullptr
    std::uint32_t data_crc;       // where the namespace keeps one
    bool duplicate;               // out: another writer was first; slot and generation are its
    bool retain = false;          // then the reservation stays the caller's, to be aborted
};

class Authority {
public:
    virtual ~Authority() = default;

    // The view to use from now on. Asks the daemon for a new one where the last was revoked.
    // Throws Error.
    virtual std::shared_ptr<View> view() = 0;

    // Room for so many parts, whose rows the caller writes; bodies come first. Does not wait.
    // Throws Error(SAC_E_NO_SPACE) and others, and reserves nothing then. The view is the one
    // the reservations are held in: pass it to the calls below.
    virtual std::vector<Reservation> reserve(const std::shared_ptr<View> &view,
                                             std::uint64_t bodies, std::uint64_t tails,
                                             std::uint64_t deadline_ms) = 0;
    virtual void renew(View &view, std::span<const Reservation> held,
                       std::uint64_t deadline_ms) = 0;
    // Makes pages visible. keep: each is pinned in the view from then on. Every item's slot and
    // generation are the page's that is there. Throws Error before anything is visible; the
    // reservations are the caller's to abort then.
    virtual void commit(View &view, std::span<CommitItem> items, bool keep) = 0;
    // Nobody writes to them any more.
    virtual void abort(View &view, std::span<const Reservation> held) noexcept = 0;

    virtual std::uint64_t evict(std::uint64_t count) = 0;
    virtual void verify(std::uint64_t &checked, std::uint64_t &dropped) = 0;
    // Takes the pages of blocks that died under this process out of the index.
    virtual void drop_dead() = 0;
    virtual void events(std::uint64_t &next, sac_event *out, std::uint64_t &count,
                        std::uint64_t &lost) = 0;
    virtual std::uint64_t assigned_bytes() = 0;  // of slabs held
    // What is there, and the counters of all clients. assigned: as assigned_bytes().
    virtual void stats(sac_ns_stats &out, std::uint64_t &assigned) = 0;
};

}  // namespace sac
