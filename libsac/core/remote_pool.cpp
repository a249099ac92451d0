// SPDX-License-Identifier: Apache-2.0
#include "remote_pool.hpp"

#include <algorithm>

#include "error.hpp"
#include "remote_authority.hpp"

namespace sac {

RemoteNamespace::RemoteNamespace(std::shared_ptr<Mount> mount, const Mount::Attached &attached)
    : Namespace(attached.backing, attached.block, attached.geometry), mount_(std::move(mount)) {
    authority_ = std::make_unique<RemoteAuthority>(mount_, block_, dropped_, attached);
}

RemoteNamespace::~RemoteNamespace() {
    authority_.reset();
    // The daemon need not wait for the next request to know that the view is not used.
    mount_->connection().flush();
}

RemotePool::RemotePool(std::shared_ptr<Connection> connection, const std::string &pool)
    : mount_(std::make_shared<Mount>(std::move(connection), pool)) {}

RemotePool::~RemotePool() {
    if (!connection().forked())
        mount_->close();
}

void RemotePool::info(sac_pool_info &out) {
    wire::PoolRequest r{};
    wire::set_name(r.pool, sizeof r.pool, mount_->pool(), "the pool's name");
    out = connection().ask(
        wire::kPoolInfo, wire::Writer().add(r).take(), [](const Connection::Reply &reply) {
            wire::Reader in(reply.payload.data(), reply.payload.size(), "POOL_INFO");
            const auto info = in.get<sac_pool_info>();
            in.done();
            return info;
        });
}

std::vector<std::string> RemotePool::names() { return mount_->names(); }

std::shared_ptr<Namespace> RemotePool::open_namespace(const std::string &name,
                                                      const sac_ns_options &options) {
    connection().check();
    Mount::Attached attached;
    try {
        attached = mount_->attach(name, options.layout ? &options : nullptr, false);
    } catch (const Error &e) {
        // Who does not say what it is to be takes it as it is: to read, where that is allowed.
        if (e.status != SAC_E_ACCESS || options.layout)
            throw;
        attached = mount_->attach(name, nullptr, true);
    }
    auto ns = std::make_shared<RemoteNamespace>(mount_, attached);
    const std::lock_guard lock(mutex_);
    std::erase_if(open_, [](const auto &weak) { return weak.expired(); });
    open_.push_back(ns);
    return ns;
}

void RemotePool::drop(const std::string &name) {
    wire::DropRequest r{};
    wire::set_name(r.pool, sizeof r.pool, mount_->pool(), "the pool's name");
    wire::set_name(r.name, sizeof r.name, name, "the namespace's name");
    connection().tell(wire::kDrop, wire::Writer().add(r).take());
    const std::lock_guard lock(mutex_);
    for (const auto &weak : open_)
        if (const auto ns = weak.lock(); ns && ns->block().name == name)
            ns->set_dropped();
}

void RemotePool::resize(const std::string &name, std::uint64_t) {
    connection().check();
    throw Error(SAC_E_ACCESS, name,
                format("namespace '%s': its quota is the administrator's to change: 'sacctl "
                       "namespace resize'",
                       name.c_str()));
}

void RemotePool::extend(const sac_extent_fd &) {
    connection().check();
    throw Error(SAC_E_ACCESS, mount_->pool(),
                format("pool '%s': it is the administrator's to extend: 'sacctl pool extend'",
                       mount_->pool().c_str()));
}

void RemotePool::close() {
    if (connection().forked())
        connection().check();  // throws
    mount_->close();
}

std::shared_ptr<Pool> Pool::connect(const sac_connect_options &o) {
    Connection::Options options;
    options.socket = o.socket;
    options.name = o.name ? o.name : "";
    options.timeout_ms = o.timeout_ms;
    options.reconnect_ms = o.reconnect_ms;
    auto connection = std::make_shared<Connection>(std::move(options));
    const std::vector<std::string> pools = connection->names(wire::kPools, {});
    std::string all;
    for (const std::string &p : pools)
        all += (all.empty() ? "" : ", ") + p;
    if (o.pool && std::find(pools.begin(), pools.end(), o.pool) == pools.end())
        throw Error(
            SAC_E_NOT_FOUND, o.pool,
            pools.empty()
                ? format("the daemon on %s serves no pool '%s', and no other. Create it "
                         "with 'sacctl pool create'.",
                         o.socket, o.pool)
                : format("the daemon on %s serves no pool '%s'. It serves: %s.", o.socket,
                         o.pool, all.c_str()));
    if (!o.pool && pools.empty())
        throw Error(SAC_E_NOT_FOUND, o.socket,
                    format("the daemon on %s serves no pool. Create one with 'sacctl pool "
                           "create'.",
                           o.socket));
    if (!o.pool && pools.size() != 1)
        throw Error(SAC_E_NOT_FOUND, o.socket,
                    format("the daemon on %s serves several pools; say which: %s", o.socket,
                           all.c_str()));
    return std::make_shared<RemotePool>(std::move(connection), o.pool ? o.pool : pools.front());
}

}  // namespace sac
