// SPDX-License-Identifier: Apache-2.0
// ATTACH: who may use a namespace, and the memory that is handed over.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "error.hpp"
#include "service.hpp"
#include "stop.hpp"

namespace sac {

namespace {

// So that one process does not take all of this one's files.
constexpr std::size_t kMostTables = 8192;

}  // namespace

Fd reopen(int fd, int access, const std::string &name) {
    const std::string path = format("/proc/self/fd/%d", fd);
    const int again = ::open(path.c_str(), access | O_CLOEXEC);
    if (again < 0)
        throw_errno(name, "the daemon cannot open the file anew for a client",
                    "It must be open to the daemon's user, as its owner or by an ACL, and "
                    "/proc be mounted.");
    return Fd(again);
}

// ATTACH's request, its names as strings.
struct Service::Want {
    explicit Want(wire::Reader &in)
        : request(in.get<wire::AttachRequest>()),
          pool(wire::name(request.pool, sizeof request.pool, "pool")),
          name(wire::name(request.name, sizeof request.name, "namespace")),
          model(wire::name(request.model, sizeof request.model, "model")) {
        if (request.plane_count > SAC_MAX_PLANES)
            throw Error(SAC_E_LAYOUT, name,
                        format("%u planes; at most %d are possible", request.plane_count,
                               SAC_MAX_PLANES));
        if (request.have_extents > fmt::kMaxExtents)
            throw Error(SAC_E_ARG, name, "more extents are mapped than a pool can have");
        planes = in.get<sac_plane>(request.plane_count);
        in.done();
        layout = {sizeof layout, request.page_tokens, request.plane_count, planes.data()};
        options.struct_size = sizeof options;
        options.flags = request.ns_flags;
        options.key_scheme = request.key_scheme;
        options.mode = request.mode;
        options.max_bytes = request.max_bytes;
        options.model = model.c_str();
        options.layout = create() ? &layout : nullptr;
    }
    Want(const Want &) = delete;
    Want &operator=(const Want &) = delete;

    bool create() const noexcept { return (request.flags & wire::kCreate) != 0; }
    bool read_only() const noexcept { return (request.flags & wire::kReadOnly) != 0; }

    wire::AttachRequest request;
    std::string pool, name, model;
    std::vector<sac_plane> planes;
    sac_layout layout{};
    sac_ns_options options{};
};

// ------------------------------------------------------------------------------ access

bool Service::rules_all(const Peer &peer) const noexcept {
    return peer.uid == 0 || peer.uid == ::geteuid();
}

std::uint32_t Service::access(const Peer &peer,
                              const fmt::NamespaceBlock &block) const noexcept {
    if (rules_all(peer))
        return wire::kRead | wire::kWrite;
    const std::uint32_t mode = block.mode ? block.mode : fmt::kPrivate;
    const std::uint32_t shift = peer.uid == block.uid ? 6 : peer.in_group(block.gid) ? 3 : 0;
    const std::uint32_t bits = mode >> shift;
    return (bits & 4 ? std::uint32_t{wire::kRead} : 0u) |
           (bits & 2 ? std::uint32_t{wire::kWrite} : 0u);
}

std::shared_ptr<OwnedNamespace> Service::space(const Caller &caller, OwnedPool &pool,
                                               const Want &want) const {
    std::shared_ptr<OwnedNamespace> ns = pool.find(want.name);
    if (!ns) {
        if (!want.create())
            throw Error(SAC_E_NOT_FOUND, want.name,
                        "there is no namespace '" + want.name + "' in pool '" + want.pool +
                            "'; give a layout to create it");
        if (!rules_all(caller.peer) && creators_gid_ != UINT32_MAX &&
            !caller.peer.in_group(creators_gid_))
            throw Error(SAC_E_ACCESS, want.name,
                        format("namespace '%s' is not there, and user %u may not create it: "
                               "the daemon's settings let group %u do it",
                               want.name.c_str(), caller.peer.uid, creators_gid_));
        ns = pool.open(want.name, want.options, caller.peer.uid, caller.peer.gid);
        SAC_STOP("server.created");
    }
    if (!(access(caller.peer, ns->block()) & wire::kRead)) {
        const fmt::NamespaceBlock &b = ns->block();
        throw Error(SAC_E_ACCESS, want.name,
                    format("user %u may not read namespace '%s' (owner %u, group %u, mode "
                           "0%o)",
                           caller.peer.uid, want.name.c_str(), b.uid, b.gid,
                           b.mode ? b.mode : fmt::kPrivate));
    }
    ns->check_same(want.options);
    return ns;
}

// ------------------------------------------------------------------------------ attach

Service::Held Service::make_table(const std::shared_ptr<Client> &client, const Want &want,
                                  std::shared_ptr<OwnedPool> pool,
                                  std::shared_ptr<OwnedNamespace> ns, bool write) {
    auto a = std::make_shared<Attachment>();
    a->pool_name = want.pool, a->name = want.name;
    a->pool = std::move(pool), a->ns = std::move(ns);
    a->index = a->ns->index();
    a->file.client = client->record.id;
    std::memcpy(a->file.pool.data(), a->pool->media().superblock().pool, 16);
    std::memcpy(a->file.space.data(), a->ns->block().uuid, 16);
    a->file.writable = write;
    a->file.capacity = a->index->capacity();
    {
        const std::lock_guard lock(mutex_);
        if (client->tables.size() >= kMostTables)
            throw Error(SAC_E_BUSY, want.name,
                        format("this client has %zu namespaces attached; no more are served",
                               client->tables.size()));
        // Random: a number that comes back after a daemon's death must not mean another table.
        do {
            const Id random = random_id();
            std::memcpy(&a->file.number, random.data(), sizeof a->file.number);
        } while (a->file.number == 0 || client->tables.contains(a->file.number));
    }
    Fd file = roster_.create(a->file, PinTable::first_bytes(a->file.capacity));
    try {
        a->table = std::make_shared<PinTable>(std::move(file), a->file.capacity, want.name);
        SAC_STOP("server.table_made");
        a->table->set_incarnation(a->pool->media().superblock().incarnation);
        a->ns->control().attach(a->table);
        // A view that became old meanwhile was revoked before this table was there.
        if (!a->current())
            a->table->revoke();
        const std::lock_guard lock(mutex_);
        if (client->gone || !pools_.contains(want.pool) || pools_.at(want.pool) != a->pool)
            throw Error(SAC_E_NOT_FOUND, want.name, "the client or the pool has gone");
        client->tables.emplace(a->file.number, a);
    } catch (...) {
        forget(*a);
        throw;
    }
    return a;
}

Reply Service::attach(Caller &caller, wire::Reader &in) {
    const Want want(in);
    check_not_evicted(*caller.client);
    const std::shared_ptr<OwnedPool> from = pool(want.pool);
    const std::shared_ptr<OwnedNamespace> ns = space(caller, *from, want);
    const bool write =
        !want.read_only() && (access(caller.peer, ns->block()) & wire::kWrite) != 0;
    // Before the table: should the pool be lost meanwhile, this is not the new one's.
    const std::uint32_t life = roster_.losses(want.pool);
    const Held a = make_table(caller.client, want, from, ns, write);
    try {
        Reply out;
        const std::span<const Extent> extents = from->media().data().extents();
        wire::AttachReply reply{};
        reply.table = a->file.number;
        reply.extents = static_cast<std::uint32_t>(extents.size());
        reply.access = write ? wire::kRead | wire::kWrite : wire::kRead;
        // What it has of an earlier life of the pool is of no use.
        reply.first_fd =
            want.request.life == life ? std::min(want.request.have_extents, reply.extents) : 0;
        reply.index_bytes = a->index->bytes();
        reply.capacity = a->file.capacity;
        reply.incarnation = from->media().superblock().incarnation;
        std::memcpy(reply.pool, a->file.pool.data(), sizeof reply.pool);
        wire::Writer w;
        w.add(reply);
        out.fds.push_back(reopen(a->index->fd(), O_RDONLY, want.name));
        out.fds.push_back(roster_.open(a->file));
        for (const Extent &e : extents) {
            wire::ExtentInfo info{};
            info.bytes = e.bytes;
            info.align = static_cast<std::uint32_t>(e.align), info.life = life;
            // For messages only: the end of a long path says more than its beginning.
            const std::size_t most = sizeof info.name - 1;
            const std::string name =
                e.name.size() > most ? e.name.substr(e.name.size() - most) : e.name;
            wire::set_name(info.name, sizeof info.name, name, "extent");
            w.add(info);
            if (static_cast<std::size_t>(&e - extents.data()) >= reply.first_fd)
                out.fds.push_back(reopen(e.fd.get(), write ? O_RDWR : O_RDONLY, e.name));
        }
        w.add(ns->copy_block());
        out.payload = w.take();
        SAC_STOP("server.attached");
        return out;
    } catch (...) {
        {
            const std::lock_guard lock(mutex_);
            caller.client->tables.erase(a->file.number);
        }
        forget(*a);
        throw;
    }
}

}  // namespace sac
