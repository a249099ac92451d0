// SPDX-License-Identifier: Apache-2.0
// The daemon's socket.
#pragma once

#include <cstdint>
#include <string>

#include "fork.hpp"

namespace sac {

class Listener {
public:
    // At a path, where a socket that nobody listens to is replaced; mode and group (UINT32_MAX:
    // left) are right from its first moment on. Throws Error: SAC_E_BUSY where somebody does
    // listen, SAC_E_ARG, SAC_E_SYSTEM.
    Listener(const std::string &path, std::uint32_t mode, std::uint32_t gid);
    // One that listens already; it stays its giver's. Throws Error(SAC_E_ARG).
    explicit Listener(int fd);
    ~Listener();  // takes the path away if it is still this socket's
    Listener(const Listener &) = delete;
    Listener &operator=(const Listener &) = delete;

    int fd() const noexcept { return socket_.get(); }

private:
    Fd socket_;
    std::string path_;
    std::uint64_t device_ = 0, inode_ = 0;
};

}  // namespace sac
