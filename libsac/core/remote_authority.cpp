// SPDX-License-Identifier: Apache-2.0
#include "remote_authority.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "error.hpp"
#include "stop.hpp"

namespace sac {
namespace {

// Of a request that names reservations: one frame holds as many, and more.
constexpr std::size_t kHeldAtOnce = std::size_t{1} << 19;
constexpr std::uint32_t kEventsAtOnce = 65536;
constexpr std::size_t kBlocksAtOnce = 4096;

RemoteView &remote(View &view) { return static_cast<RemoteView &>(view); }

Connection::Bytes table_request(std::uint32_t table) {
    return wire::Writer().add(wire::TableRequest{table, 0}).take();
}

template <class T> T whole(const Connection::Reply &reply, const char *what) {
    wire::Reader in(reply.payload.data(), reply.payload.size(), what);
    const T value = in.get<T>();
    in.done();
    return value;
}

// Gives up what the daemon granted in answers that never came.
void abort_strays(Connection &connection, RemoteView &view) {
    std::vector<wire::HeldItem> strays;
    PinTable &table = view.pins();
    table.each_used([&](std::uint32_t slot) {
        const std::uint64_t token = table.token(slot);
        if (token != 0 && !view.grants.known(slot, token))
            strays.push_back({slot, 0, token});
    });
    for (std::size_t at = 0; at < strays.size(); at += kHeldAtOnce) {
        const std::size_t n = std::min(kHeldAtOnce, strays.size() - at);
        wire::Writer w;
        w.add(wire::HeldRequest{view.number, static_cast<std::uint32_t>(n), 0});
        for (std::size_t i = at; i < at + n; ++i) {
            const wire::HeldItem &s = strays[i];
            // Known from here on: should the connection break again, the count is not taken
            // back twice. A daemon that was killed between token and count left none.
            view.grants.got(s.slot, s.token);
            if (view.grants.give_up(s.slot, s.token) && table.pinned(s.slot))
                table.unpin(s.slot);
            w.add(s);
        }
        connection.once(wire::kAbort, w.take());
    }
}

}  // namespace

RemoteAuthority::RemoteAuthority(std::shared_ptr<Mount> mount, fmt::NamespaceBlock &block,
                                 std::atomic<bool> &dropped, const Mount::Attached &first)
    : mount_(std::move(mount)), backing_(first.backing), block_(block), dropped_(dropped),
      writable_(first.writable), view_(first.view) {}

void RemoteAuthority::gone() {
    dropped_.store(true, std::memory_order_seq_cst);
    throw Error(SAC_E_CLOSED, block_.name, format("namespace '%s' was dropped", block_.name));
}

void RemoteAuthority::check_writable() const {
    if (!writable_)
        throw Error(SAC_E_ACCESS, block_.name,
                    format("namespace '%s' is open to read only: its access list does not let "
                           "this user write. Its owner can change the mode.",
                           block_.name));
}

// Of a client that the daemon has forgotten, nothing is left to ask for.
void RemoteAuthority::check_life(const RemoteView &view) const {
    if (view.life != connection().life())
        throw Error(SAC_E_RESERVATION, block_.name,
                    format("namespace '%s': the daemon does not know the reservation any more; "
                           "it was started without its run directory. Put the pages again.",
                           block_.name));
}

std::shared_ptr<View> RemoteAuthority::view() { return current(); }

std::shared_ptr<RemoteView> RemoteAuthority::current() {
    connection().check();  // before the lock: a forked child would find it held for ever
    const std::lock_guard lock(mutex_);
    if (!view_->revoked() && !view_->lost() && view_->life == connection().life())
        return view_;
    try {
        Mount::Attached a = mount_->attach(block_.name, nullptr, !writable_);
        if (std::memcmp(a.block.uuid, block_.uuid, sizeof block_.uuid) != 0)
            gone();
        if (a.writable != writable_)
            throw Error(SAC_E_ACCESS, block_.name,
                        format("namespace '%s': the daemon does not let this user write any "
                               "more; open it anew",
                               block_.name));
        view_->pins().revoke();  // where it is of a client that was forgotten
        block_.set_quota(a.block.max_bytes);
        view_ = std::move(a.view);
        if (backing_ != a.backing)
            faults_told_.store(0, std::memory_order_relaxed);
        backing_ = std::move(a.backing);
    } catch (const Error &e) {
        if (e.status != SAC_E_NOT_FOUND)
            throw;
        mount_->names();  // throws where it is the pool that is not there
        gone();
    }
    return view_;
}

template <class Request, class Take>
auto RemoteAuthority::ask(std::uint16_t op, Request &&request, Take &&take) {
    for (;;) {
        const auto v = current();
        Connection::Care care;
        // A daemon that has forgotten the client may come while this waits.
        care.still = [&] { return v->life == connection().life(); };
        try {
            return connection().ask(op, request(v->number), take, care);
        } catch (const Error &e) {
            if (e.status != SAC_E_STALE || v->life == connection().life())
                throw;
        }
    }
}

// ---- reservations

void RemoteAuthority::reserve_some(const std::shared_ptr<RemoteView> &view,
                                   std::uint64_t bodies, std::uint64_t tails,
                                   std::uint64_t deadline_ms, std::vector<Reservation> &out) {
    const std::uint64_t count = bodies + tails;
    out.reserve(out.size() + count);
    Connection *const link = &connection();
    Connection::Care care;
    care.mend = [link, weak = std::weak_ptr<RemoteView>(view)] {
        // Nobody has the view any more: the table goes, and all that is reserved in it.
        if (const auto v = weak.lock())
            abort_strays(*link, *v);
    };
    care.still = [link, v = view.get()] { return !v->revoked() && v->life == link->life(); };
    const auto take = [&](const Connection::Reply &reply) {
        wire::Reader in(reply.payload.data(), reply.payload.size(), "RESERVE");
        const auto items = in.get<wire::ReservationItem>(count);
        in.done();
        for (std::size_t i = 0; i < items.size(); ++i)
            if (items[i].slot >= view->pins().capacity() || items[i].token == 0 ||
                items[i].part != (i < bodies ? kBodyPart : kTailPart))
                throw Error(SAC_E_ARG, "RESERVE", "such a reservation is not possible");
        for (const wire::ReservationItem &i : items)
            view->grants.got(i.slot, i.token);
        for (const wire::ReservationItem &i : items)
            out.push_back({i.slot, i.part, i.generation, i.token});
    };
    connection().ask(wire::kReserve,
                     wire::Writer()
                         .add(wire::ReserveRequest{view->number, 0, bodies, tails, deadline_ms})
                         .take(),
                     take, care);
}

std::vector<Reservation> RemoteAuthority::reserve(const std::shared_ptr<View> &view,
                                                  std::uint64_t bodies, std::uint64_t tails,
                                                  std::uint64_t deadline_ms) {
    check_writable();
    const auto v = std::static_pointer_cast<RemoteView>(view);
    std::vector<Reservation> out;
    SAC_STOP("client.reserve");
    try {
        do {
            const std::uint64_t b = std::min(bodies, wire::kMaxReserve);
            const std::uint64_t t = std::min(tails, wire::kMaxReserve - b);
            reserve_some(v, b, t, deadline_ms, out);
            bodies -= b, tails -= t;
        } while (bodies + tails != 0);
    } catch (...) {
        abort(*v, out);
        throw;
    }
    SAC_STOP("client.reserved");
    return out;
}

void RemoteAuthority::renew(View &view, std::span<const Reservation> held,
                            std::uint64_t deadline_ms) {
    const RemoteView &v = remote(view);
    check_life(v);
    for (std::size_t at = 0; at < held.size(); at += kHeldAtOnce) {
        const auto some = held.subspan(at, std::min(kHeldAtOnce, held.size() - at));
        wire::Writer w;
        w.add(
            wire::HeldRequest{v.number, static_cast<std::uint32_t>(some.size()), deadline_ms});
        for (const Reservation &r : some)
            w.add(wire::HeldItem{r.slot, 0, r.token});
        connection().tell(wire::kRenew, w.take());
    }
}

void RemoteAuthority::give_up(RemoteView &view, const Reservation *held,
                              std::size_t count) noexcept {
    try {
        Connection::Owed owed{view.number, view.life, {}};
        owed.held.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
            if (!view.grants.give_up(held[i].slot, held[i].token))
                continue;
            view.pins().unpin(held[i].slot);
            owed.held.push_back({held[i].slot, 0, held[i].token});
        }
        if (!owed.held.empty())
            connection().owe(std::move(owed));
    } catch (...) {
        // No memory: the table, and the reservations in it, end with the view.
    }
}

void RemoteAuthority::abort(View &view, std::span<const Reservation> held) noexcept {
    if (connection().forked() || held.empty())
        return;
    SAC_STOP("client.abort");
    for (std::size_t at = 0; at < held.size(); at += kHeldAtOnce)
        give_up(remote(view), held.data() + at, std::min(kHeldAtOnce, held.size() - at));
    connection().flush();
}

// ---- the rest

std::uint64_t RemoteAuthority::evict(std::uint64_t count) {
    check_writable();
    return ask(
        wire::kEvict,
        [&](std::uint32_t table) {
            return wire::Writer().add(wire::EvictRequest{table, 0, count}).take();
        },
        [](const Connection::Reply &r) { return whole<std::uint64_t>(r, "EVICT"); });
}

void RemoteAuthority::verify(std::uint64_t &checked, std::uint64_t &dropped) {
    check_writable();
    const auto reply = ask(wire::kVerify, table_request, [](const Connection::Reply &r) {
        return whole<wire::VerifyReply>(r, "VERIFY");
    });
    checked = reply.checked, dropped = reply.dropped;
}

// Comes in the middle of a failure that is told anyway: it does not fail itself.
void RemoteAuthority::drop_dead() {
    std::shared_ptr<const Backing> backing;
    {
        const std::lock_guard lock(mutex_);
        backing = backing_;
    }
    const FaultGuard &guard = backing->data().guard();
    const std::uint64_t faults = guard.faults();
    if (faults_told_.load(std::memory_order_relaxed) == faults)
        return;
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t at = guard.next_dead(0); at != UINT64_MAX;
         at = guard.next_dead((at / kBlockBytes + 1) * kBlockBytes))
        blocks.push_back(at);
    try {
        for (std::size_t at = 0; at < blocks.size(); at += kBlocksAtOnce) {
            const std::size_t n = std::min(kBlocksAtOnce, blocks.size() - at);
            const auto request = [&](std::uint32_t table) {
                wire::Writer w;
                w.add(wire::DeadRequest{table, static_cast<std::uint32_t>(n)});
                return w.add(blocks.data() + at, n * sizeof blocks[0]).take();
            };
            ask(wire::kDead, request, [](const Connection::Reply &) {});
        }
        faults_told_.store(faults, std::memory_order_relaxed);
    } catch (const Error &) {
    }
}

void RemoteAuthority::events(std::uint64_t &next, sac_event *out, std::uint64_t &count,
                             std::uint64_t &lost) {
    const auto most = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, kEventsAtOnce));
    ask(
        wire::kEvents,
        [&](std::uint32_t table) {
            return wire::Writer().add(wire::EventsRequest{table, most, next}).take();
        },
        [&](const Connection::Reply &reply) {
            wire::Reader in(reply.payload.data(), reply.payload.size(), "EVENTS");
            const auto head = in.get<wire::EventsReply>();
            if (head.count > most)
                throw Error(SAC_E_ARG, "EVENTS", "more events than were asked for");
            const auto events = in.get<sac_event>(head.count);
            in.done();
            std::copy(events.begin(), events.end(), out);
            next = head.next, lost = head.lost, count = head.count;
        });
}

std::uint64_t RemoteAuthority::assigned_bytes() {
    sac_ns_stats all{};
    std::uint64_t assigned = 0;
    stats(all, assigned);
    return assigned;
}

void RemoteAuthority::stats(sac_ns_stats &out, std::uint64_t &assigned) {
    const auto reply = ask(wire::kStats, table_request, [](const Connection::Reply &r) {
        return whole<wire::StatsReply>(r, "STATS");
    });
    out = reply.stats, assigned = reply.assigned_bytes;
}

}  // namespace sac
