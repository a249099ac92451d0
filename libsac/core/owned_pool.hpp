// SPDX-License-Identifier: Apache-2.0
// A pool owned by this process: its extents, and its namespaces.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "owned_namespace.hpp"
#include "pool.hpp"

namespace sac {

class OwnedPool final : public Pool {
public:
    // Takes a formatted pool: recovers every namespace. lock is held until the last prefix,
    // put or sequence of the pool has gone. shared: indexes in memfds, for other processes.
    OwnedPool(std::unique_ptr<Mapping> meta, std::unique_ptr<Mapping> data, Fd lock,
              bool shared = false);
    ~OwnedPool() override;

    void info(sac_pool_info &out) override;
    std::vector<std::string> names() override;
    std::shared_ptr<Namespace> open_namespace(const std::string &name,
                                              const sac_ns_options &options) override;
    void drop(const std::string &name) override;
    void resize(const std::string &name, std::uint64_t max_bytes) override;
    void extend(const sac_extent_fd &extent) override;
    void close() override;

    // How many pages left. extent: of the data, or Media::kMetadata. Throws as Media's.
    std::uint64_t quarantine(std::uint32_t extent, std::uint64_t offset, std::uint64_t bytes);
    // extents: as for quarantine().
    std::uint64_t lose(std::span<const std::uint32_t> extents);

    // ---- for the daemon
    bool shared() const noexcept { return shared_; }
    Media &media() const noexcept { return *media_; }
    // The namespace, or null where there is none; throws what a damaged one is damaged by.
    std::shared_ptr<OwnedNamespace> find(const std::string &name);
    // As open_namespace, for a user: a new one is theirs.
    std::shared_ptr<OwnedNamespace> open(const std::string &name, const sac_ns_options &options,
                                         std::uint32_t uid, std::uint32_t gid);
    // Calls fn for each that is not damaged.
    void each(const std::function<void(OwnedNamespace &)> &fn);

private:
    struct Entry {
        std::uint32_t id;
        std::shared_ptr<OwnedNamespace> ns;  // null: damaged
        std::string damage;
        sac_status status = SAC_OK;
    };

    std::uint64_t page_size();
    std::uint64_t drop_dead();
    void recover();
    void use(std::uint32_t id);
    void release(std::uint32_t id);
    std::string damaged_name(std::uint32_t id) const;
    OwnedNamespace &whole(const std::string &name);

    std::shared_ptr<Media> media_;
    bool shared_;
    mutable std::mutex mutex_;
    std::map<std::string, Entry> namespaces_;
    std::vector<bool> used_ids_;  // also of what has no entry, but slabs
    std::uint32_t next_id_ = 1;   // none below is free
    std::mutex page_size_mutex_;
    std::uint64_t page_size_ = 0;
    std::chrono::steady_clock::time_point page_size_until_{};
};

}  // namespace sac
