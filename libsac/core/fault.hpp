// SPDX-License-Identifier: Apache-2.0
// SIGBUS guard: memory whose device or file has gone reads as zeros from then on and is
// marked dead, instead of killing the process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace sac {

constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

// Watches [base, base + bytes). The first guard of a process installs the handler, which
// passes on every fault outside all guarded ranges to the handler that was there before.
// On a fault inside, the handler maps a zero page range over the 2 MiB block (cut to the
// range), sets the block's bit, adds one to faults(), and lets the instruction go on.
// Async-signal-safe: fixed table of ranges, atomics, mmap; no locks, no allocation.
// The bit and the count rise before the zeros can be read, also by another thread: compare
// faults() before and after an operation to know whether it may have read zeros.
// In a forked child the parent's guards do not act.
class FaultGuard {
public:
    // base: multiple of the page size; blocks are counted from it. At most 65536 ranges a
    // process, which do not overlap. Throws Error: SAC_E_ARG, SAC_E_NO_MEMORY (the table is
    // full), SAC_E_SYSTEM.
    FaultGuard(void *base, std::size_t bytes);
    // No thread may still be reading or writing the range: its handler could be using what
    // goes away here. Faults in other ranges at the same time are fine. Destroy the guard
    // before the range is unmapped, or other memory mapped there would be taken for it.
    ~FaultGuard();
    FaultGuard(const FaultGuard &) = delete;
    FaultGuard &operator=(const FaultGuard &) = delete;

    // Number of blocks that have died; read before and after an operation.
    std::uint64_t faults() const noexcept;
    // Whether the block that holds this offset of the range is dead.
    bool dead(std::uint64_t offset) const noexcept;
    // The first dead block at or after offset: its start, or UINT64_MAX.
    std::uint64_t next_dead(std::uint64_t offset) const noexcept;
    // Whether a block of [offset, offset + bytes) is dead. Looks no further than that.
    bool any_dead(std::uint64_t offset, std::uint64_t bytes) const noexcept;

    // In [offset, offset + bytes) memory can be replaced so many bytes at once only, counted
    // from there: a power of two times kBlockBytes, and whole ones. Before it is touched; at
    // most 64 times, one call at a time.
    void set_unit(std::uint64_t offset, std::uint64_t bytes, std::uint64_t unit) noexcept;
    // The blocks are dead from now on, though nobody has touched them; what is mapped there
    // stays. Returns how many were not dead before.
    std::uint64_t mark(std::uint64_t offset, std::uint64_t bytes) noexcept;
    // As mark(), and zeros take their place, in one step for all. Whole units; offset: where a
    // page begins.
    std::uint64_t bury(std::uint64_t offset, std::uint64_t bytes) noexcept;

    struct Range;  // in fault.cpp

private:
    std::unique_ptr<Range> range_;
};

}  // namespace sac
