// SPDX-License-Identifier: Apache-2.0
#include "listen.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "error.hpp"

namespace sac {

namespace {

constexpr int kBacklog = 4096;

sockaddr_un address(const std::string &path) {
    sockaddr_un out{};
    out.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof out.sun_path)
        throw Error(SAC_E_ARG, path,
                    format("'%.200s': a socket's path has 1 to %zu bytes", path.c_str(),
                           sizeof out.sun_path - 1));
    std::memcpy(out.sun_path, path.data(), path.size());
    return out;
}

Fd make_socket() {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        throw_errno("socket", "cannot make a Unix socket");
    return Fd(fd);
}

void check_free(const std::string &path, const sockaddr_un &at) {
    struct stat st{};
    if (::lstat(path.c_str(), &st) != 0)
        return;
    if (!S_ISSOCK(st.st_mode))
        throw Error(SAC_E_ARG, path, path + " is there, and no socket");
    const Fd probe = make_socket();
    if (::connect(probe.get(), reinterpret_cast<const sockaddr *>(&at), sizeof at) == 0 ||
        errno == EAGAIN)
        throw Error(SAC_E_BUSY, path, "another process listens at " + path);
}

}  // namespace

Listener::Listener(const std::string &path, std::uint32_t mode, std::uint32_t gid)
    : socket_(make_socket()), path_(path) {
    check_free(path, address(path));
    // Not seen under its name before mode and group are right and it listens.
    const std::string temporary = path + ".new";
    const sockaddr_un at = address(temporary);
    ::unlink(temporary.c_str());
    if (::bind(fd(), reinterpret_cast<const sockaddr *>(&at), sizeof at) != 0)
        throw_errno(path, "cannot make the socket");
    struct stat st{};
    const char *failed = nullptr;
    if (::chmod(temporary.c_str(), mode & 0777) != 0)
        failed = "cannot set the socket's mode";
    else if (gid != UINT32_MAX && ::lchown(temporary.c_str(), static_cast<uid_t>(-1), gid) != 0)
        failed = "cannot give the socket to its group";
    else if (::listen(fd(), kBacklog) != 0)
        failed = "cannot listen";
    else if (::stat(temporary.c_str(), &st) != 0 ||
             ::rename(temporary.c_str(), path.c_str()) != 0)
        failed = "cannot put the socket in its place";
    if (failed) {
        const int number = errno;
        ::unlink(temporary.c_str());
        errno = number;
        throw_errno(path, failed);
    }
    device_ = st.st_dev, inode_ = st.st_ino;
}

Listener::Listener(int fd) {
    int listens = 0;
    socklen_t bytes = sizeof listens;
    sockaddr_un at{};
    socklen_t length = sizeof at;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens ||
        ::getsockname(fd, reinterpret_cast<sockaddr *>(&at), &length) != 0 ||
        at.sun_family != AF_UNIX)
        throw Error(SAC_E_ARG, "listen_fd",
                    format("fd %d is not a Unix socket that listens", fd));
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        throw_errno("listen_fd", "cannot take the socket over");
    socket_ = Fd(own);
    if (::fcntl(own, F_SETFL, ::fcntl(own, F_GETFL) | O_NONBLOCK) != 0)
        throw_errno("listen_fd", "cannot make the socket one that does not block");
    // Once more: who connects is told the user of whoever said so last, not of the service
    // manager that made the socket.
    if (::listen(own, SOMAXCONN) != 0)
        throw_errno("listen_fd", "cannot listen");
}

Listener::~Listener() {
    struct stat st{};
    if (!path_.empty() && ::lstat(path_.c_str(), &st) == 0 && st.st_dev == device_ &&
        st.st_ino == inode_)
        ::unlink(path_.c_str());
}

}  // namespace sac
