// SPDX-License-Identifier: Apache-2.0
#include "peer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "error.hpp"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace sac {

namespace {

// The whole of a small file under /proc; empty where it cannot be read.
std::string slurp(const char *path) noexcept {
    char text[1024];
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return {};
    const ssize_t n = ::read(fd, text, sizeof text);
    ::close(fd);
    return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : std::string();
}

std::vector<gid_t> groups_of(int socket) {
    std::vector<gid_t> groups(64);
    for (;;) {
        auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
        if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) == 0) {
            groups.resize(bytes / sizeof(gid_t));
            return groups;
        }
        if (errno != ERANGE)
            throw_errno("connection", "cannot read the groups of the other end");
        groups.resize(bytes / sizeof(gid_t));
    }
}

bool has_ended(const Fd &pidfd) noexcept {
    pollfd p{pidfd.get(), POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
}

[[noreturn]] void ended(std::uint32_t pid) {
    throw Error(SAC_E_ACCESS, "connection",
                format("process %u, which made the connection, has ended", pid));
}

}  // namespace

bool Peer::in_group(gid_t group) const noexcept {
    return group == gid || std::find(groups.begin(), groups.end(), group) != groups.end();
}

std::uint64_t start_time_of(std::uint32_t pid) noexcept {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
    const std::string stat = slurp(path);
    // The second field is the name in parentheses, which may hold anything; the state is the
    // third field, the start time the 22nd.
    const std::size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || name_end + 2 >= stat.size())
        return 0;
    const char *at = stat.c_str() + name_end + 2;
    if (*at == 'Z' || *at == 'X')
        return 0;
    for (int field = 3; field < 22; ++field) {
        at = std::strchr(at, ' ');
        if (!at)
            return 0;
        ++at;
    }
    return std::strtoull(at, nullptr, 10);
}

Fd open_process(const Process &process) {
    const long fd = ::syscall(SYS_pidfd_open, process.pid, 0);
    if (fd < 0) {
        if (errno == ESRCH || errno == EINVAL)
            return {};
        throw_errno(format("process %u", process.pid), "cannot follow the process");
    }
    Fd owned(static_cast<int>(fd));
    const std::uint64_t start_time = start_time_of(process.pid);
    const int number = errno;
    // Where files have run out /proc cannot be read: nobody has ended because of that.
    if (start_time == 0 && !has_ended(owned)) {
        errno = number;
        throw_errno(format("process %u", process.pid), "cannot look whether it has ended");
    }
    // The number may have gone to another process before the fd was made.
    return start_time == process.start_time ? std::move(owned) : Fd();
}

std::string process_name(std::uint32_t pid) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%u/comm", pid);
    std::string name = slurp(path);
    while (!name.empty() && name.back() == '\n')
        name.pop_back();
    return name;
}

Peer peer_of(int socket) {
    ucred cred{};
    socklen_t bytes = sizeof cred;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) != 0)
        throw_errno("connection", "cannot read who is at the other end");
    if (cred.pid <= 0)
        throw Error(SAC_E_ACCESS, "connection",
                    "the process at the other end cannot be seen from here: it must be in the "
                    "daemon's pid namespace or in one below it");
    Peer peer;
    peer.process.pid = static_cast<std::uint32_t>(cred.pid);
    peer.uid = cred.uid, peer.gid = cred.gid;
    peer.groups = groups_of(socket);
    int pidfd = -1;
    bytes = sizeof pidfd;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0) {
        peer.pidfd = Fd(pidfd);
    } else if (errno != ENOPROTOOPT) {
        ended(peer.process.pid);
    } else {  // Linux before 6.5
        const long fd = ::syscall(SYS_pidfd_open, cred.pid, 0);
        if (fd < 0)
            ended(peer.process.pid);
        peer.pidfd = Fd(static_cast<int>(fd));
    }
    peer.process.start_time = start_time_of(peer.process.pid);
    // Signal 0: the process that the pidfd means still has the number just asked for.
    if (peer.process.start_time == 0 ||
        ::syscall(SYS_pidfd_send_signal, peer.pidfd.get(), 0, nullptr, 0) != 0) {
        if (peer.process.start_time == 0 || errno == ESRCH)
            ended(peer.process.pid);
    }
    return peer;
}

}  // namespace sac
