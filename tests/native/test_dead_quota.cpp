// SPDX-License-Identifier: Apache-2.0
// What lies on dead memory does not count against a namespace's quota: it is filled again on
// the memory that lives.
#include <chrono>
#include <cstring>
#include <thread>

#include "check.hpp"
#include "extent_kit.hpp"
#include "served.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }
using kit::kMiB;
constexpr std::uint32_t kFormat = SAC_POOL_FORMAT;

// Pages of 1 MiB, two to a slab.
const kit::Layout kPages = kit::plain(16, 65536);
constexpr std::uint64_t kQuota = 16 * kMiB;

sac_ns_info info(const kit::NsHandle &ns) {
    sac_ns_info out{};
    kit::must(sac_ns_get_info(ns.get(), &out), "sac_ns_get_info");
    return out;
}

// One page a prefix, under keys first .. first + count - 1.
void fill(const kit::NsHandle &ns, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i)
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
}

std::uint64_t there(const kit::NsHandle &ns, std::uint64_t first, std::uint64_t count) {
    std::uint64_t n = 0;
    for (std::uint64_t i = first; i < first + count; ++i)
        if (kit::hits(ns, kit::keys(i, 1))) {
            ++n;
            CHECK(kit::intact(ns, kit::pin(ns, kit::keys(i, 1)), kit::keys(i, 1)));
        }
    return n;
}

}  // namespace

TEST(a_lost_extent_leaves_the_quota_to_the_others) {
    const kit::Extents e(4 * kMiB, {34 * kMiB, 34 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    auto ns = kit::space(pool, "ns", kPages, kQuota);
    CHECK_EQ(info(ns).capacity_pages, 16u);
    fill(ns, 0, 16);
    CHECK_EQ(info(ns).assigned_bytes, kQuota);
    std::uint64_t pages = 0;
    MUST(sac_pool_lose(pool.get(), 0, &pages));
    CHECK_EQ(pages, 8u);
    CHECK_EQ(info(ns).assigned_bytes, kQuota / 2);
    CHECK_EQ(info(ns).capacity_pages, 16u);
    fill(ns, 100, 8);
    CHECK_EQ(there(ns, 0, 16) + there(ns, 100, 8), 16u);
    CHECK_EQ(kit::stats(ns).evictions, 0u);
    CHECK_EQ(info(ns).assigned_bytes, kQuota);
    // No more than that.
    std::vector<kit::PrefixHandle> held;
    for (const std::uint64_t first : {0, 100})
        for (std::uint64_t i = first; i < first + 16; ++i)
            if (kit::hits(ns, kit::keys(i, 1)))
                held.push_back(kit::pin(ns, kit::keys(i, 1)));
    CHECK_EQ(held.size(), 16u);
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(200, 1), put), as_int(SAC_E_NO_SPACE));
    const char *const why = sac_last_error()->message;
    CHECK(std::strstr(why, "it holds 16 MiB of a quota of 16 MiB with room for 16 pages") !=
          nullptr);
    CHECK(std::strstr(why, "8 MiB more lie on dead memory, which the quota does not count; "
                           "other namespaces hold 0 MiB, 16 MiB are free") != nullptr);
    held.clear();
    // The extent is there again: the quota holds for both, and no page leaves for it.
    ns.reset(), pool.reset();
    pool = e.pool();
    ns = kit::space(pool, "ns", kPages, kQuota);
    CHECK_EQ(there(ns, 0, 16) + there(ns, 100, 8), 16u);
    fill(ns, 300, 1);
    CHECK_EQ(info(ns).assigned_bytes, kQuota);
    CHECK_EQ(kit::stats(ns).pages, 16u);
    CHECK_EQ(there(ns, 300, 1), 1u);
}

TEST(bad_blocks_leave_the_quota_alone_for_good) {
    const kit::Extents e(4 * kMiB, {34 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    auto ns = kit::space(pool, "ns", kPages, kQuota);
    fill(ns, 0, 16);
    std::uint64_t pages = 0;
    MUST(sac_pool_quarantine(pool.get(), 0, 4 * kMiB, 4 * kMiB, &pages));
    CHECK_EQ(pages, 4u);
    for (std::uint64_t round = 1; round < 4; ++round) {
        CHECK_EQ(info(ns).assigned_bytes, kQuota - (round == 1 ? 4 * kMiB : 0));
        fill(ns, 100 * round, 16);
        CHECK_EQ(there(ns, 100 * round, 16), 16u);
        CHECK_EQ(info(ns).assigned_bytes, kQuota);
        // 16 slabs, of which 8 are held and 2 bad.
        CHECK_EQ(kit::info(pool).free_bytes, 12 * kMiB);
        ns.reset(), pool.reset();
        pool = e.pool();
        ns = kit::space(pool, "ns", kPages, kQuota);
        CHECK_EQ(there(ns, 100 * round, 16), 16u);
    }
    // Smaller, and larger.
    MUST(sac_pool_resize(pool.get(), "ns", 4 * kMiB));
    CHECK_EQ(info(ns).assigned_bytes, 4 * kMiB);
    CHECK_EQ(info(ns).capacity_pages, 4u);
    MUST(sac_pool_resize(pool.get(), "ns", 0));
    CHECK_EQ(info(ns).capacity_pages, 28u);
    fill(ns, 1000, 28);
    CHECK_EQ(there(ns, 1000, 28), 28u);
}

TEST(clients_fill_what_an_extent_took_with_it) {
    kit::Served s;
    const kit::PoolHandle pool = s.place.connect();
    const auto ns = kit::space(pool, "n", kPages, 8 * kMiB);
    fill(ns, 0, 8);
    const auto held = kit::pin(ns, kit::keys(7, 1));
    std::uint64_t pages = 0;
    MUST(sac_pool_lose(s.pool.get(), 1, &pages));
    CHECK_EQ(pages, 4u);
    fill(ns, 100, 4);
    CHECK_EQ(there(ns, 0, 8) + there(ns, 100, 4), 8u);
    CHECK_EQ(kit::stats(ns).evictions, 0u);
    CHECK_EQ(info(ns).assigned_bytes, 8 * kMiB);
    CHECK_EQ(info(ns).capacity_pages, 8u);
    // All of it: a client is told who can help.
    MUST(sac_pool_lose(s.pool.get(), SAC_EXTENT_ALL, nullptr));
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(300, 1), put), as_int(SAC_E_MEDIA));
    CHECK(std::strstr(sac_last_error()->message, "sacctl pool assemble") != nullptr);
}

TEST(chunks_of_several_slabs) {
    const kit::Extents e(8 * kMiB, {66 * kMiB, 66 * kMiB});
    const kit::PoolHandle pool = e.pool(kFormat);
    const kit::Layout layout = kit::plain(16, 48 * 1024);  // 768 KiB: two slabs hold 5
    const auto ns = kit::space(pool, "ns", layout, 32 * kMiB);
    CHECK_EQ(info(ns).capacity_pages, 40u);
    fill(ns, 0, 40);
    std::uint64_t pages = 0;
    // One slab of the first chunk.
    MUST(sac_pool_quarantine(pool.get(), 0, 2 * kMiB, 1, &pages));
    CHECK(pages >= 2 && pages < 5);
    // Half a chunk of quota: not enough for another one.
    CHECK_EQ(info(ns).assigned_bytes, 30 * kMiB);
    fill(ns, 100, 1);
    CHECK_EQ(kit::stats(ns).pages, 40 - pages);
    CHECK_EQ(kit::stats(ns).evictions, 1u);
    MUST(sac_pool_quarantine(pool.get(), 0, 4 * kMiB, 1, nullptr));
    CHECK_EQ(info(ns).assigned_bytes, 28 * kMiB);
    fill(ns, 200, 40);
    CHECK_EQ(there(ns, 200, 40), 40u);
    CHECK_EQ(info(ns).assigned_bytes, 32 * kMiB);
}

// A put that waits while the index is made larger writes where the new one says.
TEST(a_put_that_waits_sees_the_larger_index) {
    const kit::Extents e(4 * kMiB, {34 * kMiB});
    const kit::PoolHandle pool = e.pool(kFormat);
    const auto ns = kit::space(pool, "ns", kPages, 4 * kMiB);
    fill(ns, 0, 4);
    std::vector<kit::PrefixHandle> held;
    for (std::uint64_t i = 0; i < 4; ++i)
        held.push_back(kit::pin(ns, kit::keys(i, 1)));
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        kit::must(sac_pool_resize(pool.get(), "ns", 32 * kMiB), "resize");
    });
    sac_put_options o = kit::PutOptions();
    o.timeout_ms = 20000;
    CHECK_EQ(kit::put(ns, kit::keys(100, 8), o), 8u);
    later.join();
    CHECK(kit::intact(ns, kit::pin(ns, kit::keys(100, 8)), kit::keys(100, 8)));
    CHECK_EQ(there(ns, 0, 4), 4u);
}

TEST(the_capacity_shown_is_that_of_the_quota) {
    const kit::Extents e(4 * kMiB, {34 * kMiB});
    const kit::PoolHandle pool = e.pool(kFormat);
    const auto ns = kit::space(pool, "ns", kPages, 8 * kMiB);
    for (const std::uint64_t mib : {8, 24, 4, 31, 2, 0, 6}) {
        MUST(sac_pool_resize(pool.get(), "ns", mib * kMiB));
        CHECK_EQ(info(ns).capacity_pages, mib ? (mib + 1) / 2 * 2 : 32u);
    }
    // A chunk is kept for tails.
    const auto tails = kit::space(pool, "tails", kit::rich(16, 32), 8 * kMiB);
    const std::uint64_t a_chunk = 2 * kMiB / info(tails).geometry.body_bytes;
    CHECK_EQ(info(tails).capacity_pages, 3 * a_chunk);
}
