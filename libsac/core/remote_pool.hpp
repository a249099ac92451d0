// SPDX-License-Identifier: Apache-2.0
// A pool that a daemon serves, as this process uses it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mount.hpp"
#include "pool.hpp"

namespace sac {

class RemoteNamespace final : public Namespace {
public:
    RemoteNamespace(std::shared_ptr<Mount> mount, const Mount::Attached &attached);
    ~RemoteNamespace() override;

    // As if the daemon had said that it was dropped.
    void set_dropped() noexcept { dropped_.store(true, std::memory_order_seq_cst); }

private:
    const std::shared_ptr<Mount> mount_;
};

class RemotePool final : public Pool {
public:
    RemotePool(std::shared_ptr<Connection> connection, const std::string &pool);
    ~RemotePool() override;

    void info(sac_pool_info &out) override;
    std::vector<std::string> names() override;
    std::shared_ptr<Namespace> open_namespace(const std::string &name,
                                              const sac_ns_options &options) override;
    void drop(const std::string &name) override;
    void resize(const std::string &name, std::uint64_t max_bytes) override;
    void extend(const sac_extent_fd &extent) override;
    void close() override;

private:
    Connection &connection() const noexcept { return mount_->connection(); }

    const std::shared_ptr<Mount> mount_;
    std::mutex mutex_;
    std::vector<std::weak_ptr<RemoteNamespace>> open_;
};

}  // namespace sac
