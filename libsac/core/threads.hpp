// SPDX-License-Identifier: Apache-2.0
// Threads kept for gathers: they spin briefly for the next job, then sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace sac {

// Cores that the calling thread may run on (affinity mask), at least 1.
unsigned usable_cores() noexcept;

// Threads for copying so many bytes: as asked, or, for 0, by size; a core is left to what
// runs beside.
unsigned copy_threads(unsigned asked, std::uint64_t bytes) noexcept;

// Runs fn(part) for part in [0, parts), the caller taking part too; returns when all are
// done. Parts are handed out one by one, so make them a little more than the threads.
// threads counts the caller; more than usable_cores() is cut to that. One job at a time
// uses the workers: a concurrent caller runs its own parts alone, it never waits.
// fn must not throw. What parts write is there for the caller afterwards. After fork() the
// child of a process that had workers runs alone. Workers take no signals but faults; they
// are joined when the process ends.
void parallel_for(unsigned threads, std::size_t parts,
                  const std::function<void(std::size_t)> &fn) noexcept;

}  // namespace sac
