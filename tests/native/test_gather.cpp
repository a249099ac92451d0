// SPDX-License-Identifier: Apache-2.0
#include "gather.hpp"

#include <atomic>
#include <thread>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

struct Filled {
    kit::PoolHandle pool = kit::pool(16 * kit::kMiB);
    kit::NsHandle ns;
    std::vector<std::uint8_t> keys;
    kit::PrefixHandle prefix;

    explicit Filled(const kit::Layout &layout, std::uint64_t pages = 6)
        : ns(kit::space(pool, "ns", layout)), keys(kit::keys(0, pages)) {
        kit::PutOptions o;
        o.first_tail = 0;
        CHECK_EQ(kit::put(ns, keys, o), pages);
        prefix = kit::pin(ns, keys);
    }
    const sac::Geometry &g() const { return ns->it->geometry(); }
    sac_gather_req req(std::uint32_t plane, std::uint32_t layer, void *dst,
                       std::uint64_t count) const {
        sac_gather_req r{};
        r.prefix = prefix.get(), r.plane = plane, r.layer = layer, r.count = count, r.dst = dst;
        return r;
    }
    std::vector<std::uint8_t> row(std::uint32_t plane, std::uint32_t layer, std::uint32_t head,
                                  std::int64_t row) const {
        std::vector<std::uint8_t> out(g().planes[plane].row_bytes, 0);
        if (row >= 0) {
            const auto r = static_cast<std::uint64_t>(row),
                       per = std::uint64_t{g().at[plane].rows};
            kit::fill_row(kit::seed_of(keys.data() + r / per * 32), plane, layer, head, r % per,
                          out.data(), g().planes[plane].row_bytes);
        }
        return out;
    }
};

}  // namespace

// Random rows of every plane, layer and head; both widths of index, some of them -1; with and
// without threads, streaming stores and room between the rows.
TEST(the_rows_that_were_put) {
    kit::Layout layout = kit::rich(24, 60);  // 24 rows a page: not a power of two
    layout.planes.push_back(kit::plane("packed", 0x8000000000000001, 32));
    layout.planes.back().tokens_per_row = 4, layout.planes.back().group = 9;
    const Filled f(layout);
    std::uint64_t random = 1;
    kit::each_pair(f.g(), [&](std::uint32_t p, std::uint32_t l) {
        const sac_plane &plane = f.g().planes[p];
        const std::uint64_t pages = f.g().at[p].part == sac::kTailPart ? 3 : 6;
        const std::uint64_t rows = 6 * std::uint64_t{f.g().at[p].rows};
        const std::uint64_t low = rows - pages * f.g().at[p].rows;
        for (const std::uint64_t count :
             {std::uint64_t{1}, std::uint64_t{37}, std::uint64_t{5000}}) {
            std::vector<std::int64_t> wide;
            std::vector<std::int32_t> narrow;
            for (std::uint64_t i = 0; i < count; ++i) {
                random = kit::mix(random);
                wide.push_back(random % 11 == 0 ? -1
                                                : static_cast<std::int64_t>(
                                                      low + (random >> 8) % (rows - low)));
                narrow.push_back(static_cast<std::int32_t>(wide.back()));
            }
            for (const std::uint32_t how : {0u, 1u, 2u, 3u}) {
                const std::uint64_t pitch = plane.row_bytes + (how == 2 ? 17 : 0);
                std::vector<std::uint8_t> out(count * pitch, 0xee);
                sac_gather_req r = f.req(p, l, out.data(), count);
                r.head = plane.heads - 1;
                r.index = how & 1 ? static_cast<const void *>(narrow.data()) : wide.data();
                r.index_bytes = how & 1 ? 4 : 8;
                r.dst_pitch = how == 2 ? pitch : 0;
                MUST(sac_gather(f.ns.get(), &r, 1, how == 3 ? SAC_GATHER_STREAM : 0, how + 1,
                                nullptr));
                for (std::uint64_t i = 0; i < count; ++i) {
                    const auto want = f.row(p, l, r.head, wide[i]);
                    CHECK(std::memcmp(out.data() + i * pitch, want.data(), want.size()) == 0);
                    CHECK(pitch == want.size() || out[i * pitch + want.size()] == 0xee);
                }
            }
        }
    });
}

TEST(all_rows_without_an_index) {
    const Filled f(kit::rich(24, 0, false));
    for (std::uint32_t p = 0; p < 2; ++p) {
        const std::uint32_t l = p == 0 ? 2 : 1;
        const std::uint64_t rows = 6 * 24;
        std::vector<std::uint8_t> out(rows * f.g().planes[p].row_bytes);
        const sac_gather_req r = f.req(p, l, out.data(), rows);
        for (const std::uint32_t threads : {1u, 2u}) {
            std::fill(out.begin(), out.end(), std::uint8_t{0});
            MUST(sac_gather(f.ns.get(), &r, 1, 0, threads, nullptr));
            for (std::uint64_t i = 0; i < rows; ++i) {
                const auto want = f.row(p, l, 0, static_cast<std::int64_t>(i));
                CHECK(std::memcmp(out.data() + i * want.size(), want.data(), want.size()) == 0);
            }
        }
    }
}

TEST(several_requests_in_one_call) {
    const Filled f(kit::rich(24, 0, false));
    std::vector<std::vector<std::uint8_t>> out(70);
    std::vector<std::vector<std::int32_t>> index(70);
    std::vector<sac_gather_req> reqs;
    const auto shorter = kit::pin(f.ns, kit::keys(0, 2));
    for (std::uint32_t i = 0; i < out.size(); ++i) {
        const std::uint64_t n = i % 7;  // also none
        for (std::uint64_t k = 0; k < n; ++k) {
            index[i].push_back(static_cast<std::int32_t>(kit::mix(i * 100 + k) % 48));
        }
        out[i].resize(n * 48 + 1, 0xee);
        sac_gather_req r = f.req(0, i % 2 * 2, out[i].data(), n);
        r.head = i % 2, r.index = index[i].data(), r.index_bytes = 4;
        r.prefix = i % 3 ? f.prefix.get() : shorter.get();
        reqs.push_back(r);
    }
    const std::uint64_t before = kit::stats(f.ns).rows_gathered;
    std::uint64_t failed = 0, rows = 0;
    MUST(sac_gather(f.ns.get(), reqs.data(), reqs.size(), 0, 2, &failed));
    CHECK_EQ(failed, reqs.size());
    for (std::uint32_t i = 0; i < out.size(); ++i) {
        for (std::size_t k = 0; k < index[i].size(); ++k, ++rows) {
            const auto want = f.row(0, i % 2 * 2, i % 2, index[i][k]);
            CHECK(std::memcmp(out[i].data() + k * 48, want.data(), 48) == 0);
        }
        CHECK_EQ(out[i].back(), 0xee);
    }
    CHECK_EQ(kit::stats(f.ns).rows_gathered - before, rows);
    CHECK_EQ(kit::stats(f.ns).bytes_gathered % 48, 0u);
    MUST(sac_gather(f.ns.get(), nullptr, 0, 0, 0, &failed));
}

TEST(a_bad_request_writes_nothing_at_all) {
    const Filled f(kit::rich(24, 20));
    std::vector<std::uint8_t> out(48 * 4, 0xee);
    const std::int64_t rows[] = {0, 1, 2, 3};
    const auto refused = [&](int status, auto change) {
        sac_gather_req reqs[2] = {f.req(0, 0, out.data(), 4), f.req(0, 0, out.data(), 4)};
        for (sac_gather_req &r : reqs) {
            r.index = rows, r.index_bytes = 8;
        }
        change(reqs[1]);
        CHECK_EQ(sac_gather(f.ns.get(), reqs, 2, 0, 1, nullptr), status);
        for (const std::uint8_t b : out) {
            CHECK_EQ(b, 0xee);
        }
    };
    for (const std::int64_t bad : {std::int64_t{144}, std::int64_t{-2}, INT64_MAX, INT64_MIN}) {
        const std::int64_t index[] = {0, bad, 2, -1};
        refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.index = index; });
    }
    const std::int32_t narrow[] = {0, 144, INT32_MIN, 1};
    refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.index = narrow, r.index_bytes = 4; });
    refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.index = nullptr, r.count = 145; });
    refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.index = nullptr, r.count = UINT64_MAX; });
    refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.plane = 4; });
    refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.layer = 1; });
    refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.layer = UINT32_MAX; });
    refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.head = 2; });
    refused(SAC_E_RANGE, [&](sac_gather_req &r) { r.plane = 2; });  // outside the window
    refused(SAC_E_ARG, [&](sac_gather_req &r) { r.index_bytes = 2; });
    refused(SAC_E_ARG, [&](sac_gather_req &r) { r.dst = nullptr; });
    refused(SAC_E_ARG, [&](sac_gather_req &r) { r.dst_pitch = 47; });
    refused(SAC_E_ARG, [&](sac_gather_req &r) { r.prefix = nullptr; });
    const Filled other(kit::rich(24, 20));
    refused(SAC_E_ARG, [&](sac_gather_req &r) { r.prefix = other.prefix.get(); });
    sac_gather_req r = f.req(0, 0, out.data(), 1);
    CHECK_EQ(sac_gather(f.ns.get(), &r, 1, 0x80, 1, nullptr), as_int(SAC_E_ARG));
    const auto closed = kit::pin(f.ns, f.keys);
    closed->it->close();
    r.prefix = closed.get();
    CHECK_EQ(sac_gather(f.ns.get(), &r, 1, 0, 1, nullptr), as_int(SAC_E_CLOSED));
}

TEST(gathers_from_several_threads) {
    const Filled f(kit::rich(24, 0, false));
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
            std::vector<std::int32_t> index(600);
            std::vector<std::uint8_t> out(600 * 48);
            for (std::uint64_t round = 0; round < 60; ++round) {
                for (std::size_t i = 0; i < index.size(); ++i) {
                    index[i] =
                        static_cast<std::int32_t>(kit::mix(t << 40 | round << 20 | i) % 144);
                }
                sac_gather_req r = f.req(0, 2, out.data(), index.size());
                r.index = index.data(), r.index_bytes = 4;
                wrong += sac_gather(f.ns.get(), &r, 1, 0, 2, nullptr) != SAC_OK;
                for (std::size_t i = 0; i < index.size(); i += 7) {
                    const auto want = f.row(0, 2, 0, index[i]);
                    wrong += std::memcmp(out.data() + i * 48, want.data(), 48) != 0;
                }
            }
        });
    }
    for (std::thread &t : threads) {
        t.join();
    }
    CHECK_EQ(wrong.load(), 0);
}
