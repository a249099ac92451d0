// SPDX-License-Identifier: Apache-2.0
// Extents mapped one after the other into one address range, guarded against SIGBUS.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "fault.hpp"
#include "fork.hpp"

namespace sac {

struct Extent {
    Fd fd;  // a file, memfd or DAX device; none: memory of this process
    std::uint64_t bytes = 0;
    std::string name;          // path, for messages
    bool locked = false;       // flock is held on fd; given up when it is unmapped
    std::uint64_t offset = 0;  // in the address range; set by Mapping
    std::uint64_t align = 0;   // of a DAX device: what it can be mapped and lost by; a file: 0
    bool dirty = false;        // a new one may hold an earlier owner's bytes
    std::uint32_t weight = 1;  // how much of what is placed it gets

    bool device() const noexcept { return align != 0; }
};

// Told of memory that comes and goes, in the thread that does it.
class MappingWatch {
public:
    virtual ~MappingWatch() = default;
    // One more extent lies there.
    virtual void came(std::uint64_t offset, std::uint64_t bytes) noexcept = 0;
    // An extent is lost, or all is unmapped, as soon as this returns.
    virtual void going(std::uint64_t offset, std::uint64_t bytes) noexcept = 0;
};

// Not unmapped in a forked child, where the range never existed (MADV_DONTFORK).
class Mapping {
public:
    // Maps all extents, files shared. Throws Error(SAC_E_SYSTEM).
    explicit Mapping(std::vector<Extent> extents, bool writable = true);
    ~Mapping();
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;

    std::uint8_t *data() const noexcept { return base_; }
    std::uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_acquire); }
    std::span<const Extent> extents() const noexcept {
        return {extents_.data(), count_.load(std::memory_order_acquire)};
    }
    const FaultGuard &guard() const noexcept { return *guard_; }
    // The blocks are out of use, though their memory may answer.
    std::uint64_t mark_dead(std::uint64_t offset, std::uint64_t bytes) noexcept {
        return guard_->mark(offset, bytes);
    }
    // The memory of an extent has gone: zeros take its place, and none of it is touched.
    std::uint64_t lose(const Extent &extent) noexcept {
        tell_going(extent.offset, extent.bytes);
        return guard_->bury(extent.offset, extent.bytes);
    }
    bool writable() const noexcept { return writable_; }
    // The one that is told: what make() gives, where there is none yet. make() may look at the
    // extents; whatever comes later, the watch is told of. Throws what make() throws.
    std::shared_ptr<MappingWatch>
    watch(const std::function<std::shared_ptr<MappingWatch>()> &make) const;
    // Null where there is none.
    std::shared_ptr<MappingWatch> watch() const noexcept;

    // Maps one more extent behind the others, where addresses were kept free for it. No other
    // append may run meanwhile; everything else may. Throws Error: SAC_E_ARG (too many),
    // SAC_E_NO_MEMORY (no addresses left), SAC_E_SYSTEM.
    void append(Extent extent);

    // Touches every page. Throws Error(SAC_E_NO_SPACE) where a file's file system is full,
    // Error(SAC_E_SYSTEM) where memory runs out.
    void prefault();
    // Sees to it that the range, of one extent, has memory behind it: the first touch of a
    // hole is a SIGBUS where the file system is full. False: it is full. True also for memory
    // of this process, and for files that cannot do it. Throws Error(SAC_E_SYSTEM).
    bool allocate(std::uint64_t offset, std::uint64_t bytes) const;
    // Whether make_huge() can do anything for an extent: it is a file on a tmpfs.
    bool on_tmpfs(const Extent &extent) const noexcept;
    // Where there is room to spare: has the kernel put huge pages behind the range, whole ones
    // of one extent, whatever the tmpfs gives by itself. False: the kernel cannot.
    bool make_huge(std::uint64_t offset, std::uint64_t bytes) const noexcept;
    // Makes a range that nobody uses a hole again, all zeros. False: the file cannot do it, or
    // is none.
    bool discard(std::uint64_t offset, std::uint64_t bytes) const noexcept;
    // Bytes of the kernel's pages behind the range: 2 MiB or more only where at least nine
    // tenths of what is resident has them.
    std::uint64_t page_size_obtained() const;
    // Which extent holds an offset of the range, and the offset within it.
    const Extent &locate(std::uint64_t offset, std::uint64_t &within) const;
    // SAC_E_MEDIA if any block of [offset, offset + bytes) is dead.
    void check_alive(std::uint64_t offset, std::uint64_t bytes) const;
    // That error, for the memory at an offset of the range.
    [[noreturn]] void throw_dead(std::uint64_t offset) const;

private:
    void map(const Extent &extent) const;
    // Devices can be replaced by whole units only.
    void watch(const Extent &extent) noexcept;
    std::uint64_t place(const Extent &extent, std::uint64_t end) const noexcept;
    void tell_going(std::uint64_t offset, std::uint64_t bytes) noexcept;

    std::vector<Extent> extents_;  // with room for all that may come: never moved
    std::atomic<std::size_t> count_{0};
    bool writable_;
    std::uint8_t *base_ = nullptr;
    std::uint8_t *reserved_ = nullptr;
    std::atomic<std::uint64_t> bytes_{0};
    std::uint64_t reserved_bytes_ = 0, align_ = 0;  // align_: of base_
    std::uint64_t epoch_;
    std::unique_ptr<FaultGuard> guard_;
    mutable std::mutex watch_mutex_;  // also while an extent is added
    mutable std::shared_ptr<MappingWatch> watch_;
};

}  // namespace sac
