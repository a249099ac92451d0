// SPDX-License-Identifier: Apache-2.0
// What lies on memory: docs/format.md in C++. Little-endian, fixed widths, no pointers.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "checksum.hpp"
#include "sac.h"

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace sac::fmt {

constexpr std::uint32_t kMajor = 1;
constexpr std::uint32_t kMinor = 2;           // of the pool
constexpr std::uint32_t kNamespaceMinor = 1;  // of a namespace
constexpr char kPoolMagic[8] = {'S', 'A', 'C', 'P', 'O', 'O', 'L', 0};
constexpr char kNamespaceMagic[8] = {'S', 'A', 'C', 'N', 'A', 'M', 'E', 0};

constexpr std::uint64_t kDataSlab = std::uint64_t{2} << 20;
constexpr std::uint64_t kMetaSlab = std::uint64_t{64} << 10;
constexpr std::uint32_t kMaxExtents = 64;
constexpr std::uint32_t kMaxNamespaces = 65535;
constexpr std::uint64_t kMaxPosition = (std::uint64_t{1} << 28) - 1;
constexpr std::uint64_t kGenerationMax = (std::uint64_t{1} << 61) - 1;

enum ExtentKind : std::uint32_t { kMetadata = 1, kData = 2 };
enum PoolFlags : std::uint32_t { kClean = 1, kServed = 2 };

struct ExtentEntry {
    std::uint64_t bytes;
    std::uint64_t slab_count;
    std::uint64_t table_offset;  // of its slab table, in the metadata extent
    std::uint64_t reserved[3];
};
static_assert(sizeof(ExtentEntry) == 48);

struct Superblock {
    char magic[8];
    std::uint32_t major, minor;
    std::uint8_t pool[16];
    std::uint64_t sequence;  // of the two copies the valid one with the higher number counts
    std::uint32_t kind, position;
    std::uint64_t bytes, slab_bytes;
    std::uint64_t incarnation;
    std::uint8_t boot_id[16];
    std::uint32_t flags, extent_count;
    std::uint64_t generation_limit;  // every generation given so far is below it
    std::uint64_t hash_seed;
    std::uint64_t meta_slabs, meta_table_offset;
    std::uint8_t reserved[128];
    ExtentEntry extents[kMaxExtents];
    std::uint8_t reserved2[764];
    std::uint32_t crc;
};
static_assert(sizeof(Superblock) == 4096);
static_assert(offsetof(Superblock, extents) == 256);
constexpr std::uint64_t kSuperblockCopies[2] = {0, 4096};
// In data extents: the incarnation of the pool that serves them last.
constexpr std::uint64_t kServedAt = 8192;

// ---- slab table: one 64-bit entry a slab, so that a store never tears --------------

enum Role : std::uint32_t {
    kFree = 0,       // never used, or scrubbed
    kDirty = 1,      // free, holds an old owner's bytes: scrub before use
    kSystem = 2,     // superblocks and slab tables
    kNamespace = 3,  // a namespace's superblock (metadata extent)
    kHeaders = 4,    // page headers (metadata extent)
    kBody = 5,       // a chunk of page bodies (data extent)
    kTail = 6,       // a chunk of page tails (data extent)
    kRoles = 7,
};
// Beside the role (free, body or tail): the slab's memory is bad, and is never given out again.
constexpr std::uint32_t kBad = 8;

struct Slab {
    std::uint32_t owner = 0;  // namespace id
    std::uint32_t role = kFree;
    std::uint64_t position = 0;
    bool bad = false;
};

inline std::uint64_t slab_checksum(const std::uint8_t pool[16], std::uint32_t extent,
                                   std::uint64_t index, std::uint64_t payload) noexcept {
    std::uint8_t seed[16 + 4 + 8 + 8];
    std::memcpy(seed, pool, 16);
    std::memcpy(seed + 16, &extent, 4);
    std::memcpy(seed + 20, &index, 8);
    std::memcpy(seed + 28, &payload, 8);
    return crc32c(0, seed, sizeof seed) & 0xffff;
}

// extent: position of a data extent, or UINT32_MAX for the metadata extent.
inline std::uint64_t encode_slab(const std::uint8_t pool[16], std::uint32_t extent,
                                 std::uint64_t index, const Slab &s) noexcept {
    const std::uint32_t role = s.role | (s.bad ? kBad : 0);
    const std::uint64_t payload =
        std::uint64_t{s.owner} | std::uint64_t{role} << 16 | s.position << 20;
    if (payload == 0)
        return 0;
    return slab_checksum(pool, extent, index, payload) | payload << 16;
}

// False where the entry is not one that encode_slab makes for this place.
inline bool decode_slab(const std::uint8_t pool[16], std::uint32_t extent, std::uint64_t index,
                        std::uint64_t entry, Slab &out) noexcept {
    const std::uint64_t payload = entry >> 16;
    out.owner = static_cast<std::uint32_t>(payload & 0xffff);
    out.role = static_cast<std::uint32_t>(payload >> 16 & 0x7);
    out.bad = payload >> 16 & kBad;
    out.position = payload >> 20;
    if (entry == 0)
        return true;
    if (out.role >= kRoles || payload == 0 ||
        (out.bad && out.role != kFree && out.role != kBody && out.role != kTail))
        return false;
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    return slab_checksum(pool, extent, index, payload) == (entry & 0xffff);
#else
    (void)pool, (void)extent, (void)index;
    return true;
#endif
}

// ---- namespace ----------------------------------------------------------------------

constexpr std::uint32_t kPrivate = 0600;  // a namespace's mode where none is given

enum NamespaceState : std::uint32_t { kLive = 1, kDropping = 2 };

struct NamespaceBlock {
    char magic[8];
    std::uint32_t major, minor;
    std::uint8_t pool[16];
    std::uint8_t uuid[16];
    std::uint64_t sequence;
    std::uint32_t id, flags;
    char name[SAC_NAME_BYTES];
    char model[128];
    std::uint32_t key_scheme, page_tokens, plane_count, header_pitch;
    std::uint64_t max_bytes, body_bytes, tail_bytes;
    std::uint32_t body_slabs, body_pages;  // a chunk of bodies: so many slabs hold so many
    std::uint32_t tail_slabs, tail_pages;
    std::uint32_t chunk_slots;  // slot numbers a chunk takes: the larger of the two
    std::uint32_t state;
    std::uint8_t layout_hash[32];
    std::uint32_t uid, gid, mode, policy;
    std::uint8_t reserved[144];
    sac_plane planes[SAC_MAX_PLANES];
    std::uint8_t reserved2[32768 - 512 - SAC_MAX_PLANES * sizeof(sac_plane) - 4];
    std::uint32_t crc;

    // The one field that changes while others read it.
    std::uint64_t quota() const noexcept {
        return __atomic_load_n(&max_bytes, __ATOMIC_RELAXED);
    }
    void set_quota(std::uint64_t bytes) noexcept {
        __atomic_store_n(&max_bytes, bytes, __ATOMIC_RELAXED);
    }
};
static_assert(sizeof(sac_plane) == 144);
static_assert(offsetof(NamespaceBlock, planes) == 512);
static_assert(sizeof(NamespaceBlock) == 32768);
constexpr std::uint64_t kNamespaceCopies[2] = {0, 32768};

// ---- page ---------------------------------------------------------------------------

enum PageState : std::uint32_t { kAbsent = 0, kCommitted = 1 };
enum PageFlags : std::uint32_t { kHasDataCrc = 1, kHasTokens = 2 };

struct PageHeader {
    std::uint64_t generation;
    std::uint32_t state, part;
    std::uint8_t key[SAC_KEY_BYTES];
    std::uint8_t parent[SAC_KEY_BYTES];
    std::uint32_t slot, flags;
    std::uint32_t data_crc;
    std::uint8_t reserved[32];
    std::uint32_t crc;  // seeded with the namespace's uuid; token ids included
};
static_assert(sizeof(PageHeader) == 128);

constexpr std::uint32_t header_pitch(bool tokens, std::uint32_t page_tokens) noexcept {
    const std::uint32_t ids = tokens ? (page_tokens * 4 + 63) / 64 * 64 : 0;
    return static_cast<std::uint32_t>(sizeof(PageHeader)) + ids;
}

// CRC of a block whose last four bytes are the CRC.
template <class Block> std::uint32_t block_crc(const Block &b) noexcept {
    return crc32c(0, &b, sizeof(Block) - 4);
}

inline bool crc_matches(std::uint32_t stored, std::uint32_t computed) noexcept {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    (void)stored, (void)computed;
    return true;
#else
    return stored == computed;
#endif
}

}  // namespace sac::fmt
