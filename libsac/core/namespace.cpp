// SPDX-License-Identifier: Apache-2.0
#include "namespace.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <thread>

#include "error.hpp"
#include "namespace_block.hpp"
#include "sha256.hpp"
#include "stop.hpp"

namespace sac {
Namespace::Namespace(std::shared_ptr<Media> media, const fmt::NamespaceBlock &block,
                     Geometry geometry, std::uint64_t block_offset)
    : media_(std::move(media)), block_(block), geometry_(std::move(geometry)),
      block_offset_(block_offset) {
    index_ = std::make_unique<Index>(slot_capacity(block_, *media_), block_.chunk_slots,
                                     media_->superblock().hash_seed);
    pins_ = std::make_unique<PinTable>(index_->capacity());
    control_ = std::make_unique<CacheControl>(*media_, block_, geometry_, *index_,
                                              slab_limit(block_, *media_));
    control_->attach(pins_.get());
}

std::shared_ptr<Namespace> Namespace::create(std::shared_ptr<Media> media, std::uint32_t id,
                                             const std::string &name,
                                             const sac_ns_options &options) {
    fmt::NamespaceBlock b = new_block(*media, id, name, options);
    const std::uint64_t copy = seal_block(b);
    const std::uint64_t at = media->assign_meta(id, fmt::kNamespace, 0, &b, sizeof b, copy);
    if (at == UINT64_MAX)
        throw Error(SAC_E_NO_SPACE, name,
                    "the pool's metadata is full; drop a namespace, or create the pool with "
                    "more metadata_bytes");
    std::shared_ptr<Namespace> ns(
        new Namespace(std::move(media), b, Geometry(*options.layout), at));
    ns->control_->recover({}, false);
    return ns;
}

std::shared_ptr<Namespace> Namespace::load(std::shared_ptr<Media> media, const Owned &owned,
                                           std::uint32_t id, bool rebooted) {
    fmt::NamespaceBlock b{};
    if (owned.blocks.size() != 1 || !read_block(*media, owned, b))
        throw Error(SAC_E_CORRUPT, b.name,
                    format("namespace '%s' (id %u): its superblock is damaged or missing. Drop "
                           "the namespace and fill it anew.",
                           b.name, id));
    Geometry geometry = check_block(b, id, *media);
    std::shared_ptr<Namespace> ns(new Namespace(std::move(media), b, std::move(geometry),
                                                owned.blocks[0] * fmt::kMetaSlab));
    ns->control_->recover(owned, rebooted);
    return ns;
}

std::uint64_t Namespace::drop() {
    // Looked at first, so that a drop that is refused is noticed by nobody.
    sac_ns_stats now{};
    control_->fill(now);
    if (now.reserved + now.pinned != 0)
        return now.reserved + now.pinned;
    // No new call, then the count. Who pins looks at dropped_ behind it.
    dropped_.store(true, std::memory_order_seq_cst);
    const std::uint64_t busy = control_->retire();
    if (busy != 0) {
        dropped_.store(false, std::memory_order_seq_cst);
        return busy;
    }
    block_.state = fmt::kDropping;
    const std::uint64_t copy = seal_block(block_);
    std::memcpy(media_->meta().data() + block_offset_ + copy, &block_, sizeof block_);
    SAC_STOP("drop.marked");
    return 0;
}

void Namespace::destroy(Media &media, const Owned &owned) {
    for (const Run &r : owned.runs)
        media.release(r);
    for (const auto &[position, slab] : owned.headers)
        media.release_meta(slab);
    for (const std::uint64_t slab : owned.blocks)
        media.release_meta(slab);
}

void Namespace::check_same(const sac_ns_options &o) const {
    if (!o.layout)
        return;
    std::string d = geometry_.difference(Geometry(*o.layout));
    if (!d.empty())
        throw Error(
            SAC_E_LAYOUT, block_.name,
            format("namespace '%s' is there with another layout (there, asked): %s. Open it "
                   "without a layout to use it as it is, or take another name.",
                   block_.name, d.c_str()));
    const auto flag = [&](const char *what, std::uint32_t bit) {
        if ((o.flags ^ block_.flags) & bit)
            d += format("%s %s and %s; ", what, block_.flags & bit ? "on" : "off",
                        o.flags & bit ? "on" : "off");
    };
    flag("data checksums", SAC_NS_DATA_CHECKSUM);
    flag("token ids", SAC_NS_TOKEN_IDS);
    if (o.key_scheme != block_.key_scheme)
        d += block_.key_scheme == SAC_KEYS_SAC ? "key scheme sac and engine; "
                                               : "key scheme engine and sac; ";
    if (o.max_bytes != block_.max_bytes)
        d += format("quota %" PRIu64 " and %" PRIu64 " bytes (0: none); ", block_.max_bytes,
                    o.max_bytes);
    if (std::strcmp(o.model ? o.model : "", block_.model) != 0)
        d += format("model '%s' and '%s'; ", block_.model, o.model ? o.model : "");
    if (d.empty())
        return;
    d.resize(d.size() - 2);
    throw Error(
        SAC_E_EXISTS, block_.name,
        format("namespace '%s' is there with another specification (there, asked): %s. Open "
               "it with its own, or without a layout as it is, or take another name.",
               block_.name, d.c_str()));
}

void Namespace::check() const {
    media_->check_usable();
    if (dropped_.load(std::memory_order_seq_cst))
        throw Error(SAC_E_CLOSED, block_.name,
                    format("namespace '%s' was dropped", block_.name));
}

bool Namespace::pin(std::uint32_t slot, std::uint64_t generation) noexcept {
    // The pin first, then the look at mark and generation: eviction does it the other way
    // round.
    pins_->pin(slot);
    const Record &r = index_->record(slot);
    for (int look = 0; look < 1000; ++look) {
        const std::uint64_t word = r.word.load(std::memory_order_seq_cst);
        if ((word & ~Record::kTailBit) == generation)
            return true;
        if ((word & ~(Record::kTailBit | Record::kMark)) != generation)
            break;
        // Marked: an eviction is deciding, and may have seen this pin.
        std::this_thread::yield();
    }
    pins_->unpin(slot);
    return false;
}

std::uint64_t Namespace::lookup(const std::uint8_t *keys, std::uint64_t count,
                                std::uint32_t part, sac_handle *out) noexcept {
    const std::uint64_t hits = index_->find_batch(keys, count, part, out);
    if (part == kBodyPart) {
        counters.lookups.fetch_add(count, std::memory_order_relaxed);
        counters.hits.fetch_add(hits, std::memory_order_relaxed);
    }
    return hits;
}

Key Namespace::root(const void *salt, std::uint64_t bytes) const {
    if (block_.key_scheme != SAC_KEYS_SAC)
        throw Error(
            SAC_E_ARG, block_.name,
            format("namespace '%s' takes the engine's own keys; it has no key scheme of ours",
                   block_.name));
    if (bytes != 0 && !salt)
        throw Error(SAC_E_ARG, "salt", "salt is NULL");
    if (bytes > UINT32_MAX)
        throw Error(SAC_E_ARG, block_.name, "a salt of more than 4 GiB");
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

Key Namespace::page_key(const Key &parent, const std::uint32_t *tokens,
                        std::uint32_t count) noexcept {
    Sha256 sha;
    const char tag[] = "sac.key.page";
    sha.update(tag, sizeof tag);
    sha.update(parent.w, sizeof parent.w);
    sha.update(&count, sizeof count);
    sha.update(tokens, std::size_t{4} * count);
    return Key::load(sha.finish().data());
}

std::vector<Reservation> Namespace::reserve(std::uint64_t bodies, std::uint64_t tails,
                                            std::uint64_t deadline_ms,
                                            std::uint64_t timeout_ms) {
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
            if (e.status != SAC_E_NO_SPACE || Clock::now() - start >= span(timeout_ms))
                throw;
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
