// SPDX-License-Identifier: Apache-2.0
// DAX character devices: memory behind an fd that can be mapped, and nothing else.
#pragma once

#include <cstdint>
#include <string>

namespace sac {

// Bytes. align: what a mapping's beginning and length are multiples of.
struct Dax {
    std::uint64_t bytes = 0, align = 0;
};

// The device behind an fd, as sysfs describes it (its own size is 0). Throws Error: SAC_E_ARG
// where it is no DAX device, or one that is not whole; SAC_E_SYSTEM.
Dax dax_device(int fd, const std::string &name);
// Whether an alignment is one that a device can have.
bool dax_align(std::uint64_t align) noexcept;

}  // namespace sac
