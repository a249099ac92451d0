// SPDX-License-Identifier: Apache-2.0
// The slab table of one extent: which namespace owns which slab, on memory, and the free
// slabs, in this process. The caller serialises all calls.
#pragma once

#include <cstdint>
#include <string>

#include "format.hpp"

namespace sac {

class SlabTable {
public:
    static constexpr std::uint32_t kMetaExtent = UINT32_MAX;
    // table: the entries on memory. Throws Error(SAC_E_CORRUPT) at the first entry that is
    // not valid; name is the extent's, for that message.
    SlabTable(std::uint64_t *table, std::uint64_t count, const std::uint8_t *pool,
              std::uint32_t extent, const std::string &name);

    std::uint64_t count() const noexcept { return count_; }
    // None where the extent is lost.
    std::uint64_t free() const noexcept { return lost_ ? 0 : free_; }
    fmt::Slab get(std::uint64_t slab) const noexcept;

    static constexpr std::uint64_t kNone = UINT64_MAX;
    // First slab of n consecutive free ones, or kNone. Never slab 0: every extent begins with
    // its superblock, whatever the table says.
    std::uint64_t find(std::uint64_t n) noexcept;
    // A slab that is bad stays so.
    void set(std::uint64_t slab, const fmt::Slab &s) noexcept;
    void set_bad(std::uint64_t slab) noexcept;
    // How many are bad, whoever has them.
    std::uint64_t bad() const noexcept { return bad_; }
    // For this process: the extent's memory has gone.
    void lose() noexcept { lost_ = true; }
    bool lost() const noexcept { return lost_; }

private:
    bool is_free(std::uint64_t slab) const noexcept {
        const fmt::Slab s = get(slab);
        return slab != 0 && s.role <= fmt::kDirty && !s.bad;
    }

    std::uint64_t *table_;
    std::uint64_t count_, free_ = 0, bad_ = 0, next_ = 1;
    const std::uint8_t *pool_;
    std::uint32_t extent_;
    bool lost_ = false;
};

}  // namespace sac
