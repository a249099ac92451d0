// SPDX-License-Identifier: Apache-2.0
// Clients come and go.
#include "service.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "error.hpp"
#include "stop.hpp"

namespace sac {

namespace {

constexpr std::size_t kSpareClients = 16;  // for root and the daemon's own user

std::uint64_t now_ms() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                          std::chrono::system_clock::now().time_since_epoch())
                                          .count());
}

Id id_of(const std::uint8_t (&bytes)[16]) {
    Id id;
    std::memcpy(id.data(), bytes, id.size());
    return id;
}

}  // namespace

Service::Service(const std::string &run_dir, std::uint32_t creators_gid,
                 std::uint32_t max_clients)
    : roster_(run_dir), creators_gid_(creators_gid), max_clients_(max_clients) {
    const Id random = random_id();
    std::memcpy(&incarnation_, random.data(), sizeof incarnation_);
    std::vector<Roster::Client> records;
    std::vector<Roster::Table> files;
    roster_.load(records, files);
    for (Roster::Client &record : records) {
        auto client = std::make_shared<Client>();
        client->pidfd = open_process(record.process);
        if (!client->pidfd) {
            for (const Roster::Table &file : files)
                if (file.client == record.id)
                    roster_.remove(file);
            roster_.remove(record.id);
            continue;
        }
        client->serial = next_serial_++;
        client->record = std::move(record);
        client->evicted = client->record.evicted;
        clients_.emplace(client->record.id, std::move(client));
    }
    SAC_STOP("server.roster_read");
    for (const Roster::Table &file : files) {
        const auto it = clients_.find(file.client);
        if (it == clients_.end())
            continue;
        auto attachment = std::make_shared<Attachment>();
        attachment->file = file;
        it->second->tables.emplace(file.number, std::move(attachment));
    }
}

Reply Service::hello(Caller &caller, wire::Reader &in) {
    const auto request = in.get<wire::HelloRequest>();
    in.done();
    if (caller.client)
        throw Error(SAC_E_ARG, "HELLO", "this connection has said HELLO already");
    std::string name = wire::name(request.name, sizeof request.name, "client's name");
    if (name.empty())
        name = process_name(caller.peer.process.pid);
    std::shared_ptr<Client> client = known(caller, id_of(request.id));
    if (!client)
        client = make_client(caller, name);
    SAC_STOP("server.hello");
    caller.client = client;
    wire::HelloReply reply{};
    std::memcpy(reply.id, client->record.id.data(), sizeof reply.id);
    reply.incarnation = incarnation_;
    reply.pid = static_cast<std::uint32_t>(::getpid());
    wire::set_name(reply.version, sizeof reply.version, SAC_VERSION, "version");
    Reply out;
    out.payload = wire::Writer().add(reply).take();
    return out;
}

// The client of that id, which the caller takes over from an older connection of its; null:
// there is none.
std::shared_ptr<Client> Service::known(const Caller &caller, const Id &id) {
    if (id == Id{})
        return nullptr;
    const std::lock_guard lock(mutex_);
    const auto it = clients_.find(id);
    if (it == clients_.end())
        return nullptr;
    Client &client = *it->second;
    if (client.record.process != caller.peer.process || client.record.uid != caller.peer.uid)
        throw Error(SAC_E_ACCESS, "HELLO", "this client's id belongs to another process");
    check_not_evicted(client);
    client.session = caller.session;
    return it->second;
}

std::shared_ptr<Client> Service::make_client(const Caller &caller, const std::string &name) {
    auto client = std::make_shared<Client>();
    client->record.id = random_id();
    client->record.process = caller.peer.process;
    client->record.uid = caller.peer.uid, client->record.gid = caller.peer.gid;
    client->record.since_ms = now_ms();
    client->record.name = name;
    client->session = caller.session;
    client->pidfd = open_process(caller.peer.process);
    if (!client->pidfd)
        throw Error(SAC_E_ACCESS, "HELLO", "the process that made the connection has ended");
    const std::lock_guard lock(mutex_);
    // One process must not take the places of all others.
    const std::uint64_t most = std::max<std::uint64_t>(64, max_clients_ / 4);
    const auto same = static_cast<std::uint64_t>(
        std::count_if(clients_.begin(), clients_.end(), [&](const auto &c) {
            return c.second->record.process == caller.peer.process;
        }));
    // So that an administrator can look at a daemon that is full.
    const std::size_t spare = rules_all(caller.peer) ? kSpareClients : 0;
    if (clients_.size() >= max_clients_ + spare || same >= most)
        throw Error(SAC_E_BUSY, "HELLO",
                    format("%zu clients are there, %llu of them of this process; at most %u, "
                           "and %llu of a process, are served. Close some, or raise "
                           "max_clients.",
                           clients_.size(), static_cast<unsigned long long>(same), max_clients_,
                           static_cast<unsigned long long>(most)));
    roster_.write(client->record);
    client->serial = next_serial_++;
    clients_.emplace(client->record.id, client);
    return client;
}

std::vector<std::shared_ptr<Client>> Service::clients() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Client>> out;
    for (const auto &[id, client] : clients_)
        out.push_back(client);
    return out;
}

void Service::gone(const std::shared_ptr<Client> &client) noexcept {
    SAC_STOP("server.client_gone");
    remove_client(client);
}

bool Service::left(const Caller &caller) noexcept {
    if (!caller.client)
        return false;
    {
        const std::lock_guard lock(mutex_);
        if (caller.client->session != caller.session)
            return false;  // another connection speaks for it
        caller.client->session = 0;
        if (!caller.client->tables.empty() || caller.client->gone)
            return false;
    }
    remove_client(caller.client);
    return true;
}

void Service::remove_client(const std::shared_ptr<Client> &client) noexcept {
    std::map<std::uint32_t, std::shared_ptr<const Attachment>> tables;
    {
        const std::lock_guard lock(mutex_);
        client->gone = true;
        tables.swap(client->tables);
        clients_.erase(client->record.id);
    }
    for (const auto &[number, a] : tables)
        forget(*a);
    roster_.remove(client->record.id);
}

void Service::forget(const Attachment &a) noexcept {
    if (a.ns && a.table)
        a.ns->control().detach(*a.table);
    SAC_STOP("server.detached");
    roster_.remove(a.file);
}

// They expire at once: nothing that they hold can become visible any more. The slots stay the
// client's, who may be writing, until its table is gone.
void Service::end_reservations(const Attachment &a) {
    std::vector<Reservation> held;
    a.table->each_used([&](std::uint32_t slot) {
        if (const std::uint64_t token = a.table->token(slot))
            held.push_back({slot, 0, 0, token});
    });
    a.ns->control().renew(held, Clock::now());
}

void Service::check_not_evicted(const Client &client) const {
    if (client.evicted)
        throw Error(SAC_E_ACCESS, client.record.name,
                    "an administrator has evicted this client: close the pool and connect "
                    "again");
}

void Service::evict(const Id &id, bool kill) {
    std::vector<std::shared_ptr<const Attachment>> tables;
    {
        const std::lock_guard lock(mutex_);
        const auto it = clients_.find(id);
        if (it == clients_.end())
            throw Error(SAC_E_NOT_FOUND, hex(id), "there is no client " + hex(id));
        Client &client = *it->second;
        if (kill) {
            if (::syscall(SYS_pidfd_send_signal, client.pidfd.get(), SIGKILL, nullptr, 0) != 0)
                throw_errno(format("process %u", client.record.process.pid),
                            "cannot end the process");
            return;
        }
        Roster::Client record = client.record;
        record.evicted = true;
        roster_.write(record);
        client.record.evicted = true;
        client.evicted = true;
        for (const auto &[number, a] : client.tables)
            tables.push_back(a);
    }
    for (const auto &a : tables) {
        if (!a->table)
            continue;
        a->table->revoke();
        if (a->ns)
            end_reservations(*a);
    }
}

}  // namespace sac
