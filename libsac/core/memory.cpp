// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>

#include "error.hpp"
#include "kernel_pages.hpp"
#include "round.hpp"

namespace sac {

Memory::Memory(std::uint64_t bytes)
    : bytes_(round_up(std::max<std::uint64_t>(bytes, 1), 4096)), epoch_(fork_epoch()) {
    void *const p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        throw Error(SAC_E_NO_MEMORY, "memory",
                    format("cannot map %" PRIu64 " bytes for the index", bytes_), errno);
    hold_ = base_ = static_cast<std::uint8_t *>(p);
    hold_bytes_ = bytes_;
    (void)madvise(base_, bytes_, MADV_HUGEPAGE);
    (void)madvise(base_, bytes_, MADV_DONTFORK);
}

Memory::Memory(Fd file, std::uint64_t bytes, bool writable, const std::string &name)
    : file_(std::move(file)), bytes_(round_up(std::max<std::uint64_t>(bytes, 1), 4096)),
      epoch_(fork_epoch()) {
    // On a boundary of huge pages, or it can have none.
    hold_bytes_ = bytes_ < kHuge ? bytes_ : bytes_ + kHuge;
    void *const hold = mmap(nullptr, hold_bytes_, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hold == MAP_FAILED)
        throw_errno(name, "cannot reserve addresses for it");
    hold_ = base_ = static_cast<std::uint8_t *>(hold);
    if (bytes_ >= kHuge)
        base_ += round_up(reinterpret_cast<std::uintptr_t>(hold_), kHuge) -
                 reinterpret_cast<std::uintptr_t>(hold_);
    try {
        if (mmap(base_, bytes_, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                 MAP_SHARED | MAP_FIXED, file_.get(), 0) == MAP_FAILED)
            throw_errno(name, "cannot map it");
        (void)madvise(base_, bytes_, MADV_HUGEPAGE);
        if (madvise(hold_, hold_bytes_, MADV_DONTFORK) != 0)
            throw_errno(name, "cannot keep it out of forked children");
        guard_ = std::make_unique<FaultGuard>(base_, bytes_);
    } catch (...) {
        munmap(hold_, hold_bytes_);
        throw;
    }
}

void Memory::make_huge(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    if (file_)
        (void)madvise(base_ + offset, bytes, kCollapse);
}

Fd Memory::memfd(std::uint64_t bytes, const char *name) {
    Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd)
        throw_errno(name, "cannot make a memfd");
    // Mode 0777 by default: whoever has a read-only fd could open it again to write.
    if (fchmod(fd.get(), 0600) != 0 ||
        ftruncate(fd.get(), static_cast<off_t>(round_up(bytes, 4096))) != 0 ||
        fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        throw_errno(name, "cannot give the memfd its size");
    return fd;
}

Memory::~Memory() {
    if (epoch_ != fork_epoch())
        return;
    guard_.reset();
    munmap(hold_, hold_bytes_);
}

}  // namespace sac
