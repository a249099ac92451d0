// SPDX-License-Identifier: Apache-2.0
#include "view.hpp"

#include <thread>

namespace sac {

View::Pinned View::pin(std::uint32_t slot, std::uint64_t generation) const noexcept {
    // The pin first, then the look at mark and generation: eviction does it the other way
    // round. So does a daemon that starts anew: it revokes, then reads the pins.
    pins_->pin(slot);
    const Record &r = index_->record(slot);
    for (int look = 0; look < 1000; ++look) {
        const std::uint64_t word = r.word.load(std::memory_order_seq_cst);
        if ((word & ~Record::kTailBit) == generation) {
            if (!pins_->revoked() && !lost())
                return Pinned::yes;
            break;
        }
        if ((word & ~(Record::kTailBit | Record::kMark)) != generation || pins_->revoked())
            break;
        // Marked: an eviction is deciding, and may have seen this pin.
        std::this_thread::yield();
    }
    pins_->unpin(slot);
    return pins_->revoked() || lost() ? Pinned::revoked : Pinned::gone;
}

}  // namespace sac
