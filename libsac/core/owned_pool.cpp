// SPDX-License-Identifier: Apache-2.0
#include "owned_pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "error.hpp"
#include "namespace_block.hpp"
#include "open_fds.hpp"

namespace sac {

OwnedPool::OwnedPool(std::unique_ptr<Mapping> meta, std::unique_ptr<Mapping> data, Fd lock,
                     bool shared)
    : media_(std::make_shared<Media>(std::move(meta), std::move(data), std::move(lock))),
      shared_(shared) {
    if (media_->served() && !shared_)
        throw Error(
            SAC_E_BUSY, media_->meta().extents().front().name,
            format("%s: the pool is served by a daemon, and processes may be reading it "
                   "although the daemon is not there: use libsac.connect(), or start "
                   "the daemon. A reboot, or the daemon's end without clients, frees it.",
                   media_->meta().extents().front().name.c_str()));
    recover();
    media_->take(shared_);
}

OwnedPool::~OwnedPool() {
    if (!media_->forked())
        close();
}

void OwnedPool::use(std::uint32_t id) {
    if (used_ids_.size() <= id)
        used_ids_.resize(id + std::size_t{1});
    used_ids_[id] = true;
    while (next_id_ < used_ids_.size() && used_ids_[next_id_])
        ++next_id_;
}

void OwnedPool::release(std::uint32_t id) {
    used_ids_[id] = false;
    next_id_ = std::min(next_id_, id);
}

std::string OwnedPool::damaged_name(std::uint32_t id) const {
    std::string name = format("damaged.%u", id);
    for (unsigned i = 2; namespaces_.count(name) != 0; ++i)
        name = format("damaged.%u.%u", id, i);
    return name;
}

void OwnedPool::recover() {
    const auto all = media_->owned();
    // First those that have a name: one that looks like a damaged one's is theirs.
    for (const bool named : {true, false})
        for (const auto &[id, owned] : all) {
            fmt::NamespaceBlock b{};
            const bool known = read_block(*media_, owned, b);
            if (known != named)
                continue;
            // A drop that a kill cut off, or slabs whose namespace was never completed.
            if ((known && b.state == fmt::kDropping) || owned.blocks.empty()) {
                OwnedNamespace::destroy(*media_, owned);
                continue;
            }
            use(id);
            Entry e{id, nullptr, {}, SAC_OK};
            try {
                e.ns = OwnedNamespace::load(media_, owned, id, media_->rebooted(), shared_);
            } catch (const Error &error) {
                // The others are not to suffer: this one answers with its damage, and can
                // be dropped.
                e.damage = error.message, e.status = error.status;
            }
            const std::string name = known ? b.name : "";
            namespaces_.emplace(known && namespaces_.count(name) == 0 ? name : damaged_name(id),
                                std::move(e));
        }
}

// A pass over all mappings of the process: slow where there are thousands of indexes, so a
// daemon, which is asked by many, does not make it for each of them.
std::uint64_t OwnedPool::page_size() {
    const std::lock_guard lock(page_size_mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (!shared_ || page_size_ == 0 || now >= page_size_until_) {
        page_size_ = media_->data().page_size_obtained();
        page_size_until_ = now + std::chrono::seconds(10);
    }
    return page_size_;
}

void OwnedPool::info(sac_pool_info &out) {
    media_->check_usable();
    const std::uint64_t page_size = this->page_size();  // nobody else is to wait for it
    const std::lock_guard lock(mutex_);
    const fmt::Superblock &sb = media_->superblock();
    out = {};
    std::memcpy(out.uuid, sb.pool, sizeof out.uuid);
    out.data_bytes = media_->data_bytes();
    out.free_bytes = media_->free_bytes();
    out.metadata_bytes = sb.bytes;
    out.slab_bytes = fmt::kDataSlab;
    out.incarnation = sb.incarnation;
    out.extents = sb.extent_count;
    out.namespaces = static_cast<std::uint32_t>(namespaces_.size());
    out.page_size_obtained = page_size;
    out.recovered = media_->recovered();
    out.rebooted = media_->rebooted();
    out.dead_blocks = media_->data().guard().faults() + media_->meta().guard().faults();
}

std::vector<std::string> OwnedPool::names() {
    media_->check_usable();
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (const auto &[name, entry] : namespaces_)
        out.push_back(name);
    return out;
}

std::shared_ptr<OwnedNamespace> OwnedPool::find(const std::string &name) {
    media_->check_usable();
    const std::lock_guard lock(mutex_);
    const auto it = namespaces_.find(name);
    if (it == namespaces_.end())
        return nullptr;
    if (!it->second.ns)
        throw Error(it->second.status, name, it->second.damage);
    return it->second.ns;
}

void OwnedPool::each(const std::function<void(OwnedNamespace &)> &fn) {
    const std::lock_guard lock(mutex_);
    for (const auto &[name, entry] : namespaces_)
        if (entry.ns)
            fn(*entry.ns);
}

std::shared_ptr<Namespace> OwnedPool::open_namespace(const std::string &name,
                                                     const sac_ns_options &options) {
    return open(name, options, geteuid(), getegid());
}

std::shared_ptr<OwnedNamespace> OwnedPool::open(const std::string &name,
                                                const sac_ns_options &options,
                                                std::uint32_t uid, std::uint32_t gid) {
    media_->check_usable();
    const std::lock_guard lock(mutex_);
    const auto it = namespaces_.find(name);
    if (it != namespaces_.end()) {
        if (!it->second.ns)
            throw Error(it->second.status, name, it->second.damage);
        it->second.ns->check_same(options);
        return it->second.ns;
    }
    media_->check_writable();
    const std::uint32_t id = next_id_;
    if (id > fmt::kMaxNamespaces)
        throw Error(
            SAC_E_NO_SPACE, name,
            format("the pool has %u namespaces, the most it can have", fmt::kMaxNamespaces));
    std::shared_ptr<OwnedNamespace> ns;
    try {
        ns = OwnedNamespace::create(media_, id, name, options, uid, gid, shared_);
    } catch (const Error &e) {
        if (e.status != SAC_E_NO_SPACE || !media_->file_system_full())
            throw;
        const std::string &file = media_->meta().extents().front().name;
        throw Error(SAC_E_NO_SPACE, name,
                    format("no room for namespace '%s': the file system of %s is full; free "
                           "some of it",
                           name.c_str(), file.c_str()),
                    ENOSPC);
    }
    use(id);
    namespaces_.emplace(name, Entry{id, ns, {}, SAC_OK});
    return ns;
}

void OwnedPool::drop(const std::string &name) {
    media_->check_usable();
    const std::lock_guard lock(mutex_);
    const auto it = namespaces_.find(name);
    if (it == namespaces_.end())
        throw Error(SAC_E_NOT_FOUND, name, "there is no namespace '" + name + "'");
    media_->check_writable();
    Entry &e = it->second;
    if (e.ns) {
        const std::uint64_t busy = e.ns->drop();
        if (busy != 0)
            throw Error(SAC_E_BUSY, name,
                        format("namespace '%s' is in use: %" PRIu64
                               " pages are pinned or being "
                               "written. Close its prefixes, puts and sequences first.",
                               name.c_str(), busy));
    }
    const auto all = media_->owned();
    const auto owned = all.find(e.id);
    if (owned != all.end())
        OwnedNamespace::destroy(*media_, owned->second);
    release(e.id);
    namespaces_.erase(it);
}

OwnedNamespace &OwnedPool::whole(const std::string &name) {
    const auto it = namespaces_.find(name);
    if (it == namespaces_.end())
        throw Error(SAC_E_NOT_FOUND, name, "there is no namespace '" + name + "'");
    if (!it->second.ns)
        throw Error(it->second.status, name, it->second.damage);
    return *it->second.ns;
}

void OwnedPool::resize(const std::string &name, std::uint64_t max_bytes) {
    media_->check_usable();
    const std::lock_guard lock(mutex_);
    whole(name).resize(max_bytes);
}

void OwnedPool::extend(const sac_extent_fd &extent) {
    media_->check_usable();
    const std::lock_guard lock(mutex_);
    Extent e = take_extent(extent);
    check_other_file(e, media_->meta().extents());
    check_other_file(e, media_->data().extents());
    const auto each = [&](void (OwnedNamespace::*what)()) {
        for (const auto &[name, entry] : namespaces_)
            if (entry.ns)
                ((*entry.ns).*what)();
    };
    media_->extend(std::move(e), [&] {
        if (shared_)
            each(&OwnedNamespace::pool_grows);
    });
    each(&OwnedNamespace::pool_grew);
}

std::uint64_t OwnedPool::drop_dead() {
    std::uint64_t pages = 0;
    each([&](OwnedNamespace &ns) { pages += ns.control().drop_dead(); });
    return pages;
}

std::uint64_t OwnedPool::quarantine(std::uint32_t extent, std::uint64_t offset,
                                    std::uint64_t bytes) {
    media_->check_usable();
    media_->quarantine(extent, offset, bytes);
    return drop_dead();
}

std::uint64_t OwnedPool::lose(std::span<const std::uint32_t> extents) {
    media_->check_usable();
    for (const std::uint32_t e : extents)
        media_->lose(e);
    return drop_dead();
}

void OwnedPool::close() {
    if (media_->forked())
        media_->check_usable();
    const std::lock_guard lock(mutex_);
    media_->close_clean(shared_ &&
                        std::any_of(namespaces_.begin(), namespaces_.end(), [](const auto &n) {
                            return n.second.ns && n.second.ns->control().has_clients();
                        }));
    namespaces_.clear();
}

}  // namespace sac
