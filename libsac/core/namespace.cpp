// SPDX-License-Identifier: Apache-2.0
#include "namespace.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <thread>

#include "error.hpp"
#include "sha256.hpp"
#include "stop.hpp"

namespace sac {
namespace {

constexpr std::uint32_t kKnownFlags = SAC_NS_DATA_CHECKSUM | SAC_NS_TOKEN_IDS;

struct ChunkShape {
    std::uint32_t slabs, pages;
};

// The fewest slabs that waste at most a sixteenth; the best of the first 16 sizes if none does.
ChunkShape choose_chunk(std::uint64_t part_bytes, std::uint64_t pool_slabs) {
    if (part_bytes == 0) return {0, 0};
    const std::uint64_t least = (part_bytes + fmt::kDataSlab - 1) / fmt::kDataSlab;
    // In a small pool a large chunk would leave much of it to nobody.
    const std::uint64_t most = std::max(least, std::min(least + 15, pool_slabs / 8));
    ChunkShape best{};
    double best_waste = 1;
    for (std::uint64_t k = least; k <= most; ++k) {
        const std::uint64_t pages = k * fmt::kDataSlab / part_bytes;
        const double waste =
            1 - static_cast<double>(pages * part_bytes) / static_cast<double>(k * fmt::kDataSlab);
        if (waste < best_waste) {
            best = {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(pages)};
            best_waste = waste;
        }
        if (waste <= 1.0 / 16) break;
    }
    return best;
}

bool name_ok(const char *name) {
    const std::size_t n = strnlen(name, SAC_NAME_BYTES);
    return n != 0 && n != SAC_NAME_BYTES && std::all_of(name, name + n, [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '-';
           });
}

std::uint64_t slab_limit(const fmt::NamespaceBlock &b, const Media &media) {
    const std::uint64_t all = media.slab_count();
    return b.max_bytes == 0 ? all
                            : std::min(all, (b.max_bytes - 1) / fmt::kDataSlab + 1);
}

std::uint64_t capacity(const fmt::NamespaceBlock &b, const Media &media) {
    const std::uint32_t least = b.tail_slabs ? std::min(b.body_slabs, b.tail_slabs) : b.body_slabs;
    const std::uint64_t chunks =
        std::max<std::uint64_t>(1, slab_limit(b, media) / least);
    return std::min(chunks, std::uint64_t{kNoSlot - 1} / b.chunk_slots) * b.chunk_slots;
}

void seal(fmt::NamespaceBlock &b) {
    ++b.sequence;
    b.crc = fmt::block_crc(b);
}

sac_layout layout_of(const fmt::NamespaceBlock &b) {
    return {sizeof(sac_layout), b.page_tokens, b.plane_count, b.planes};
}

}  // namespace

Namespace::Namespace(std::shared_ptr<Media> media, const fmt::NamespaceBlock &block,
                     Geometry geometry, std::uint64_t block_offset)
    : media_(std::move(media)), block_(block), geometry_(std::move(geometry)),
      block_offset_(block_offset) {
    index_ = std::make_unique<Index>(capacity(block_, *media_), block_.chunk_slots,
                                     media_->superblock().hash_seed);
    pins_ = std::make_unique<PinTable>(index_->capacity());
    control_ = std::make_unique<CacheControl>(*media_, block_, geometry_, *index_,
                                              slab_limit(block_, *media_));
    control_->attach(pins_.get());
}

std::shared_ptr<Namespace> Namespace::create(std::shared_ptr<Media> media, std::uint32_t id,
                                             const std::string &name,
                                             const sac_ns_options &options) {
    if (!name_ok(name.c_str()))
        throw Error(SAC_E_ARG, name,
                    "'" + name + "' is no name for a namespace: 1 to 63 of A-Z a-z 0-9 _ . -");
    if (!options.layout)
        throw Error(SAC_E_NOT_FOUND, name, "there is no namespace '" + name + "', and no layout is given to create it");
    if (options.flags & ~kKnownFlags || options.key_scheme > SAC_KEYS_ENGINE)
        throw Error(SAC_E_ARG, name, "unknown flags or key scheme for namespace '" + name + "'");
    const char *const model = options.model ? options.model : "";
    fmt::NamespaceBlock b{};
    if (strnlen(model, sizeof b.model) == sizeof b.model)
        throw Error(SAC_E_ARG, name, "the model's name has more than 127 bytes");
    Geometry geometry(*options.layout);
    if (options.flags & SAC_NS_TOKEN_IDS && geometry.page_tokens > 8192)
        throw Error(SAC_E_ARG, name, "token ids are kept for pages of up to 8192 tokens only");
    std::memcpy(b.magic, fmt::kNamespaceMagic, sizeof b.magic);
    b.major = fmt::kMajor, b.minor = fmt::kMinor;
    std::memcpy(b.pool, media->superblock().pool, sizeof b.pool);
    if (getrandom(b.uuid, sizeof b.uuid, 0) != sizeof b.uuid)
        throw_errno("getrandom", "cannot draw the namespace's id");
    b.id = id, b.flags = options.flags;
    std::memcpy(b.name, name.c_str(), name.size());
    std::memcpy(b.model, model, std::strlen(model));
    b.key_scheme = options.key_scheme;
    b.page_tokens = geometry.page_tokens;
    b.plane_count = static_cast<std::uint32_t>(geometry.planes.size());
    b.header_pitch = fmt::header_pitch(options.flags & SAC_NS_TOKEN_IDS, b.page_tokens);
    b.max_bytes = options.max_bytes;
    b.body_bytes = geometry.part_bytes[kBodyPart], b.tail_bytes = geometry.part_bytes[kTailPart];
    const ChunkShape body = choose_chunk(b.body_bytes, slab_limit(b, *media));
    const ChunkShape tail = choose_chunk(b.tail_bytes, slab_limit(b, *media));
    if (body.slabs + tail.slabs > slab_limit(b, *media))
        throw Error(SAC_E_NO_SPACE, name,
                    format("namespace '%s': one page needs %u slabs of 2 MiB, the %s has %" PRIu64
                           ". Use fewer tokens a page or a larger pool.",
                           name.c_str(), body.slabs + tail.slabs,
                           b.max_bytes ? "quota" : "pool", slab_limit(b, *media)));
    b.body_slabs = body.slabs, b.body_pages = body.pages;
    b.tail_slabs = tail.slabs, b.tail_pages = tail.pages;
    b.chunk_slots = std::max(body.pages, tail.pages);
    b.state = fmt::kLive;
    std::memcpy(b.layout_hash, geometry.hash.data(), sizeof b.layout_hash);
    std::copy(geometry.planes.begin(), geometry.planes.end(), b.planes);
    seal(b);
    const std::uint64_t at = media->assign_meta(id, fmt::kNamespace, 0, &b, sizeof b,
                                                fmt::kNamespaceCopies[b.sequence % 2]);
    if (at == UINT64_MAX)
        throw Error(SAC_E_NO_SPACE, name,
                    "the pool's metadata is full; drop a namespace, or create the pool with more metadata_bytes");
    std::shared_ptr<Namespace> ns(new Namespace(std::move(media), b, std::move(geometry), at));
    ns->control_->recover({}, false);
    return ns;
}

bool Namespace::peek(const Media &media, const Owned &owned, fmt::NamespaceBlock &out) {
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

std::shared_ptr<Namespace> Namespace::load(std::shared_ptr<Media> media, const Owned &owned,
                                           std::uint32_t id, bool rebooted) {
    fmt::NamespaceBlock b;
    const auto corrupt = [&](const std::string &why) {
        throw Error(SAC_E_CORRUPT, b.name,
                    format("namespace '%s' (id %u): %s. Drop the namespace and fill it anew.",
                           b.name, id, why.c_str()));
    };
    std::memset(&b, 0, sizeof b);
    if (owned.blocks.size() != 1 || !peek(*media, owned, b)) corrupt("its superblock is damaged or missing");
    if (b.major != fmt::kMajor)
        throw Error(SAC_E_VERSION, b.name,
                    format("namespace '%s' has format version %u; this library knows %u", b.name, b.major, fmt::kMajor));
    if (b.id != id) corrupt(format("its superblock says id %u", b.id));
    if (b.flags & ~kKnownFlags || b.key_scheme > SAC_KEYS_ENGINE || b.plane_count > SAC_MAX_PLANES ||
        strnlen(b.model, sizeof b.model) == sizeof b.model)
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
        b.header_pitch > fmt::kMetaSlab)
        corrupt("its geometry does not follow from its layout");
    std::shared_ptr<Namespace> ns(
        new Namespace(std::move(media), b, std::move(g), owned.blocks[0] * fmt::kMetaSlab));
    ns->control_->recover(owned, rebooted);
    return ns;
}

std::uint64_t Namespace::drop() {
    std::uint64_t busy = control_->in_use();
    if (busy != 0) return busy;
    // Now no new call, then the count again. Who pins or reserves looks at dropped_ behind it.
    dropped_.store(true, std::memory_order_seq_cst);
    busy = control_->in_use();
    if (busy != 0) {
        dropped_.store(false, std::memory_order_seq_cst);
        return busy;
    }
    block_.state = fmt::kDropping;
    seal(block_);
    std::memcpy(media_->meta().data() + block_offset_ + fmt::kNamespaceCopies[block_.sequence % 2],
                &block_, sizeof block_);
    SAC_STOP("drop.marked");
    return 0;
}

void Namespace::destroy(Media &media, const Owned &owned) {
    for (const Run &r : owned.runs) media.release(r);
    for (const auto &[position, slab] : owned.headers) media.release_meta(slab);
    for (const std::uint64_t slab : owned.blocks) media.release_meta(slab);
}

void Namespace::check_same(const sac_ns_options &o) const {
    if (!o.layout) return;
    std::string d = geometry_.difference(Geometry(*o.layout));
    if (!d.empty())
        throw Error(SAC_E_LAYOUT, block_.name,
                    format("namespace '%s' is there with another layout (there, asked): %s. Use "
                           "another name, or drop it first.",
                           block_.name, d.c_str()));
    if (o.flags != block_.flags) d += format("flags %u and %u; ", block_.flags, o.flags);
    if (o.key_scheme != block_.key_scheme) d += format("key scheme %u and %u; ", block_.key_scheme, o.key_scheme);
    if (o.max_bytes != block_.max_bytes)
        d += format("quota %" PRIu64 " and %" PRIu64 " bytes; ", block_.max_bytes, o.max_bytes);
    if (std::strcmp(o.model ? o.model : "", block_.model) != 0)
        d += format("model '%s' and '%s'; ", block_.model, o.model ? o.model : "");
    if (d.empty()) return;
    d.resize(d.size() - 2);
    throw Error(SAC_E_EXISTS, block_.name,
                format("namespace '%s' is there with another specification (there, asked): %s. Use "
                       "another name, or drop it first.",
                       block_.name, d.c_str()));
}

void Namespace::check() const {
    media_->check_usable();
    if (dropped_.load(std::memory_order_seq_cst))
        throw Error(SAC_E_CLOSED, block_.name, format("namespace '%s' was dropped", block_.name));
}

bool Namespace::pin(std::uint32_t slot, std::uint64_t generation) noexcept {
    // The pin first, then the look at mark and generation: eviction does it the other way round.
    pins_->pin(slot);
    const Record &r = index_->record(slot);
    for (int look = 0; look < 1000; ++look) {
        const std::uint64_t word = r.word.load(std::memory_order_seq_cst);
        if ((word & ~Record::kTailBit) == generation) return true;
        if ((word & ~(Record::kTailBit | Record::kMark)) != generation) break;
        // Marked: an eviction is deciding, and may have seen this pin.
        std::this_thread::yield();
    }
    pins_->unpin(slot);
    return false;
}

std::uint64_t Namespace::lookup(const std::uint8_t *keys, std::uint64_t count, std::uint32_t part,
                                sac_handle *out) noexcept {
    const std::uint64_t hits = index_->find_batch(keys, count, part, out);
    if (part == kBodyPart) {
        counters.lookups.fetch_add(count, std::memory_order_relaxed);
        counters.hits.fetch_add(hits, std::memory_order_relaxed);
    }
    return hits;
}

Key Namespace::root(const void *salt, std::uint64_t bytes) const {
    if (block_.key_scheme != SAC_KEYS_SAC)
        throw Error(SAC_E_ARG, block_.name,
                    format("namespace '%s' takes the engine's own keys; it has no key scheme of ours",
                           block_.name));
    if (bytes > UINT32_MAX) throw Error(SAC_E_ARG, block_.name, "a salt of more than 4 GiB");
    Sha256 sha;
    const char tag[] = "sac.key.root";
    sha.update(tag, sizeof tag);
    const auto field = [&](const void *data, std::uint64_t n) {
        const auto length = static_cast<std::uint32_t>(n);
        sha.update(&length, sizeof length);
        sha.update(data, n);
    };
    field(block_.name, std::strlen(block_.name));
    field(block_.model, std::strlen(block_.model));
    field(block_.layout_hash, sizeof block_.layout_hash);
    field(salt, bytes);
    return Key::load(sha.finish().data());
}

Key Namespace::page_key(const Key &parent, const std::uint32_t *tokens, std::uint32_t count) noexcept {
    Sha256 sha;
    const char tag[] = "sac.key.page";
    sha.update(tag, sizeof tag);
    sha.update(parent.w, sizeof parent.w);
    sha.update(&count, sizeof count);
    sha.update(tokens, std::size_t{4} * count);
    return Key::load(sha.finish().data());
}

std::vector<Reservation> Namespace::reserve(std::uint64_t bodies, std::uint64_t tails,
                                            std::uint64_t deadline_ms, std::uint64_t timeout_ms) {
    const auto start = Clock::now();
    // Centuries are as good as for ever, and do not overflow the clock.
    const auto span = [](std::uint64_t ms) {
        return std::chrono::milliseconds(std::min<std::uint64_t>(ms, std::uint64_t{1} << 42));
    };
    auto nap = std::chrono::microseconds(100);
    for (;;) {
        check();
        try {
            return control_->reserve(bodies, tails, Clock::now() + span(deadline_ms));
        } catch (const Error &e) {
            if (e.status != SAC_E_NO_SPACE || Clock::now() - start >= span(timeout_ms)) throw;
        }
        // Nothing tells of an unpin, which costs the reader nothing: look again soon.
        std::this_thread::sleep_for(nap);
        nap = std::min(nap * 2, std::chrono::microseconds(5000));
    }
}

void Namespace::info(sac_ns_info &out) const {
    out = {};
    std::memcpy(out.name, block_.name, sizeof out.name);
    std::memcpy(out.model, block_.model, sizeof out.model);
    out.flags = block_.flags, out.key_scheme = block_.key_scheme;
    out.page_tokens = block_.page_tokens, out.plane_count = block_.plane_count;
    out.geometry.body_bytes = block_.body_bytes, out.geometry.tail_bytes = block_.tail_bytes;
    out.geometry.tail_pages = geometry_.tail_pages;
    std::memcpy(out.geometry.hash, block_.layout_hash, sizeof out.geometry.hash);
    out.max_bytes = block_.max_bytes;
    out.assigned_bytes = control_->assigned_bytes();
    out.index_bytes = index_->bytes();
    out.capacity_pages = index_->capacity();
}

void Namespace::stats(sac_ns_stats &out) const {
    control_->fill(out);
    out.lookups = counters.lookups.load(std::memory_order_relaxed);
    out.hits = counters.hits.load(std::memory_order_relaxed);
    out.rows_gathered = counters.rows_gathered.load(std::memory_order_relaxed);
    out.bytes_gathered = counters.bytes_gathered.load(std::memory_order_relaxed);
    out.bytes_written = counters.bytes_written.load(std::memory_order_relaxed);
}

}  // namespace sac
