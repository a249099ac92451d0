// SPDX-License-Identifier: Apache-2.0
#include "sequence.hpp"

#include <atomic>
#include <thread>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

// The row that a token has, whatever page it comes to lie in.
void token_row(std::uint64_t row, std::uint32_t plane, std::uint32_t layer, std::uint32_t head,
               std::uint8_t *out, std::uint32_t bytes) {
    kit::fill_row(77, plane, layer, head, row, out, bytes);
}

struct Growing {
    kit::PoolHandle pool = kit::pool(16 * kit::kMiB);
    kit::NsHandle ns;
    kit::SeqHandle seq;
    std::vector<std::uint32_t> tokens;

    explicit Growing(const kit::Layout &layout) : ns(kit::space(pool, "ns", layout)) {
        for (std::uint32_t i = 0; i < 4096; ++i) {
            tokens.push_back(i * 7 + 1);
        }
    }
    std::uint64_t open(std::uint64_t known) {
        sac_seq *raw = nullptr;
        seq.reset();
        MUST(sac_seq_open(ns.get(), tokens.data(), known, "salt", 4, &raw));
        seq.reset(raw);
        return stored();
    }
    std::uint64_t stored() const {
        std::uint64_t n = 0;
        MUST(sac_prefix_tokens(sac_seq_view(seq.get()), &n));
        return n;
    }
    int extend(std::uint64_t count) {
        return sac_seq_extend(seq.get(), tokens.data() + stored(), count, 0);
    }
    // Rows [from, to) in tokens of every plane of the given kinds.
    void write(std::uint64_t from, std::uint64_t to, bool states = true) {
        const sac::Geometry &g = ns->it->geometry();
        kit::each_pair(g, [&](std::uint32_t p, std::uint32_t l) {
            const sac_plane &plane = g.planes[p];
            if (plane.kind == SAC_PLANE_STATE && !states) {
                return;
            }
            const std::uint64_t per =
                plane.kind == SAC_PLANE_STATE ? g.page_tokens : plane.tokens_per_row;
            const std::uint64_t first = from / per, n = (to + per - 1) / per - first;
            std::vector<std::uint8_t> rows(plane.heads * n * plane.row_bytes);
            for (std::uint32_t h = 0; h < plane.heads; ++h) {
                for (std::uint64_t r = 0; r < n; ++r) {
                    token_row(first + r, p, l, h, rows.data() + (h * n + r) * plane.row_bytes,
                              plane.row_bytes);
                }
            }
            const sac_scatter_req req{p, l, first, n, rows.data(), 0, n * plane.row_bytes, 0};
            MUST(sac_seq_write(seq.get(), &req, 1, 1));
        });
    }
    // Rows of one plane and layer through a gather; the status of the call, or 99 for other
    // bytes than expected.
    int gathers(std::uint32_t p, std::uint32_t l, std::int64_t from, std::int64_t to,
                const sac_prefix *prefix = nullptr) const {
        const sac_plane &plane = ns->it->geometry().planes[p];
        std::vector<std::int64_t> index;
        for (std::int64_t i = to; i-- > from;) {
            index.push_back(i);
        }
        for (std::uint32_t h = 0; h < plane.heads; ++h) {
            std::vector<std::uint8_t> out(index.size() * plane.row_bytes),
                want(plane.row_bytes);
            sac_gather_req r{};
            r.prefix = prefix ? prefix : sac_seq_view(seq.get());
            r.plane = p, r.layer = l, r.head = h, r.index = index.data(), r.index_bytes = 8;
            r.count = index.size(), r.dst = out.data();
            if (const int status = sac_gather(ns.get(), &r, 1, 0, 1, nullptr);
                status != SAC_OK) {
                return status;
            }
            for (std::size_t i = 0; i < index.size(); ++i) {
                token_row(static_cast<std::uint64_t>(index[i]), p, l, h, want.data(),
                          plane.row_bytes);
                if (std::memcmp(out.data() + i * plane.row_bytes, want.data(), want.size())) {
                    return 99;
                }
            }
        }
        return SAC_OK;
    }
};

}  // namespace

TEST(token_by_token) {
    Growing s(kit::rich(16, 20));
    CHECK_EQ(s.open(0), 0u);
    for (std::uint64_t t = 0; t < 70; ++t) {
        MUST(s.extend(1));
        s.write(t, t + 1, t % 16 == 15);
        CHECK_EQ(s.stored(), t + 1);
        CHECK_EQ(s.gathers(0, 2, 0, static_cast<std::int64_t>(t) + 1), 0);
        CHECK_EQ(s.gathers(1, 1, 0, static_cast<std::int64_t>(t) + 1), 0);
        // The whole window at every step, also where it spans three pages.
        const std::int64_t from = t < 20 ? 0 : static_cast<std::int64_t>(t) - 19;
        CHECK_EQ(s.gathers(2, 0, from, static_cast<std::int64_t>(t) + 1), 0);
        CHECK_EQ(s.gathers(0, 0, 0, static_cast<std::int64_t>(t) + 2), as_int(SAC_E_RANGE));
    }
    std::uint64_t n = 9;
    MUST(sac_seq_flush(s.seq.get(), &n));
    CHECK_EQ(n, 0u);  // four pages were committed on the way
    CHECK_EQ(kit::stats(s.ns).pages, 4u);
    CHECK_EQ(s.open(70), 64u);
    CHECK_EQ(s.gathers(0, 0, 0, 64), 0);
    CHECK_EQ(s.gathers(3, 1, 3, 4), 0);
    CHECK_EQ(kit::stats(s.ns).reserved, 0u);
}

// A prompt in one step, its last page unfinished: what is stored is found again.
TEST(an_unfinished_page_does_not_cost_the_prefix) {
    for (const bool state : {false, true}) {
        Growing s(kit::rich(16, 20, state));
        CHECK_EQ(s.open(56), 0u);
        MUST(s.extend(56));  // three and a half pages
        s.write(0, 56);
        std::uint64_t n = 0;
        MUST(sac_seq_flush(s.seq.get(), &n));
        CHECK_EQ(n, 3u);
        CHECK_EQ(s.gathers(2, 0, 36, 56), 0);
        CHECK_EQ(s.gathers(0, 0, 0, 56), 0);
        CHECK_EQ(s.open(56), 48u);
        CHECK_EQ(s.gathers(2, 0, 28, 48), 0);
        if (state) {
            CHECK_EQ(s.gathers(3, 0, 2, 3), 0);
        }
    }
}

TEST(rows_must_be_there_before_more_tokens_come) {
    Growing s(kit::plain(16, 64));
    s.open(0);
    MUST(s.extend(16));
    s.write(0, 15);
    CHECK_EQ(s.extend(1), as_int(SAC_E_INCOMPLETE));
    CHECK_EQ(s.stored(), 16u);
    s.write(15, 16);
    MUST(s.extend(1));
    CHECK_EQ(s.stored(), 17u);
    std::vector<std::uint8_t> row(64);
    const auto at = [&](std::uint64_t first, std::uint64_t count) {
        const sac_scatter_req r{0, 0, first, count, row.data(), 0, 0, 0};
        return sac_seq_write(s.seq.get(), &r, 1, 1);
    };
    CHECK_EQ(at(15, 1), as_int(SAC_E_RANGE));  // committed
    CHECK_EQ(at(17, 1), as_int(SAC_E_RANGE));  // no token yet
    CHECK_EQ(at(16, UINT64_MAX), as_int(SAC_E_RANGE));
    CHECK_EQ(at(UINT64_MAX, 1), as_int(SAC_E_RANGE));
    MUST(at(16, 1));
}

TEST(rows_in_any_order_are_seen_up_to_the_first_gap) {
    Growing s(kit::plain(16, 64));
    s.open(0);
    MUST(s.extend(40));
    s.write(20, 40);
    CHECK_EQ(s.gathers(0, 0, 0, 1), as_int(SAC_E_RANGE));
    s.write(0, 10);
    CHECK_EQ(s.gathers(0, 0, 0, 10), 0);
    CHECK_EQ(s.gathers(0, 0, 0, 11), as_int(SAC_E_RANGE));
    s.write(10, 20);
    CHECK_EQ(s.gathers(0, 0, 0, 40), 0);
}

TEST(two_sequences_of_the_same_tokens) {
    Growing a(kit::rich(16, 20));
    a.open(0);
    kit::SeqHandle other;
    sac_seq *raw = nullptr;
    MUST(sac_seq_open(a.ns.get(), a.tokens.data(), 0, "salt", 4, &raw));
    other.reset(raw);
    MUST(a.extend(32));
    MUST(sac_seq_extend(other.get(), a.tokens.data(), 32, 0));
    a.write(0, 32);
    a.seq.swap(other);
    a.write(0, 32);
    a.seq.swap(other);
    std::uint64_t n = 0;
    MUST(sac_seq_flush(a.seq.get(), &n));
    CHECK_EQ(n, 2u);
    MUST(sac_seq_flush(other.get(), &n));  // its pages give way to those that are there
    const sac_ns_stats s = kit::stats(a.ns);
    CHECK_EQ(s.pages, 2u);
    CHECK_EQ(s.duplicates, 4u);
    CHECK_EQ(s.reserved, 0u);
    CHECK_EQ(kit::evict(a.ns, 100), 0u);  // both hold them
    a.seq.reset();
    CHECK_EQ(kit::evict(a.ns, 100), 0u);
    a.seq.swap(other);
    CHECK_EQ(a.gathers(0, 0, 0, 32), 0);
    a.seq.reset();
    CHECK_EQ(kit::evict(a.ns, 100), 2u);
}

TEST(nothing_is_appended_where_there_is_no_room) {
    Growing s(kit::plain(16, 8192));
    const auto small = kit::space(s.pool, "small", kit::plain(16, 8192), 2 * kit::kMiB);
    sac_seq *raw = nullptr;
    MUST(sac_seq_open(small.get(), nullptr, 0, nullptr, 0, &raw));
    const kit::SeqHandle seq(raw);
    CHECK_EQ(sac_seq_extend(raw, s.tokens.data(), 17 * 16, 0), as_int(SAC_E_NO_SPACE));
    std::uint64_t n = 9;
    MUST(sac_prefix_tokens(sac_seq_view(raw), &n));
    CHECK_EQ(n, 0u);
    MUST(sac_seq_extend(raw, s.tokens.data(), 16 * 16, 0));
    CHECK_EQ(kit::stats(small).reserved, 16u);
}

// Ends in time only if readers let a writer in: some reader always holds the lock.
TEST(readers_do_not_keep_a_writer_out) {
    Growing g(kit::rich(16, 20));
    CHECK_EQ(g.open(0), 0u);
    MUST(g.extend(32));
    g.write(0, 32);
    std::atomic<bool> done{false};
    std::atomic<std::uint64_t> seen{0};
    std::vector<std::thread> readers;
    for (int r = 0; r < 4; ++r) {
        readers.emplace_back([&] {
            const auto *const view = sac_seq_view(g.seq.get());
            std::uint64_t n = 0;
            while (!done.load()) {
                for (int i = 0; i < 50; ++i) {
                    const auto held = view->it->lock();
                    n += view->it->pages();
                }
                seen.fetch_add(n);
            }
        });
    }
    while (seen.load() == 0) {
        std::this_thread::yield();
    }
    for (int i = 0; i < 200; ++i) {
        MUST(g.extend(0));
    }
    done.store(true);
    for (std::thread &t : readers) {
        t.join();
    }
    CHECK(seen.load() > 0);
}

TEST(a_closed_sequence_gives_its_pages_up) {
    Growing s(kit::rich(16, 20));
    s.open(0);
    MUST(s.extend(20));
    CHECK(kit::stats(s.ns).reserved > 0);
    s.seq.reset();
    const sac_ns_stats now = kit::stats(s.ns);
    CHECK_EQ(now.reserved, 0u);
    CHECK_EQ(now.pinned, 0u);
    CHECK_EQ(now.pages, 0u);
}
