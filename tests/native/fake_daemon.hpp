// SPDX-License-Identifier: Apache-2.0
// A daemon that does what a test tells it: a socket in a directory of its own, a thread that
// answers frame by frame.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kit.hpp"
#include "wire.hpp"

namespace fake {

using Bytes = std::vector<std::uint8_t>;

struct Request {
    sac::wire::Header header;
    Bytes payload;
};

// What to do with a request: the answer as it is sent, or none.
struct Answer {
    Bytes bytes;           // header and payload
    std::vector<int> fds;  // closed when sent
    bool close = false;    // hang up afterwards
};

// Not inlined: GCC 12 takes sizes that it sees there for errors.
[[gnu::noinline]] inline Bytes frame(sac::wire::Header header, const Bytes &payload) {
    Bytes out(sizeof header + payload.size());
    std::memcpy(out.data(), &header, sizeof header);
    if (!payload.empty()) {
        std::memcpy(out.data() + sizeof header, payload.data(), payload.size());
    }
    return out;
}

inline sac::wire::Header reply_to(const Request &r, std::size_t length,
                                  std::uint32_t status = 0) {
    return {sac::wire::kMagic,
            sac::wire::kVersion,
            static_cast<std::uint16_t>(r.header.op | sac::wire::kReply),
            static_cast<std::uint32_t>(length),
            status,
            r.header.sequence};
}

inline Answer good(const Request &r, const Bytes &payload = {}, std::vector<int> fds = {}) {
    return {frame(reply_to(r, payload.size()), payload), std::move(fds), false};
}

inline Answer bad(const Request &r, std::uint32_t status, const std::string &message) {
    const Bytes payload = sac::wire::error_payload(0, 0, "it", message);
    return {frame(reply_to(r, payload.size(), status), payload), {}, false};
}

inline Answer hang_up() { return {{}, {}, true}; }

inline Answer hello(const Request &r, std::uint8_t id) {
    sac::wire::HelloReply h{};
    std::memset(h.id, id, sizeof h.id);
    Bytes payload(sizeof h);
    std::memcpy(payload.data(), &h, sizeof h);
    return good(r, payload);
}

class Daemon {
public:
    using Handler = std::function<Answer(const Request &)>;

    // One client at a time; HELLO gets an id of ones, the rest goes to the handler.
    explicit Daemon(Handler handler) : handler_(std::move(handler)) {
        mkdir(directory_.pool().c_str(), 0700);
        start();
    }
    ~Daemon() { stop(); }
    Daemon(const Daemon &) = delete;
    Daemon &operator=(const Daemon &) = delete;

    std::string path() const { return directory_.file("sock"); }

    void start() {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
        listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener_, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ||
            listen(listener_, 8) != 0) {
            throw std::runtime_error("cannot listen");
        }
        stopping_ = false;
        thread_ = std::thread([this] { serve(); });
    }
    // As if it had been killed.
    void stop() {
        stopping_ = true;
        if (thread_.joinable()) {
            thread_.join();
            close(listener_);
            unlink(path().c_str());
        }
    }

    // Of all requests so far, HELLO included.
    std::vector<Request> seen() const {
        const std::lock_guard lock(mutex_);
        return seen_;
    }
    std::uint64_t count(std::uint16_t op) const {
        std::uint64_t n = 0;
        for (const Request &r : seen()) {
            n += r.header.op == op;
        }
        return n;
    }

private:
    // False: stopped, or hung up.
    bool read_all(int fd, void *to, std::size_t n) const {
        auto *at = static_cast<std::uint8_t *>(to);
        while (n != 0) {
            pollfd p{fd, POLLIN, 0};
            if (stopping_) {
                return false;
            }
            if (poll(&p, 1, 10) <= 0) {
                continue;
            }
            const ssize_t got = read(fd, at, n);
            if (got <= 0) {
                return false;
            }
            at += got, n -= static_cast<std::size_t>(got);
        }
        return true;
    }

    static void send(int fd, Answer &answer) {
        alignas(cmsghdr) std::uint8_t control[CMSG_SPACE(80 * sizeof(int))];
        iovec part{answer.bytes.data(), answer.bytes.size()};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        if (!answer.fds.empty()) {
            message.msg_control = control;
            message.msg_controllen = CMSG_SPACE(answer.fds.size() * sizeof(int));
            cmsghdr *const c = CMSG_FIRSTHDR(&message);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(answer.fds.size() * sizeof(int));
            std::memcpy(CMSG_DATA(c), answer.fds.data(), answer.fds.size() * sizeof(int));
        }
        std::size_t sent = 0;
        while (sent < answer.bytes.size()) {
            part = {answer.bytes.data() + sent, answer.bytes.size() - sent};
            const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
            if (n <= 0) {
                break;
            }
            sent += static_cast<std::size_t>(n);
            message.msg_control = nullptr;
            message.msg_controllen = 0;
        }
        for (const int f : answer.fds) {
            close(f);
        }
    }

    void serve() {
        while (!stopping_) {
            pollfd p{listener_, POLLIN, 0};
            if (poll(&p, 1, 10) <= 0) {
                continue;
            }
            const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            talk(fd);
            close(fd);
        }
    }

    void talk(int fd) {
        for (;;) {
            Request r{};
            if (!read_all(fd, &r.header, sizeof r.header)) {
                return;
            }
            r.payload.resize(r.header.length);
            if (!read_all(fd, r.payload.data(), r.payload.size())) {
                return;
            }
            {
                const std::lock_guard lock(mutex_);
                seen_.push_back(r);
            }
            Answer answer;
            if (r.header.op == sac::wire::kHello) {
                answer = hello(r, id);
            } else {
                answer = handler_(r);
            }
            send(fd, answer);
            if (answer.close) {
                return;
            }
        }
    }

public:
    std::atomic<std::uint8_t> id{1};  // that HELLO is answered with

private:
    kit::Directory directory_;
    Handler handler_;
    int listener_ = -1;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
    mutable std::mutex mutex_;
    std::vector<Request> seen_;
};

}  // namespace fake
