// SPDX-License-Identifier: Apache-2.0
#include "namespace_block.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "error.hpp"
#include "index.hpp"
#include "kernel.hpp"

namespace sac {
namespace {

constexpr std::uint32_t kKnownFlags = SAC_NS_DATA_CHECKSUM | SAC_NS_TOKEN_IDS;

struct ChunkShape {
    std::uint32_t slabs, pages;
};

// The fewest slabs that waste at most a sixteenth; the best of the first 16 sizes if none does.
ChunkShape choose_chunk(std::uint64_t part_bytes, std::uint64_t pool_slabs) {
    if (part_bytes == 0)
        return {0, 0};
    const std::uint64_t least = (part_bytes + fmt::kDataSlab - 1) / fmt::kDataSlab;
    // In a small pool a large chunk would leave much of it to nobody.
    const std::uint64_t most = std::max(least, std::min(least + 15, pool_slabs / 8));
    ChunkShape best{};
    double best_waste = 1;
    for (std::uint64_t k = least; k <= most; ++k) {
        const std::uint64_t pages = k * fmt::kDataSlab / part_bytes;
        const double waste = 1 - static_cast<double>(pages * part_bytes) /
                                     static_cast<double>(k * fmt::kDataSlab);
        if (waste < best_waste) {
            best = {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(pages)};
            best_waste = waste;
        }
        if (waste <= 1.0 / 16)
            break;
    }
    return best;
}

bool name_ok(const char *name) {
    const std::size_t n = strnlen(name, SAC_NAME_BYTES);
    return n != 0 && n != SAC_NAME_BYTES && std::all_of(name, name + n, [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
           });
}

sac_layout layout_of(const fmt::NamespaceBlock &b) {
    return {sizeof(sac_layout), b.page_tokens, b.plane_count, b.planes};
}

}  // namespace

std::uint64_t slab_limit(const fmt::NamespaceBlock &b, const Media &media) {
    const std::uint64_t all = media.slab_count();
    return b.max_bytes == 0 ? all : std::min(all, (b.max_bytes - 1) / fmt::kDataSlab + 1);
}

std::uint64_t slot_capacity(const fmt::NamespaceBlock &b, std::uint64_t slabs) {
    const std::uint32_t least =
        b.tail_slabs ? std::min(b.body_slabs, b.tail_slabs) : b.body_slabs;
    const std::uint64_t chunks = std::max<std::uint64_t>(1, slabs / least);
    return std::min(chunks, std::uint64_t{kNoSlot - 1} / b.chunk_slots) * b.chunk_slots;
}

std::uint64_t slot_capacity(const fmt::NamespaceBlock &b, const Media &media) {
    return slot_capacity(b, slab_limit(b, media));
}

std::uint64_t page_capacity(const fmt::NamespaceBlock &b, const Mapping &data) {
    std::uint64_t slabs = 0;
    for (const Extent &e : data.extents()) {
        slabs += e.bytes / fmt::kDataSlab - 1;
        const std::uint64_t end = e.offset + e.bytes / fmt::kDataSlab * fmt::kDataSlab;
        for (std::uint64_t at = data.guard().next_dead(e.offset + fmt::kDataSlab); at < end;
             at = data.guard().next_dead(at + fmt::kDataSlab))
            --slabs;
    }
    if (const std::uint64_t quota = b.quota(); quota != 0)
        slabs = std::min(slabs, (quota - 1) / fmt::kDataSlab + 1);
    return (slabs - std::min<std::uint64_t>(slabs, b.tail_slabs)) / b.body_slabs * b.body_pages;
}

std::uint64_t slot_capacity(const fmt::NamespaceBlock &b, const Media &media,
                            const Owned &owned) {
    fmt::NamespaceBlock unlimited = b;
    unlimited.max_bytes = 0;
    std::uint64_t slots = slot_capacity(b, media);
    for (const Run &r : owned.runs)
        slots = std::max(slots, (r.position + 1) * b.chunk_slots);
    return std::min(slots, slot_capacity(unlimited, media));
}

fmt::NamespaceBlock new_block(const Media &media, std::uint32_t id, const std::string &name,
                              const sac_ns_options &options, std::uint32_t uid,
                              std::uint32_t gid) {
    if (!name_ok(name.c_str()))
        throw Error(SAC_E_ARG, name,
                    "'" + name + "' is no name for a namespace: 1 to 63 of A-Z a-z 0-9 _ . -");
    if (!options.layout)
        throw Error(SAC_E_NOT_FOUND, name,
                    "there is no namespace '" + name +
                        "', and no layout is given to create it");
    if (options.flags & ~kKnownFlags || options.key_scheme > SAC_KEYS_ENGINE)
        throw Error(SAC_E_ARG, name,
                    format("namespace '%s': flags 0x%x or key scheme %u are not known",
                           name.c_str(), options.flags, options.key_scheme));
    if (options.mode & ~0666u)
        throw Error(SAC_E_ARG, name,
                    format("namespace '%s': mode 0%o is none: r and w for owner, group and "
                           "others, such as 0660",
                           name.c_str(), options.mode));
    const char *const model = options.model ? options.model : "";
    fmt::NamespaceBlock b{};
    if (strnlen(model, sizeof b.model) == sizeof b.model)
        throw Error(SAC_E_ARG, name, "the model's name has more than 127 bytes");
    Geometry geometry(*options.layout);
    if (options.flags & SAC_NS_TOKEN_IDS && geometry.page_tokens > 8192)
        throw Error(SAC_E_ARG, name, "token ids are kept for pages of up to 8192 tokens only");
    std::memcpy(b.magic, fmt::kNamespaceMagic, sizeof b.magic);
    b.major = fmt::kMajor, b.minor = fmt::kNamespaceMinor;
    std::memcpy(b.pool, media.superblock().pool, sizeof b.pool);
    random_bytes(b.uuid, sizeof b.uuid);
    b.id = id, b.flags = options.flags;
    std::memcpy(b.name, name.c_str(), name.size());
    std::memcpy(b.model, model, std::strlen(model));
    b.key_scheme = options.key_scheme;
    b.page_tokens = geometry.page_tokens;
    b.plane_count = static_cast<std::uint32_t>(geometry.planes.size());
    b.header_pitch = fmt::header_pitch(options.flags & SAC_NS_TOKEN_IDS, b.page_tokens);
    b.max_bytes = options.max_bytes;
    b.body_bytes = geometry.part_bytes[kBodyPart],
    b.tail_bytes = geometry.part_bytes[kTailPart];
    const ChunkShape body = choose_chunk(b.body_bytes, slab_limit(b, media));
    const ChunkShape tail = choose_chunk(b.tail_bytes, slab_limit(b, media));
    if (body.slabs + tail.slabs > slab_limit(b, media))
        throw Error(
            SAC_E_NO_SPACE, name,
            format("namespace '%s': one page needs %u slabs of 2 MiB, the %s has %" PRIu64
                   ". Use fewer tokens a page or a larger pool.",
                   name.c_str(), body.slabs + tail.slabs, b.max_bytes ? "quota" : "pool",
                   slab_limit(b, media)));
    b.body_slabs = body.slabs, b.body_pages = body.pages;
    b.tail_slabs = tail.slabs, b.tail_pages = tail.pages;
    b.chunk_slots = std::max(body.pages, tail.pages);
    b.state = fmt::kLive;
    b.uid = uid, b.gid = gid, b.mode = options.mode ? options.mode : fmt::kPrivate;
    std::memcpy(b.layout_hash, geometry.hash.data(), sizeof b.layout_hash);
    std::copy(geometry.planes.begin(), geometry.planes.end(), b.planes);
    return b;
}

bool read_block(const Media &media, const Owned &owned, fmt::NamespaceBlock &out) {
    bool found = false;
    for (const std::uint64_t slab : owned.blocks) {
        for (const std::uint64_t copy : fmt::kNamespaceCopies) {
            fmt::NamespaceBlock b;
            std::memcpy(&b, media.meta().data() + slab * fmt::kMetaSlab + copy, sizeof b);
            if (std::memcmp(b.magic, fmt::kNamespaceMagic, sizeof b.magic) != 0 ||
                !fmt::crc_matches(b.crc, fmt::block_crc(b)) || !name_ok(b.name) ||
                std::memcmp(b.pool, media.superblock().pool, sizeof b.pool) != 0 ||
                (found && b.sequence <= out.sequence))
                continue;
            out = b, found = true;
        }
    }
    return found;
}

Geometry check_block(const fmt::NamespaceBlock &b, std::uint32_t id, const Media &media) {
    const auto corrupt = [&](const std::string &why) {
        throw Error(SAC_E_CORRUPT, b.name,
                    format("namespace '%s' (id %u): %s. Drop the namespace and fill it anew.",
                           b.name, id, why.c_str()));
    };
    if (b.major != fmt::kMajor)
        throw Error(SAC_E_VERSION, b.name,
                    format("namespace '%s' has format version %u; this library knows %u",
                           b.name, b.major, fmt::kMajor));
    if (b.id != id)
        corrupt(format("its superblock says id %u", b.id));
    if (b.flags & ~kKnownFlags || b.key_scheme > SAC_KEYS_ENGINE ||
        b.plane_count > SAC_MAX_PLANES || strnlen(b.model, sizeof b.model) == sizeof b.model)
        corrupt("its superblock holds values that are not possible");
    Geometry g;
    try {
        g = Geometry(layout_of(b));
    } catch (const Error &e) {
        corrupt(e.message);
    }
    const auto shape_ok = [](std::uint32_t slabs, std::uint32_t pages, std::uint64_t bytes) {
        return bytes == 0 ? slabs == 0 && pages == 0
                          : pages != 0 && pages <= slabs * fmt::kDataSlab / bytes;
    };
    if (g.part_bytes[kBodyPart] != b.body_bytes || g.part_bytes[kTailPart] != b.tail_bytes ||
        std::memcmp(g.hash.data(), b.layout_hash, sizeof b.layout_hash) != 0 ||
        !shape_ok(b.body_slabs, b.body_pages, b.body_bytes) ||
        !shape_ok(b.tail_slabs, b.tail_pages, b.tail_bytes) ||
        b.chunk_slots != std::max(b.body_pages, b.tail_pages) ||
        b.header_pitch != fmt::header_pitch(b.flags & SAC_NS_TOKEN_IDS, b.page_tokens) ||
        b.header_pitch > fmt::kMetaSlab ||
        std::uint64_t{b.body_slabs} + b.tail_slabs > slab_limit(b, media))
        corrupt("its geometry does not follow from its layout");
    return g;
}

std::uint64_t seal_block(fmt::NamespaceBlock &b) noexcept {
    ++b.sequence;
    b.crc = fmt::block_crc(b);
    return fmt::kNamespaceCopies[b.sequence % 2];
}

}  // namespace sac
