// SPDX-License-Identifier: Apache-2.0
// Eviction: mark, full barrier, scan the pin tables; pinned: unmark; else raise the
// generation, then free. Leaves first, so that a prefix loses its tail.
#include <algorithm>
#include <cstring>

#include "control.hpp"
#include "stop.hpp"

namespace sac {

void CacheControl::drain() noexcept {
    for (const auto &t : pins_)
        t->drain([&](std::uint32_t slot) {
            if (slot >= index_->capacity())
                return;
            const std::uint8_t part = chunk_part_[slot / block_.chunk_slots];
            if (part == kNoChunk || !committed(slot, part))
                return;
            Record &r = index_->record(slot);
            r.stamp = ++clock_;
            if (r.children == 0)
                policy_[part]->used(slot);
        });
}

bool CacheControl::committed(std::uint32_t slot, std::uint32_t part) const noexcept {
    const std::uint64_t word = index_->record(slot).word.load(std::memory_order_relaxed);
    return (word & Record::kAbsent) == 0 && (word & Record::kGeneration) != 0 &&
           ((word & Record::kTailBit) != 0) == (part == kTailPart);
}

std::uint64_t CacheControl::evict_part(std::uint32_t part, std::uint64_t count) noexcept {
    drain();
    EvictionPolicy &policy = *policy_[part];
    std::uint64_t evicted = 0;
    for (std::uint64_t looks = policy.leaves(); evicted < count && looks > 0; --looks) {
        const std::uint32_t slot = policy.victim();
        if (slot == kNoSlot)
            break;
        if (try_evict(slot, part)) {
            ++evicted;
            looks = std::min(looks + 1, policy.leaves() + 1);  // its parent may be a leaf now
        } else {
            // In use this very moment: as good as just used.
            index_->record(slot).stamp = ++clock_;
            policy.used(slot);
        }
    }
    return evicted;
}

bool CacheControl::try_evict(std::uint32_t slot, std::uint32_t part) noexcept {
    Record &r = index_->record(slot);
    SAC_STOP("evict.begin");
    r.word.fetch_or(Record::kMark, std::memory_order_seq_cst);
    const std::uint64_t generation = pinned(slot) ? 0 : next_generation();
    if (generation == 0) {
        r.word.fetch_and(~Record::kMark, std::memory_order_seq_cst);
        return false;
    }
    SAC_STOP("evict.marked");
    take_out(slot, part, generation);
    free_slot(slot, part);
    ++stats_.evictions;
    SAC_STOP("evict.end");
    if (part == kBodyPart)
        evict_tail(slot);
    return true;
}

// A body's tail is of no use alone. The record of a body that left still has its key.
void CacheControl::evict_tail(std::uint32_t body) noexcept {
    std::uint64_t word = 0;
    const std::uint32_t tail =
        geometry_.has_tail() ? index_->find(index_->key(body), kTailPart, word) : kNoSlot;
    if (tail != kNoSlot)
        (void)try_evict(tail, kTailPart);
}

// 0 where there is none: the metadata's memory has died.
std::uint64_t CacheControl::next_generation() noexcept {
    try {
        return media_.generation();
    } catch (...) {
        return 0;
    }
}

void CacheControl::take_out(std::uint32_t slot, std::uint32_t part, std::uint64_t generation,
                            bool lost) noexcept {
    const Key key = index_->key(slot);  // the header's memory may be dead as well
    std::uint8_t bytes[SAC_KEY_BYTES];
    std::memcpy(bytes, key.w, sizeof bytes);
    event(SAC_EVENT_REMOVED, slot, part,
          index_->record(slot).word.load(std::memory_order_relaxed) & Record::kGeneration,
          bytes, header(slot)->parent);
    const std::uint64_t tail = part == kTailPart ? Record::kTailBit : 0;
    index_->remove(slot, (lost ? Record::kLost : Record::kAbsent) | tail | generation);
    SAC_STOP("evict.raised");
    clear_header(slot, generation);
    Record &r = index_->record(slot);
    if (r.children == 0)
        policy_[part]->remove(slot);
    r.children = 0;  // they do not point here any more
    if (r.parent != kNoSlot) {
        Record &p = index_->record(r.parent);
        if (--p.children == 0)
            policy_[kBodyPart]->add(r.parent);
        r.parent = kNoSlot;
    }
    --committed_[part];
}

// The victims that have children, by slot; empty where none has.
std::vector<bool> CacheControl::parents(const std::vector<std::uint32_t> &victims) const {
    std::vector<bool> out;
    for (const std::uint32_t v : victims) {
        if (index_->record(v).children == 0)
            continue;
        if (out.empty())
            out.resize(index_->capacity());
        out[v] = true;
    }
    return out;
}

// From pages that are about to leave. One pass over all slots: links go upwards only.
void CacheControl::detach_children(const std::vector<bool> &leaving) noexcept {
    if (leaving.empty())
        return;
    each_slot([&](std::uint32_t slot, std::uint32_t part) {
        if (part != kBodyPart || !committed(slot, part))
            return;
        std::uint32_t &parent = index_->record(slot).parent;
        if (parent != kNoSlot && leaving[parent])
            parent = kNoSlot;
    });
}

// Removal that cannot wait for pins: the memory is dead or does not verify. Readers learn of
// it by forced(); the slots are not used again while a pin is left.
void CacheControl::force_out(const std::vector<std::uint32_t> &victims) {
    detach_children(parents(victims));
    for (const std::uint32_t slot : victims) {
        const std::uint32_t part = chunk_part_[slot / block_.chunk_slots];
        std::uint64_t generation = next_generation();
        if (generation == 0)  // its own is as good: absent, it is nobody's
            generation =
                index_->record(slot).word.load(std::memory_order_relaxed) & Record::kGeneration;
        take_out(slot, part, generation, dead(slot, part));
        index_->count_forced();
        free_unread(slot, part);
    }
}

// Gives a chunk's slabs back, its pages evicted; false, and nothing done, where one is
// pinned. All its slots are free or committed. A page may leave before its children here:
// they stay, found by their own keys.
bool CacheControl::take_back(const Run &run, std::uint32_t part) {
    const auto first = static_cast<std::uint32_t>(run.position * block_.chunk_slots);
    std::vector<std::uint32_t> victims;
    std::vector<std::uint64_t> generations;
    for (std::uint32_t slot = first; slot < first + shape_[part].pages; ++slot)
        if (committed(slot, part)) {
            victims.push_back(slot);
            generations.push_back(media_.generation());
        }
    const std::vector<bool> leaving = parents(victims);
    // From here to the release nothing fails, so that no mark stays behind.
    for (const std::uint32_t v : victims)
        index_->record(v).word.fetch_or(Record::kMark, std::memory_order_seq_cst);
    if (std::any_of(victims.begin(), victims.end(),
                    [&](std::uint32_t v) { return pinned(v); })) {
        for (const std::uint32_t v : victims)
            index_->record(v).word.fetch_and(~Record::kMark, std::memory_order_seq_cst);
        return false;
    }
    detach_children(leaving);
    for (std::size_t i = 0; i < victims.size(); ++i) {
        take_out(victims[i], part, generations[i]);
        ++stats_.evictions;
        if (part == kBodyPart)
            evict_tail(victims[i]);
    }
    std::erase_if(free_[part], [&](std::uint32_t slot) {
        return slot / block_.chunk_slots == run.position;
    });
    chunk_part_[run.position] = kNoChunk;
    slots_[part] -= shape_[part].pages;
    assigned_slabs_ -= shape_[part].slabs;
    next_chunk_ = std::min(next_chunk_, run.position);
    // Last: the headers are empty by now, whatever comes between.
    media_.release(run);
    return true;
}

std::uint64_t CacheControl::evict(std::uint64_t count) {
    const std::lock_guard lock(mutex_);
    if (retired_)
        return 0;
    sweep(Clock::now());
    std::uint64_t n = evict_part(kBodyPart, count);
    if (n < count && geometry_.has_tail())
        n += evict_part(kTailPart, count - n);
    return n;
}

std::uint64_t CacheControl::drop_dead() {
    const std::lock_guard lock(mutex_);
    const std::uint64_t faults = media_.data().guard().faults();
    if (retired_ || faults == faults_seen_)
        return 0;
    std::vector<std::uint32_t> victims;
    each_slot([&](std::uint32_t slot, std::uint32_t part) {
        if (committed(slot, part) && dead(slot, part))
            victims.push_back(slot);
    });
    force_out(victims);
    // Nobody is to be given what was free.
    for (const std::uint32_t part : {kBodyPart, kTailPart})
        dead_slots_[part] +=
            std::erase_if(free_[part], [&](std::uint32_t slot) { return dead(slot, part); });
    count_dead_slabs();
    if (!media_.all_lost())
        make_positions(max_slabs_);
    faults_seen_ = faults;
    return victims.size();
}

bool CacheControl::good(std::uint32_t slot, std::uint32_t part) const {
    const fmt::PageHeader *const h = header(slot);
    const std::uint64_t word = index_->record(slot).word.load(std::memory_order_relaxed);
    return header_valid(h, slot, part) && h->generation == (word & Record::kGeneration) &&
           std::memcmp(h->key, index_->key(slot).w, sizeof h->key) == 0 &&
           (!(h->flags & fmt::kHasDataCrc) ||
            geometry_.crc(part, media_.data().data() + page_offset(slot, part)) ==
                h->data_crc) &&
           !dead(slot, part);
}

// Those that are still what was found to be bad.
std::uint64_t
CacheControl::drop_bad(const std::vector<std::pair<std::uint32_t, std::uint64_t>> &bad) {
    std::vector<std::uint32_t> victims;
    for (const auto &[slot, generation] : bad) {
        const std::uint8_t part = chunk_part_[slot / block_.chunk_slots];
        const std::uint64_t word = index_->record(slot).word.load(std::memory_order_relaxed);
        if (part != kNoChunk && committed(slot, part) &&
            (word & Record::kGeneration) == generation)
            victims.push_back(slot);
    }
    force_out(victims);
    stats_.checks_failed += victims.size();
    return victims.size();
}

void CacheControl::verify(std::uint64_t &checked, std::uint64_t &dropped) {
    constexpr std::size_t kAtOnce = 4096;  // a pass over all slots each time
    checked = dropped = 0;
    std::vector<std::pair<std::uint32_t, std::uint64_t>> bad;
    // In steps, so that writers get their turn.
    for (std::uint64_t chunk = 0; chunk < chunk_part_.size(); ++chunk) {
        const std::lock_guard lock(mutex_);
        if (retired_)
            return;
        const std::uint8_t part = chunk_part_[chunk];
        for (std::uint32_t i = 0; part != kNoChunk && i < shape_[part].pages; ++i) {
            const auto slot = static_cast<std::uint32_t>(chunk * block_.chunk_slots + i);
            if (!committed(slot, part))
                continue;
            ++checked;
            if (!good(slot, part))
                bad.emplace_back(slot,
                                 index_->record(slot).word.load(std::memory_order_relaxed) &
                                     Record::kGeneration);
        }
        media_.check_writable();  // headers that are dead say nothing about pages
        if (bad.size() >= kAtOnce || (chunk + 1 == chunk_part_.size() && !bad.empty())) {
            dropped += drop_bad(bad);
            bad.clear();
        }
    }
}

}  // namespace sac
