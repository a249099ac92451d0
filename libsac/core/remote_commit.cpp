// SPDX-License-Identifier: Apache-2.0
// How pages of a daemon's pool become visible, and stay pinned where that is asked for.
#include <algorithm>
#include <cstring>

#include "error.hpp"
#include "remote_authority.hpp"
#include "stop.hpp"

namespace sac {
namespace {

// Of reservations that more than one request commits: until the last has been sent.
constexpr std::uint64_t kManyMs = 60000;

void copy_key(std::uint8_t *to, const Key &key) noexcept {
    std::memcpy(to, key.w, sizeof key.w);
}

}  // namespace

// Of one item.
std::size_t RemoteAuthority::commit_bytes(std::span<const CommitItem> items) const noexcept {
    const std::size_t tokens = items.front().tokens ? block_.page_tokens : 0;
    return sizeof(wire::CommitEntry) + tokens * sizeof(std::uint32_t);
}

void RemoteAuthority::commit(View &view, std::span<CommitItem> items, bool keep) {
    check_writable();
    auto &v = static_cast<RemoteView &>(view);
    if (items.empty())
        return;
    const std::size_t most =
        (wire::kMaxPayload - sizeof(wire::CommitRequest)) / commit_bytes(items);
    if (items.size() > most) {
        // Nothing is to be visible if one of them has expired; and none is to expire now.
        std::vector<Reservation> all;
        for (const CommitItem &c : items)
            all.push_back(c.reservation);
        renew(view, all, kManyMs);
    }
    SAC_STOP("client.commit");
    for (std::size_t at = 0; at < items.size(); at += most) {
        const auto some = items.subspan(at, std::min(most, items.size() - at));
        if (keep)
            commit_kept(v, some);
        else
            commit_some(v, some);
    }
}

std::vector<wire::CommitResult>
RemoteAuthority::ask_commit(RemoteView &view, std::span<CommitItem> items, bool keep) {
    const std::uint32_t tokens = items.front().tokens ? block_.page_tokens : 0;
    wire::Writer w;
    w.add(wire::CommitRequest{view.number, keep ? std::uint32_t{wire::kKeep} : 0,
                              static_cast<std::uint32_t>(items.size()), tokens});
    for (const CommitItem &c : items) {
        const Reservation &r = c.reservation;
        wire::CommitEntry e{};
        e.slot = r.slot, e.part = r.part, e.token = r.token, e.data_crc = c.data_crc;
        copy_key(e.key, c.key);
        copy_key(e.parent, c.parent);
        w.add(e);
    }
    for (const CommitItem &c : items)
        if (tokens != 0)
            w.add(c.tokens, tokens * sizeof(std::uint32_t));
    // Another life may have begun while the request waited for its turn.
    Connection::Care care;
    care.still = [this, &view] { return check_life(view), true; };
    return connection().ask(
        wire::kCommit, w.take(),
        [&](const Connection::Reply &reply) {
            wire::Reader in(reply.payload.data(), reply.payload.size(), "COMMIT");
            auto results = in.get<wire::CommitResult>(items.size());
            in.done();
            for (std::size_t i = 0; i < results.size(); ++i)
                if (results[i].generation == 0 ||
                    (results[i].duplicate == 0 && results[i].slot != items[i].reservation.slot))
                    throw Error(SAC_E_ARG, "COMMIT", "such a page is not possible");
            return results;
        },
        care);
}

// The reservations have ended, all of them, and with them the counts that they had.
void RemoteAuthority::commit_some(RemoteView &view, std::span<CommitItem> items) {
    const auto results = ask_commit(view, items, false);
    SAC_STOP("client.committed");
    for (std::size_t i = 0; i < items.size(); ++i) {
        Reservation &r = items[i].reservation;
        if (view.grants.give_up(r.slot, r.token))
            view.pins().unpin(r.slot);
        view.grants.ended(r.slot, r.token);
        items[i].duplicate = results[i].duplicate != 0;
        r.slot = results[i].slot, r.generation = results[i].generation;
    }
}

// True: the page of the result is pinned, and the reservation is no more.
bool RemoteAuthority::settle(RemoteView &view, CommitItem &item,
                             const wire::CommitResult &result) {
    item.duplicate = result.duplicate != 0;
    if (item.duplicate)
        return false;
    view.grants.ended(item.reservation.slot, item.reservation.token);
    item.reservation.generation = result.generation;
    return true;
}

// Pins the page that another writer put first. False: there is a new answer, in other.
bool RemoteAuthority::pin_other(RemoteView &view, CommitItem &item, wire::CommitResult &other) {
    if (other.slot >= view.pins().capacity())
        throw Error(SAC_E_STALE, block_.name,
                    format("namespace '%s' has grown, and another process has put the page "
                           "where this view does not reach. Close the sequence, and begin it "
                           "anew.",
                           block_.name));
    const View::Pinned pinned = view.pin(other.slot, other.generation);
    if (pinned == View::Pinned::yes)
        return true;
    // In a view that is revoked the index says nothing, but the daemon counts its pins all the
    // same: pinned first and asked again, the answer holds.
    const bool revoked = pinned == View::Pinned::revoked;
    if (revoked)
        view.pins().pin(other.slot);
    if (view.pins().died())  // it does not count that one
        throw Error(SAC_E_NO_SPACE, block_.name,
                    format("namespace '%s': the file system of the daemon's run directory is "
                           "full: free some of it",
                           block_.name));
    wire::CommitResult again{};
    try {
        again = ask_commit(view, {&item, 1}, true).front();
    } catch (...) {
        if (revoked)
            view.pins().unpin(other.slot);
        throw;
    }
    if (revoked && again.duplicate != 0 && again.slot == other.slot &&
        again.generation == other.generation)
        return true;
    if (revoked)
        view.pins().unpin(other.slot);
    other = again;
    return false;
}

void RemoteAuthority::commit_kept(RemoteView &view, std::span<CommitItem> items) {
    auto results = ask_commit(view, items, true);
    SAC_STOP("client.committed");
    std::size_t settled = 0;  // items before this one are pinned
    try {
        for (std::size_t i = 0; i < items.size(); ++i)
            if (results[i].duplicate == 0)
                settle(view, items[i], results[i]);
        for (; settled < items.size(); ++settled) {
            CommitItem &c = items[settled];
            wire::CommitResult &result = results[settled];
            while (result.duplicate != 0 && !pin_other(view, c, result)) {
            }
            if (settle(view, c, result))
                continue;
            if (!c.retain)
                give_up(view, &c.reservation, 1);
            c.reservation.slot = result.slot, c.reservation.generation = result.generation;
        }
    } catch (...) {
        // What is visible stays so, but not pinned: the caller takes all for its own still.
        for (std::size_t i = 0; i < items.size(); ++i)
            if (i < settled || results[i].duplicate == 0)
                view.pins().unpin(items[i].reservation.slot);
        connection().flush();
        throw;
    }
    connection().flush();
}

}  // namespace sac
