// SPDX-License-Identifier: Apache-2.0
// The threads near a GPU, work under way, and the CPU path of a hot buffer, on the fake driver.
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "gpu/gather_staged.hpp"
#include "gpu/staging_flights.hpp"
#include "gpu/staging_plan.hpp"
#include "gpu/staging_team.hpp"
#include "gpu_move_kit.hpp"

using namespace sac::gpu;

TEST(lists_of_cores) {
    CHECK(parse_cpu_list("0-3,8,10-11\n") == (std::vector<unsigned>{0, 1, 2, 3, 8, 10, 11}));
    CHECK(parse_cpu_list("5") == std::vector<unsigned>{5});
    CHECK(parse_cpu_list("").empty());
    CHECK(parse_cpu_list("x").empty());
    CHECK(parse_cpu_list("7-3").empty());
    CHECK(parse_cpu_list("0-4294967295").empty());
    CHECK(!cores_near(-1).empty());
    CHECK(cores_near(9999) == cores_near(-1));
}

TEST(one_core_is_left_free) {
    CHECK_EQ(team_size(0, 16), 8u);
    CHECK_EQ(team_size(0, 8), 7u);
    CHECK_EQ(team_size(16, 16), 15u);
    CHECK_EQ(team_size(3, 16), 3u);
    CHECK_EQ(team_size(4, 1), 1u);
    CHECK_EQ(team_size(0, 2), 1u);
}

TEST(every_part_runs_once_whoever_calls) {
    Team team(4, cores_near(-1));
    CHECK_EQ(team.threads(), 4u);
    const auto round = [&](std::size_t parts) {
        std::vector<std::atomic<int>> runs(parts);
        team.run(parts, [&](std::size_t p) { ++runs[p]; });
        return std::all_of(runs.begin(), runs.end(), [](const auto &r) { return r == 1; });
    };
    std::atomic<bool> good{true};
    std::vector<std::thread> callers;
    for (int t = 0; t < 3; ++t)
        callers.emplace_back([&, t] {
            for (int i = 0; i < 300; ++i) {
                good = good && round(static_cast<std::size_t>((i * 7 + t) % 40));
                if (i % 100 == 99)  // long enough that the workers sleep
                    std::this_thread::sleep_for(std::chrono::milliseconds(2));
            }
        });
    for (auto &c : callers)
        c.join();
    CHECK(good);
}

TEST(workers_help_and_do_not_take_the_callers_signals) {
    Team team(2, cores_near(-1));
    std::set<std::thread::id> seen;
    std::mutex mutex;
    for (int i = 0; i < 200 && seen.size() < 2; ++i)
        team.run(8, [&](std::size_t) {
            {
                const std::lock_guard lock(mutex);
                seen.insert(std::this_thread::get_id());
            }
            std::this_thread::sleep_for(std::chrono::microseconds(300));
        });
    CHECK_EQ(seen.size(), 2u);
}

TEST(chunks_are_whole_rows) {
    CHECK_EQ(chunk_rows(1000, 1152, 1152 * 10 + 5), 10u);
    CHECK_EQ(chunk_rows(1000, 1152, 1), 1u);
    CHECK_EQ(chunk_rows(3, 1152, 1 << 30), 3u);
    CHECK_EQ(chunk_rows(0, 1152, 0), 1u);
    CHECK_EQ(chunk_rows(2048, 1152, 0), 2048u / 3);  // so that the copy overlaps the gather
}

TEST(what_flies_lands_in_turn_and_drain_waits_for_it) {
    const auto device = gpu_kit::device();
    Flights flights(device);
    std::vector<int> order;
    const auto kept = std::make_shared<int>(0);
    {
        const gpu_kit::Turned held("hold_events", 1);
        for (int i = 0; i < 3; ++i) {
            const auto event = std::make_shared<Event>(device);
            event->record(0);
            flights.add(event,
                        [&order, i, kept](bool well) { order.push_back(well ? i : -1); });
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        CHECK(order.empty());
        CHECK_EQ(kept.use_count(), 4);
    }
    flights.drain();
    CHECK(order == (std::vector<int>{0, 1, 2}));
    CHECK_EQ(kept.use_count(), 1);
}

namespace {

// A pool of two planes, a table and plans in pinned memory, as a hot buffer lays them out.
struct PlanWorld {
    static constexpr std::uint32_t kRequests = 3, kHeads = 2, kTopK = 100, kThreads = 128,
                                   kPageUnits = 4, kPages = 50;
    static constexpr std::uint64_t kOffsets[2] = {64, 8192}, kHeadStride = 4 * 48,
                                   kPageBytes = 16384;
    std::shared_ptr<Device> device = gpu_kit::device();
    PlanShape shape{
        kRequests * kHeads, kTopK, kThreads, kPageUnits, {{40, 48, 64}, {16, 24, 16}}};
    std::vector<std::vector<std::uint8_t>> pages;
    PinnedBuffer table{device, kRequests * sizeof(HotRequest), -1, "table"};
    PinnedBuffer lists{device, kRequests *kPages * 8, -1, "lists"};
    PinnedBuffer plans{device,
                       std::uint64_t{kRequests} * kHeads *hot_plan_bytes(kTopK, kThreads), -1,
                       "plans"};
    HotArgs args{};

    PlanWorld() {
        auto *const list = reinterpret_cast<std::uint64_t *>(lists.data());
        for (std::uint32_t i = 0; i < kRequests * kPages; ++i) {
            pages.emplace_back(kPageBytes);
            for (std::size_t b = 0; b < kPageBytes; ++b)
                pages.back()[b] = static_cast<std::uint8_t>(kit::mix(i * kPageBytes + b));
            list[i] = reinterpret_cast<std::uintptr_t>(pages.back().data());
        }
        auto *const requests = reinterpret_cast<HotRequest *>(table.data());
        for (std::uint32_t r = 0; r < kRequests; ++r)
            requests[r] = {lists.address() + r * kPages * 8, kPages * kPageUnits,
                           r == 1 ? 0u : std::uint32_t{HOT_BOUND}, kPages * kPageUnits, 0};
        args.table = table.address(), args.plan = plans.address();
        args.table_size = kRequests, args.heads = kHeads;
        for (std::uint32_t p = 0; p < 2; ++p)
            args.planes[p] = {0, kOffsets[p], kHeadStride};
    }
    HotPlan &plan(std::uint32_t request, std::uint32_t head) {
        return *reinterpret_cast<HotPlan *>(plans.data() +
                                            std::uint64_t{request * kHeads + head} *
                                                hot_plan_bytes(kTopK, kThreads));
    }
    void plan_units(std::uint32_t request, std::uint32_t head, std::uint32_t count) {
        HotPlan &p = plan(request, head);
        p.count = count;
        auto *const moves = reinterpret_cast<HotMove *>(&p + 1);
        for (std::uint32_t i = 0; i < count; ++i)
            moves[i] = {static_cast<std::int32_t>(kit::mix(request * 1000 + head * 500 + i) %
                                                  (kPages * kPageUnits)),
                        i};
    }
    // Whether what was staged for position b of the batch is what the plan names.
    bool staged(const HotScatter &s, std::uint32_t b, std::uint32_t request,
                std::uint32_t head) {
        const HotPlan &p = plan(request, head);
        const auto *const moves = reinterpret_cast<const HotMove *>(&p + 1);
        const std::uint32_t start =
            reinterpret_cast<const std::uint32_t *>(s.starts)[b * kHeads + head];
        for (std::uint32_t i = 0; i < p.count; ++i)
            for (std::uint32_t plane = 0; plane < 2; ++plane) {
                const PlanPlane &shape_of = shape.planes[plane];
                const auto unit = static_cast<std::uint32_t>(moves[i].unit);
                const std::uint8_t *const want =
                    pages[request * kPages + unit / kPageUnits].data() + kOffsets[plane] +
                    head * kHeadStride + std::uint64_t{unit % kPageUnits} * shape_of.pool_pitch;
                const auto *const got = reinterpret_cast<const std::uint8_t *>(
                    s.staging[plane] + std::uint64_t{start + i} * shape_of.slot_pitch);
                if (std::memcmp(want, got, shape_of.unit_bytes) != 0)
                    return false;
            }
        return true;
    }
};

}  // namespace

TEST(a_plans_units_are_staged_and_the_starts_say_where) {
    PlanWorld w;
    PlanStaging staging(w.device, w.shape, 3);
    CHECK(staging.memory_bytes() >= 6u * 100 * (64 + 16));
    // Bound, unbound, out of range, twice.
    std::vector<std::int32_t> requests = {2, 1, 7, 0, 2, -5};
    w.args.requests = reinterpret_cast<std::uintptr_t>(requests.data());
    w.args.batch = 3;
    for (int turn = 0; turn < 5; ++turn) {
        w.plan_units(0, 0, static_cast<std::uint32_t>(100 - turn));
        w.plan_units(0, 1, 0);
        w.plan_units(1, 0, 99), w.plan_units(1, 1, 99);  // of nobody now
        w.plan_units(2, 0, 1), w.plan_units(2, 1, static_cast<std::uint32_t>(70 + turn));
        const HotScatter s = staging.gather(w.args, 0);
        CHECK_EQ(s.hot.batch, 3u);
        CHECK(w.staged(s, 0, 2, 0) && w.staged(s, 0, 2, 1));
        HotArgs second = w.args;
        second.requests += 3 * 4;
        const HotScatter t = staging.gather(second, 0);
        CHECK(w.staged(t, 0, 0, 0) && w.staged(t, 0, 0, 1));
        CHECK(w.staged(t, 1, 2, 0) && w.staged(t, 1, 2, 1));
    }
    std::vector<std::int32_t> twice = {2, 0, 2};
    w.args.requests = reinterpret_cast<std::uintptr_t>(twice.data());
    const HotScatter s = staging.gather(w.args, 0);
    for (std::uint32_t h = 0; h < 2; ++h) {
        CHECK(w.staged(s, 0, 2, h) && w.staged(s, 1, 0, h) && w.staged(s, 2, 2, h));
        const auto *const starts = reinterpret_cast<const std::uint32_t *>(s.starts);
        CHECK_EQ(starts[h], starts[4 + h]);
    }
}

TEST(calls_of_a_graph_keep_their_numbers) {
    PlanWorld w;
    PlanStaging staging(w.device, w.shape, 2);
    std::vector<std::int32_t> requests = {2};
    w.args.requests = reinterpret_cast<std::uintptr_t>(requests.data());
    w.args.batch = 1;
    w.plan_units(2, 0, 10), w.plan_units(2, 1, 20);
    std::set<std::uint64_t> starts;
    {
        const gpu_kit::Turned capturing("capturing", 1);
        for (int i = 0; i < 100; ++i)
            starts.insert(staging.gather(w.args, 0).starts);
    }
    CHECK_EQ(starts.size(), 100u);  // a replay may come at any time
    const std::uint64_t bytes = staging.memory_bytes();
    for (int i = 0; i < 500; ++i)
        CHECK(starts.count(staging.gather(w.args, 0).starts) == 0);
    CHECK_EQ(staging.memory_bytes(), bytes);  // outside a graph they are used again
}

TEST(a_plan_longer_than_it_can_be_is_cut_and_a_dead_page_gives_zeros) {
    PlanWorld w;
    PlanStaging staging(w.device, w.shape, 2);
    std::vector<std::int32_t> requests = {0};
    w.args.requests = reinterpret_cast<std::uintptr_t>(requests.data());
    w.args.batch = 1;
    w.plan_units(0, 0, 100), w.plan_units(0, 1, 3);
    auto *const list = reinterpret_cast<std::uint64_t *>(w.lists.data());
    auto *const moves = reinterpret_cast<HotMove *>(&w.plan(0, 1) + 1);
    moves[1].unit = 9;
    list[9 / 4] = 0;
    w.plan(0, 0).count = UINT32_MAX;
    const HotScatter s = staging.gather(w.args, 0);
    const auto start = reinterpret_cast<const std::uint32_t *>(s.starts)[1];
    CHECK_EQ(start, 100u);
    const auto *const row =
        reinterpret_cast<const std::uint8_t *>(s.staging[0] + std::uint64_t{start + 1} * 64);
    CHECK(std::all_of(row, row + 40, [](std::uint8_t b) { return b == 0; }));
    w.args.batch = 4;
    CHECK_THROWS(SAC_E_ARG, staging.gather(w.args, 0));
}
