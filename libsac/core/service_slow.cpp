// SPDX-License-Identifier: Apache-2.0
// Operations that take long, or that wait for a pool's lock: not on the thread of all clients.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "error.hpp"
#include "service.hpp"
#include "stop.hpp"

namespace sac {

namespace {

// More are not looked at in one request: a page of zeros may come into being for each.
constexpr std::uint32_t kMostBlocks = 4096;

template <class T> Reply reply_with(const T &value) {
    Reply out;
    out.payload = wire::Writer().add(value).take();
    return out;
}

// Reads all of a block, so that memory that is gone is found dead. Through the file first:
// what was never written stays a hole, and what is not there says so.
void touch(const Mapping &data, std::uint64_t offset, std::uint8_t *buffer) {
    std::uint64_t within = 0;
    const Extent &e = data.locate(offset, within);
    const std::uint64_t bytes = std::min<std::uint64_t>(kBlockBytes, e.bytes - within);
    if (::pread(e.fd.get(), buffer, bytes, static_cast<off_t>(within)) ==
        static_cast<ssize_t>(bytes))
        return;
    for (std::uint64_t at = 0; at < bytes; at += 4096)
        (void)*static_cast<const volatile std::uint8_t *>(data.data() + offset + at);
}

}  // namespace

std::shared_ptr<OwnedPool> Service::pool(const std::string &name) const {
    const std::lock_guard lock(mutex_);
    const auto it = pools_.find(name);
    if (it == pools_.end() && lost_.contains(name))
        throw_lost(name);
    if (it == pools_.end())
        throw Error(SAC_E_NOT_FOUND, name, "this daemon has no pool '" + name + "'");
    return it->second;
}

void Service::throw_lost(const std::string &pool) {
    throw Error(SAC_E_MEDIA, pool,
                "the memory of pool '" + pool +
                    "' has gone with its device, and its pages with it. It is back when the "
                    "device is, and the pool is assembled again.");
}

Reply Service::stats(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::TableRequest>();
    in.done();
    const Held a = served(caller, request.table);
    wire::StatsReply reply{};
    a->ns->control().fill(reply.stats);
    reply.assigned_bytes = a->ns->control().assigned_bytes();
    return reply_with(reply);
}

Reply Service::evict_pages(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::EvictRequest>();
    in.done();
    const Held a = writable(caller, request.table);
    return reply_with(a->ns->control().evict(request.count));
}

Reply Service::verify(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::TableRequest>();
    in.done();
    const Held a = writable(caller, request.table);
    wire::VerifyReply reply{};
    a->ns->control().verify(reply.checked, reply.dropped);
    return reply_with(reply);
}

Reply Service::dead(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::DeadRequest>();
    const auto blocks = in.get<std::uint64_t>(request.count);
    in.done();
    if (request.count > kMostBlocks)
        throw Error(SAC_E_ARG, "DEAD",
                    format("%u blocks; at most %u a request", request.count, kMostBlocks));
    const Held a = served(caller, request.table);
    const Mapping &data = a->pool->media().data();
    const auto buffer = std::make_unique<std::uint8_t[]>(kBlockBytes);
    for (const std::uint64_t block : blocks) {
        std::uint64_t within = 0;
        // Between two extents there may be addresses of nobody's.
        if (block >= data.bytes() ||
            data.locate(block / kBlockBytes * kBlockBytes, within).bytes <= within)
            throw Error(SAC_E_RANGE, a->pool_name, "a block that the pool does not have");
        touch(data, block / kBlockBytes * kBlockBytes, buffer.get());
    }
    a->ns->control().drop_dead();
    return {};
}

Reply Service::pool_info(wire::Reader &in) {
    const auto request = in.get<wire::PoolRequest>();
    in.done();
    sac_pool_info info{};
    pool(wire::name(request.pool, sizeof request.pool, "pool"))->info(info);
    return reply_with(info);
}

Reply Service::names(wire::Reader &in) {
    const auto request = in.get<wire::PoolRequest>();
    in.done();
    wire::Writer out;
    for (const std::string &name :
         pool(wire::name(request.pool, sizeof request.pool, "pool"))->names()) {
        char field[wire::kNameBytes];
        wire::set_name(field, sizeof field, name, "namespace");
        out.add(field, sizeof field);
    }
    Reply reply;
    reply.payload = out.take();
    return reply;
}

Reply Service::drop(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::DropRequest>();
    in.done();
    check_not_evicted(*caller.client);
    const auto from = pool(wire::name(request.pool, sizeof request.pool, "pool"));
    const std::string name = wire::name(request.name, sizeof request.name, "namespace");
    std::shared_ptr<OwnedNamespace> ns;
    try {
        ns = from->find(name);
    } catch (const Error &) {
        // Damaged: nobody knows any more whose it was.
        if (!rules_all(caller.peer))
            throw Error(SAC_E_ACCESS, name,
                        "namespace '" + name + "' is damaged: only the daemon's user drops it");
    }
    if (ns && !(access(caller.peer, ns->block()) & wire::kWrite))
        throw Error(SAC_E_ACCESS, name,
                    format("user %u may not drop namespace '%s' (owner %u, group %u, mode 0%o)",
                           caller.peer.uid, name.c_str(), ns->block().uid, ns->block().gid,
                           ns->block().mode ? ns->block().mode : fmt::kPrivate));
    SAC_STOP("server.drop");
    from->drop(name);
    return {};
}

}  // namespace sac
