// SPDX-License-Identifier: Apache-2.0
// Pools come and go, and the tables that clients of an earlier daemon have in them.
#include <fcntl.h>

#include <cstring>

#include "error.hpp"
#include "service.hpp"
#include "stop.hpp"

namespace sac {

void Service::add_pool(const std::string &name, std::shared_ptr<OwnedPool> pool) {
    if (name.empty() || name.size() >= wire::kNameBytes)
        throw Error(SAC_E_ARG, name,
                    format("pool '%.80s': a name has 1 to %zu bytes", name.c_str(),
                           wire::kNameBytes - 1));
    if (!pool->shared())
        throw Error(SAC_E_ARG, name,
                    "pool '" + name + "' was not opened for other processes to share");
    // Now, and not when the first client comes.
    for (const Extent &e : pool->media().data().extents())
        reopen(e.fd.get(), O_RDWR, e.name);
    const std::lock_guard one(pools_mutex_);
    Id uuid;
    std::memcpy(uuid.data(), pool->media().superblock().pool, uuid.size());
    std::vector<std::shared_ptr<Attachment>> ours;
    {
        const std::lock_guard lock(mutex_);
        for (const auto &[other, p] : pools_)
            if (other == name || p == pool ||
                std::memcmp(p->media().superblock().pool, uuid.data(), uuid.size()) == 0)
                throw Error(SAC_E_EXISTS, name,
                            "pool '" + name + "': pool '" + other +
                                "', which has its name or is the same, is served already");
        for (const auto &[id, client] : clients_)
            for (const auto &[number, a] : client->tables)
                if (a->file.pool == uuid && !a->lost)
                    ours.push_back(std::make_shared<Attachment>(*a));
    }
    for (const auto &a : ours)
        a->pool = pool, a->pool_name = name;
    adopt(*pool, ours);
    // Whoever is not among them learns it from this, before anything of his is overwritten.
    pool->media().announce();
    SAC_STOP("server.announced");
    std::vector<std::shared_ptr<Attachment>> late;
    {
        const std::lock_guard lock(mutex_);
        for (const auto &a : ours) {
            const auto client = clients_.find(a->file.client);
            const bool there =
                client != clients_.end() && client->second->tables.contains(a->file.number);
            if (there)
                client->second->tables[a->file.number] = a;
            else
                late.push_back(a);
        }
        pools_.emplace(name, std::move(pool));
        lost_.erase(name);
    }
    for (const auto &a : late)  // their client ended meanwhile
        forget(*a);
}

void Service::adopt(OwnedPool &pool, const std::vector<std::shared_ptr<Attachment>> &tables) {
    if (tables.empty())
        return;
    for (const std::string &name : pool.names()) {
        std::shared_ptr<OwnedNamespace> ns;
        try {
            ns = pool.find(name);
        } catch (const Error &) {
            continue;  // damaged: nobody can use it
        }
        std::vector<std::shared_ptr<PinTable>> adopted;
        for (const auto &a : tables) {
            if (!ns || std::memcmp(ns->block().uuid, a->file.space.data(), 16) != 0)
                continue;
            a->table = std::make_shared<PinTable>(roster_.open(a->file), a->file.capacity,
                                                  hex(a->file.client));
            a->ns = ns, a->name = name;
            adopted.push_back(a->table);
            SAC_STOP("server.adopting");
        }
        if (!adopted.empty())
            ns->control().adopt(adopted);
        for (const auto &table : adopted)
            table->set_incarnation(pool.media().superblock().incarnation);
        SAC_STOP("server.adopted");
    }
}

void Service::remove_pool(const std::string &name) {
    const std::lock_guard one(pools_mutex_);
    const std::lock_guard lock(mutex_);
    const auto it = pools_.find(name);
    if (it == pools_.end() && lost_.erase(name) != 0)
        return;
    if (it == pools_.end())
        throw Error(SAC_E_NOT_FOUND, name, "there is no pool '" + name + "' here");
    for (const auto &[id, client] : clients_)
        for (const auto &[number, a] : client->tables)
            if (a->pool == it->second)
                throw Error(SAC_E_BUSY, name,
                            format("pool '%s': process %u (%s) is attached to its namespace "
                                   "'%s'. Let it close, or evict it.",
                                   name.c_str(), client->record.process.pid,
                                   client->record.name.c_str(), a->name.c_str()));
    pools_.erase(it);
}

void Service::lose_pool(const std::string &name) {
    const std::lock_guard one(pools_mutex_);
    std::vector<std::shared_ptr<const Attachment>> tables;
    {
        const std::lock_guard lock(mutex_);
        const auto it = pools_.find(name);
        if (it == pools_.end())
            throw Error(SAC_E_NOT_FOUND, name, "there is no pool '" + name + "' here");
        // Before the first of them can attach again: what it has mapped is not to be used.
        roster_.count_loss(name);
        for (const auto &[id, client] : clients_)
            for (auto &[number, a] : client->tables) {
                if (a->pool != it->second)
                    continue;
                tables.push_back(a);
                auto other = std::make_shared<Attachment>();
                other->file = a->file, other->table = a->table;
                other->pool_name = a->pool_name, other->name = a->name;
                other->lost = true;
                a = std::move(other);
            }
        lost_.insert(name);
        pools_.erase(it);
    }
    for (const auto &a : tables) {
        if (a->table)
            a->table->revoke();
        forget(*a);  // nobody is to adopt it, should the same pool come back
    }
    SAC_STOP("server.pool_lost");
}

}  // namespace sac
