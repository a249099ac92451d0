// SPDX-License-Identifier: Apache-2.0
#include "slabs.hpp"

#include <atomic>
#include <cinttypes>

#include "error.hpp"

namespace sac {

SlabTable::SlabTable(std::uint64_t *table, std::uint64_t count, const std::uint8_t *pool,
                     std::uint32_t extent, const std::string &name)
    : table_(table), count_(count), pool_(pool), extent_(extent) {
    for (std::uint64_t i = 0; i < count; ++i) {
        fmt::Slab slab;
        if (!fmt::decode_slab(pool, extent, i, table[i], slab))
            throw Error(SAC_E_CORRUPT, name,
                        format("slab table of %s: entry %" PRIu64 " (%016" PRIx64
                               ") is not valid. The pool cannot be trusted; create it anew.",
                               name.c_str(), i, table[i]),
                        0, i * 8);
        free_ += is_free(i);
        bad_ += slab.bad;
    }
}

fmt::Slab SlabTable::get(std::uint64_t slab) const noexcept {
    fmt::Slab out;
    const std::uint64_t payload =
        std::atomic_ref<std::uint64_t>(table_[slab]).load(std::memory_order_relaxed) >> 16;
    out.owner = static_cast<std::uint32_t>(payload & 0xffff);
    out.role = static_cast<std::uint32_t>(payload >> 16 & 0x7);
    out.bad = payload >> 16 & fmt::kBad;
    out.position = payload >> 20;
    return out;
}

std::uint64_t SlabTable::find(std::uint64_t n) noexcept {
    if (n == 0 || n > free())
        return kNone;
    // Next fit: from where the last run ended, then once more from the start.
    for (int pass = 0; pass < 2; ++pass) {
        std::uint64_t run = 0;
        for (std::uint64_t i = pass ? 1 : next_; i < count_; ++i) {
            run = is_free(i) ? run + 1 : 0;
            if (run == n) {
                next_ = i + 1;
                return i + 1 - n;
            }
        }
    }
    return kNone;
}

void SlabTable::set(std::uint64_t slab, const fmt::Slab &s) noexcept {
    fmt::Slab now = s;
    now.bad = s.bad || get(slab).bad;
    if (now.bad && now.role == fmt::kDirty)
        now.role = fmt::kFree;  // nobody will get what is in it
    const bool was = is_free(slab);
    std::atomic_ref<std::uint64_t>(table_[slab])
        .store(fmt::encode_slab(pool_, extent_, slab, now), std::memory_order_release);
    free_ += is_free(slab);
    free_ -= was;
}

void SlabTable::set_bad(std::uint64_t slab) noexcept {
    fmt::Slab s = get(slab);
    if (s.bad)
        return;
    s.bad = true;
    set(slab, s);
    ++bad_;
}

}  // namespace sac
