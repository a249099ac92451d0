// SPDX-License-Identifier: Apache-2.0
// Memory that is found to be bad, and devices that go: what leaves, who is told, what stays out
// of use, and what clients have when the device is back.
#include "check.hpp"
#include "extent_kit.hpp"
#include "served.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }
using kit::kMiB;
constexpr std::uint32_t kFormat = SAC_POOL_FORMAT;

// Pages of 1 MiB, two to a slab; data begins behind one slab.
const kit::Layout kPages = kit::plain(16, 65536);

// Which extent holds the body of a prefix's page, and where in it.
std::pair<std::size_t, std::uint64_t>
place(const kit::NsHandle &ns, const kit::PrefixHandle &prefix, std::size_t page = 0) {
    std::uint64_t within = 0;
    const sac::Mapping &data = prefix->it->view().data();
    (void)ns;
    const sac::Extent &e = data.locate(
        static_cast<std::uint64_t>(prefix->it->addresses(0)[page] - data.data()), within);
    return {static_cast<std::size_t>(&e - data.extents().data()), within};
}

std::vector<sac_extent_info> extents(const kit::PoolHandle &pool) {
    std::uint64_t n = 0;
    MUST(sac_pool_extents(pool.get(), nullptr, &n));
    std::vector<sac_extent_info> out(n);
    MUST(sac_pool_extents(pool.get(), out.data(), &n));
    return out;
}

}  // namespace

TEST(pages_of_a_bad_block_leave_and_it_stays_out_of_use) {
    const kit::Extents e(4 * kMiB, {16 * kMiB, 16 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    auto ns = kit::space(pool, "ns", kPages);
    for (std::uint64_t i = 0; i < 20; ++i)
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
    const auto k = kit::keys(3, 1);
    kit::PrefixHandle prefix = kit::pin(ns, k);
    const auto [extent, within] = place(ns, prefix);
    std::vector<std::uint8_t> row;
    MUST(kit::gather_row(ns, prefix, 0, row));
    std::uint64_t pages = 0;
    MUST(sac_pool_quarantine(pool.get(), static_cast<std::int32_t>(extent), within + 5, 1,
                             &pages));
    CHECK_EQ(pages, 2u);  // of that slab
    CHECK_EQ(kit::hits(ns, k), 0u);
    CHECK_EQ(kit::info(pool).dead_blocks, 1u);
    CHECK_EQ(extents(pool)[extent].bad_bytes, 2 * kMiB);
    // The memory still answers, but nobody vouches for it.
    CHECK_EQ(kit::gather_row(ns, prefix, 5, row), as_int(SAC_E_MEDIA));
    CHECK_EQ(sac_last_error()->offset / (2 * kMiB), within / (2 * kMiB));
    CHECK(std::strstr(sac_last_error()->object, e.names[extent + 1].c_str()) != nullptr);
    const void *rows = nullptr;
    std::uint64_t bytes = 0;
    CHECK_EQ(sac_prefix_view(prefix.get(), 0, 0, 0, &rows, &bytes), as_int(SAC_E_MEDIA));
    prefix.reset();
    const auto never = [&] {
        for (std::uint64_t i = 100; i < 160; ++i) {
            CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
            const auto p = kit::pin(ns, kit::keys(i, 1));
            const auto [x, at] = place(ns, p);
            CHECK(x != extent || at / (2 * kMiB) != within / (2 * kMiB));
        }
    };
    never();
    const std::uint64_t kept = kit::stats(ns).pages;
    // The next owner knows it as well, and keeps the chunk's other pages.
    ns.reset();
    pool.reset();
    pool = e.pool();
    ns = kit::space(pool, "ns", kPages);
    CHECK_EQ(kit::stats(ns).pages, kept);
    CHECK_EQ(extents(pool)[extent].bad_bytes, 2 * kMiB);
    never();
    // Nor does another namespace get it.
    ns.reset();
    MUST(sac_pool_drop(pool.get(), "ns"));
    CHECK_EQ(kit::info(pool).free_bytes, 26 * kMiB);
    ns = kit::space(pool, "other", kPages);
    never();
    CHECK_EQ(extents(pool)[0].free_bytes + extents(pool)[1].free_bytes, 0u);
    // A pool that is made anew begins anew.
    ns.reset();
    pool.reset();
    pool = e.pool(kFormat, SAC_EXTENT_DIRTY);
    CHECK_EQ(extents(pool)[extent].bad_bytes, 0u);
}

TEST(slabs_that_nobody_has) {
    const kit::Extents e(4 * kMiB, {16 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    MUST(sac_pool_quarantine(pool.get(), 0, 4 * kMiB, 4 * kMiB, nullptr));
    CHECK_EQ(kit::info(pool).free_bytes, 10 * kMiB);
    MUST(sac_pool_quarantine(pool.get(), 0, 4 * kMiB, 4 * kMiB, nullptr));
    CHECK_EQ(kit::info(pool).free_bytes, 10 * kMiB);
    CHECK_EQ(kit::info(pool).dead_blocks, 2u);
    // A part that takes two slabs does not fit beside them.
    const auto ns = kit::space(pool, "ns", kit::plain(16, 3 * 65536));
    CHECK_EQ(kit::put(ns, kit::keys(0, 1)), 1u);
    const auto prefix = kit::pin(ns, kit::keys(0, 1));
    CHECK(place(ns, prefix).second >= 8 * kMiB);
    // Arguments.
    CHECK_EQ(sac_pool_quarantine(pool.get(), 1, 0, 1, nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_pool_quarantine(pool.get(), -2, 0, 1, nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_pool_quarantine(pool.get(), 0, 16 * kMiB, 1, nullptr), as_int(SAC_E_RANGE));
    CHECK_EQ(sac_pool_quarantine(pool.get(), 0, 0, 0, nullptr), as_int(SAC_E_RANGE));
    CHECK_EQ(sac_pool_quarantine(pool.get(), 0, 1, UINT64_MAX, nullptr), as_int(SAC_E_RANGE));
}

TEST(chunks_of_several_slabs_keep_what_is_good) {
    const kit::Extents e(4 * kMiB, {34 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    const kit::Layout layout = kit::plain(16, 48 * 1024);  // 768 KiB: two slabs hold 5
    auto ns = kit::space(pool, "ns", layout);
    for (std::uint64_t i = 0; i < 20; ++i)
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
    std::uint64_t pages = 0;
    MUST(sac_pool_quarantine(pool.get(), 0, 4 * kMiB, 1, &pages));
    CHECK(pages >= 2 && pages < 5);
    const std::uint64_t left = 20 - pages;
    for (int open = 0; open < 3; ++open) {
        std::uint64_t there = 0;
        for (std::uint64_t i = 0; i < 20; ++i)
            there += kit::hits(ns, kit::keys(i, 1));
        CHECK_EQ(there, left);
        for (std::uint64_t i = 0; i < 20; ++i)
            if (kit::hits(ns, kit::keys(i, 1)))
                CHECK(kit::intact(ns, kit::pin(ns, kit::keys(i, 1)), kit::keys(i, 1)));
        ns.reset();
        pool.reset();
        pool = e.pool();
        ns = kit::space(pool, "ns", layout);
    }
    ns.reset();
    MUST(sac_pool_drop(pool.get(), "ns"));
    CHECK_EQ(kit::info(pool).free_bytes, 30 * kMiB);
    pool.reset();
    pool = e.pool();
    CHECK_EQ(kit::info(pool).free_bytes, 30 * kMiB);
}

TEST(what_is_being_written_there_is_not_committed) {
    const kit::Extents e(4 * kMiB, {8 * kMiB});
    const kit::PoolHandle pool = e.pool(kFormat);
    const auto ns = kit::space(pool, "ns", kPages);
    const auto k = kit::keys(0, 2);
    kit::PutHandle put;
    MUST(kit::begin(ns, k, put));
    MUST(kit::write_missing(put.get(), ns->it->geometry(), k.data()));
    MUST(sac_pool_quarantine(pool.get(), 0, 2 * kMiB, 2 * kMiB, nullptr));
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_MEDIA));
    CHECK_EQ(kit::hits(ns, k), 0u);
    put.reset();
    CHECK_EQ(kit::stats(ns).reserved, 0u);
    CHECK_EQ(kit::stats(ns).quarantined, 2u);
    CHECK_EQ(kit::put(ns, k), 2u);
}

TEST(metadata_that_nobody_uses_can_be_spared) {
    const kit::Extents e(16 * kMiB, {8 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    const std::uint64_t free = extents(pool).back().free_bytes;
    MUST(sac_pool_quarantine(pool.get(), SAC_EXTENT_META, 8 * kMiB + 100, 1, nullptr));
    CHECK_EQ(extents(pool).back().free_bytes, free - 2 * kMiB);
    CHECK_EQ(kit::put(kit::space(pool, "ns", kPages), kit::keys(0, 2)), 2u);
    pool.reset();
    pool = e.pool();
    CHECK(extents(pool).back().free_bytes < free - 2 * kMiB);
    CHECK_EQ(kit::put(kit::space(pool, "ns", kPages), kit::keys(2, 2)), 2u);
    // What holds tables cannot.
    MUST(sac_pool_quarantine(pool.get(), SAC_EXTENT_META, 0, 1, nullptr));
    const auto ns = kit::space(pool, "ns", kPages);
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(50, 1), put), as_int(SAC_E_MEDIA));
    CHECK_EQ(kit::hits(ns, kit::keys(0, 2)), 2u);
    std::uint64_t checked = 0, dropped = 0;
    CHECK_EQ(sac_verify(ns.get(), &checked, &dropped), as_int(SAC_E_MEDIA));
    CHECK_EQ(kit::hits(ns, kit::keys(0, 2)), 2u);
}

TEST(an_extent_that_is_lost_takes_its_pages_with_it) {
    const kit::Extents e(4 * kMiB, {10 * kMiB, 10 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    auto ns = kit::space(pool, "ns", kPages);
    for (std::uint64_t i = 0; i < 16; ++i)
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
    std::vector<kit::PrefixHandle> held;
    std::vector<bool> on_first;
    for (std::uint64_t i = 0; i < 16; ++i) {
        held.push_back(kit::pin(ns, kit::keys(i, 1)));
        on_first.push_back(place(ns, held.back()).first == 0);
    }
    // Not touched: files that are cut short would fault each time.
    CHECK_EQ(ftruncate(e.fds[1].get(), 0), 0);
    std::uint64_t pages = 0;
    MUST(sac_pool_lose(pool.get(), 0, &pages));
    CHECK_EQ(pages, 8u);
    CHECK_EQ(extents(pool)[0].lost, 1u);
    CHECK_EQ(extents(pool)[0].free_bytes, 0u);
    CHECK_EQ(extents(pool)[1].lost, 0u);
    std::vector<std::uint8_t> row;
    for (std::uint64_t i = 0; i < 16; ++i) {
        CHECK_EQ(kit::hits(ns, kit::keys(i, 1)), on_first[i] ? 0u : 1u);
        CHECK_EQ(kit::gather_row(ns, held[i], 7, row),
                 on_first[i] ? as_int(SAC_E_MEDIA) : SAC_OK);
    }
    held.clear();
    // The other extent goes on.
    for (std::uint64_t i = 100; i < 120; ++i) {
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
        CHECK_EQ(place(ns, kit::pin(ns, kit::keys(i, 1))).first, 1u);
    }
    CHECK_EQ(sac_pool_lose(pool.get(), 2, nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_pool_lose(pool.get(), -3, nullptr), as_int(SAC_E_ARG));
    MUST(sac_pool_lose(pool.get(), SAC_EXTENT_ALL, &pages));
    CHECK(pages > 0);
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(200, 1), put), as_int(SAC_E_MEDIA));
    const auto l = kPages.get();
    const sac_ns_options o = kit::ns_options(&l);
    sac_ns *none = nullptr;
    CHECK_EQ(sac_ns_open(pool.get(), "new", &o, &none), as_int(SAC_E_MEDIA));
}

// What is lost with its device is not bad for ever.
TEST(a_lost_extent_is_there_again_at_the_next_opening) {
    const kit::Extents e(4 * kMiB, {10 * kMiB, 10 * kMiB});
    kit::PoolHandle pool = e.pool(kFormat);
    CHECK_EQ(kit::put(kit::space(pool, "ns", kPages), kit::keys(0, 8)), 8u);
    std::uint64_t pages = 0;
    MUST(sac_pool_lose(pool.get(), 0, &pages));
    CHECK(pages > 0);
    pool.reset();
    pool = e.pool();
    CHECK_EQ(extents(pool)[0].lost, 0u);
    CHECK_EQ(extents(pool)[0].bad_bytes, 0u);
    const auto ns = kit::space(pool, "ns", kPages);
    CHECK_EQ(kit::stats(ns).pages, 8 - pages);
    CHECK_EQ(kit::stats(ns).quarantined, 0u);
    CHECK_EQ(kit::put(ns, kit::keys(50, 8)), 8u);
}

TEST(weights) {
    kit::Extents e(4 * kMiB, {42 * kMiB, 42 * kMiB});
    e.weights = {0, 3, 1};
    kit::PoolHandle pool = e.pool(kFormat);
    CHECK_EQ(extents(pool)[0].weight, 3u);
    const auto ns = kit::space(pool, "ns", kPages);
    const auto fill = [&](std::uint64_t from, std::uint64_t n) {
        std::array<std::uint64_t, 2> on{};
        for (std::uint64_t i = from; i < from + n; ++i) {
            CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
            ++on[place(ns, kit::pin(ns, kit::keys(i, 1))).first];
        }
        return on;
    };
    const auto first = fill(0, 16);
    CHECK_EQ(first[0], 12u);
    CHECK_EQ(first[1], 4u);
    // Full: the rest goes where there is room.
    const auto rest = fill(100, 64);
    CHECK_EQ(rest[0] + first[0], 40u);
    CHECK_EQ(rest[1] + first[1], 40u);
    const std::uint32_t two[] = {1, 9}, none[] = {0, 1}, one[] = {1};
    MUST(sac_pool_set_weights(pool.get(), two, 2));
    CHECK_EQ(extents(pool)[1].weight, 9u);
    CHECK_EQ(sac_pool_set_weights(pool.get(), none, 2), as_int(SAC_E_ARG));
    CHECK_EQ(sac_pool_set_weights(pool.get(), one, 1), as_int(SAC_E_ARG));
    CHECK_EQ(extents(pool)[1].weight, 9u);
}

// ---- clients of a daemon

TEST(clients_learn_of_bad_blocks) {
    kit::Served s;
    const kit::PoolHandle pool = s.place.connect();
    const auto ns = kit::space(pool, "n", kPages);
    for (std::uint64_t i = 0; i < 4; ++i)
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
    const auto held = kit::pin(ns, kit::keys(1, 1));
    const auto [extent, within] = place(ns, held);
    std::vector<std::uint8_t> row;
    MUST(kit::gather_row(ns, held, 0, row));
    kit::PutHandle put;
    const auto late = kit::keys(10, 8);
    MUST(kit::begin(ns, late, put));
    MUST(kit::write_missing(put.get(), ns->it->geometry(), late.data()));
    MUST(sac_pool_quarantine(s.pool.get(), static_cast<std::int32_t>(extent), within, 1,
                             nullptr));
    CHECK_EQ(kit::hits(ns, kit::keys(1, 1)), 0u);
    CHECK_EQ(kit::gather_row(ns, held, 0, row), as_int(SAC_E_MEDIA));
    CHECK_EQ(sac_last_error()->offset / (2 * kMiB), within / (2 * kMiB));
    CHECK(std::strstr(sac_last_error()->object, "data.") != nullptr);
    // Others are as before.
    std::uint64_t there = 0;
    for (std::uint64_t i = 0; i < 4; ++i)
        if (kit::hits(ns, kit::keys(i, 1))) {
            ++there;
            CHECK(kit::intact(ns, kit::pin(ns, kit::keys(i, 1)), kit::keys(i, 1)));
        }
    CHECK(there >= 2);
    for (const std::int32_t x : {0, 1})
        MUST(sac_pool_quarantine(s.pool.get(), x, 2 * kMiB, 14 * kMiB, nullptr));
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_MEDIA));
    CHECK_EQ(kit::hits(ns, late), 0u);
}

TEST(a_pool_that_comes_back_is_mapped_anew) {
    for (const bool formatted : {false, true}) {
        kit::Served s;
        const kit::PoolHandle pool = s.place.connect(), idle = s.place.connect();
        auto ns = kit::space(pool, "n", kPages);
        // Its mapping stays without a namespace.
        kit::space(idle, "n", kPages).reset();
        CHECK_EQ(kit::put(ns, kit::keys(0, 4)), 4u);
        const auto held = kit::pin(ns, kit::keys(0, 4));
        kit::PutHandle put;
        MUST(kit::begin(ns, kit::keys(10, 1), put));
        MUST(kit::write_missing(put.get(), ns->it->geometry(), kit::keys(10, 1).data()));
        MUST(sac_pool_lose(s.pool.get(), SAC_EXTENT_ALL, nullptr));
        std::vector<std::uint8_t> row;
        CHECK_EQ(kit::gather_row(ns, held, 0, row), as_int(SAC_E_MEDIA));
        CHECK_EQ(kit::hits(ns, kit::keys(0, 4)), 0u);
        MUST(sac_server_lose_pool(s.server.get(), "p"));
        CHECK_EQ(sac_server_lose_pool(s.server.get(), "p"), int{SAC_E_NOT_FOUND});
        // Told, at once, what has happened.
        CHECK_EQ(kit::gather_row(ns, held, 0, row), as_int(SAC_E_MEDIA));
        CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_MEDIA));
        put.reset();
        sac_pool_info info{};
        CHECK_EQ(sac_pool_get_info(pool.get(), &info), as_int(SAC_E_MEDIA));
        kit::PutHandle other;
        CHECK_EQ(kit::begin(ns, kit::keys(20, 1), other), as_int(SAC_E_MEDIA));
        // Back: other files, or the same pool in others' place.
        s.pool.reset();
        s.place.replace(formatted);
        s.pool = s.place.pool();
        MUST(sac_server_add_pool(s.server.get(), "p", s.pool.get()));
        // A new pool does not have the namespace.
        CHECK_EQ(kit::gather_row(ns, held, 0, row),
                 as_int(formatted ? SAC_E_CLOSED : SAC_E_MEDIA));
        if (formatted) {
            CHECK_EQ(kit::begin(ns, kit::keys(20, 1), other), as_int(SAC_E_CLOSED));
            ns = kit::space(pool, "n", kPages);
        }
        CHECK_EQ(kit::put(ns, kit::keys(30, 4)), 4u);
        const auto fresh = kit::pin(ns, kit::keys(30, 4));
        CHECK(kit::intact(ns, fresh, kit::keys(30, 4)));
        // It lies in the new files, and the others see it.
        const auto again = kit::space(idle, "n", kPages);
        CHECK(kit::intact(again, kit::pin(again, kit::keys(30, 4)), kit::keys(30, 4)));
        const auto own = std::dynamic_pointer_cast<sac::OwnedPool>(s.pool->it)->find("n");
        const kit::NsHandle direct(new sac_ns{own});
        CHECK(kit::intact(direct, kit::pin(direct, kit::keys(30, 4)), kit::keys(30, 4)));
        CHECK_EQ(kit::gather_row(ns, held, 0, row),
                 as_int(formatted ? SAC_E_CLOSED : SAC_E_MEDIA));
    }
}

// The count of losses is the next daemon's, too.
TEST(a_daemon_that_was_started_anew_hands_over_the_new_files) {
    kit::Served s;
    const kit::PoolHandle pool = s.place.connect();
    const auto ns = kit::space(pool, "n", kPages);
    CHECK_EQ(kit::put(ns, kit::keys(0, 4)), 4u);
    MUST(sac_pool_lose(s.pool.get(), SAC_EXTENT_ALL, nullptr));
    MUST(sac_server_lose_pool(s.server.get(), "p"));
    s.server.reset(), s.pool.reset();
    s.place.replace(false);
    s.pool = s.place.pool(), s.server = s.place.server();
    MUST(sac_server_add_pool(s.server.get(), "p", s.pool.get()));
    MUST(sac_server_serve(s.server.get()));
    CHECK_EQ(kit::put(ns, kit::keys(30, 4)), 4u);
    const auto own = std::dynamic_pointer_cast<sac::OwnedPool>(s.pool->it)->find("n");
    const kit::NsHandle direct(new sac_ns{own});
    CHECK(kit::intact(direct, kit::pin(direct, kit::keys(30, 4)), kit::keys(30, 4)));
}
