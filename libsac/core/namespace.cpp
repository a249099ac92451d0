// SPDX-License-Identifier: Apache-2.0
#include "namespace.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "error.hpp"
#include "namespace_block.hpp"
#include "sha256.hpp"

namespace sac {

Namespace::Namespace(std::shared_ptr<Backing> backing, const fmt::NamespaceBlock &block,
                     Geometry geometry)
    : backing_(std::move(backing)), block_(block), geometry_(std::move(geometry)) {}

void Namespace::check() const {
    backing_->check_usable();
    if (dropped_.load(std::memory_order_seq_cst))
        throw Error(SAC_E_CLOSED, block_.name,
                    format("namespace '%s' was dropped", block_.name));
}

void Namespace::check_known(const View &view) const {
    if (view.lost())
        throw Error(SAC_E_RESERVATION, block_.name,
                    format("namespace '%s': the daemon does not know the reservation any more; "
                           "it was started without its run directory. Put the pages again.",
                           block_.name));
}

std::uint64_t Namespace::lookup(const View &view, const std::uint8_t *keys, std::uint64_t count,
                                std::uint32_t part, sac_handle *out) noexcept {
    const std::uint64_t hits = view.index().find_batch(keys, count, part, out);
    if (part == kBodyPart) {
        PinTable::Counters &c = view.pins().counters();
        c.lookups.fetch_add(count, std::memory_order_relaxed);
        c.hits.fetch_add(hits, std::memory_order_relaxed);
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

std::vector<Reservation> Namespace::reserve(const std::shared_ptr<View> &view,
                                            std::uint64_t bodies, std::uint64_t tails,
                                            std::uint64_t deadline_ms,
                                            std::uint64_t timeout_ms) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto patience =
        std::chrono::milliseconds(std::min<std::uint64_t>(timeout_ms, std::uint64_t{1} << 42));
    auto nap = std::chrono::microseconds(100);
    for (;;) {
        check();
        try {
            return authority_->reserve(view, bodies, tails, deadline_ms);
        } catch (const Error &e) {
            if (e.status != SAC_E_NO_SPACE || Clock::now() - start >= patience)
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
    out.assigned_bytes = authority_->assigned_bytes();
    const auto view = authority_->view();  // a new one brings the quota up to date
    out.max_bytes = block_.quota();
    out.index_bytes = view->index().bytes();
    out.capacity_pages = page_capacity(block_, view->data());
    out.uid = block_.uid, out.gid = block_.gid;
    out.mode = block_.mode ? block_.mode : fmt::kPrivate, out.policy = block_.policy;
}

}  // namespace sac
