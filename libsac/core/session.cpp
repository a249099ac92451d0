// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.hpp"

namespace sac {

namespace {

constexpr std::size_t kHeader = sizeof(wire::Header);
constexpr std::size_t kFirstChunk = 64 << 10;
// What one session may read before the others have their turn.
constexpr std::size_t kTurn = 1 << 20;

}  // namespace

Session::Session(Fd socket, Peer peer, std::uint64_t serial)
    : socket_(std::move(socket)), begun_(std::chrono::steady_clock::now()) {
    caller.peer = std::move(peer);
    caller.session = serial;
}

void Session::take_fds(const void *control) {
    const auto *const message = static_cast<const cmsghdr *>(control);
    const std::size_t n = (message->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::vector<int> raw(n);
    std::memcpy(raw.data(), CMSG_DATA(message), n * sizeof(int));
    std::size_t taken = 0;
    try {
        fds_.reserve(fds_.size() + n);
        for (; taken < n; ++taken)
            fds_.push_back(Fd(raw[taken]));
    } catch (...) {  // Fd has closed the one that it could not take
        while (++taken < n)
            ::close(raw[taken]);
        throw;
    }
}

long Session::receive(std::uint8_t *to, std::size_t most) {
    iovec part{to, most};
    alignas(cmsghdr) char control[CMSG_SPACE(wire::kMaxFds * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part, message.msg_iovlen = 1;
    message.msg_control = control, message.msg_controllen = sizeof control;
    const ssize_t n = ::recvmsg(fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            take_fds(c);
    if ((message.msg_flags & MSG_CTRUNC) || fds_.size() > wire::kMaxFds)
        return -1;
    return n == 0 ? -1 : static_cast<long>(n);
}

Session::Input Session::check_header(std::uint32_t limit) const noexcept {
    if (header_.magic != wire::kMagic)
        return Input::closed;
    if (header_.version != wire::kVersion)
        return Input::version;
    return header_.length > limit ? Input::closed : Input::frame;
}

Session::Input Session::read(Frame &out, std::uint32_t limit) {
    for (std::size_t turn = 0; turn < kTurn;) {
        const bool in_header = have_ < kHeader;
        if (!in_header && have_ == kHeader + header_.length) {
            out.header = header_;
            if (header_.length > kFirstChunk) {
                payload_.resize(header_.length);
                out.payload = std::move(payload_);
                payload_ = {};
            } else {
                out.payload.assign(payload_.begin(), payload_.begin() + header_.length);
            }
            out.fds = std::move(fds_);
            fds_.clear();
            have_ = 0;
            return Input::frame;
        }
        std::uint8_t *to = reinterpret_cast<std::uint8_t *>(&header_) + have_;
        std::size_t most = kHeader - have_;
        if (!in_header) {
            // Room for what has come, not for what was announced.
            const std::size_t at = have_ - kHeader;
            if (at == payload_.size())
                payload_.resize(std::min<std::size_t>(
                    header_.length, std::max(payload_.size() * 2, kFirstChunk)));
            most = std::min<std::size_t>(payload_.size(), header_.length) - at;
            to = payload_.data() + at;
        }
        const long n = receive(to, most);
        if (n <= 0)
            return n < 0 ? Input::closed : Input::nothing;
        if (have_ == 0)
            begun_ = std::chrono::steady_clock::now();
        have_ += static_cast<std::size_t>(n);
        turn += static_cast<std::size_t>(n);
        if (in_header && have_ == kHeader) {
            const Input input = check_header(limit);
            if (input == Input::version)
                out.header = header_;
            if (input != Input::frame)
                return input;
        }
    }
    return Input::nothing;
}

bool Session::send(const wire::Header &request, Reply reply) {
    if (reply.payload.size() > wire::kMaxPayload)
        reply = Service::failed({SAC_E_RANGE, wire::op_name(request.op),
                                 "the answer is too long for one frame; ask for less"});
    reply_ = std::move(reply);
    reply_header_ = {wire::kMagic,
                     wire::kVersion,
                     static_cast<std::uint16_t>(request.op | wire::kReply),
                     static_cast<std::uint32_t>(reply_.payload.size()),
                     reply_.status,
                     request.sequence};
    sent_ = 0;
    sending_ = true;
    last_ = std::chrono::steady_clock::now();
    return flush();
}

bool Session::flush() {
    const std::size_t all = kHeader + reply_.payload.size();
    while (sending_ && sent_ < all) {
        iovec parts[2];
        std::size_t count = 0;
        if (sent_ < kHeader)
            parts[count++] = {reinterpret_cast<std::uint8_t *>(&reply_header_) + sent_,
                              kHeader - sent_};
        const std::size_t from = sent_ < kHeader ? 0 : sent_ - kHeader;
        if (from < reply_.payload.size())
            parts[count++] = {reply_.payload.data() + from, reply_.payload.size() - from};
        alignas(cmsghdr) char control[CMSG_SPACE(wire::kMaxFds * sizeof(int))] = {};
        msghdr message{};
        message.msg_iov = parts, message.msg_iovlen = count;
        if (!reply_.fds.empty()) {  // with the first byte
            message.msg_control = control;
            message.msg_controllen = CMSG_SPACE(reply_.fds.size() * sizeof(int));
            cmsghdr *const c = CMSG_FIRSTHDR(&message);
            c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(reply_.fds.size() * sizeof(int));
            for (std::size_t i = 0; i < reply_.fds.size(); ++i) {
                const int fd = reply_.fds[i].get();
                std::memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
            }
        }
        const ssize_t n = ::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
        reply_.fds.clear();
        sent_ += static_cast<std::size_t>(n);
        last_ = std::chrono::steady_clock::now();
    }
    sending_ = false;
    reply_ = {};
    return true;
}

bool Session::stuck(Time now, std::chrono::seconds limit) const noexcept {
    if (busy)
        return false;
    if (sending_)
        return now - last_ > limit;
    // Before HELLO the connection itself is what has begun.
    return (have_ != 0 || !caller.client) && now - begun_ > limit;
}

}  // namespace sac
