// SPDX-License-Identifier: Apache-2.0
// What becomes of reservations: renewed; pages that are visible; or free room again.
#include <cstring>

#include "control.hpp"
#include "error.hpp"
#include "stop.hpp"

namespace sac {

void CacheControl::renew(std::span<const Reservation> held, Clock::time_point deadline) {
    const std::lock_guard lock(mutex_);
    for (const Reservation &r : held) {
        const auto it = held_.find(r.slot);
        if (it != held_.end() && it->second.token == r.token && !it->second.expired)
            it->second.deadline = deadline;
    }
}

void CacheControl::abort(std::span<const Reservation> held) noexcept {
    const std::lock_guard lock(mutex_);
    for (const Reservation &r : held) {
        const auto it = held_.find(r.slot);
        if (it == held_.end() || it->second.token != r.token)
            continue;
        if (it->second.owner)
            it->second.owner->end_grant(r.slot);
        SAC_STOP("abort.ended");
        held_.erase(it);
        ++stats_.aborts;
        free_slot(r.slot, chunk_part_[r.slot / block_.chunk_slots]);
    }
}

void CacheControl::check_held(const CommitItem &c, const PinTable *table) const {
    const Reservation &r = c.reservation;
    const auto it = held_.find(r.slot);
    if (it == held_.end() || it->second.token != r.token || it->second.expired ||
        it->second.owner != table || r.part != chunk_part_[r.slot / block_.chunk_slots])
        throw Error(SAC_E_RESERVATION, block_.name,
                    format("namespace '%s': the reservation of a page has expired or was "
                           "ended; nothing was committed. Write faster, or ask for a longer "
                           "deadline.",
                           block_.name));
    media_.data().check_alive(page_offset(r.slot, r.part), geometry_.part_bytes[r.part]);
    check_header(r.slot);
}

void CacheControl::commit(std::span<CommitItem> items, PinTable *pins) {
    const std::lock_guard lock(mutex_);
    media_.check_writable();
    sweep(Clock::now());
    for (const CommitItem &c : items)
        check_held(c, nullptr);
    drain();  // what was read before is colder than what comes now
    for (CommitItem &c : items) {
        SAC_STOP("commit.begin");
        std::uint64_t word = 0;
        const std::uint32_t first = index_->find(c.key, c.reservation.part, word);
        c.duplicate = first != kNoSlot;
        if (!c.duplicate || !c.retain)
            held_.erase(c.reservation.slot);
        if (c.duplicate) {
            if (!c.retain)
                free_slot(c.reservation.slot, c.reservation.part);
            c.reservation.slot = first;
            c.reservation.generation = word & Record::kGeneration;
            ++stats_.duplicates;
        } else {
            publish(c);
        }
        if (pins)
            pins->pin(c.reservation.slot);
        SAC_STOP("commit.end");
    }
}

// Whether an earlier COMMIT did it, whose answer the client did not get: the slot holds that
// very page, pinned by the client; or the page is there, and the slot is not the client's.
bool CacheControl::done_already(const CommitItem &c, const PinTable &table) const {
    const std::uint32_t slot = c.reservation.slot, part = c.reservation.part;
    if (slot >= index_->capacity() || held_.count(slot) != 0)
        return false;
    if (committed(slot, part) && index_->key(slot) == c.key && table.pinned(slot))
        return true;
    std::uint64_t word = 0;
    return table.token(slot) == 0 && index_->find(c.key, part, word) != kNoSlot;
}

void CacheControl::commit(std::span<CommitItem> items, PinTable &table, bool keep) {
    const std::lock_guard lock(mutex_);
    media_.check_writable();
    sweep(Clock::now());
    for (const CommitItem &c : items)
        if (!done_already(c, table))
            check_held(c, &table);
    drain();  // what was read before is colder than what comes now
    for (CommitItem &c : items) {
        SAC_STOP("commit.begin");
        Reservation &r = c.reservation;
        std::uint64_t word = 0;
        const std::uint32_t there = index_->find(c.key, r.part, word);
        const auto held = held_.find(r.slot);
        // The same slot twice in one request: the second is as a repeated one.
        const bool mine = held != held_.end() && held->second.owner == &table;
        c.duplicate = there != kNoSlot && there != r.slot;
        if (!c.duplicate && mine) {
            r.generation = held->second.generation;
            publish(c);
            held_.erase(held);
            table.end_grant(r.slot);
        } else if (c.duplicate) {
            ++stats_.duplicates;
            // With keep the writer decides: the other page may leave before it is pinned.
            if (mine && !keep) {
                table.end_grant(r.slot);
                held_.erase(held);
                free_slot(r.slot, r.part);
            }
            r.slot = there, r.generation = word & Record::kGeneration;
        } else {
            table.end_grant(r.slot);
            r.generation = word & Record::kGeneration;
        }
        SAC_STOP("commit.end");
    }
}

// Throws Error(SAC_E_MEDIA) if the memory of the slot's header has died.
void CacheControl::check_header(std::uint32_t slot) const {
    auto *const at = reinterpret_cast<std::uint8_t *>(header(slot));
    // Touched first: where nobody looked yet, nobody knows.
    (void)*static_cast<volatile std::uint8_t *>(at);
    media_.meta().check_alive(static_cast<std::uint64_t>(at - media_.meta().data()),
                              block_.header_pitch);
}

void CacheControl::publish(const CommitItem &c) noexcept {
    const Reservation &r = c.reservation;
    fmt::PageHeader h{};
    h.generation = r.generation;
    h.state = fmt::kCommitted;
    h.part = r.part;
    std::memcpy(h.key, c.key.w, sizeof h.key);
    std::memcpy(h.parent, c.parent.w, sizeof h.parent);
    h.slot = r.slot;
    if (block_.flags & SAC_NS_DATA_CHECKSUM)
        h.flags |= fmt::kHasDataCrc, h.data_crc = c.data_crc;
    if (c.tokens)
        h.flags |= fmt::kHasTokens;
    write_header(r.slot, h, c.tokens);
    SAC_STOP("commit.header");

    Record &record = index_->record(r.slot);
    record.stamp = ++clock_;
    record.parent = kNoSlot, record.children = 0;
    if (r.part == kBodyPart)
        link_parent(r.slot, c.parent);
    index_->insert(r.slot, c.key, r.generation | (r.part == kTailPart ? Record::kTailBit : 0));
    policy_[r.part]->add(r.slot);
    ++committed_[r.part];
    ++stats_.commits;
    event(SAC_EVENT_STORED, r.slot, r.part, r.generation, h.key, h.parent);
}

void CacheControl::link_parent(std::uint32_t slot, const Key &parent) noexcept {
    std::uint64_t word = 0;
    const std::uint32_t p = parent.zero() ? kNoSlot : index_->find(parent, kBodyPart, word);
    if (p == kNoSlot)
        return;
    index_->record(slot).parent = p;
    if (index_->record(p).children++ == 0)
        policy_[kBodyPart]->remove(p);
}

}  // namespace sac
