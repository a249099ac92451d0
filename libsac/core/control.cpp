// SPDX-License-Identifier: Apache-2.0
// Headers, slots, chunks. reserve.cpp and convert.cpp make room for pages, commit.cpp makes
// them visible, evict.cpp takes them out, recover.cpp reads them back.
#include "control.hpp"

#include <algorithm>
#include <cstring>

#include "stop.hpp"

namespace sac {

CacheControl::CacheControl(Media &media, const fmt::NamespaceBlock &block,
                           const Geometry &geometry, std::shared_ptr<Index> index,
                           std::uint64_t max_slabs)
    : media_(media), block_(block), geometry_(geometry), index_(std::move(index)),
      max_slabs_(max_slabs), headers_per_slab_(fmt::kMetaSlab / block.header_pitch),
      uuid_crc_(crc32c(0, block.uuid, sizeof block.uuid)),
      shape_{{{block.body_slabs, block.body_pages, fmt::kBody},
              {block.tail_slabs, block.tail_pages, fmt::kTail}}} {
    for (auto &p : policy_)
        p = std::make_unique<Lru>(*index_);
    chunk_part_.assign(index_->capacity() / block.chunk_slots, kNoChunk);
}

std::uint64_t CacheControl::page_offset(std::uint32_t slot, std::uint32_t part) const noexcept {
    std::uint32_t within = 0;
    const std::uint64_t chunk = index_->chunk(slot, within);
    return chunk + within * geometry_.part_bytes[part];
}

// ---- headers --------------------------------------------------------------------------

fmt::PageHeader *CacheControl::header(std::uint32_t slot) const noexcept {
    return reinterpret_cast<fmt::PageHeader *>(media_.meta().data() +
                                               header_slabs_[slot / headers_per_slab_] +
                                               slot % headers_per_slab_ * block_.header_pitch);
}

std::uint32_t CacheControl::header_crc(const fmt::PageHeader *h) const noexcept {
    const std::uint32_t crc = crc32c(uuid_crc_, h, sizeof *h - sizeof h->crc);
    return h->flags & fmt::kHasTokens ? crc32c(crc, h + 1, std::size_t{4} * block_.page_tokens)
                                      : crc;
}

bool CacheControl::header_valid(const fmt::PageHeader *h, std::uint32_t slot,
                                std::uint32_t part) const noexcept {
    if (h->state != fmt::kCommitted || h->slot != slot || h->part != part)
        return false;
    const bool tokens = block_.flags & SAC_NS_TOKEN_IDS;
    if (h->flags & fmt::kHasTokens && !tokens)
        return false;
    return fmt::crc_matches(h->crc, header_crc(h));
}

void CacheControl::write_header(std::uint32_t slot, const fmt::PageHeader &h,
                                const std::uint32_t *tokens) noexcept {
    // In any order: until the last byte is there the checksum is wrong, and the page absent.
    fmt::PageHeader *const to = header(slot);
    if (tokens)
        std::memcpy(to + 1, tokens, std::size_t{4} * block_.page_tokens);
    auto *const bytes = reinterpret_cast<std::uint8_t *>(to);
    const auto *const from = reinterpret_cast<const std::uint8_t *>(&h);
    std::memcpy(bytes, from, 64);
    SAC_STOP("header.half");
    std::memcpy(bytes + 64, from + 64, sizeof h - 64);
    to->crc = header_crc(to);
}

void CacheControl::clear_header(std::uint32_t slot, std::uint64_t generation) noexcept {
    fmt::PageHeader *const h = header(slot);
    std::atomic_ref<std::uint32_t>(h->state).store(fmt::kAbsent, std::memory_order_release);
    SAC_STOP("header.cleared");
    h->generation = generation;
    h->crc = header_crc(h);
}

// ---- room -----------------------------------------------------------------------------

void CacheControl::add_chunk(std::uint64_t position, std::uint32_t part, std::uint64_t offset) {
    index_->set_chunk(position, offset);
    chunk_part_[position] = static_cast<std::uint8_t>(part);
    assigned_slabs_ += shape_[part].slabs;
    dead_slabs_ += dead_slabs(position);
    make_lists(shape_[part].pages, part);
    slots_[part] += shape_[part].pages;
    // Readers of a large index wait for address translation more than for anything else.
    if (index_->fd() >= 0 && index_->bytes() >= 2 * kBlockBytes)
        media_.huge().later([index = index_, first = position * block_.chunk_slots,
                             count = shape_[part].pages,
                             filled = (slots_[0] + slots_[1]) * 4 >= index_->capacity()] {
            index->make_huge(first, count, filled);
        });
}

// So that giving a slot back never allocates.
void CacheControl::make_lists(std::uint64_t pages, std::uint32_t part) {
    if (free_[part].capacity() < slots_[part] + pages)
        free_[part].reserve(2 * (slots_[part] + pages));
    const std::uint64_t all = slots_[0] + slots_[1] + pages;
    if (limbo_.capacity() < all)
        limbo_.reserve(2 * all);
}

bool CacheControl::grow(std::uint32_t part) {
    const Shape &shape = shape_[part];
    // Room for the first chunk of the other part: the last chunk of a part is never taken
    // back for the other.
    const std::uint32_t other = part == kBodyPart ? kTailPart : kBodyPart;
    const std::uint64_t need_slabs =
        shape.slabs +
        (slots_[other] == dead_slots_[other] ? std::uint64_t{shape_[other].slabs} : 0);
    if (held_slabs() + need_slabs > max_slabs_ ||
        media_.free_bytes() / fmt::kDataSlab < need_slabs)
        return false;
    while (next_chunk_ < chunk_part_.size() && chunk_part_[next_chunk_] != kNoChunk)
        ++next_chunk_;
    if (next_chunk_ == chunk_part_.size())
        return false;
    const std::uint64_t position = next_chunk_;
    const std::uint64_t first = position * block_.chunk_slots;
    // Headers come first: a chunk whose pages have none would be lost room.
    const std::uint64_t need = (first + shape.pages - 1) / headers_per_slab_ + 1;
    header_slabs_.reserve(need);
    make_lists(shape.pages, part);
    while (header_slabs_.size() < need) {
        const std::uint64_t at =
            media_.assign_meta(block_.id, fmt::kHeaders, header_slabs_.size());
        metadata_full_ = at == UINT64_MAX;
        if (metadata_full_)
            return false;
        header_slabs_.push_back(at);
    }
    // An earlier chunk of this position may have been lost with its slab's entry: its headers
    // must not make pages of what these slots hold from now on.
    for (std::uint32_t i = 0; i < shape.pages; ++i)
        if (header(static_cast<std::uint32_t>(first + i))->state != fmt::kAbsent)
            clear_header(static_cast<std::uint32_t>(first + i), 0);
    const std::uint64_t offset =
        media_.assign_chunk(block_.id, shape.role, position, shape.slabs);
    if (offset == UINT64_MAX)
        return false;
    add_chunk(position, part, offset);
    for (std::uint32_t i = shape.pages; i-- > 0;)
        free_slot(static_cast<std::uint32_t>(first + i), part);
    return true;
}

void CacheControl::free_slot(std::uint32_t slot, std::uint32_t part) noexcept {
    if (dead(slot, part))
        ++dead_slots_[part];  // never given out again
    else
        free_[part].push_back(slot);
}

bool CacheControl::dead(std::uint32_t slot, std::uint32_t part) const noexcept {
    const FaultGuard &guard = media_.data().guard();
    return guard.faults() != 0 &&
           guard.any_dead(page_offset(slot, part), geometry_.part_bytes[part]);
}

std::uint64_t CacheControl::dead_slabs(std::uint64_t position) const noexcept {
    const FaultGuard &guard = media_.data().guard();
    if (guard.faults() == 0)
        return 0;
    const std::uint32_t part = chunk_part_[position];
    const std::uint64_t at =
        page_offset(static_cast<std::uint32_t>(position * block_.chunk_slots), part);
    std::uint64_t n = 0;
    for (std::uint64_t i = 0; i < shape_[part].slabs; ++i)
        n += guard.dead(at + i * fmt::kDataSlab);
    return n;
}

void CacheControl::count_dead_slabs() noexcept {
    dead_slabs_ = 0;
    for (std::uint64_t c = 0; c < chunk_part_.size(); ++c)
        if (chunk_part_[c] != kNoChunk)
            dead_slabs_ += dead_slabs(c);
}

// Not while a reader who pinned the page before it was forced out may be at it.
void CacheControl::free_unread(std::uint32_t slot, std::uint32_t part) noexcept {
    if (pinned(slot))
        limbo_.push_back(slot);
    else
        free_slot(slot, part);
}

bool CacheControl::pinned(std::uint32_t slot) const noexcept {
    return std::any_of(pins_.begin(), pins_.end(),
                       [&](const auto &t) { return t->pinned(slot); });
}

std::shared_ptr<Index> CacheControl::index() const {
    const std::lock_guard lock(mutex_);
    return index_;
}

// Expired reservations and forced-out pages whose last pin has ended.
void CacheControl::sweep(Clock::time_point now) noexcept {
    if (now >= next_deadline_) {
        next_deadline_ = Clock::time_point::max();
        for (auto &[slot, held] : held_) {
            // The slot stays the writer's, who may still be writing, until it answers.
            if (!held.expired && held.deadline <= now)
                held.expired = true;
            if (!held.expired)
                next_deadline_ = std::min(next_deadline_, held.deadline);
        }
    }
    if (limbo_.empty())
        return;
    std::size_t kept = 0;
    for (const std::uint32_t slot : limbo_)
        if (pinned(slot))
            limbo_[kept++] = slot;
        else
            free_slot(slot, chunk_part_[slot / block_.chunk_slots]);
    limbo_.resize(kept);
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> CacheControl::slot_ranges() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
    for (std::uint64_t c = 0; c < chunk_part_.size(); ++c) {
        if (chunk_part_[c] == kNoChunk)
            continue;
        const std::uint64_t first = c * block_.chunk_slots;
        const std::uint64_t count = shape_[chunk_part_[c]].pages;
        // Chunks may have few slots, and each range costs a system call a table.
        if (!out.empty() && out.back().first + out.back().second == first)
            out.back().second += count;
        else
            out.emplace_back(first, count);
    }
    return out;
}

std::uint64_t CacheControl::assigned_bytes() const {
    const std::lock_guard lock(mutex_);
    return held_slabs() * fmt::kDataSlab;
}

std::uint64_t CacheControl::retire() {
    const std::lock_guard lock(mutex_);
    const auto ranges = slot_ranges();
    const auto in_use = [&] {
        std::uint64_t n = held_.size();
        for (const auto &t : pins_)
            for (const auto &[first, count] : ranges)
                n += t->pinned_slots(first, count);
        return n;
    };
    if (const std::uint64_t n = in_use(); n != 0)
        return n;
    // Who pins from here on sees that, or is counted now.
    revoke_all();
    const std::uint64_t n = in_use();
    retired_ = n == 0;
    return n;
}

}  // namespace sac
