// SPDX-License-Identifier: Apache-2.0
#include "mount.hpp"

#include <algorithm>
#include <cstring>

#include "dax.hpp"
#include "error.hpp"

namespace sac {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;

// For what the daemon says: Connection makes SAC_E_CORRUPT of it.
[[noreturn]] void refuse(const char *why) { throw Error(SAC_E_ARG, "ATTACH", why); }

Geometry check(const fmt::NamespaceBlock &b) {
    if (std::memcmp(b.magic, fmt::kNamespaceMagic, sizeof b.magic) != 0 ||
        strnlen(b.name, sizeof b.name) == sizeof b.name ||
        strnlen(b.model, sizeof b.model) == sizeof b.model || b.plane_count > SAC_MAX_PLANES)
        refuse("the namespace's superblock is none");
    if (b.major != fmt::kMajor)
        throw Error(SAC_E_VERSION, b.name,
                    format("namespace '%s' has format version %u; this library knows %u",
                           b.name, b.major, fmt::kMajor));
    try {
        Geometry g(sac_layout{sizeof(sac_layout), b.page_tokens, b.plane_count, b.planes});
        if (g.part_bytes[kBodyPart] == b.body_bytes &&
            g.part_bytes[kTailPart] == b.tail_bytes && b.chunk_slots != 0 &&
            b.chunk_slots == std::max(b.body_pages, b.tail_pages))
            return g;
    } catch (const Error &) {
    }
    refuse("the namespace's geometry does not follow from its layout");
}

wire::AttachRequest request(const std::string &pool, const std::string &name,
                            const sac_ns_options *options, bool read_only,
                            std::uint64_t have_extents) {
    wire::AttachRequest r{};
    wire::set_name(r.pool, sizeof r.pool, pool, "the pool's name");
    wire::set_name(r.name, sizeof r.name, name, "the namespace's name");
    r.have_extents = static_cast<std::uint32_t>(have_extents);
    r.flags = read_only ? std::uint32_t{wire::kReadOnly} : 0;
    if (!options)
        return r;
    r.flags |= wire::kCreate;
    r.ns_flags = options->flags, r.key_scheme = options->key_scheme;
    r.mode = options->mode, r.max_bytes = options->max_bytes;
    wire::set_name(r.model, sizeof r.model, options->model ? options->model : "",
                   "the model's name");
    return r;
}

}  // namespace

struct Mount::Handed {
    wire::AttachReply reply;
    std::vector<wire::ExtentInfo> extents;
    std::vector<Fd> fds;
    fmt::NamespaceBlock block;
    Geometry geometry;
    std::uint64_t life;
    bool writable() const noexcept { return (reply.access & wire::kWrite) != 0; }
};

Mount::Mount(std::shared_ptr<Connection> connection, std::string pool)
    : connection_(std::move(connection)), pool_(std::move(pool)) {}

// How many extents there is no need to hand over. None, where what is mapped has faulted: the
// daemon may not know that the memory behind it was another.
std::size_t Mount::mapped(bool writable) const noexcept {
    const std::shared_ptr<Backing> &b = backing_[writable ? 1 : 0];
    return b && b->data().guard().faults() == 0 ? b->data().extents().size() : 0;
}

Mount::Handed Mount::ask(const std::string &name, const sac_ns_options *options,
                         bool read_only) {
    wire::AttachRequest r = request(pool_, name, options, read_only, mapped(!read_only));
    r.life = life_[read_only ? 0 : 1];
    wire::Writer w;
    if (options) {
        const Geometry asked(*options->layout);  // throws what is wrong with it
        r.page_tokens = asked.page_tokens;
        r.plane_count = static_cast<std::uint32_t>(asked.planes.size());
        w.add(r).add(asked.planes.data(), asked.planes.size() * sizeof(sac_plane));
    } else {
        w.add(r);
    }
    return connection_->ask(wire::kAttach, w.take(), [&](Connection::Reply &from) {
        wire::Reader in(from.payload.data(), from.payload.size(), "ATTACH");
        Handed h{};
        h.reply = in.get<wire::AttachReply>();
        const wire::AttachReply &a = h.reply;
        if (a.extents == 0 || a.extents > fmt::kMaxExtents || a.first_fd > a.extents)
            refuse("so many extents are not possible");
        h.extents = in.get<wire::ExtentInfo>(a.extents);
        h.block = in.get<fmt::NamespaceBlock>();
        in.done();
        if (from.files_lost) {
            connection_->owe({a.table, connection_->life(), {}});
            throw Error(SAC_E_NO_MEMORY, name,
                        format("namespace '%s': the files that the daemon handed over do not "
                               "fit into this process. Raise the limit on open files "
                               "(ulimit -n).",
                               name.c_str()));
        }
        if (from.fds.size() != 2 + a.extents - a.first_fd)
            refuse("files are missing, or too many");
        if (a.capacity == 0 || a.capacity >= kNoSlot || a.index_bytes > kMostBytes ||
            !(a.access & wire::kRead))
            refuse("such an index or access is not possible");
        for (const wire::ExtentInfo &e : h.extents)
            if (e.bytes == 0 || e.bytes > kMostBytes || e.bytes % 4096 != 0 ||
                strnlen(e.name, sizeof e.name) == sizeof e.name ||
                (e.align != 0 && (!dax_align(e.align) || e.bytes % e.align != 0)) ||
                e.life != h.extents.front().life)
                refuse("such an extent is not possible");
        h.geometry = check(h.block);
        h.fds = std::move(from.fds);
        h.life = connection_->life();
        return h;
    });
}

// Whatever of the pool's extents is not mapped yet.
void Mount::map(Handed &h, bool writable) {
    std::shared_ptr<Backing> &backing = backing_[writable ? 1 : 0];
    const std::uint32_t life = h.extents.front().life;
    // Handed over whole, and another one by now. Views that are there keep the old one mapped.
    if (h.reply.first_fd == 0 && (life != life_[writable ? 1 : 0] || mapped(writable) == 0))
        backing.reset();
    const std::shared_ptr<Backing> &other = backing_[writable ? 0 : 1];
    if (!backing && (!other || life != life_[writable ? 0 : 1]))
        uuid_ = {};
    const auto replaced = [&] {
        throw Error(SAC_E_CLOSED, pool_,
                    format("the daemon has another pool of the name '%s' now. Connect anew.",
                           pool_.c_str()));
    };
    if (uuid_ != decltype(uuid_){} && std::memcmp(uuid_.data(), h.reply.pool, 16) != 0)
        replaced();
    const std::size_t have = backing ? backing->data().extents().size() : 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(have, h.extents.size()); ++i)
        if (backing->data().extents()[i].bytes != h.extents[i].bytes)
            replaced();
    const auto extent = [&](std::size_t i) {
        Extent e;
        e.fd = std::move(h.fds[2 + i - h.reply.first_fd]);
        e.bytes = h.extents[i].bytes, e.align = h.extents[i].align;
        e.name = h.extents[i].name;
        return e;
    };
    if (!backing) {
        std::vector<Extent> all;
        for (std::size_t i = 0; i < h.extents.size(); ++i)
            all.push_back(extent(i));
        backing =
            std::make_shared<Backing>(std::make_unique<Mapping>(std::move(all), writable));
        std::memcpy(uuid_.data(), h.reply.pool, 16);
        life_[writable ? 1 : 0] = life;
    } else {
        for (std::size_t i = have; i < h.extents.size(); ++i)
            backing->data().append(extent(i));
    }
}

std::shared_ptr<RemoteView> Mount::view(Handed &h, const std::string &name) {
    auto index = std::make_shared<const Index>(std::move(h.fds[0]), h.reply.index_bytes,
                                               "index of " + name);
    if (index->capacity() != h.reply.capacity)
        throw Error(SAC_E_CORRUPT, name,
                    format("namespace '%s': the daemon's index is not of the size it says",
                           name.c_str()));
    auto table =
        std::make_shared<PinTable>(std::move(h.fds[1]), h.reply.capacity, "table of " + name);
    const Connection::Owed detach{h.reply.table, h.life, {}};
    return std::make_shared<RemoteView>(
        std::move(index), std::move(table), backing_[h.writable() ? 1 : 0], h.reply.table,
        h.life, [connection = connection_, detach] { connection->owe(detach); });
}

Mount::Attached Mount::attach(const std::string &name, const sac_ns_options *options,
                              bool read_only) {
    connection_->check();
    const std::lock_guard lock(mutex_);
    for (;;) {
        Handed h = ask(name, options, read_only);
        const bool writable = h.writable();
        try {
            const auto &backing = backing_[writable ? 1 : 0];
            const std::size_t have = backing ? backing->data().extents().size() : 0;
            if (h.reply.first_fd <= have) {
                map(h, writable);
                std::shared_ptr<RemoteView> v = view(h, name);
                return {std::move(v), backing_[writable ? 1 : 0], h.block,
                        std::move(h.geometry), writable};
            }
        } catch (...) {
            connection_->owe({h.reply.table, h.life, {}});
            throw;
        }
        // Less access than was asked for, and files of that kind were not asked for.
        connection_->owe({h.reply.table, h.life, {}});
        if (read_only)
            throw Error(SAC_E_CORRUPT, name,
                        format("namespace '%s': the daemon keeps extents back", name.c_str()));
        read_only = true;
    }
}

std::vector<std::string> Mount::names() const {
    wire::PoolRequest r{};
    wire::set_name(r.pool, sizeof r.pool, pool_, "the pool's name");
    return connection_->names(wire::kNames, wire::Writer().add(r).take());
}

void Mount::close() noexcept {
    connection_->close();
    const std::lock_guard lock(mutex_);
    for (std::shared_ptr<Backing> &backing : backing_) {
        if (backing)
            backing->set_closed();
        backing.reset();
    }
}

}  // namespace sac
