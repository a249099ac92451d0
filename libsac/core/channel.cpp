// SPDX-License-Identifier: Apache-2.0
#include "channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstring>

#include "error.hpp"
#include "threads.hpp"

namespace sac {
namespace {

// Most answers come within this; going to sleep and waking up takes as long.
constexpr auto kSpin = std::chrono::microseconds(50);
// A reply up to this comes with one system call.
constexpr std::size_t kAtOnce = std::size_t{64} << 10;

void pause_cpu() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Where there is one core, spinning only keeps the daemon from it.
bool may_spin() noexcept {
    static const bool may = usable_cores() > 1;
    return may;
}

// Every fd of the message as an owner of its own.
void take_fds(msghdr &message, std::vector<Fd> &fds) {
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            fds.emplace_back(fd);
        }
    }
}

}  // namespace

Channel::Channel(const std::string &path) : path_(path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path)
        throw Error(SAC_E_ARG, path,
                    format("the path of a socket has at most %zu bytes, this one has %zu",
                           sizeof address.sun_path - 1, path.size()));
    std::memcpy(address.sun_path, path.c_str(), path.size());
    // Without blocking: connect() would wait for a daemon that hangs.
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        throw_errno(path, "cannot make a socket");
    fd_ = Fd(fd);
    if (::connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0)
        throw Lost{errno};
}

void Channel::wait(short events, Time until) const {
    for (;;) {
        int ms = -1;
        if (until != Time::max()) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(
                until - std::chrono::steady_clock::now());
            if (left.count() <= 0)
                throw Lost{ETIMEDOUT};
            ms = static_cast<int>(std::min<std::int64_t>(left.count(), INT_MAX));
        }
        pollfd p{fd_.get(), events, 0};
        const int n = poll(&p, 1, ms);
        // An error or the end of the stream shows in the next call.
        if (n > 0)
            return;
        if (n < 0 && errno != EINTR)
            throw Lost{errno};
    }
}

void Channel::send(const wire::Header &header, const Bytes &payload, Time until) const {
    std::array<iovec, 2> parts{{{const_cast<wire::Header *>(&header), sizeof header},
                                {const_cast<std::uint8_t *>(payload.data()), payload.size()}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    while (parts[0].iov_len + parts[1].iov_len != 0) {
        const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                wait(POLLOUT, until);
            else if (errno != EINTR)
                throw Lost{errno};
            continue;
        }
        auto left = static_cast<std::size_t>(n);
        for (iovec &part : parts) {
            const std::size_t some = std::min(left, part.iov_len);
            part.iov_base = static_cast<std::uint8_t *>(part.iov_base) + some;
            part.iov_len -= some, left -= some;
        }
    }
}

// Bytes that are there now; 0: none yet.
std::size_t Channel::read(void *head, std::size_t head_bytes, void *body,
                          std::size_t body_bytes, Frame &frame) const {
    std::array<iovec, 2> parts{{{head, head_bytes}, {body, body_bytes}}};
    alignas(cmsghdr) std::array<std::uint8_t, CMSG_SPACE(wire::kMaxFds * sizeof(int))> control;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t n = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
            return 0;
        throw Lost{errno};
    }
    // Files that come within a reply are none of ours, and are closed.
    std::vector<Fd> none;
    take_fds(message, head_bytes != 0 ? frame.fds : none);
    if (n == 0)
        throw Lost{ECONNRESET};
    if (message.msg_flags & MSG_CTRUNC)
        frame.files_lost = true;
    return static_cast<std::size_t>(n);
}

Channel::Frame Channel::receive(Time until) const {
    Frame frame;
    // Nothing but the reply can come: who asks waits for it before asking again.
    std::array<std::uint8_t, kAtOnce> first;
    std::size_t have = 0;
    const bool spin = may_spin();
    const Time spin_end = std::chrono::steady_clock::now() + kSpin;
    auto *const head = reinterpret_cast<std::uint8_t *>(&frame.header);
    constexpr std::size_t kHead = sizeof frame.header;
    while (have < kHead) {
        const std::size_t n =
            read(head + have, kHead - have, first.data(), first.size(), frame);
        have += n;
        if (n != 0)
            continue;
        if (spin && std::chrono::steady_clock::now() < spin_end)
            pause_cpu();
        else
            wait(POLLIN, until);
    }
    const wire::Header &h = frame.header;
    if (h.magic != wire::kMagic || h.length > wire::kMaxPayload)
        throw Error(SAC_E_CORRUPT, path_,
                    path_ + ": what answers on this socket is no daemon of ours");
    if (h.version != wire::kVersion)
        throw Error(SAC_E_VERSION, path_,
                    format("%s: the daemon speaks version %u of the protocol, this library "
                           "version %u. Bring both to the same release.",
                           path_.c_str(), h.version, wire::kVersion));
    have -= kHead;
    if (have > h.length)
        throw Error(SAC_E_CORRUPT, path_, path_ + ": the daemon said more than it announced");
    frame.payload.resize(h.length);
    if (have != 0)
        std::memcpy(frame.payload.data(), first.data(), have);
    while (have < h.length) {
        const std::size_t n =
            read(nullptr, 0, frame.payload.data() + have, h.length - have, frame);
        have += n;
        if (n == 0)
            wait(POLLIN, until);
    }
    return frame;
}

}  // namespace sac
