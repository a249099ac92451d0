// SPDX-License-Identifier: Apache-2.0
#include "chunks.hpp"

#include <algorithm>

namespace sac::gpu {

std::vector<Chunk> cut(std::uint64_t offset, std::uint64_t bytes, std::uint64_t chunk_bytes) {
    std::vector<Chunk> out;
    for (std::uint64_t done = 0; done < bytes; done += out.back().bytes)
        out.push_back({offset + done, std::min(chunk_bytes, bytes - done)});
    return out;
}

std::vector<Chunk> cut_living(const FaultGuard &guard, std::uint64_t offset,
                              std::uint64_t bytes, std::uint64_t chunk_bytes) {
    std::vector<Chunk> out;
    const std::uint64_t end = offset + bytes;
    for (std::uint64_t at = offset; at < end;) {
        const std::uint64_t dead = std::min(
            end, guard.any_dead(at, end - at) ? std::max(at, guard.next_dead(at)) : end);
        for (const Chunk &c : cut(at, dead - at, chunk_bytes))
            out.push_back(c);
        // A dead block ends where the guard counts the next one.
        at = dead / kBlockBytes * kBlockBytes + kBlockBytes;
    }
    return out;
}

}  // namespace sac::gpu
