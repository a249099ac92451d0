// SPDX-License-Identifier: Apache-2.0
// Reading and writing the two copies of a pool's superblock.
#pragma once

#include <string>

#include "format.hpp"

namespace sac {

// The newer valid copy at the start of an extent. Throws Error(SAC_E_CORRUPT) or
// Error(SAC_E_VERSION), naming the extent. *alone (may be null): the other copy is damaged,
// and may have been the newer one.
fmt::Superblock read_superblock(const std::uint8_t *extent, const std::string &name,
                                bool *alone = nullptr);
// Raises the sequence number and writes the older copy.
void write_superblock(std::uint8_t *extent, fmt::Superblock &sb);

}  // namespace sac
