// SPDX-License-Identifier: Apache-2.0
// Puts from GPU memory, on the fake driver: every order of the dimensions, and what holds while
// the GPU is not done.
#include <atomic>
#include <chrono>
#include <thread>

#include "gpu_move_kit.hpp"
#include "sac_gpu.h"

using namespace move_kit;
using kit::must;

namespace {

constexpr std::uint64_t kPages = 5;

int as_int(sac_status s) { return static_cast<int>(s); }

struct World {
    GpuHandle gpu = move_kit::gpu();
    kit::PoolHandle pool = kit::pool(16 * kit::kMiB);
    kit::NsHandle ns;
    MoverHandle mover;
    explicit World(const kit::Layout &layout = kit::rich(8, 12))
        : ns(kit::space(pool, "ns", layout)), mover(move_kit::mover(gpu, ns)) {}

    int put(sac_put *p, const sac_gpu_rows &rows) {
        return sac_gpu_put(mover.get(), p, &rows, 1, 0);
    }
    void put_all(sac_put *p, const std::vector<std::unique_ptr<Tensor>> &all) {
        for (const auto &t : all)
            must(put(p, t->rows), "sac_gpu_put");
    }
};

std::uint32_t quiet(sac_put *put) {
    std::uint32_t out = 2;
    must(sac_gpu_put_quiet(put, &out), "sac_gpu_put_quiet");
    return out;
}

}  // namespace

TEST(every_order_arrives_as_it_was) {
    World w;
    std::uint64_t first = 0;
    for (const Order order : {Order::layer_token, Order::page_layer, Order::layer_page_head})
        for (const bool shuffled : {false, true})
            for (const bool on_gpu : {false, true}) {
                const auto keys = kit::keys(first, kPages);
                first += kPages;
                kit::PutHandle put;
                must(kit::begin(w.ns, keys, put), "begin");
                const auto all = tensors(w.ns, put.get(), keys, order, shuffled);
                for (const auto &t : all)
                    t->rows.slots_on_gpu = on_gpu;
                w.put_all(put.get(), all);
                std::uint64_t n = 0;
                MUST(sac_put_commit(put.get(), &n));
                CHECK_EQ(n, kPages);
                const auto prefix = kit::pin(w.ns, keys);
                CHECK_EQ(kit::pages(prefix), kPages);
                CHECK(kit::intact(w.ns, prefix, keys));
            }
}

TEST(layers_and_pages_can_come_one_by_one) {
    World w;
    const auto keys = kit::keys(0, kPages);
    kit::PutHandle put;
    must(kit::begin(w.ns, keys, put), "begin");
    for (const auto &t : tensors(w.ns, put.get(), keys, Order::layer_token, false))
        for (std::uint32_t l = 0; l < t->layers.size(); ++l)
            for (std::uint64_t page = 0; page < t->rows.count; ++page) {
                sac_gpu_rows one = t->rows;
                const sac::Geometry &g = w.ns->it->geometry();
                const std::uint64_t source =
                    t->sources[l] +
                    page * g.at[one.plane].rows * static_cast<std::uint64_t>(one.row_stride);
                one.layer_count = 1, one.layers = &t->layers[l], one.sources = &source;
                one.first = page, one.count = 1;
                MUST(w.put(put.get(), one));
            }
    MUST(sac_put_commit(put.get(), nullptr));
    CHECK(kit::intact(w.ns, kit::pin(w.ns, keys), keys));
}

TEST(a_layer_that_was_not_given_keeps_all_back) {
    World w;
    const auto keys = kit::keys(0, kPages);
    kit::PutHandle put;
    must(kit::begin(w.ns, keys, put), "begin");
    const auto all = tensors(w.ns, put.get(), keys, Order::layer_token, false);
    all[0]->rows.layer_count = 1;
    w.put_all(put.get(), all);
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_INCOMPLETE));
    CHECK_EQ(kit::longest(w.ns, keys), 0u);
}

TEST(a_commit_waits_for_its_own_event_and_quiet_for_none) {
    World w;
    const auto keys = kit::keys(0, kPages);
    kit::PutHandle put;
    must(kit::begin(w.ns, keys, put), "begin");
    const auto all = tensors(w.ns, put.get(), keys, Order::layer_token, false);
    std::atomic<bool> over{false};
    std::thread commit;
    {
        const gpu_kit::Turned held("hold_events", 1);
        w.put_all(put.get(), all);
        CHECK_EQ(quiet(put.get()), 0u);
        const long waits = gpu_kit::get("waits");
        commit = std::thread([&] {
            must(sac_put_commit(put.get(), nullptr), "commit");
            over = true;
        });
        while (gpu_kit::get("waits") == waits)
            std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK(!over);
        CHECK_EQ(kit::longest(w.ns, keys), 0u);
    }
    commit.join();
    CHECK(over);
    CHECK(kit::intact(w.ns, kit::pin(w.ns, keys), keys));
}

TEST(pages_stay_the_puts_until_the_gpu_has_ended) {
    World w;
    const auto keys = kit::keys(0, kPages);
    kit::PutHandle put;
    must(kit::begin(w.ns, keys, put), "begin");
    const auto all = tensors(w.ns, put.get(), keys, Order::layer_token, false);
    const std::uint64_t reserved = kit::stats(w.ns).reserved;
    CHECK(reserved != 0);
    std::atomic<bool> over{false};
    std::thread close;
    {
        const gpu_kit::Turned held("hold_events", 1);
        w.put_all(put.get(), all);
        close = std::thread([&] {
            put.reset();
            over = true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        CHECK(!over);
        CHECK_EQ(kit::stats(w.ns).reserved, reserved);
    }
    close.join();
    CHECK_EQ(kit::stats(w.ns).reserved, 0u);
    CHECK_EQ(kit::longest(w.ns, keys), 0u);
}

TEST(a_wrong_slot_commits_nothing) {
    World w;
    for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{1} << 40, INT64_MIN}) {
        const auto keys = kit::keys(0, kPages);
        kit::PutHandle put;
        must(kit::begin(w.ns, keys, put), "begin");
        const auto all = tensors(w.ns, put.get(), keys, Order::page_layer, true);
        all[1]->slots[3] = bad;
        w.put_all(put.get(), all);
        CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_RANGE));
        CHECK(gpu_kit::says(sac_last_error()->message, "slot"));
        CHECK_EQ(kit::longest(w.ns, keys), 0u);
    }
}

TEST(bad_input_is_refused_with_the_plane_named) {
    World w;
    const auto keys = kit::keys(0, kPages);
    kit::PutHandle put;
    must(kit::begin(w.ns, keys, put), "begin");
    const auto all = tensors(w.ns, put.get(), keys, Order::layer_token, false);
    const sac_gpu_rows good = all[0]->rows;
    const auto refused = [&](sac_status status, auto &&change) {
        sac_gpu_rows bad = good;
        change(bad);
        CHECK_EQ(w.put(put.get(), bad), as_int(status));
    };
    const std::uint32_t nowhere[] = {63, 1};
    const std::uint64_t nothing[] = {0, 0};
    refused(SAC_E_RANGE, [](auto &r) { r.plane = 99; });
    refused(SAC_E_RANGE, [&](auto &r) { r.layers = nowhere; });
    refused(SAC_E_ARG, [&](auto &r) { r.sources = nothing; });
    refused(SAC_E_ARG, [](auto &r) { r.layer_count = 0; });
    refused(SAC_E_RANGE, [](auto &r) { r.count = kPages + 1; });
    refused(SAC_E_RANGE, [](auto &r) { r.first = 1; });
    refused(SAC_E_RANGE, [](auto &r) { r.first = UINT64_MAX; });
    refused(SAC_E_ARG, [](auto &r) { r.count = UINT64_MAX; });
    refused(SAC_E_RANGE, [](auto &r) { r.source_rows = 3; });
    refused(SAC_E_ARG, [](auto &r) { r.source_rows = 0; });
    refused(SAC_E_ARG, [](auto &r) { r.row_stride = 0; });
    refused(SAC_E_ARG, [](auto &r) { r.head_stride = 0; });
    refused(SAC_E_ARG, [](auto &r) { r.block_rows = 8; });
    {
        const gpu_kit::Turned capturing("capturing", 1);
        refused(SAC_E_ARG, [](auto &) {});
    }
    CHECK_EQ(sac_gpu_put(nullptr, put.get(), &good, 1, 0), as_int(SAC_E_ARG));
    CHECK_EQ(sac_put_commit(put.get(), nullptr), as_int(SAC_E_INCOMPLETE));

    World other;
    CHECK_EQ(sac_gpu_put(other.mover.get(), put.get(), &good, 1, 0), as_int(SAC_E_ARG));
    w.put_all(put.get(), all);
    MUST(sac_put_commit(put.get(), nullptr));
    CHECK_EQ(w.put(put.get(), good), as_int(SAC_E_CLOSED));
}

TEST(a_pool_that_cuda_does_not_register_is_said_plainly) {
    const gpu_kit::Turned refuse("can_register", 0);
    World w;
    const auto keys = kit::keys(0, kPages);
    kit::PutHandle put;
    must(kit::begin(w.ns, keys, put), "begin");
    const auto all = tensors(w.ns, put.get(), keys, Order::layer_token, false);
    CHECK_EQ(w.put(put.get(), all[0]->rows), as_int(SAC_E_GPU));
    CHECK_EQ(quiet(put.get()), 1u);
}

TEST(a_sequence_takes_rows_that_begin_inside_a_page) {
    World w(kit::plain(8, 40));
    const sac::Geometry &g = w.ns->it->geometry();
    std::vector<std::uint32_t> tokens(27);
    std::iota(tokens.begin(), tokens.end(), 1u);
    sac_seq *opened = nullptr;
    MUST(sac_seq_open(w.ns.get(), nullptr, 0, nullptr, 0, &opened));
    kit::SeqHandle seq(opened);
    Tensor t(g, 0, Order::layer_token, {11, 12, 13, 14}, 32, true);
    std::uint64_t at = 0;
    for (const std::uint64_t n : {3u, 10u, 14u}) {
        MUST(sac_seq_extend(seq.get(), tokens.data() + at, n, 0));
        sac_gpu_rows r = t.rows;
        r.slots += at, r.first = at, r.count = n;
        MUST(sac_gpu_put_sequence(w.mover.get(), seq.get(), &r, 1, 0));
        at += n;
    }
    std::uint64_t committed = 0;
    MUST(sac_seq_flush(seq.get(), &committed));
    std::vector<std::uint8_t> got(27 * 40), want(40);
    sac_gather_req req{};
    req.prefix = sac_seq_view(seq.get()), req.count = 27, req.dst = got.data();
    MUST(sac_gather(w.ns.get(), &req, 1, 0, 1, nullptr));
    for (std::uint64_t i = 0; i < 27; ++i) {
        kit::fill_row(11 + i / 8, 0, 0, 0, i % 8, want.data(), 40);
        CHECK(std::memcmp(want.data(), got.data() + i * 40, 40) == 0);
    }
    // Rows that are committed, or not there yet, are refused.
    for (const auto &[first, count] :
         {std::pair<std::uint64_t, std::uint64_t>{0, 1}, {27, 1}}) {
        sac_gpu_rows r = t.rows;
        r.first = first, r.count = count;
        CHECK_EQ(sac_gpu_put_sequence(w.mover.get(), seq.get(), &r, 1, 0), as_int(SAC_E_RANGE));
    }
}

TEST(a_sequences_page_is_committed_behind_the_event_and_stays_when_closed) {
    World w(kit::plain(8, 40));
    std::vector<std::uint32_t> tokens(8, 7);
    sac_seq *opened = nullptr;
    MUST(sac_seq_open(w.ns.get(), nullptr, 0, nullptr, 0, &opened));
    kit::SeqHandle seq(opened);
    MUST(sac_seq_extend(seq.get(), tokens.data(), 8, 0));
    Tensor t(w.ns->it->geometry(), 0, Order::layer_token, {11}, 8, false);
    sac_gpu_rows r = t.rows;
    r.count = 8;
    std::uint64_t committed = 7;
    {
        const gpu_kit::Turned held("hold_events", 1);
        MUST(sac_gpu_put_sequence(w.mover.get(), seq.get(), &r, 1, 0));
        MUST(sac_seq_flush(seq.get(), &committed));
        CHECK_EQ(committed, 0u);
    }
    MUST(sac_seq_flush(seq.get(), &committed));
    CHECK_EQ(committed, 1u);
    MUST(sac_seq_extend(seq.get(), tokens.data(), 8, 0));
    r.first = 8;
    {
        const gpu_kit::Turned held("hold_events", 1);
        MUST(sac_gpu_put_sequence(w.mover.get(), seq.get(), &r, 1, 0));
        seq.reset();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK_EQ(kit::stats(w.ns).reserved, 1u);
    }
    for (int i = 0; i < 2000 && kit::stats(w.ns).reserved != 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_EQ(kit::stats(w.ns).reserved, 0u);
}
