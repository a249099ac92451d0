// SPDX-License-Identifier: Apache-2.0
#include "superblock.hpp"

#include <cstring>

#include "error.hpp"

namespace sac {

void write_superblock(std::uint8_t *extent, fmt::Superblock &sb) {
    ++sb.sequence;
    sb.crc = fmt::block_crc(sb);
    std::memcpy(extent + fmt::kSuperblockCopies[sb.sequence % 2], &sb, sizeof sb);
}

// The newer valid copy. Throws where there is none.
fmt::Superblock read_superblock(const std::uint8_t *extent, const std::string &name,
                                bool *alone) {
    fmt::Superblock best{};
    bool found = false, magic = false;
    int valid = 0;
    std::uint32_t version = 0;
    for (const std::uint64_t at : fmt::kSuperblockCopies) {
        fmt::Superblock sb;
        std::memcpy(&sb, extent + at, sizeof sb);
        if (std::memcmp(sb.magic, fmt::kPoolMagic, sizeof sb.magic) != 0)
            continue;
        magic = true;
        if (!fmt::crc_matches(sb.crc, fmt::block_crc(sb)))
            continue;
        if (sb.major != fmt::kMajor)
            version = sb.major;
        ++valid;
        if (!found || sb.sequence > best.sequence)
            best = sb, found = true;
    }
    // One such copy is enough: whoever wrote it may have changed what the other one describes.
    if (version != 0)
        throw Error(
            SAC_E_VERSION, name,
            format("%s has format version %u; this library knows %u. Use the library that "
                   "made it, or create the pool anew.",
                   name.c_str(), version, fmt::kMajor));
    // The first write leaves the other copy as it was.
    if (alone)
        *alone = valid == 1 && best.sequence > 1;
    if (found)
        return best;
    throw Error(SAC_E_CORRUPT, name,
                format("%s %s. It is not (or no longer) an extent of a pool.", name.c_str(),
                       magic ? "has no superblock whose checksum is right"
                             : "does not begin with a superblock"));
}

}  // namespace sac
