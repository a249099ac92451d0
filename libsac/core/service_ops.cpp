// SPDX-License-Identifier: Apache-2.0
// Which operation a frame asks for, and those that write pages: they must not wait.
#include <algorithm>
#include <cstring>
#include <new>

#include "error.hpp"
#include "service.hpp"
#include "stop.hpp"

namespace sac {

namespace {

// Longer is no reservation but a theft; a writer that still writes renews.
constexpr std::uint64_t kLongestMs = 24 * 3600 * 1000, kUsualMs = 60 * 1000;

// Parts in one request that the others need not wait for.
constexpr std::uint64_t kMany = 1024;

Clock::time_point deadline(std::uint64_t ms) {
    return Clock::now() +
           std::chrono::milliseconds(ms == 0 ? kUsualMs : std::min(ms, kLongestMs));
}

Reply reply_of(wire::Writer &writer) {
    Reply out;
    out.payload = writer.take();
    return out;
}

}  // namespace

Service::Speed Service::speed(const Frame &frame) noexcept {
    switch (frame.header.op) {
    case wire::kReserve: {
        wire::ReserveRequest r{};
        if (frame.payload.size() != sizeof r)
            return Speed::fast;
        std::memcpy(&r, frame.payload.data(), sizeof r);
        return r.bodies > kMany || r.tails > kMany ? Speed::brief : Speed::fast;
    }
    case wire::kRenew:
    case wire::kCommit:
    case wire::kAbort:
        return frame.payload.size() > kMany * sizeof(wire::CommitEntry) ? Speed::brief
                                                                        : Speed::fast;
    case wire::kAttach:
    case wire::kStats:
    case wire::kPoolInfo:
    case wire::kNames:
        return Speed::brief;
    case wire::kEvict:
    case wire::kVerify:
    case wire::kDead:
    case wire::kDrop:
        return Speed::lengthy;
    default:
        return Speed::fast;
    }
}

Reply Service::failed(const Error &error) {
    Reply out;
    out.status = error.status;
    out.payload =
        wire::error_payload(error.sys_errno, error.offset, error.object, error.message);
    return out;
}

Reply Service::handle(Caller &caller, const Frame &frame) noexcept {
    try {
        try {
            return dispatch(caller, frame);
        } catch (const Error &e) {
            return failed(e);
        } catch (const std::bad_alloc &) {
            return failed({SAC_E_NO_MEMORY, "daemon", "the daemon is out of memory"});
        } catch (const std::exception &e) {
            return failed({SAC_E_SYSTEM, "daemon", e.what()});
        }
    } catch (...) {  // no memory for the text either
        Reply out;
        out.status = SAC_E_NO_MEMORY;
        return out;
    }
}

Reply Service::dispatch(Caller &caller, const Frame &frame) {
    const std::uint16_t op = frame.header.op;
    wire::Reader in(frame.payload.data(), frame.payload.size(), wire::op_name(op));
    if (op == wire::kHello)
        return hello(caller, in);
    if (!caller.client)
        throw Error(SAC_E_ARG, wire::op_name(op), "the first request must be HELLO");
    caller.client->requests.fetch_add(1, std::memory_order_relaxed);
    switch (op) {
    case wire::kPools:
        in.done();
        return pools();
    case wire::kAttach:
        return attach(caller, in);
    case wire::kDetach:
        return detach(caller, in);
    case wire::kReserve:
        return reserve(caller, in);
    case wire::kRenew:
        return renew(caller, in, false);
    case wire::kCommit:
        return commit(caller, in);
    case wire::kAbort:
        return renew(caller, in, true);
    case wire::kEvents:
        return events(caller, in);
    case wire::kStats:
        return stats(caller, in);
    case wire::kEvict:
        return evict_pages(caller, in);
    case wire::kVerify:
        return verify(caller, in);
    case wire::kDead:
        return dead(caller, in);
    case wire::kPoolInfo:
        return pool_info(in);
    case wire::kNames:
        return names(in);
    case wire::kDrop:
        return drop(caller, in);
    default:
        throw Error(SAC_E_ARG, "operation",
                    format("this daemon (%s) does not know operation %u", SAC_VERSION, op));
    }
}

// ----------------------------------------------------------------------------- tables

Service::Held Service::table(const Caller &caller, std::uint32_t number) const {
    const std::lock_guard lock(mutex_);
    const auto it = caller.client->tables.find(number);
    if (it == caller.client->tables.end())
        throw Error(SAC_E_NOT_FOUND, format("table %u", number),
                    format("this client has no table %u", number));
    return it->second;
}

Service::Held Service::served(const Caller &caller, std::uint32_t number) const {
    Held a = table(caller, number);
    if (a->lost)
        throw_lost(a->pool_name);
    if (!a->ns)
        throw Error(SAC_E_NOT_FOUND, a->name,
                    format("the namespace of table %u is not served now", number));
    return a;
}

Service::Held Service::writable(const Caller &caller, std::uint32_t number) const {
    Held a = served(caller, number);
    if (!a->file.writable)
        throw Error(SAC_E_ACCESS, a->name,
                    "namespace '" + a->name + "' is attached for reading only");
    check_not_evicted(*caller.client);
    return a;
}

// --------------------------------------------------------------------------- requests

Reply Service::detach(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::TableRequest>();
    in.done();
    Held a = table(caller, request.table);
    SAC_STOP("server.detach");
    forget(*a);
    const std::lock_guard lock(mutex_);
    caller.client->tables.erase(request.table);
    return {};
}

Reply Service::reserve(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::ReserveRequest>();
    in.done();
    if (request.bodies > wire::kMaxReserve || request.tails > wire::kMaxReserve ||
        request.bodies + request.tails > wire::kMaxReserve)
        throw Error(SAC_E_ARG, "RESERVE",
                    format("at most %llu parts are reserved at once",
                           static_cast<unsigned long long>(wire::kMaxReserve)));
    const Held a = writable(caller, request.table);
    if (!a->current())
        throw Error(SAC_E_STALE, a->name,
                    "namespace '" + a->name + "' has a new view: attach it anew");
    const auto &part_bytes = a->ns->geometry().part_bytes;
    if ((request.bodies != 0 && part_bytes[kBodyPart] == 0) ||
        (request.tails != 0 && part_bytes[kTailPart] == 0))
        throw Error(SAC_E_ARG, a->name,
                    "pages of namespace '" + a->name + "' do not have such a part");
    const auto granted = a->ns->control().reserve(
        request.bodies, request.tails, deadline(request.deadline_ms), a->table.get());
    SAC_STOP("server.granted");
    wire::Writer out;
    for (const Reservation &r : granted)
        out.add(wire::ReservationItem{r.slot, r.part, r.generation, r.token});
    return reply_of(out);
}

Reply Service::renew(Caller &caller, wire::Reader &in, bool abort) {
    const auto request = in.get<wire::HeldRequest>();
    const auto items = in.get<wire::HeldItem>(request.count);
    in.done();
    const Held a = served(caller, request.table);
    if (!abort)
        check_not_evicted(*caller.client);
    std::vector<Reservation> held;
    held.reserve(items.size());
    for (const wire::HeldItem &item : items)
        held.push_back({item.slot, 0, 0, item.token});
    SAC_STOP("server.renew");
    if (abort)
        a->ns->control().abort(held);
    else
        a->ns->control().renew(held, deadline(request.deadline_ms));
    return {};
}

Reply Service::commit(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::CommitRequest>();
    const Held a = writable(caller, request.table);
    const fmt::NamespaceBlock &block = a->ns->block();
    const bool keeps_tokens = (block.flags & SAC_NS_TOKEN_IDS) != 0;
    if (request.tokens != 0 && (request.tokens != block.page_tokens || !keeps_tokens))
        throw Error(SAC_E_ARG, a->name,
                    format("%u token ids an item: namespace '%s' takes %u", request.tokens,
                           a->name.c_str(), keeps_tokens ? block.page_tokens : 0));
    const auto entries = in.get<wire::CommitEntry>(request.count);
    const auto ids = in.get<std::uint32_t>(std::uint64_t{request.count} * request.tokens);
    in.done();
    std::vector<CommitItem> items;
    items.reserve(entries.size());
    for (const wire::CommitEntry &e : entries) {
        CommitItem item{{e.slot, e.part, 0, e.token},
                        Key::load(e.key),
                        Key::load(e.parent),
                        request.tokens ? &ids[items.size() * request.tokens] : nullptr,
                        e.data_crc,
                        false};
        if (e.part > 1 || item.key.zero())
            throw Error(SAC_E_ARG, a->name,
                        e.part > 1 ? format("a page has no part %u", e.part)
                                   : std::string("a page's key is not all zeros"));
        items.push_back(item);
    }
    SAC_STOP("server.commit");
    a->ns->control().commit(items, *a->table, (request.flags & wire::kKeep) != 0);
    SAC_STOP("server.committed");
    wire::Writer out;
    for (const CommitItem &item : items)
        out.add(wire::CommitResult{item.reservation.slot, item.duplicate ? 1u : 0u,
                                   item.reservation.generation});
    return reply_of(out);
}

Reply Service::events(Caller &caller, wire::Reader &in) {
    auto request = in.get<wire::EventsRequest>();
    in.done();
    const Held a = served(caller, request.table);
    std::uint64_t count = std::min<std::uint64_t>(
        request.most, (wire::kMaxPayload - sizeof(wire::EventsReply)) / sizeof(sac_event));
    std::uint64_t lost = 0;
    std::vector<sac_event> found(count);
    a->ns->control().events(request.next, found.data(), count, lost);
    wire::Writer out;
    out.add(wire::EventsReply{request.next, lost, static_cast<std::uint32_t>(count), 0});
    if (count != 0)
        out.add(found.data(), count * sizeof(sac_event));
    return reply_of(out);
}

Reply Service::pools() const {
    const std::lock_guard lock(mutex_);
    wire::Writer out;
    for (const auto &[name, pool] : pools_) {
        char field[wire::kNameBytes];
        wire::set_name(field, sizeof field, name, "pool");
        out.add(field, sizeof field);
    }
    return reply_of(out);
}

void Service::count(std::uint16_t op, bool error, std::uint64_t ns) noexcept {
    Op &o = ops_[op < ops_.size() ? op : 0];
    o.count.fetch_add(1, std::memory_order_relaxed);
    if (error)
        o.errors.fetch_add(1, std::memory_order_relaxed);
    o.latency.add(ns);
}

}  // namespace sac
