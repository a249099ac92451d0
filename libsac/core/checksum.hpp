// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli, reflected, as in RFC 3720): of headers, superblocks, rows. With the
// processor's instruction where it has one; SAC_ISA=generic in the environment forgoes it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sac {

// crc32c(0, data, n) starts; crc32c(crc, more, m) continues: crc32c of the concatenation.
std::uint32_t crc32c(std::uint32_t crc, const void *data, std::size_t bytes) noexcept;

}  // namespace sac
