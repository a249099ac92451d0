// SPDX-License-Identifier: Apache-2.0
// What the daemon does for its clients, without the sockets: pools, clients, their tables, and
// the operations of docs/protocol.md.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "error.hpp"
#include "latency.hpp"
#include "owned_pool.hpp"
#include "peer.hpp"
#include "roster.hpp"
#include "sac_server.h"
#include "wire.hpp"

namespace sac {

// A namespace that a client attached. Not changed once it is known, but replaced.
struct Attachment {
    Roster::Table file;
    std::string pool_name, name;
    std::shared_ptr<OwnedPool> pool;  // null: the pool is not served now
    std::shared_ptr<OwnedNamespace> ns;
    std::shared_ptr<const Index> index;  // of the view; null: that of an earlier daemon
    std::shared_ptr<PinTable> table;     // null as long as the pool is not there
    bool lost = false;                   // with the pool's memory: void

    // Whether what is found in the view is what is there now. Not read in the table, where
    // the client writes.
    bool current() const { return ns && index && ns->index() == index; }
};

// A process that said HELLO.
struct Client {
    std::uint64_t serial = 0;
    Roster::Client record;
    Fd pidfd;
    // The rest under Service's mutex.
    std::map<std::uint32_t, std::shared_ptr<const Attachment>> tables;
    std::uint64_t session = 0;  // the one that speaks for it; 0: none
    bool gone = false;
    std::atomic<bool> evicted{false};
    std::atomic<std::uint64_t> requests{0};
};

// Who asks.
struct Caller {
    Peer peer;
    std::uint64_t session = 0;
    std::shared_ptr<Client> client;  // null: before HELLO
};

struct Frame {
    wire::Header header{};
    std::vector<std::uint8_t> payload;
    std::vector<Fd> fds;
};

struct Reply {
    std::uint32_t status = SAC_OK;
    std::vector<std::uint8_t> payload;
    std::vector<Fd> fds;
};

// A new open file of the same inode: what its holder does to it (locks, flags, position) does
// not touch ours, and it may allow less. access: O_RDONLY or O_RDWR. Throws Error.
Fd reopen(int fd, int access, const std::string &name);

class Service {
public:
    // Reads the roster; the tables of processes that have ended are gone then.
    Service(const std::string &run_dir, std::uint32_t creators_gid, std::uint32_t max_clients);
    // The tables stay as they are, with their namespaces and for the next daemon.
    ~Service() = default;
    Service(const Service &) = delete;
    Service &operator=(const Service &) = delete;

    // ---- pools; any thread
    void add_pool(const std::string &name, std::shared_ptr<OwnedPool> pool);
    void remove_pool(const std::string &name);
    // Its memory has gone: what clients have in it is void, and they are told so until a pool
    // of this name is added or it is removed.
    void lose_pool(const std::string &name);

    // ---- requests
    // fast: at most some 100 us, for the thread of all clients. brief: may wait for a pool's
    // lock, or is about very many pages. lengthy: reads a namespace's memory.
    enum class Speed { fast, brief, lengthy };
    static Speed speed(const Frame &frame) noexcept;
    // Any thread; one request of a session at a time. Every Error becomes the reply. ADMIN is
    // not for the service.
    Reply handle(Caller &caller, const Frame &frame) noexcept;
    static Reply failed(const Error &error);
    void count(std::uint16_t op, bool error, std::uint64_t ns) noexcept;

    // ---- clients; any thread
    std::vector<std::shared_ptr<Client>> clients() const;
    // The process has ended.
    void gone(const std::shared_ptr<Client> &client) noexcept;
    // A session has ended; a client without tables goes with it. True: it went.
    bool left(const Caller &caller) noexcept;

    void clients(sac_client_info *out, std::uint64_t &count) const;
    void tables(sac_table_info *out, std::uint64_t &count) const;
    void ops(sac_op_info *out, std::uint64_t &count) const;
    void evict(const Id &id, bool kill);

private:
    using Held = std::shared_ptr<const Attachment>;
    struct Want;
    struct Op {
        std::atomic<std::uint64_t> count{0}, errors{0};
        Latency latency{};
    };

    Reply dispatch(Caller &caller, const Frame &frame);
    Reply hello(Caller &caller, wire::Reader &in);
    Reply pools() const;
    Reply attach(Caller &caller, wire::Reader &in);
    Reply detach(Caller &caller, wire::Reader &in);
    Reply reserve(Caller &caller, wire::Reader &in);
    Reply renew(Caller &caller, wire::Reader &in, bool abort);
    Reply commit(Caller &caller, wire::Reader &in);
    Reply events(Caller &caller, wire::Reader &in);
    Reply stats(Caller &caller, wire::Reader &in);
    Reply evict_pages(Caller &caller, wire::Reader &in);
    Reply verify(Caller &caller, wire::Reader &in);
    Reply dead(Caller &caller, wire::Reader &in);
    Reply pool_info(wire::Reader &in);
    Reply names(wire::Reader &in);
    Reply drop(Caller &caller, wire::Reader &in);

    std::shared_ptr<Client> known(const Caller &caller, const Id &id);
    std::shared_ptr<Client> make_client(const Caller &caller, const std::string &name);
    std::shared_ptr<OwnedPool> pool(const std::string &name) const;
    [[noreturn]] static void throw_lost(const std::string &pool);
    // The caller's table; throws where it has none of that number.
    Held table(const Caller &caller, std::uint32_t number) const;
    // As table(), of a namespace that is served.
    Held served(const Caller &caller, std::uint32_t number) const;
    // As served(), of a client that may write there and was not evicted.
    Held writable(const Caller &caller, std::uint32_t number) const;
    void check_not_evicted(const Client &client) const;
    bool rules_all(const Peer &peer) const noexcept;
    // Of wire::Access.
    std::uint32_t access(const Peer &peer, const fmt::NamespaceBlock &block) const noexcept;
    std::shared_ptr<OwnedNamespace> space(const Caller &caller, OwnedPool &pool,
                                          const Want &want) const;
    Held make_table(const std::shared_ptr<Client> &client, const Want &want,
                    std::shared_ptr<OwnedPool> pool, std::shared_ptr<OwnedNamespace> ns,
                    bool write);
    void adopt(OwnedPool &pool, const std::vector<std::shared_ptr<Attachment>> &tables);
    static void end_reservations(const Attachment &attachment);
    void forget(const Attachment &attachment) noexcept;
    void remove_client(const std::shared_ptr<Client> &client) noexcept;

    Roster roster_;
    const std::uint32_t creators_gid_, max_clients_;
    std::uint64_t incarnation_;
    mutable std::mutex mutex_;  // of what follows; no call into a pool under it
    std::map<std::string, std::shared_ptr<OwnedPool>> pools_;
    std::set<std::string> lost_;  // names of pools that are not back
    std::map<Id, std::shared_ptr<Client>> clients_;
    std::uint64_t next_serial_ = 1;
    std::mutex pools_mutex_;  // one pool comes or goes at a time
    std::array<Op, 64> ops_;
};

}  // namespace sac
