// SPDX-License-Identifier: Apache-2.0
#include "mapping.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "error.hpp"
#include "kernel_pages.hpp"
#include "round.hpp"

namespace sac {
namespace {

// Left to others by what is allocated ahead.
constexpr std::uint64_t kSpare = std::uint64_t{256} << 20;

constexpr std::size_t kMostExtents = 64;  // of docs/format.md
// Addresses for extents to come. Costs nothing but the numbers.
constexpr std::uint64_t kHeadroom = std::uint64_t{1} << 40;
// The largest alignment that a device has. Offsets in the range must be the same in every
// process, whatever comes later.
constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;

// Makes the kernel map a page to write; what is in it stays, also if others write there.
void touch(std::uint8_t *at) noexcept {
    (void)__atomic_fetch_or(reinterpret_cast<volatile std::uint32_t *>(at), 0u,
                            __ATOMIC_RELAXED);
}

}  // namespace

Mapping::Mapping(std::vector<Extent> extents, bool writable)
    : extents_(std::move(extents)), writable_(writable), epoch_(fork_epoch()) {
    std::uint64_t end = 0;
    align_ = kHuge;
    for (Extent &e : extents_) {
        align_ = std::max(align_, e.align);
        e.offset = place(e, end);
        end = round_up(e.offset + e.bytes, kHuge);
    }
    extents_.reserve(std::max(extents_.size(), kMostExtents));
    count_ = extents_.size(), bytes_ = end;
    // Only files can be joined by others; where addresses are limited, do without.
    const bool files = !extents_.empty() && extents_.front().fd;
    void *hold = MAP_FAILED;
    for (const bool more : {files, false}) {
        const std::uint64_t align = more ? kLargest : align_;
        reserved_bytes_ = end + (more ? kHeadroom : 0) + align;
        hold = mmap(nullptr, reserved_bytes_, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (hold == MAP_FAILED)
            continue;
        align_ = align;
        break;
    }
    if (hold == MAP_FAILED)
        throw_errno("address range", "cannot reserve the addresses for the pool",
                    "Raise the limit on virtual memory (ulimit -v).");
    reserved_ = static_cast<std::uint8_t *>(hold);
    const auto at = reinterpret_cast<std::uintptr_t>(reserved_);
    const std::uint64_t skip = round_up(at, align_) - at;
    base_ = reserved_ + skip;
    try {
        for (const Extent &e : extents_)
            map(e);
        if (madvise(reserved_, reserved_bytes_, MADV_DONTFORK) != 0)
            throw_errno("address range", "cannot keep the pool out of forked children");
        guard_ = std::make_unique<FaultGuard>(base_, (reserved_bytes_ - skip) / kHuge * kHuge);
        for (const Extent &e : extents_)
            watch(e);
    } catch (...) {
        munmap(reserved_, reserved_bytes_);
        throw;
    }
}

// Every extent begins on a huge-page boundary of the range, or on its own.
std::uint64_t Mapping::place(const Extent &e, std::uint64_t end) const noexcept {
    return round_up(end, std::max(kHuge, e.align));
}

void Mapping::watch(const Extent &e) noexcept {
    if (e.align > kHuge)
        guard_->set_unit(e.offset, e.bytes, e.align);
}

void Mapping::map(const Extent &e) const {
    void *const want = base_ + e.offset;
    const int flags = e.fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const int rights = writable_ ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mmap(want, e.bytes, rights, flags | MAP_FIXED, e.fd.get(), 0) == MAP_FAILED)
        throw_errno(e.name, "cannot map the extent",
                    e.device() ? "Its driver must be device_dax, and must not have been "
                                 "unbound since the device was opened."
                               : "");
    // Refused by kernels and files without huge pages: page_size_obtained() tells.
    if (!e.device())
        (void)madvise(want, e.bytes, MADV_HUGEPAGE);
    if (madvise(want, e.bytes, MADV_DONTFORK) != 0)
        throw_errno(e.name, "cannot keep the extent out of forked children");
}

void Mapping::append(Extent e) {
    const std::uint64_t room = reserved_bytes_ - static_cast<std::uint64_t>(base_ - reserved_);
    if (extents_.size() == kMostExtents)
        throw Error(
            SAC_E_ARG, e.name,
            format("%s: a pool has at most %zu data extents", e.name.c_str(), kMostExtents));
    e.offset = place(e, bytes());
    if (e.align > align_ || e.offset > room || round_up(e.bytes, kHuge) > room - e.offset)
        throw Error(SAC_E_NO_MEMORY, e.name,
                    format("%s: no addresses are left behind the pool for it; open the pool "
                           "anew to use it",
                           e.name.c_str()));
    map(e);
    watch(e);
    const std::uint64_t offset = e.offset, added = e.bytes;
    std::shared_ptr<MappingWatch> told;
    {
        const std::lock_guard lock(watch_mutex_);
        bytes_ = e.offset + round_up(e.bytes, kHuge);
        extents_.push_back(std::move(e));
        count_ = extents_.size();
        told = watch_;
    }
    if (told)
        told->came(offset, added);
}

std::shared_ptr<MappingWatch>
Mapping::watch(const std::function<std::shared_ptr<MappingWatch>()> &make) const {
    const std::lock_guard lock(watch_mutex_);
    if (!watch_)
        watch_ = make();
    return watch_;
}

std::shared_ptr<MappingWatch> Mapping::watch() const noexcept {
    const std::lock_guard lock(watch_mutex_);
    return watch_;
}

void Mapping::tell_going(std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (const std::shared_ptr<MappingWatch> told = watch())
        told->going(offset, bytes);
}

Mapping::~Mapping() {
    if (epoch_ != fork_epoch())
        return;
    tell_going(0, bytes());
    guard_.reset();
    munmap(reserved_, reserved_bytes_);
    // Not by closing alone: a child that was forked this instant still has the fd open.
    for (const Extent &e : extents_)
        if (e.locked)
            (void)flock(e.fd.get(), LOCK_UN);
}

bool Mapping::allocate(std::uint64_t offset, std::uint64_t bytes) const {
    std::uint64_t at = 0;
    const Extent &e = locate(offset, at);
    // In steps: a signal makes the kernel give up, and take back, what one call has done.
    // The size is kept: a file cut off behind our back stays dead there, for what grew again
    // would read as zeros under whoever holds pages in it.
    for (const std::uint64_t end = at + bytes; e.fd && !e.device() && at < end;) {
        const std::uint64_t n = std::min(kHuge, end - at);
        if (fallocate(e.fd.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                      static_cast<off_t>(n)) == 0) {
            at += n;
        } else if (errno == ENOSPC || errno == EDQUOT) {
            return false;
        } else if (errno == EOPNOTSUPP || errno == ENOSYS || errno == ENODEV) {
            return true;
        } else if (errno != EINTR) {
            throw_errno(e.name, "cannot allocate room in the file");
        }
    }
    return true;
}

bool Mapping::on_tmpfs(const Extent &e) const noexcept {
    struct statfs fs;
    // A device's own file lies on a file system of that kind, too.
    return e.fd && !e.device() && fstatfs(e.fd.get(), &fs) == 0 && fs.f_type == TMPFS_MAGIC;
}

bool Mapping::make_huge(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    std::uint64_t at = 0;
    const Extent &e = locate(offset, at);
    struct statfs fs;
    if (fstatfs(e.fd.get(), &fs) != 0 ||
        fs.f_bavail * static_cast<std::uint64_t>(fs.f_bsize) < kSpare + bytes)
        return true;  // no room
    // The kernel fills what is missing, but not where there is nothing at all.
    for (std::uint64_t i = 0; i < bytes; i += kHuge)
        if (fallocate(e.fd.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at + i), 4096) != 0)
            return true;
    return madvise(base_ + offset, bytes, kCollapse) == 0 || errno != EINVAL;
}

bool Mapping::discard(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    std::uint64_t at = 0;
    const Extent &e = locate(offset, at);
    return e.fd && !e.device() &&
           fallocate(e.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(at), static_cast<off_t>(bytes)) == 0;
}

void Mapping::prefault() {
    constexpr std::uint64_t kStep = std::uint64_t{64} << 20;
    for (const Extent &e : extents()) {
        for (std::uint64_t at = 0; e.device() && at < e.bytes; at += e.align)
            touch(base_ + e.offset + at);
        for (std::uint64_t at = 0; !e.device() && at < e.bytes; at += kStep) {
            std::uint8_t *const from = base_ + e.offset + at;
            const std::uint64_t n = std::min(kStep, e.bytes - at);
            if (madvise(from, n, kPopulateWrite) == 0)
                continue;
            const int number = errno;
            // Also where the kernel only says that touching would fault.
            if (!allocate(e.offset + at, n))
                throw Error(SAC_E_NO_SPACE, e.name,
                            format("%s: the file system is full: no room for the %" PRIu64
                                   " bytes of the file. Free some, or make the pool smaller.",
                                   e.name.c_str(), e.bytes),
                            ENOSPC);
            errno = number;
            if (errno != EINVAL)
                throw_errno(e.name, "cannot prefault the extent",
                            "Free memory, or make the pool smaller.");
            // A kernel before 5.14.
            for (std::uint64_t i = 0; i < n; i += 4096)
                touch(from + i);
        }
    }
}

std::uint64_t Mapping::page_size_obtained() const {
    // Devices give all or nothing.
    std::uint64_t least = UINT64_MAX;
    for (const Extent &e : extents())
        least = std::min(least, e.align);
    if (least != 0 && least != UINT64_MAX)
        return least;
    std::FILE *const f = std::fopen("/proc/self/smaps", "re");
    if (!f)
        throw_errno("/proc/self/smaps", "cannot read the page sizes");
    const auto from = reinterpret_cast<std::uintptr_t>(base_), to = from + bytes();
    std::uint64_t resident = 0, huge = 0, unit = 0;
    bool ours = false;
    char line[512];
    while (std::fgets(line, sizeof line, f)) {
        std::uint64_t a = 0, b = 0, kb = 0;
        char key[64];
        if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &a, &b) == 2) {
            ours = a < to && b > from;  // the kernel may have merged a neighbour
        } else if (ours && std::sscanf(line, "%63[^:]: %" SCNu64 " kB", key, &kb) == 2) {
            if (std::strcmp(key, "KernelPageSize") == 0)
                unit = unit ? std::min(unit, kb * 1024) : kb * 1024;
            if (std::strcmp(key, "Rss") == 0)
                resident += kb;
            if (std::strcmp(key, "ShmemPmdMapped") == 0 ||
                std::strcmp(key, "FilePmdMapped") == 0 ||
                std::strcmp(key, "AnonHugePages") == 0)
                huge += kb;
        }
    }
    std::fclose(f);
    if (unit >= kHuge)
        return unit;
    return resident != 0 && huge * 10 >= resident * 9 ? kHuge : unit;
}

const Extent &Mapping::locate(std::uint64_t offset, std::uint64_t &within) const {
    const Extent *found = &extents().front();
    for (const Extent &e : extents())
        if (e.offset <= offset)
            found = &e;
    within = offset - found->offset;
    return *found;
}

void Mapping::check_alive(std::uint64_t offset, std::uint64_t bytes) const {
    if (guard_->faults() == 0)
        return;
    if (guard_->any_dead(offset, bytes))
        throw_dead(std::max(guard_->next_dead(offset), offset));
}

void Mapping::throw_dead(std::uint64_t offset) const {
    std::uint64_t within = 0;
    const Extent &e = locate(offset, within);
    throw Error(SAC_E_MEDIA, e.name,
                format("memory of %s at offset %" PRIu64
                       " is dead: the device or file behind it has "
                       "gone or is damaged. Its pages are lost; compute them anew.",
                       e.name.c_str(), within),
                0, within);
}

}  // namespace sac
