// SPDX-License-Identifier: Apache-2.0
// Memory that dies, for the tests of the SIGBUS guard: a mapping of a file that is made
// shorter afterwards; to read behind its end is a SIGBUS. Include check.hpp before.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>

#include "in_child.hpp"

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A mapped memfd full of 0x77.
class File {
public:
    explicit File(std::size_t bytes) : bytes_(bytes), fd_(memfd_create("dead", MFD_CLOEXEC)) {
        CHECK(fd_ >= 0);
        CHECK_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0);
        void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        CHECK(at != MAP_FAILED);
        map_ = static_cast<std::uint8_t *>(at);
        std::memset(map_, 0x77, bytes);
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    ~File() {
        munmap(map_, bytes_);
        close(fd_);
    }
    void shorten(std::size_t bytes) const {
        CHECK_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0);
    }
    std::uint8_t *at(std::size_t offset) const { return map_ + offset; }
    std::uint8_t read(std::size_t offset) const {
        return *static_cast<volatile std::uint8_t *>(map_ + offset);
    }

private:
    std::size_t bytes_;
    int fd_;
    std::uint8_t *map_;
};

// The wait status of a child that runs this; _exit(99) if it returns.
inline int child_status(const std::function<void()> &run) {
    const pid_t child = kit::fork_at_rest();
    if (child == 0) {
        run();
        _exit(99);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return status;
}
