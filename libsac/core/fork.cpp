// SPDX-License-Identifier: Apache-2.0
// A fixed table of atomics: the child handler of fork() may not lock, since the thread
// that held the lock does not exist in the child.
#include "fork.hpp"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "error.hpp"

namespace sac {

namespace {

constexpr int kFree = -1, kTaken = -2;
constexpr std::size_t kSlots = std::size_t{1} << 16;

// fd: the number, kFree, or kTaken while a constructor fills the other two. The file's
// identity tells the child whether the number still means that file: at the fork another
// thread may have closed the fd, and opened something else, an instant before it would
// have freed the slot.
struct Slot {
    std::atomic<int> fd{kFree};
    std::atomic<dev_t> device{0};
    std::atomic<ino_t> inode{0};
};

constinit std::array<Slot, kSlots> slots{};
constinit std::atomic<std::size_t> slots_used{0};  // all slots from here on are free
constinit std::atomic<std::uint64_t> epoch{1};

// Async-signal-safe: the child of a process with threads may do nothing else here.
void in_child() noexcept {
    epoch.fetch_add(1, std::memory_order_seq_cst);
    const std::size_t used = slots_used.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < used; ++i) {
        Slot &slot = slots[i];
        const int fd = slot.fd.exchange(kFree, std::memory_order_acquire);
        struct stat now;
        if (fd >= 0 && fstat(fd, &now) == 0 && now.st_dev == slot.device.load() &&
            now.st_ino == slot.inode.load()) {
            close(fd);
        }
    }
    slots_used.store(0, std::memory_order_release);
}

bool install() noexcept {
    static const bool installed = pthread_atfork(nullptr, nullptr, in_child) == 0;
    return installed;
}

// A free slot, marked kTaken; -1 if there is none.
int take_slot() noexcept {
    for (std::size_t i = 0; i < kSlots; ++i) {
        int expected = kFree;
        if (slots[i].fd.load(std::memory_order_relaxed) == kFree &&
            slots[i].fd.compare_exchange_strong(expected, kTaken, std::memory_order_acq_rel)) {
            std::size_t used = slots_used.load(std::memory_order_relaxed);
            while (used < i + 1 &&
                   !slots_used.compare_exchange_weak(used, i + 1, std::memory_order_release,
                                                     std::memory_order_relaxed)) {
            }
            return static_cast<int>(i);
        }
    }
    return -1;
}

}  // namespace

std::uint64_t fork_epoch() noexcept {
    install();  // a failure shows in the constructor of Fd, which every handle has
    return epoch.load(std::memory_order_acquire);
}

Fd::Fd(int fd) {
    if (fd < 0) {
        return;
    }
    const char *full = nullptr;
    struct stat file{};
    if (!install()) {
        full = "The process has no memory for a fork handler.";
    } else if (fstat(fd, &file) != 0) {
        throw_errno(format("fd %d", fd), "Cannot take the fd over");
    } else if ((slot_ = take_slot()) < 0) {
        full = "65536 files of pools are open already. Close pools that are not needed.";
    }
    if (full != nullptr) {
        close(fd);  // it is ours, and no destructor will run
        throw Error(SAC_E_NO_MEMORY, format("fd %d", fd), full);
    }
    Slot &slot = slots[static_cast<std::size_t>(slot_)];
    slot.device.store(file.st_dev);
    slot.inode.store(file.st_ino);
    epoch_ = epoch.load(std::memory_order_acquire);
    fd_ = fd;
    slot.fd.store(fd, std::memory_order_release);
}

Fd::Fd(Fd &&other) noexcept : fd_(other.fd_), slot_(other.slot_), epoch_(other.epoch_) {
    other.fd_ = -1;
}

Fd &Fd::operator=(Fd &&other) noexcept {
    if (this != &other) {
        reset();
        fd_ = other.fd_;
        slot_ = other.slot_;
        epoch_ = other.epoch_;
        other.fd_ = -1;
    }
    return *this;
}

Fd::~Fd() { reset(); }

void Fd::reset() noexcept {
    // In a forked child the handler has closed the fd: the number may mean another file now.
    if (fd_ >= 0 && epoch_ == epoch.load(std::memory_order_acquire)) {
        close(fd_);  // before the slot is freed: a fork between must not keep the file open
        slots[static_cast<std::size_t>(slot_)].fd.store(kFree, std::memory_order_release);
    }
    fd_ = -1;
}

}  // namespace sac
