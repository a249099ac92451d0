// SPDX-License-Identifier: Apache-2.0
#include "owned_namespace.hpp"

#include <cinttypes>
#include <cstring>

#include "error.hpp"
#include "local_authority.hpp"
#include "namespace_block.hpp"
#include "stop.hpp"

namespace sac {

OwnedNamespace::OwnedNamespace(std::shared_ptr<Media> media, const fmt::NamespaceBlock &block,
                               Geometry geometry, std::uint64_t block_offset,
                               std::uint64_t capacity, bool shared)
    : Namespace(media, block, std::move(geometry)), media_(std::move(media)),
      block_offset_(block_offset) {
    const fmt::Superblock &sb = media_->superblock();
    auto index = std::make_shared<Index>(capacity, block_.chunk_slots, sb.hash_seed,
                                         sb.incarnation, shared);
    control_ = std::make_unique<CacheControl>(*media_, block_, geometry_, std::move(index),
                                              slab_limit(block_, *media_));
    authority_ = std::make_unique<LocalAuthority>(*control_, *media_);
}

OwnedNamespace::~OwnedNamespace() { authority_.reset(); }  // before the control it uses

void OwnedNamespace::write_block() {
    const std::uint64_t copy = seal_block(block_);
    std::memcpy(media_->meta().data() + block_offset_ + copy, &block_, sizeof block_);
}

void OwnedNamespace::resize(std::uint64_t max_bytes) {
    check();
    media_->check_writable();
    const std::lock_guard lock(resizing_);
    fmt::NamespaceBlock wanted = block_;
    wanted.set_quota(max_bytes);
    const std::uint64_t least = std::uint64_t{block_.body_slabs} + block_.tail_slabs;
    const std::uint64_t slabs = slab_limit(wanted, *media_);
    if (slabs < least)
        throw Error(SAC_E_ARG, block_.name,
                    format("namespace '%s': a quota of %" PRIu64
                           " bytes is too small: one page needs %" PRIu64 " MiB",
                           block_.name, max_bytes, least * fmt::kDataSlab >> 20));
    control_->resize(slabs);
    SAC_STOP("resize.room");
    block_.set_quota(max_bytes);
    write_block();
    control_->revoke_views();  // the new superblock goes out with the next ones
}

fmt::NamespaceBlock OwnedNamespace::copy_block() const {
    const std::lock_guard lock(resizing_);
    return block_;
}

void OwnedNamespace::pool_grows() {
    const std::lock_guard lock(resizing_);
    control_->renew_index();
}

void OwnedNamespace::pool_grew() {
    const std::lock_guard lock(resizing_);
    control_->resize(slab_limit(block_, *media_));
}

std::shared_ptr<OwnedNamespace>
OwnedNamespace::create(std::shared_ptr<Media> media, std::uint32_t id, const std::string &name,
                       const sac_ns_options &options, std::uint32_t uid, std::uint32_t gid,
                       bool shared) {
    fmt::NamespaceBlock b = new_block(*media, id, name, options, uid, gid);
    const std::uint64_t copy = seal_block(b);
    const std::uint64_t at = media->assign_meta(id, fmt::kNamespace, 0, &b, sizeof b, copy);
    if (at == UINT64_MAX)
        throw Error(SAC_E_NO_SPACE, name,
                    "the pool's metadata is full; drop a namespace, or create the pool with "
                    "more metadata_bytes");
    std::shared_ptr<OwnedNamespace> ns(new OwnedNamespace(
        media, b, Geometry(*options.layout), at, slot_capacity(b, *media), shared));
    ns->control_->recover({}, false);
    return ns;
}

std::shared_ptr<OwnedNamespace> OwnedNamespace::load(std::shared_ptr<Media> media,
                                                     const Owned &owned, std::uint32_t id,
                                                     bool rebooted, bool shared) {
    fmt::NamespaceBlock b{};
    if (owned.blocks.size() != 1 || !read_block(*media, owned, b))
        throw Error(SAC_E_CORRUPT, b.name,
                    format("namespace '%s' (id %u): its superblock is damaged or missing. Drop "
                           "the namespace and fill it anew.",
                           b.name, id));
    Geometry geometry = check_block(b, id, *media);
    std::shared_ptr<OwnedNamespace> ns(
        new OwnedNamespace(media, b, std::move(geometry), owned.blocks[0] * fmt::kMetaSlab,
                           slot_capacity(b, *media, owned), shared));
    ns->control_->recover(owned, rebooted);
    return ns;
}

std::uint64_t OwnedNamespace::drop() {
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
    const std::lock_guard lock(resizing_);
    block_.state = fmt::kDropping;
    write_block();
    SAC_STOP("drop.marked");
    return 0;
}

void OwnedNamespace::destroy(Media &media, const Owned &owned) {
    for (const Run &r : owned.runs)
        media.release(r);
    for (const auto &[position, slab] : owned.headers)
        media.release_meta(slab);
    for (const std::uint64_t slab : owned.blocks)
        media.release_meta(slab);
}

void OwnedNamespace::check_same(const sac_ns_options &o) const {
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
    if (o.max_bytes != block_.quota())
        d += format("quota %" PRIu64 " and %" PRIu64 " bytes (0: none); ", block_.quota(),
                    o.max_bytes);
    const std::uint32_t mode = block_.mode ? block_.mode : fmt::kPrivate;
    if (o.mode != 0 && o.mode != mode)
        d += format("mode 0%o and 0%o; ", mode, o.mode);
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

}  // namespace sac
