// SPDX-License-Identifier: Apache-2.0
// Eviction: mark, full barrier, scan the pin tables; pinned: unmark; else raise the
// generation, then free. Leaves first, so that a prefix loses its tail.
#include <algorithm>
#include <cstring>

#include "control.hpp"
#include "stop.hpp"

namespace sac {

void CacheControl::drain() noexcept {
    for (PinTable *t : pins_)
        t->drain([&](std::uint32_t slot) {
            if (slot >= index_.capacity())
                return;
            const std::uint8_t part = chunk_part_[slot / block_.chunk_slots];
            if (part == kNoChunk || !committed(slot, part))
                return;
            Record &r = index_.record(slot);
            r.stamp = ++clock_;
            if (r.children == 0)
                policy_[part]->used(slot);
        });
}

bool CacheControl::committed(std::uint32_t slot, std::uint32_t part) const noexcept {
    const std::uint64_t word = index_.record(slot).word.load(std::memory_order_relaxed);
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
            index_.record(slot).stamp = ++clock_;
            policy.used(slot);
        }
    }
    return evicted;
}

bool CacheControl::try_evict(std::uint32_t slot, std::uint32_t part) noexcept {
    Record &r = index_.record(slot);
    SAC_STOP("evict.begin");
    r.word.fetch_or(Record::kMark, std::memory_order_seq_cst);
    if (pinned(slot)) {
        r.word.fetch_and(~Record::kMark, std::memory_order_seq_cst);
        return false;
    }
    SAC_STOP("evict.marked");
    const Key key = index_.key(slot);
    take_out(slot, part, media_.generation());
    free_slot(slot, part);
    ++stats_.evictions;
    SAC_STOP("evict.end");
    // A body's tail is of no use alone.
    std::uint64_t word = 0;
    const std::uint32_t tail =
        part == kBodyPart && geometry_.has_tail() ? index_.find(key, kTailPart, word) : kNoSlot;
    if (tail != kNoSlot)
        (void)try_evict(tail, kTailPart);
    return true;
}

void CacheControl::take_out(std::uint32_t slot, std::uint32_t part,
                            std::uint64_t generation) noexcept {
    const fmt::PageHeader *const h = header(slot);
    event(SAC_EVENT_REMOVED, slot, part,
          index_.record(slot).word.load(std::memory_order_relaxed) & Record::kGeneration,
          h->key, h->parent);
    const std::uint64_t tail = part == kTailPart ? Record::kTailBit : 0;
    index_.remove(slot, Record::kAbsent | tail | generation);
    SAC_STOP("evict.raised");
    clear_header(slot, generation);
    Record &r = index_.record(slot);
    if (r.children == 0)
        policy_[part]->remove(slot);
    if (r.parent != kNoSlot) {
        Record &p = index_.record(r.parent);
        if (--p.children == 0)
            policy_[kBodyPart]->add(r.parent);
        r.parent = kNoSlot;
    }
    --committed_[part];
}

// Removal that cannot wait for pins: the memory is dead or does not verify. Readers learn of
// it by forced(); the slot is not used again while a pin is left.
void CacheControl::force_out(std::uint32_t slot, std::uint32_t part) noexcept {
    if (index_.record(slot).children != 0)
        each_slot([&](std::uint32_t s, std::uint32_t p) {
            if (p == kBodyPart && committed(s, p) && index_.record(s).parent == slot)
                index_.record(s).parent = kNoSlot;
        });
    const bool leaf = index_.record(slot).children == 0;
    index_.record(slot).children = 0;
    if (!leaf)
        policy_[part]->add(slot);  // take_out expects a leaf in the policy
    take_out(slot, part, media_.generation());
    forced_.fetch_add(1, std::memory_order_acq_rel);
    free_unread(slot, part);
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

void CacheControl::drop_dead() {
    const std::lock_guard lock(mutex_);
    const FaultGuard &guard = media_.data().guard();
    if (retired_ || guard.faults() == faults_seen_)
        return;
    faults_seen_ = guard.faults();
    each_slot([&](std::uint32_t slot, std::uint32_t part) {
        const std::uint64_t at = page_offset(slot, part);
        if (committed(slot, part) && guard.next_dead(at) < at + geometry_.part_bytes[part])
            force_out(slot, part);
    });
}

void CacheControl::verify(std::uint64_t &checked, std::uint64_t &dropped) {
    checked = dropped = 0;
    // In steps, so that writers get their turn.
    for (std::uint64_t chunk = 0; chunk < chunk_part_.size(); ++chunk) {
        const std::lock_guard lock(mutex_);
        const std::uint8_t part = chunk_part_[chunk];
        if (retired_)
            return;
        if (part == kNoChunk)
            continue;
        for (std::uint32_t i = 0; i < shape_[part].pages; ++i) {
            const auto slot = static_cast<std::uint32_t>(chunk * block_.chunk_slots + i);
            if (!committed(slot, part))
                continue;
            ++checked;
            const fmt::PageHeader *const h = header(slot);
            const std::uint64_t word = index_.record(slot).word.load(std::memory_order_relaxed);
            bool good = header_valid(h, slot, part) &&
                        h->generation == (word & Record::kGeneration) &&
                        std::memcmp(h->key, index_.key(slot).w, sizeof h->key) == 0;
            if (good && h->flags & fmt::kHasDataCrc)
                good = geometry_.crc(part, media_.data().data() + page_offset(slot, part)) ==
                       h->data_crc;
            const std::uint64_t at = page_offset(slot, part);
            if (media_.data().guard().next_dead(at) < at + geometry_.part_bytes[part])
                good = false;
            if (good)
                continue;
            force_out(slot, part);
            ++dropped;
            ++stats_.checks_failed;
        }
    }
}

}  // namespace sac
