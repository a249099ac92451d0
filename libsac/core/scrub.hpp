// SPDX-License-Identifier: Apache-2.0
// Zeros over memory that had an owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "sac.h"

namespace sac {

// Past the caches, which whoever writes there next has a better use for. With a fence behind.
void stream_zeros(std::uint8_t *to, std::size_t bytes) noexcept;
// The same on as many cores as help. Waits for nobody, does not throw.
void zero_all(std::uint8_t *to, std::size_t bytes) noexcept;

// Zeros over a range of an extent that nobody has open. go_on(bytes done) is called after each
// 64 MiB, and at the end; false: it stops there. Throws Error: as take_extent(), SAC_E_RANGE,
// SAC_E_MEDIA (not all of it could be cleared), SAC_E_INCOMPLETE (stopped), SAC_E_SYSTEM.
void scrub(const sac_extent_fd &extent, std::uint64_t offset, std::uint64_t bytes,
           const std::function<bool(std::uint64_t)> &go_on);

}  // namespace sac
