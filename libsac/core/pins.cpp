// SPDX-License-Identifier: Apache-2.0
#include "pins.hpp"

namespace sac {

PinTable::PinTable(std::uint64_t capacity)
    : capacity_(capacity), memory_(64 + (kRing + capacity) * sizeof(std::uint32_t)) {
    head_ = reinterpret_cast<std::atomic<std::uint64_t> *>(memory_.data());
    ring_ = reinterpret_cast<std::atomic<std::uint32_t> *>(memory_.data() + 64);
    counts_ = ring_ + kRing;
}

std::uint64_t PinTable::pinned_slots(std::uint64_t first, std::uint64_t count) const noexcept {
    std::uint64_t n = 0;
    for (std::uint64_t i = first; i < first + count; ++i)
        n += pinned(static_cast<std::uint32_t>(i));
    return n;
}

void PinTable::note(const std::uint32_t *slots, std::uint64_t count) noexcept {
    // Only the newest fit; a slot may still be read as an older note: a hint, no more.
    if (count > kRing)
        slots += count - kRing, count = kRing;
    const std::uint64_t at = head_->fetch_add(count, std::memory_order_acq_rel);
    for (std::uint64_t i = 0; i < count; ++i)
        ring_[(at + i) % kRing].store(slots[i], std::memory_order_relaxed);
}

}  // namespace sac
