// SPDX-License-Identifier: Apache-2.0
// A server in this process, and a client that speaks docs/protocol.md over its socket and maps
// what it is given by itself.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <map>

#include "index.hpp"
#include "kit.hpp"
#include "pins.hpp"
#include "sac_server.h"
#include "wire.hpp"

namespace kit {

namespace wire = sac::wire;
using ServerHandle = std::unique_ptr<sac_server, Closer<sac_server_close>>;

// A folder with pool files, a run directory and a socket.
class Place {
public:
    Place() {
        std::string name = "/tmp/sac-server-XXXXXX";
        if (!mkdtemp(name.data()))
            throw std::runtime_error("mkdtemp");
        path_ = name;
        mkdir(run().c_str(), 0700);
    }
    ~Place() { std::filesystem::remove_all(path_); }
    Place(const Place &) = delete;
    Place &operator=(const Place &) = delete;
    std::string run() const { return path_ + "/run"; }
    std::string socket() const { return path_ + "/socket"; }
    std::size_t count(const char *folder) const {
        std::size_t n = 0;
        for ([[maybe_unused]] const auto &e :
             std::filesystem::directory_iterator(run() + '/' + folder))
            ++n;
        return n;
    }

    // As a device that has gone and come back: other files of the same contents, or none.
    void replace(bool empty) const {
        for (const auto &file : {"meta", "data.0", "data.1"}) {
            const std::string path = path_ + '/' + file, copy = path + ".new";
            if (!empty)
                std::filesystem::copy_file(path, copy);
            std::filesystem::remove(path);
            if (!empty)
                std::filesystem::rename(copy, path);
        }
    }

    // The pool in data.0 .. of the folder; made when it is not there.
    PoolHandle pool(std::uint32_t extents = 2, std::uint64_t bytes = 16 << 20) const {
        const bool fresh = !std::filesystem::exists(path_ + "/meta");
        std::vector<sac::Fd> fds;
        std::vector<std::string> names;
        std::vector<sac_extent_fd> data;
        for (std::uint32_t i = 0; i <= extents; ++i) {
            names.push_back(path_ + (i ? "/data." + std::to_string(i - 1) : "/meta"));
            fds.emplace_back(open(names.back().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
            if (fresh && ftruncate(fds.back().get(), static_cast<off_t>(i ? bytes : 8 << 20)))
                throw std::runtime_error("ftruncate");
        }
        for (std::uint32_t i = 1; i <= extents; ++i)
            data.push_back({fds[i].get(), 0, 0, names[i].c_str()});
        sac_open_options o{};
        o.struct_size = sizeof o;
        o.flags = std::uint32_t{SAC_POOL_SHARED} | (fresh ? std::uint32_t{SAC_POOL_FORMAT} : 0);
        o.data_count = extents, o.meta = {fds[0].get(), 0, 0, names[0].c_str()};
        o.data = data.data();
        sac_pool *out = nullptr;
        must(sac_pool_open_fds(&o, &out), "open_fds");
        return PoolHandle(out);
    }

    ServerHandle server(std::uint32_t max_clients = 64, std::uint32_t mode = 0600,
                        std::uint32_t creators = UINT32_MAX) const {
        const std::string directory = run(), path = socket();
        sac_server_options o{};
        o.struct_size = sizeof o;
        o.socket_mode = mode, o.socket_gid = UINT32_MAX, o.creators_gid = creators;
        o.socket_path = path.c_str(), o.run_dir = directory.c_str();
        o.listen_fd = -1, o.max_clients = max_clients;
        sac_server *out = nullptr;
        must(sac_server_open(&o, &out), "sac_server_open");
        return ServerHandle(out);
    }

    // The library's own client, of the pool "p".
    PoolHandle connect() const {
        const std::string path = socket();
        sac_connect_options o{};
        o.struct_size = sizeof o;
        o.socket = path.c_str(), o.pool = "p", o.timeout_ms = 10000, o.reconnect_ms = 1000;
        sac_pool *out = nullptr;
        must(sac_pool_connect(&o, &out), "sac_pool_connect");
        return PoolHandle(out);
    }

private:
    std::string path_;
};

struct Answer {
    wire::Header header{};
    std::vector<std::uint8_t> payload;
    std::vector<sac::Fd> fds;

    template <class T> T as(std::size_t at = 0) const {
        T out;
        if (header.status != SAC_OK || payload.size() < at + sizeof out)
            throw std::runtime_error("an answer of status " + std::to_string(header.status) +
                                     ": " + text());
        std::memcpy(&out, payload.data() + at, sizeof out);
        return out;
    }
    template <class T> std::vector<T> all() const {
        std::vector<T> out(payload.size() / sizeof(T));
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = as<T>(i * sizeof(T));
        return out;
    }
    std::string text() const {
        return {payload.begin() + (payload.size() < 24 ? 0 : 24), payload.end()};
    }
};

class Raw {
public:
    explicit Raw(const std::string &path)
        : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un at{};
        at.sun_family = AF_UNIX;
        std::strncpy(at.sun_path, path.c_str(), sizeof at.sun_path - 1);
        if (connect(fd(), reinterpret_cast<const sockaddr *>(&at), sizeof at) != 0)
            throw std::runtime_error("connect " + path + ": " + std::strerror(errno));
        const timeval limit{20, 0};
        setsockopt(fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    int fd() const { return socket_.get(); }
    void close() { socket_.reset(); }

    void send(const void *bytes, std::size_t n, const std::vector<int> &fds = {}) const {
        iovec part{const_cast<void *>(bytes), n};
        alignas(cmsghdr) char control[CMSG_SPACE(128 * sizeof(int))] = {};
        msghdr m{};
        m.msg_iov = &part, m.msg_iovlen = 1;
        if (!fds.empty()) {
            m.msg_control = control, m.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
            cmsghdr *const c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
            std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
        }
        while (part.iov_len != 0) {
            const ssize_t sent = sendmsg(fd(), &m, MSG_NOSIGNAL);
            if (sent <= 0)
                throw std::runtime_error("sendmsg");
            part = {static_cast<char *>(part.iov_base) + sent,
                    part.iov_len - static_cast<std::size_t>(sent)};
            m.msg_control = nullptr, m.msg_controllen = 0;
        }
    }
    void request(std::uint16_t op, const wire::Writer &w = {},
                 const std::vector<int> &fds = {}) {
        wire::Header h{
            wire::kMagic, wire::kVersion, op, static_cast<std::uint32_t>(w.bytes().size()), 0,
            ++sequence_};
        std::vector<std::uint8_t> all(sizeof h);
        std::memcpy(all.data(), &h, sizeof h);
        all.insert(all.end(), w.bytes().begin(), w.bytes().end());
        send(all.data(), all.size(), fds);
    }
    Answer answer() const {
        Answer out;
        receive(&out.header, sizeof out.header, out.fds);
        out.payload.resize(out.header.length);
        receive(out.payload.data(), out.payload.size(), out.fds);
        return out;
    }
    Answer call(std::uint16_t op, const wire::Writer &w = {},
                const std::vector<int> &fds = {}) {
        request(op, w, fds);
        Answer out = answer();
        if (out.header.op != (op | wire::kReply) || out.header.sequence != sequence_)
            throw std::runtime_error("an answer to something else");
        return out;
    }
    // Whether the other side has closed, without another byte.
    bool closed() const {
        char byte;
        return recv(fd(), &byte, 1, 0) <= 0 && errno != EAGAIN;
    }

    Answer hello(const std::uint8_t *id = nullptr, const char *name = "test") {
        wire::HelloRequest r{};
        if (id)
            std::memcpy(r.id, id, sizeof r.id);
        wire::set_name(r.name, sizeof r.name, name, "name");
        return call(wire::kHello, wire::Writer().add(r));
    }

private:
    void receive(void *to, std::size_t n, std::vector<sac::Fd> &fds) const {
        auto *at = static_cast<std::uint8_t *>(to);
        while (n != 0) {
            iovec part{at, n};
            alignas(cmsghdr) char control[CMSG_SPACE(128 * sizeof(int))];
            msghdr m{};
            m.msg_iov = &part, m.msg_iovlen = 1;
            m.msg_control = control, m.msg_controllen = sizeof control;
            const ssize_t got = recvmsg(fd(), &m, MSG_CMSG_CLOEXEC);
            if (got <= 0)
                throw std::runtime_error("the server closed the connection");
            for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
                for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
                    int raw;
                    std::memcpy(&raw, CMSG_DATA(c) + i * sizeof raw, sizeof raw);
                    fds.emplace_back(raw);
                }
            at += got, n -= static_cast<std::size_t>(got);
        }
    }

    sac::Fd socket_;
    std::uint64_t sequence_ = 100;
};

// A namespace that a Raw attached.
struct Attached {
    wire::AttachReply reply{};
    sac::fmt::NamespaceBlock block{};
    std::unique_ptr<sac::Index> index;
    std::unique_ptr<sac::PinTable> table;
    std::vector<sac::Fd> extents;
    int table_fd = -1;

    wire::HeldItem held(const wire::ReservationItem &r) const { return {r.slot, 0, r.token}; }
};

inline wire::Writer attach_request(const char *pool, const char *name, std::uint32_t flags,
                                   const Layout &layout = {}, std::uint32_t mode = 0600,
                                   std::uint32_t ns_flags = 0) {
    wire::AttachRequest r{};
    wire::set_name(r.pool, sizeof r.pool, pool, "pool");
    wire::set_name(r.name, sizeof r.name, name, "name");
    r.flags = flags, r.mode = mode, r.ns_flags = ns_flags;
    r.page_tokens = layout.page_tokens;
    r.plane_count = static_cast<std::uint32_t>(layout.planes.size());
    wire::Writer w;
    w.add(r);
    for (const sac_plane &p : layout.planes)
        w.add(p);
    return w;
}

inline Attached attached(Answer a) {
    Attached out;
    out.reply = a.as<wire::AttachReply>();
    const std::size_t infos = out.reply.extents * sizeof(wire::ExtentInfo);
    out.block = a.as<sac::fmt::NamespaceBlock>(sizeof out.reply + infos);
    out.index =
        std::make_unique<sac::Index>(std::move(a.fds.at(0)), out.reply.index_bytes, "i");
    out.table_fd = a.fds.at(1).get();
    out.table =
        std::make_unique<sac::PinTable>(std::move(a.fds[1]), out.reply.capacity, "table");
    for (std::size_t i = 2; i < a.fds.size(); ++i)
        out.extents.push_back(std::move(a.fds[i]));
    return out;
}

inline std::vector<wire::ReservationItem>
reserve(Raw &raw, const Attached &to, std::uint64_t bodies, std::uint64_t deadline_ms = 0) {
    return raw
        .call(wire::kReserve, wire::Writer().add(wire::ReserveRequest{to.reply.table, 0, bodies,
                                                                      0, deadline_ms}))
        .all<wire::ReservationItem>();
}

inline wire::Writer commit_request(const Attached &to,
                                   const std::vector<wire::ReservationItem> &held,
                                   const std::vector<std::uint64_t> &keys,
                                   std::uint32_t flags = 0) {
    wire::Writer w;
    w.add(
        wire::CommitRequest{to.reply.table, flags, static_cast<std::uint32_t>(held.size()), 0});
    for (std::size_t i = 0; i < held.size(); ++i) {
        wire::CommitEntry e{};
        e.slot = held[i].slot, e.part = held[i].part, e.token = held[i].token;
        std::memcpy(e.key, &keys[i], sizeof keys[i]);
        e.key[31] = 1;
        w.add(e);
    }
    return w;
}

inline wire::Writer held_request(const Attached &to,
                                 const std::vector<wire::ReservationItem> &held) {
    wire::Writer w;
    w.add(wire::HeldRequest{to.reply.table, static_cast<std::uint32_t>(held.size()), 0});
    for (const auto &r : held)
        w.add(to.held(r));
    return w;
}

inline wire::Writer table_request(std::uint32_t table) {
    return std::move(wire::Writer().add(wire::TableRequest{table, 0}));
}

inline sac_ns_stats stats(Raw &raw, const Attached &of) {
    return raw.call(wire::kStats, table_request(of.reply.table)).as<wire::StatsReply>().stats;
}

}  // namespace kit
