// SPDX-License-Identifier: Apache-2.0
#include "policy.hpp"

namespace sac {

void Lru::link(std::uint32_t slot, std::uint32_t colder, std::uint32_t hotter) noexcept {
    Record &r = index_->record(slot);
    r.colder = colder, r.hotter = hotter;
    (colder == kNoSlot ? coldest_ : index_->record(colder).hotter) = slot;
    (hotter == kNoSlot ? hottest_ : index_->record(hotter).colder) = slot;
    ++count_;
}

void Lru::add(std::uint32_t slot) noexcept {
    // By stamp, searched from both ends: a new page belongs at the hot end, the parent of an
    // evicted page near the cold one.
    const std::uint64_t stamp = index_->record(slot).stamp;
    std::uint32_t low = coldest_, high = hottest_;
    while (low != kNoSlot && high != kNoSlot) {
        if (index_->record(high).stamp <= stamp)
            return link(slot, high, index_->record(high).hotter);
        if (index_->record(low).stamp > stamp)
            return link(slot, index_->record(low).colder, low);
        low = index_->record(low).hotter;
        high = index_->record(high).colder;
    }
    link(slot, kNoSlot, kNoSlot);
}

void Lru::remove(std::uint32_t slot) noexcept {
    const Record &r = index_->record(slot);
    (r.colder == kNoSlot ? coldest_ : index_->record(r.colder).hotter) = r.hotter;
    (r.hotter == kNoSlot ? hottest_ : index_->record(r.hotter).colder) = r.colder;
    --count_;
}

void Lru::used(std::uint32_t slot) noexcept {
    if (slot == hottest_)
        return;
    remove(slot);
    link(slot, hottest_, kNoSlot);
}

}  // namespace sac
