// SPDX-License-Identifier: Apache-2.0
#include "superblock.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>

#include "error.hpp"

namespace sac {

void random_bytes(void *out, std::size_t n) {
    if (getrandom(out, n, 0) != static_cast<ssize_t>(n))
        throw_errno("getrandom", "cannot draw random bytes");
}

void read_boot_id(std::uint8_t out[16]) {
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[37] = {};
    const ssize_t n = fd < 0 ? -1 : read(fd, text, 36);
    if (fd >= 0)
        close(fd);
    if (n != 36)
        throw_errno("/proc/sys/kernel/random/boot_id", "cannot read the boot id");
    std::size_t digits = 0;
    std::memset(out, 0, 16);
    for (const char c : text) {
        const int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (v < 0 || digits == 32)
            continue;
        out[digits / 2] = static_cast<std::uint8_t>(out[digits / 2] << 4 | v);
        ++digits;
    }
}

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
