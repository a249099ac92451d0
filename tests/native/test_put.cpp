// SPDX-License-Identifier: Apache-2.0
#include "put.hpp"

#include <thread>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

std::vector<std::uint64_t> missing(const kit::PutHandle &put, std::uint32_t part) {
    std::uint64_t n = 0;
    MUST(sac_put_missing(put.get(), part, nullptr, &n));
    std::vector<std::uint64_t> out(n);
    MUST(sac_put_missing(put.get(), part, out.data(), &n));
    return out;
}

bool says(const char *text) { return std::strstr(sac_last_error()->message, text) != nullptr; }

}  // namespace

TEST(only_what_is_missing_is_written) {
    const auto pool = kit::pool(8 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::rich(16, 20));
    const auto k = kit::keys(0, 6);
    CHECK_EQ(kit::put(ns, kit::keys(0, 3)), 3u);
    kit::PutHandle put;
    MUST(kit::begin(ns, k, put));
    CHECK(missing(put, 0) == std::vector<std::uint64_t>({3, 4, 5}));
    CHECK(missing(put, 1) == std::vector<std::uint64_t>({4, 5}));  // a window of two pages
    CHECK_EQ(kit::stats(ns).pinned, 3u);
    MUST(kit::write_missing(put.get(), ns->it->geometry(), k.data()));
    std::uint64_t n = 0;
    MUST(sac_put_commit(put.get(), &n));
    CHECK_EQ(n, 3u);
    CHECK_EQ(kit::stats(ns).pinned, 0u);
    const auto prefix = kit::pin(ns, k);
    CHECK_EQ(kit::pages(prefix), 6u);
    CHECK(kit::intact(ns, prefix, k));
    CHECK_EQ(kit::put(ns, k), 0u);
}

TEST(tails_where_they_are_asked_for) {
    const auto pool = kit::pool(8 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::rich(16, 20));
    kit::PutOptions o;
    o.first_tail = 1;
    CHECK_EQ(kit::put(ns, kit::keys(0, 5), o), 5u);
    CHECK_EQ(kit::stats(ns).tails, 4u);
    o.first_tail = 99;  // none
    CHECK_EQ(kit::put(ns, kit::keys(100, 5), o), 5u);
    CHECK_EQ(kit::stats(ns).tails, 4u);
    CHECK_EQ(kit::longest(ns, kit::keys(100, 5)), 0u);
    // Bodies are there, tails are not: a second put brings the tails alone.
    CHECK_EQ(kit::put(ns, kit::keys(100, 5)), 0u);
    CHECK_EQ(kit::stats(ns).tails, 6u);
    CHECK_EQ(kit::longest(ns, kit::keys(100, 5)), 5u);
}

TEST(nothing_is_visible_before_the_commit_and_after_an_abort) {
    const auto pool = kit::pool(2 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 4096));
    const auto k = kit::keys(0, 4);
    {
        kit::PutHandle put;
        MUST(kit::begin(ns, k, put));
        MUST(kit::write_missing(put.get(), ns->it->geometry(), k.data()));
        CHECK_EQ(kit::hits(ns, k), 0u);
    }
    CHECK_EQ(kit::hits(ns, k), 0u);
    const sac_ns_stats s = kit::stats(ns);
    CHECK_EQ(s.reserved, 0u);
    CHECK_EQ(s.aborts, 4u);
    CHECK_EQ(s.commits, 0u);
}

TEST(a_commit_with_rows_missing_is_refused) {
    const auto pool = kit::pool(8 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::rich(16, 20));
    const sac::Geometry &g = ns->it->geometry();
    const auto k = kit::keys(0, 2);
    kit::PutHandle put;
    MUST(kit::begin(ns, k, put));
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_INCOMPLETE));
    // All but one plane and layer of one page.
    kit::each_pair(g, [&](std::uint32_t p, std::uint32_t l) {
        for (std::uint64_t i = 0; i < 2; ++i) {
            if (p == 0 && l == 2 && i == 1) {
                continue;
            }
            void *rows = nullptr;
            std::uint64_t bytes = 0;
            MUST(sac_put_view(put.get(), i, p, l, &rows, &bytes));
            std::memset(rows, 1, bytes);
        }
    });
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_INCOMPLETE));
    CHECK(says("plane 'k', layer 2 of page 1"));
    CHECK_EQ(kit::hits(ns, k), 0u);
    MUST(kit::write_missing(put.get(), g, k.data()));
    MUST(sac_put_commit(put.get(), nullptr));
    CHECK(kit::intact(ns, kit::pin(ns, k), k));
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_CLOSED));
}

TEST(requests_are_checked_before_a_byte_is_written) {
    const auto pool = kit::pool(8 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::rich(16, 0, false));
    kit::PutHandle put;
    MUST(kit::begin(ns, kit::keys(0, 2), put));
    void *rows = nullptr;
    std::uint64_t bytes = 0;
    MUST(sac_put_view(put.get(), 0, 0, 0, &rows, &bytes));
    std::memset(rows, 7, bytes);
    const std::vector<std::uint8_t> src(1 << 16, 9);
    const sac_scatter_req good{0, 0, 0, 1, src.data(), 0, 16 * 48, 0};
    const auto with = [&](auto change) {
        sac_scatter_req reqs[2] = {good, good};
        change(reqs[1]);
        return sac_put_write(put.get(), reqs, 2, 0);
    };
    CHECK_EQ(with([](sac_scatter_req &r) { r.plane = 9; }), as_int(SAC_E_RANGE));
    CHECK_EQ(with([](sac_scatter_req &r) { r.layer = 1; }), as_int(SAC_E_RANGE));
    CHECK_EQ(with([](sac_scatter_req &r) { r.layer = 4000; }), as_int(SAC_E_RANGE));
    CHECK_EQ(with([](sac_scatter_req &r) { r.first = 2; }), as_int(SAC_E_RANGE));
    CHECK_EQ(with([](sac_scatter_req &r) { r.count = 3; }), as_int(SAC_E_RANGE));
    CHECK_EQ(with([](sac_scatter_req &r) { r.first = UINT64_MAX; }), as_int(SAC_E_RANGE));
    CHECK_EQ(with([](sac_scatter_req &r) { r.src = nullptr; }), as_int(SAC_E_ARG));
    CHECK_EQ(with([](sac_scatter_req &r) { r.head_stride = 0; }), as_int(SAC_E_ARG));
    CHECK_EQ(static_cast<std::uint8_t *>(rows)[0], 7);
    CHECK_EQ(with([](sac_scatter_req &) {}), as_int(SAC_OK));
    CHECK_EQ(static_cast<std::uint8_t *>(rows)[0], 9);
    const std::vector<std::uint8_t> zero(32, 0);
    kit::PutHandle none;
    CHECK_EQ(kit::begin(ns, zero, none), as_int(SAC_E_ARG));
}

TEST(a_pool_wholly_pinned_says_so_at_once_or_waits) {
    const auto pool = kit::pool(2 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 4096));
    const auto all = kit::keys(0, 32);
    CHECK_EQ(kit::put(ns, all), 32u);
    auto prefix = kit::pin(ns, all);
    kit::PutHandle put;
    const auto start = sac::Clock::now();
    CHECK_EQ(kit::begin(ns, kit::keys(100, 1), put), as_int(SAC_E_NO_SPACE));
    CHECK(sac::Clock::now() - start < std::chrono::milliseconds(500));
    CHECK(says("32 are pinned"));
    kit::PutOptions wait;
    wait.timeout_ms = 30;
    CHECK_EQ(kit::begin(ns, kit::keys(100, 1), put, wait), as_int(SAC_E_NO_SPACE));
    CHECK(sac::Clock::now() - start >= std::chrono::milliseconds(30));
    CHECK(kit::intact(ns, prefix, all));
    wait.timeout_ms = 60000;
    std::thread unpinner([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        prefix.reset();
    });
    CHECK_EQ(kit::put(ns, kit::keys(100, 1), wait), 1u);
    unpinner.join();
    CHECK_EQ(kit::stats(ns).pages, 32u);
    // More than there is at all: refused, and nothing is evicted for it.
    CHECK_EQ(kit::begin(ns, kit::keys(200, 33), put), as_int(SAC_E_NO_SPACE));
    CHECK_EQ(kit::stats(ns).pages, 32u);
    CHECK_EQ(kit::stats(ns).reserved, 0u);
}

TEST(the_quota_holds) {
    const auto pool = kit::pool(16 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 4096), 3 * kit::kMiB);  // two slabs
    for (std::uint64_t i = 0; i < 10; ++i) {
        CHECK_EQ(kit::put(ns, kit::keys(i * 20, 20)), 20u);
    }
    sac_ns_info info{};
    MUST(sac_ns_get_info(ns.get(), &info));
    CHECK_EQ(info.assigned_bytes, 4 * kit::kMiB);
    CHECK_EQ(kit::stats(ns).pages, 64u);
    CHECK_EQ(kit::info(pool).free_bytes, 12 * kit::kMiB);
    const auto prefix = kit::pin(ns, kit::keys(180, 20));
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(900, 50), put), as_int(SAC_E_NO_SPACE));
    CHECK(says("quota"));
}

// Bodies alone could take every slab: then no page would ever have a tail.
TEST(bodies_leave_room_for_tails) {
    const auto pool = kit::pool(8 * kit::kMiB);
    auto layout = kit::plain(16, 4096);
    layout.planes.push_back(kit::plane("state", 1, 4096));
    layout.planes[1].kind = SAC_PLANE_STATE;
    layout.planes[1].group = 1;
    const auto ns = kit::space(pool, "ns", layout);
    kit::PutOptions no_tails;
    no_tails.first_tail = 1000;
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(1000, 128), put), as_int(SAC_E_NO_SPACE));
    CHECK_EQ(kit::begin(ns, kit::keys(1000, 128), put, no_tails), as_int(SAC_E_NO_SPACE));
    for (std::uint64_t i = 0; i < 20; ++i) {
        CHECK_EQ(kit::put(ns, kit::keys(i * 10, 10), no_tails), 10u);
    }
    CHECK_EQ(kit::stats(ns).pages, 96u);
    CHECK_EQ(kit::put(ns, kit::keys(5000, 3)), 3u);
    CHECK_EQ(kit::longest(ns, kit::keys(5000, 3)), 3u);
}

TEST(token_ids_are_asked_for_and_kept) {
    const auto pool = kit::pool(2 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 4096), 0, SAC_NS_TOKEN_IDS);
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(0, 2), put), as_int(SAC_E_ARG));
    std::vector<std::uint32_t> tokens(32, 5);
    kit::PutOptions o;
    o.tokens = tokens.data();
    CHECK_EQ(kit::put(ns, kit::keys(0, 2), o), 2u);
    std::uint64_t checked = 0, dropped = 0;
    MUST(sac_verify(ns.get(), &checked, &dropped));
    CHECK_EQ(checked, 2u);
    CHECK_EQ(dropped, 0u);
}
