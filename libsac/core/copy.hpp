// SPDX-License-Identifier: Apache-2.0
// Copies many rows from scattered addresses, with software prefetch, in the widest
// instruction set that the processor has (chosen once, at run time).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sac {

// The most rows that a copy prefetches before it comes to them.
constexpr std::size_t kCopyAhead = 32;

struct RowCopy {
    const std::uint8_t *const *src;  // one address a row; nullptr: a row of zeros
    std::size_t count;
    std::size_t row_bytes;
    std::uint8_t *dst;
    std::size_t dst_pitch;
    bool stream;  // streaming stores (falls back to plain ones where dst is unaligned)
    // For a copy in several jobs: so many addresses follow src[count - 1], whose rows the next
    // job copies; they are prefetched now, and the next job says so with primed.
    std::size_t beyond = 0;
    bool primed = false;
};

// Returns with all stores globally visible (fence after streaming stores), unless job.beyond
// says that another job follows.
void copy_rows(const RowCopy &job) noexcept;

// One contiguous piece. Streaming stores from 1 MiB on; with stream, which is for targets
// that are not read soon, already from 4 KiB on. Fenced as copy_rows.
void copy_bytes(void *dst, const void *src, std::size_t bytes, bool stream = false) noexcept;

// "avx512", "avx2", "sse2" or "generic". SAC_ISA in the environment picks a lesser one.
const char *copy_isa() noexcept;

}  // namespace sac
