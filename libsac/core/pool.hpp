// SPDX-License-Identifier: Apache-2.0
// A pool owned by this process: its files or memory, and its namespaces.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "namespace.hpp"

namespace sac {

class Pool {
public:
    // Opens or creates. Throws Error.
    static std::shared_ptr<Pool> embedded(const sac_pool_options &options);
    // Takes a formatted pool: recovers every namespace. lock is
    // held until the last prefix, put or sequence of the pool has gone.
    Pool(std::unique_ptr<Mapping> meta, std::unique_ptr<Mapping> data, Fd lock);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    void info(sac_pool_info &out) const;
    std::vector<std::string> names() const;
    std::shared_ptr<Namespace> open_namespace(const std::string &name,
                                              const sac_ns_options &options);
    void drop(const std::string &name);
    void close();

private:
    struct Entry {
        std::uint32_t id;
        std::shared_ptr<Namespace> ns;  // null: damaged
        std::string damage;
        sac_status status = SAC_OK;
    };

    void recover();
    void use(std::uint32_t id);
    void release(std::uint32_t id);
    std::string damaged_name(std::uint32_t id) const;

    std::shared_ptr<Media> media_;
    mutable std::mutex mutex_;
    std::map<std::string, Entry> namespaces_;
    std::vector<bool> used_ids_;  // also of what has no entry, but slabs
    std::uint32_t next_id_ = 1;   // none below is free
};

}  // namespace sac
