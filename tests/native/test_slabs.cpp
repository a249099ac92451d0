// SPDX-License-Identifier: Apache-2.0
#include "slabs.hpp"

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

namespace fmt = sac::fmt;
using sac::SlabTable;

constexpr std::uint8_t kPool[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

SlabTable table(std::vector<std::uint64_t> &entries, std::uint32_t extent = 0) {
    return {entries.data(), entries.size(), kPool, extent, "extent"};
}

}  // namespace

TEST(entries_come_back_as_they_were_set) {
    std::vector<std::uint64_t> entries(8, 0);
    SlabTable t = table(entries);
    CHECK_EQ(t.count(), 8u);
    CHECK_EQ(t.free(), 7u);  // slab 0 is never free
    t.set(0, {0, fmt::kSystem, 0});
    t.set(3, {65535, fmt::kTail, fmt::kMaxPosition});
    t.set(4, {7, fmt::kBody, 12345});
    t.set(5, {0, fmt::kDirty, 0});
    CHECK_EQ(t.free(), 5u);
    const SlabTable again = table(entries);
    CHECK_EQ(again.free(), 5u);
    CHECK_EQ(again.get(3).owner, 65535u);
    CHECK_EQ(again.get(3).role, std::uint32_t{fmt::kTail});
    CHECK_EQ(again.get(3).position, fmt::kMaxPosition);
    CHECK_EQ(again.get(4).owner, 7u);
    CHECK_EQ(again.get(4).position, 12345u);
    CHECK_EQ(again.get(5).role, std::uint32_t{fmt::kDirty});
    t.set(4, {});
    CHECK_EQ(entries[4], 0u);
    CHECK_EQ(t.free(), 6u);
}

TEST(runs_are_found_next_fit_and_around) {
    std::vector<std::uint64_t> entries(11, 0);
    SlabTable t = table(entries);
    CHECK_EQ(t.find(0), SlabTable::kNone);
    CHECK_EQ(t.find(11), SlabTable::kNone);
    CHECK_EQ(t.find(10), 1u);
    const auto take = [&](std::uint64_t first, std::uint64_t n) {
        for (std::uint64_t i = 0; i < n; ++i) {
            t.set(first + i, {1, fmt::kBody, 0});
        }
    };
    CHECK_EQ(t.find(3), 1u);
    take(1, 3);
    CHECK_EQ(t.find(3), 4u);
    take(4, 3);
    CHECK_EQ(t.find(2), 7u);
    take(7, 2);
    for (std::uint64_t i = 1; i < 4; ++i) {
        t.set(i, {0, fmt::kDirty, 0});
    }
    CHECK_EQ(t.free(), 5u);
    CHECK_EQ(t.find(3), 1u);  // behind the last run there are two only
    CHECK_EQ(t.find(4), SlabTable::kNone);
    CHECK_EQ(t.find(2), 9u);
}

// One bit wrong anywhere, or an entry of another place, extent or pool. The checksum has 16
// bits, so that one in 65536 of such errors would get through; none of these does.
TEST(every_flipped_bit_is_seen) {
    std::vector<std::uint64_t> entries(4, 0);
    SlabTable t = table(entries);
    t.set(2, {9, fmt::kBody, 77});
    for (int bit = 0; bit < 64; ++bit) {
        entries[2] ^= std::uint64_t{1} << bit;
        CHECK_THROWS(SAC_E_CORRUPT, table(entries));
        entries[2] ^= std::uint64_t{1} << bit;
    }
    (void)table(entries);
    CHECK_THROWS(SAC_E_CORRUPT, table(entries, 1));
    std::swap(entries[2], entries[3]);
    CHECK_THROWS(SAC_E_CORRUPT, table(entries));
    entries[3] = 0, entries[1] = 0xffff;  // a free slab has no checksum
    CHECK_THROWS(SAC_E_CORRUPT, table(entries));
}

namespace {

bool all_zero(const std::uint8_t *at, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; ++i) {
        if (at[i] != 0) {
            return false;
        }
    }
    return true;
}

}  // namespace

TEST(slabs_are_scrubbed_before_another_namespace_gets_them) {
    const auto layout = kit::plain(16, 4096);  // a page of 64 KiB
    const auto pool = kit::pool(4 * kit::kMiB);
    for (int round = 0; round < 3; ++round) {
        auto first = kit::space(pool, "first", layout);
        CHECK_EQ(kit::put(first, kit::keys(0, 64)), 64u);
        CHECK_EQ(kit::info(pool).free_bytes, 0u);
        first.reset();
        MUST(sac_pool_drop(pool.get(), "first"));
        CHECK_EQ(kit::info(pool).free_bytes, 4 * kit::kMiB);

        auto second = kit::space(pool, "second", layout);
        kit::PutHandle put;
        MUST(kit::begin(second, kit::keys(100, 64), put));
        for (std::uint64_t i = 0; i < 64; ++i) {
            void *rows = nullptr;
            std::uint64_t bytes = 0;
            MUST(sac_put_view(put.get(), i, 0, 0, &rows, &bytes));
            CHECK(all_zero(static_cast<const std::uint8_t *>(rows), bytes));
            std::memset(rows, 0x5a, bytes);
        }
        put.reset();
        second.reset();
        MUST(sac_pool_drop(pool.get(), "second"));
    }
}

// A table that reads as zeros calls everything free: the superblock is not given out.
TEST(slab_zero_is_never_found) {
    std::vector<std::uint64_t> entries(4, 0);
    SlabTable t = table(entries);
    CHECK_EQ(t.free(), 3u);
    for (int i = 0; i < 10; ++i) {
        const std::uint64_t found = t.find(1);
        CHECK(found != 0 && found < 4);
    }
    CHECK_EQ(t.find(4), SlabTable::kNone);
    t.set(0, {0, fmt::kDirty, 0});
    CHECK_EQ(t.free(), 3u);
    CHECK_EQ(t.find(3), 1u);
}
