// SPDX-License-Identifier: Apache-2.0
// What of a pool is registered at once: its arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "mapping.hpp"

namespace sac::gpu {

struct Chunk {
    std::uint64_t offset, bytes;  // in the mapping's range
    std::uint64_t end() const noexcept { return offset + bytes; }
    bool operator==(const Chunk &) const = default;
    bool touches(std::uint64_t at, std::uint64_t n) const noexcept {
        return offset < at + n && at < end();
    }
};

constexpr std::uint64_t kChunkMost = std::uint64_t{64} << 30;

// [offset, offset + bytes) in pieces of chunk_bytes, the last one shorter. chunk_bytes: not 0.
std::vector<Chunk> cut(std::uint64_t offset, std::uint64_t bytes, std::uint64_t chunk_bytes);
// The same without the guard's dead blocks: they cannot be registered, and nobody reads them.
std::vector<Chunk> cut_living(const FaultGuard &guard, std::uint64_t offset,
                              std::uint64_t bytes, std::uint64_t chunk_bytes);

}  // namespace sac::gpu
