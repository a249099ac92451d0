// SPDX-License-Identifier: Apache-2.0
// Recovery: the index made anew from the page headers.
#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "control.hpp"
#include "error.hpp"

namespace sac {

// Sorts runs into whole chunks and ones whose assignment was cut off by a kill. Anything
// else cannot come from this library.
void CacheControl::check_runs(const Owned &owned, std::vector<Run> &whole,
                              std::vector<Run> &partial) const {
    const auto bad = [&](const char *what, std::uint64_t position) {
        throw Error(SAC_E_CORRUPT, block_.name,
                    format("namespace '%s': %s (position %" PRIu64
                           "). Drop the namespace and fill it anew.",
                           block_.name, what, position));
    };
    std::vector<std::uint8_t> seen(chunk_part_.size());
    for (const Run &r : owned.runs) {
        const std::uint32_t part = r.role == fmt::kBody ? kBodyPart : kTailPart;
        if (part == kTailPart && !geometry_.has_tail())
            bad("a tail chunk in a layout without tails", r.position);
        if (r.position >= chunk_part_.size())
            bad("a chunk that is out of range", r.position);
        if (seen[r.position]++)
            bad("two chunks have the same position", r.position);
        if (r.count > shape_[part].slabs)
            bad("a chunk of too many slabs", r.position);
        (r.count == shape_[part].slabs ? whole : partial).push_back(r);
    }
}

void CacheControl::recover(const Owned &owned, bool rebooted) {
    const std::lock_guard lock(mutex_);
    std::vector<Run> whole, partial;
    check_runs(owned, whole, partial);
    auto headers = owned.headers;
    std::sort(headers.begin(), headers.end());
    for (const auto &[position, slab] : headers) {
        if (position != header_slabs_.size())
            throw Error(
                SAC_E_CORRUPT, block_.name,
                format("namespace '%s': header slab %zu is missing or there twice. Drop the "
                       "namespace and fill it anew.",
                       block_.name, header_slabs_.size()));
        header_slabs_.push_back(slab * fmt::kMetaSlab);
    }
    for (const Run &r : partial)
        media_.release(r);
    for (const Run &r : whole) {
        const std::uint32_t part = r.role == fmt::kBody ? kBodyPart : kTailPart;
        const std::uint64_t last = r.position * block_.chunk_slots + shape_[part].pages - 1;
        if (last / headers_per_slab_ >= header_slabs_.size())
            throw Error(SAC_E_CORRUPT, block_.name,
                        format("namespace '%s': chunk %" PRIu64 " has no headers. Drop the "
                               "namespace and fill it anew.",
                               block_.name, r.position));
        add_chunk(r.position, part, media_.chunk_offset(r));
    }

    // Valid headers by generation, newest first: should two hold one key, the newer stays.
    std::vector<std::pair<std::uint64_t, std::uint32_t>> found;
    found.reserve(slots_[0] + slots_[1]);
    std::vector<std::uint8_t> used(index_->capacity());
    each_slot([&](std::uint32_t slot, std::uint32_t part) {
        const fmt::PageHeader *const h = header(slot);
        if (h->state != fmt::kCommitted)
            return;
        if (!header_valid(h, slot, part))
            return;
        if (h->generation == 0 || h->generation >= media_.first_generation() ||
            Key::load(h->key).zero()) {
            clear_header(slot, 0);  // or it would be a page when the limit has risen
            return;
        }
        if (dead(slot, part)) {  // not to be read, not even for its checksum
            clear_header(slot, 0);
            index_->set_lost(slot);
            return;
        }
        if (rebooted) {
            const std::uint8_t *const page = media_.data().data() + page_offset(slot, part);
            if (!(h->flags & fmt::kHasDataCrc) || geometry_.crc(part, page) != h->data_crc) {
                clear_header(slot, 0);
                ++stats_.checks_failed;
                return;
            }
        }
        found.emplace_back(h->generation, slot);
    });
    faults_seen_ = media_.data().guard().faults();
    media_.meta().check_alive(0, media_.meta().bytes());
    std::sort(found.begin(), found.end(), std::greater<>());

    constexpr std::size_t kAhead = 16;
    for (std::size_t i = 0; i < found.size(); ++i) {
        if (i + kAhead < found.size()) {
            const fmt::PageHeader *const next = header(found[i + kAhead].second);
            index_->prefetch(Key::load(next->key), next->part);
            __builtin_prefetch(&index_->record(found[i + kAhead].second), 1);
        }
        auto &[generation, slot] = found[i];
        const fmt::PageHeader *const h = header(slot);
        const Key key = Key::load(h->key);
        std::uint64_t word = 0;
        if (index_->find(key, h->part, word) != kNoSlot) {
            clear_header(slot, 0);
            generation = 0;
            continue;
        }
        index_->insert(slot, key, generation | (h->part == kTailPart ? Record::kTailBit : 0));
        Record &r = index_->record(slot);
        r.parent = kNoSlot, r.children = 0;
        used[slot] = 1;
        ++committed_[h->part];
    }
    // Oldest first: the order of use, as far as it is known. A parent is older than its
    // child, which also rules out cycles.
    for (std::size_t i = found.size(); i-- > 0;) {
        const auto [generation, slot] = found[i];
        if (generation == 0)
            continue;
        const fmt::PageHeader *const h = header(slot);
        Record &r = index_->record(slot);
        r.stamp = ++clock_;
        policy_[h->part]->add(slot);
        std::uint64_t word = 0;
        const Key parent = Key::load(h->parent);
        const std::uint32_t p = h->part != kBodyPart || parent.zero()
                                    ? kNoSlot
                                    : index_->find(parent, kBodyPart, word);
        if (p == kNoSlot || (word & Record::kGeneration) >= generation)
            continue;
        r.parent = p;
        if (index_->record(p).children++ == 0)
            policy_[kBodyPart]->remove(p);
    }
    for (std::uint64_t c = chunk_part_.size(); c-- > 0;) {
        if (chunk_part_[c] == kNoChunk)
            continue;
        for (std::uint32_t i = shape_[chunk_part_[c]].pages; i-- > 0;) {
            const auto slot = static_cast<std::uint32_t>(c * block_.chunk_slots + i);
            if (!used[slot])
                free_slot(slot, chunk_part_[c]);
        }
    }
    count_dead_slabs();
    make_positions(max_slabs_);
}

}  // namespace sac
