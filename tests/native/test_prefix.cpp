// SPDX-License-Identifier: Apache-2.0
#include "prefix.hpp"

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

// The rule, said plainly: the longest n whose last `needed` pages all have their tails.
std::uint64_t by_definition(const std::vector<std::uint8_t> &tail, std::uint64_t needed) {
    for (std::uint64_t n = tail.size(); n > 0; --n) {
        bool good = true;
        for (std::uint64_t i = n - std::min(n, needed); i < n; ++i) {
            good = good && tail[i] != 0;
        }
        if (good) {
            return n;
        }
    }
    return 0;
}

void evict_tail(const kit::NsHandle &ns, std::uint64_t number) {
    // Its body is touched through a pin of the others; a direct way: the slot's own record.
    sac::Namespace &n = *ns->it;
    const sac::Key key = sac::Key::load(kit::key(number).data());
    std::uint64_t word = 0;
    const std::uint32_t slot = n.view()->index().find(key, sac::kTailPart, word);
    CHECK(slot != sac::kNoSlot);
    // Bodies pinned, all other tails too: the one that is left is this one.
    std::vector<std::uint32_t> pinned;
    for (std::uint32_t s = 0; s < n.view()->index().capacity(); ++s) {
        if (s != slot) {
            n.view()->pins().pin(s);
            pinned.push_back(s);
        }
    }
    CHECK_EQ(kit::evict(ns, 1), 1u);
    for (const std::uint32_t s : pinned) {
        n.view()->pins().unpin(s);
    }
}

}  // namespace

TEST(tails_by_definition) {
    for (std::uint32_t n = 0; n <= 9; ++n) {
        for (std::uint32_t bits = 0; bits < (1u << n); ++bits) {
            std::vector<std::uint8_t> tail;
            for (std::uint32_t i = 0; i < n; ++i) {
                tail.push_back(bits >> i & 1);
            }
            for (std::uint64_t needed = 1; needed <= 4; ++needed) {
                CHECK_EQ(sac::with_tails(tail.data(), n, needed), by_definition(tail, needed));
            }
        }
    }
}

TEST(the_longest_prefix_stops_at_a_gap) {
    const auto pool = kit::pool(2 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 1024));
    const auto k = kit::keys(0, 10);
    CHECK_EQ(kit::put(ns, kit::keys(0, 4)), 4u);
    CHECK_EQ(kit::put(ns, kit::keys(5, 3)), 3u);
    CHECK_EQ(kit::hits(ns, k), 7u);
    CHECK_EQ(kit::longest(ns, k), 4u);
    const auto prefix = kit::pin(ns, k);
    CHECK_EQ(kit::pages(prefix), 4u);
    CHECK_EQ(kit::stats(ns).pinned, 4u);
    std::uint64_t tokens = 0;
    MUST(sac_prefix_tokens(prefix.get(), &tokens));
    CHECK_EQ(tokens, 64u);
    std::vector<sac_handle> handles(4);
    std::uint64_t count = 2;
    MUST(sac_prefix_handles(prefix.get(), handles.data(), &count));  // never past the room
    CHECK_EQ(count, 4u);
    CHECK_EQ(handles[2].generation, 0u);
    MUST(sac_prefix_handles(prefix.get(), handles.data(), &count));
    for (const sac_handle &h : handles) {
        CHECK(h.generation != 0);
        CHECK_EQ(h.part, 0u);
    }
    const auto none = kit::pin(ns, kit::keys(900, 2));
    CHECK_EQ(kit::pages(none), 0u);
    const auto empty = kit::pin(ns, {});
    CHECK_EQ(kit::pages(empty), 0u);
}

TEST(a_tail_that_leaves_makes_the_prefix_shorter) {
    const auto pool = kit::pool(8 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::rich(16, 20));  // two last pages need tails
    const auto k = kit::keys(0, 8);
    kit::PutOptions o;
    o.first_tail = 0;
    CHECK_EQ(kit::put(ns, k, o), 8u);
    CHECK_EQ(kit::longest(ns, k), 8u);
    evict_tail(ns, 7);
    CHECK_EQ(kit::longest(ns, k), 7u);
    evict_tail(ns, 5);  // pages 0-4 are the longest whose last two have tails
    CHECK_EQ(kit::longest(ns, k), 5u);
    CHECK_EQ(kit::hits(ns, k), 8u);  // the bodies are all there
    {
        const auto prefix = kit::pin(ns, k);
        CHECK_EQ(kit::pages(prefix), 5u);
        CHECK_EQ(kit::stats(ns).pinned, 5u + 2u);
        CHECK(kit::intact(ns, prefix, k));
        std::uint64_t rows = 0;
        MUST(sac_prefix_rows(prefix.get(), 2, 0, &rows));
        CHECK_EQ(rows, 80u);
        const void *at = nullptr;
        std::uint64_t bytes = 0;
        MUST(sac_prefix_view(prefix.get(), 4, 2, 0, &at, &bytes));
        MUST(sac_prefix_view(prefix.get(), 3, 3, 1, &at, &bytes));
        CHECK_EQ(bytes, 72u);
        CHECK_EQ(sac_prefix_view(prefix.get(), 2, 2, 0, &at, &bytes), as_int(SAC_E_RANGE));
        CHECK_EQ(sac_prefix_view(prefix.get(), 5, 0, 0, &at, &bytes), as_int(SAC_E_RANGE));
        CHECK_EQ(sac_prefix_view(prefix.get(), UINT64_MAX, 0, 0, &at, &bytes),
                 as_int(SAC_E_RANGE));
    }
    CHECK_EQ(kit::stats(ns).pinned, 0u);
    // A new put of the same keys brings back what is missing: the two tails of the last pages.
    CHECK_EQ(kit::put(ns, k), 0u);
    CHECK_EQ(kit::longest(ns, k), 8u);
}

TEST(a_body_takes_its_tail_along) {
    const auto pool = kit::pool(8 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::rich(16, 20));
    kit::PutOptions o;
    o.first_tail = 0;
    CHECK_EQ(kit::put(ns, kit::keys(0, 4), o), 4u);
    CHECK_EQ(kit::evict(ns, 2), 2u);
    const sac_ns_stats s = kit::stats(ns);
    CHECK_EQ(s.pages, 2u);
    CHECK_EQ(s.tails, 2u);
    CHECK_EQ(kit::longest(ns, kit::keys(0, 4)), 2u);
}

TEST(a_page_that_fails_its_checksum_is_stale_for_who_holds_it) {
    const auto pool = kit::pool(2 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 1024), 0, SAC_NS_DATA_CHECKSUM);
    const auto k = kit::keys(0, 4);
    CHECK_EQ(kit::put(ns, k), 4u);
    const auto prefix = kit::pin(ns, k), first = kit::pin(ns, kit::keys(0, 1));
    const void *rows = nullptr;
    std::uint64_t bytes = 0, checked = 0, dropped = 0;
    MUST(sac_prefix_view(prefix.get(), 2, 0, 0, &rows, &bytes));
    static_cast<std::uint8_t *>(const_cast<void *>(rows))[5] ^= 1;
    MUST(sac_verify(ns.get(), &checked, &dropped));
    CHECK_EQ(checked, 4u);
    CHECK_EQ(dropped, 1u);
    CHECK_EQ(kit::longest(ns, k), 2u);
    std::vector<std::uint8_t> out(64 * 1024);
    sac_gather_req r{};
    r.prefix = prefix.get(), r.count = 64, r.dst = out.data();
    CHECK_EQ(sac_gather(ns.get(), &r, 1, 0, 1, nullptr), as_int(SAC_E_STALE));
    CHECK_EQ(sac_prefix_view(prefix.get(), 0, 0, 0, &rows, &bytes), as_int(SAC_E_STALE));
    r.prefix = first.get(), r.count = 16;
    MUST(sac_gather(ns.get(), &r, 1, 0, 1, nullptr));  // its own pages are there
    CHECK_EQ(kit::put(ns, kit::keys(2, 1)), 1u);
    CHECK_EQ(kit::longest(ns, k), 4u);
    CHECK_EQ(sac_gather(ns.get(), &(r.prefix = prefix.get(), r), 1, 0, 1, nullptr),
             as_int(SAC_E_STALE));
}

TEST(a_forced_out_slot_waits_for_its_readers) {
    const auto pool = kit::pool(2 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 32768), 0, SAC_NS_DATA_CHECKSUM);
    CHECK_EQ(kit::put(ns, kit::keys(0, 4)), 4u);  // the slab is full
    auto prefix = kit::pin(ns, kit::keys(0, 4));
    const void *rows = nullptr;
    std::uint64_t bytes = 0, dropped = 0;
    MUST(sac_prefix_view(prefix.get(), 3, 0, 0, &rows, &bytes));
    static_cast<std::uint8_t *>(const_cast<void *>(rows))[5] ^= 1;
    MUST(sac_verify(ns.get(), nullptr, &dropped));
    CHECK_EQ(dropped, 1u);
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(10, 1), put), as_int(SAC_E_NO_SPACE));
    prefix.reset();
    CHECK_EQ(kit::put(ns, kit::keys(10, 1)), 1u);
    CHECK_EQ(kit::stats(ns).pages, 4u);
}
