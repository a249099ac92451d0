// SPDX-License-Identifier: Apache-2.0
// What a forked child must know: which handles are its parent's, which fds to drop.
#pragma once

#include <cstdint>

namespace sac {

// Changes in every forked child (pthread_atfork). A handle stores the value at its
// creation; another value now means that the handle belongs to a parent process.
std::uint64_t fork_epoch() noexcept;

// An fd that a forked child closes at once, so that the child does not hold the pool's
// lock (flock belongs to the open file, which fork shares). Move-only owner: closes the
// fd when destroyed, except in a child of the process that made it.
class Fd {
public:
    Fd() noexcept = default;
    // Takes ownership, of a negative number nothing. Throws Error(SAC_E_NO_MEMORY) if 65536
    // are held (fd is closed then), Error(SAC_E_SYSTEM) if fd is not open. A fork by another
    // thread between open() and this constructor leaves the child with the fd.
    explicit Fd(int fd);
    Fd(Fd &&other) noexcept;
    Fd &operator=(Fd &&other) noexcept;
    Fd(const Fd &) = delete;
    Fd &operator=(const Fd &) = delete;
    ~Fd();

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    void reset() noexcept;

private:
    int fd_ = -1;
    int slot_ = -1;  // in the table that the child handler reads
    std::uint64_t epoch_ = 0;
};

}  // namespace sac
