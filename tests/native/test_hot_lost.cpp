// SPDX-License-Identifier: Apache-2.0
// Memory that dies while requests are bound: theirs say so, the others go on.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "check.hpp"
#include "hot_kit.hpp"
#include "sac_server.h"

using namespace hot_kit;
using sac::gpu::Current;

namespace {

constexpr std::uint32_t kRequests = 4, kPages = 9;

// A pool of two extents, and a context on each request whose pages lie on both.
struct World {
    kit::Directory dir;
    GpuHandle gpu = move_kit::gpu();
    kit::PoolHandle pool = kit::pool(48 * kit::kMiB, dir.pool(), 2);
    kit::NsHandle ns = kit::space(pool, "ns", kit::plain(kRows, kBytes));
    std::vector<std::vector<std::uint8_t>> keys;
    std::vector<kit::PrefixHandle> prefixes;
    HotHandle hot = hot_kit::hot(gpu, ns, Options(kRequests, 32, 16));

    World() {
        for (std::uint32_t r = 0; r < kRequests; ++r) {
            keys.push_back(kit::keys(r * 100, kPages));
            kit::put(ns, keys.back());
            prefixes.push_back(kit::pin(ns, keys.back()));
            bind(r);
        }
    }
    void bind(std::uint32_t r) const {
        MUST(sac_hot_bind(hot.get(), r, prefixes[r].get(), SAC_HOT_NO_BYPASS, 0));
    }
    bool gone(std::uint32_t r, std::uint64_t page) const {
        const auto held = prefixes[r]->it->lock();
        return prefixes[r]->it->gone(page);
    }
    std::set<std::uint64_t> dead(std::uint32_t r) const {
        std::set<std::uint64_t> out;
        for (std::uint64_t page = 0; page < kPages; ++page)
            if (gone(r, page))
                out.insert(page);
        return out;
    }
    // Row 3 of every page, by pages of 16 at most; what is not to be had must be said.
    void step(std::uint32_t r, const std::set<std::uint64_t> &dead) const {
        Ints units;
        for (std::uint32_t page = 0; page < kPages; ++page)
            units.push_back(static_cast<std::int32_t>(page * kRows + 3));
        const Ints at = resolve(hot, {static_cast<std::int32_t>(r)}, units);
        for (std::uint32_t page = 0; page < kPages; ++page) {
            if (dead.contains(page))
                CHECK_EQ(at[page], -1);
            else
                CHECK(at[page] >= 0 && there(hot, keys[r], units[page], at[page]));
        }
    }
};

}  // namespace

// Nobody asks for it: the graph that runs next sees it.
TEST(an_extent_is_lost_while_requests_are_bound) {
    const long late = gpu_kit::get("unregistered_late");
    World w;
    MUST(sac_pool_lose(w.pool.get(), 1, nullptr));
    std::uint64_t all = 0;
    std::vector<std::uint32_t> want(kRequests + 1);
    for (std::uint32_t r = 0; r < kRequests; ++r) {
        const auto dead = w.dead(r);
        w.step(r, dead);
        want[r] = dead.empty() ? 0u : std::uint32_t{SAC_HOT_E_PAGE};
        all += dead.size();
    }
    CHECK(all > 0 && all < kRequests * kPages);
    CHECK(errors(w.hot, kRequests) == want);
    std::uint64_t dead = 0;
    MUST(sac_hot_refresh(w.hot.get(), 0, &dead));
    CHECK_EQ(dead, all);
    // Bound anew it is the same, and what is put now lies where memory is.
    MUST(sac_hot_release(w.hot.get(), 0, 0));
    w.bind(0);
    w.step(0, w.dead(0));
    MUST(sac_hot_release(w.hot.get(), 1, 0));
    w.keys[1] = kit::keys(5000, kPages);
    w.prefixes[1].reset();
    kit::put(w.ns, w.keys[1]);
    w.prefixes[1] = kit::pin(w.ns, w.keys[1]);
    w.bind(1);
    w.step(1, {});
    CHECK_EQ(errors(w.hot, kRequests)[1], 0u);
    w.hot.reset();
    CHECK_EQ(gpu_kit::get("unregistered_late"), late);
}

// All of the pool is lost, its metadata as well.
TEST(a_pool_is_lost_while_requests_are_bound) {
    const World w;
    MUST(sac_pool_lose(w.pool.get(), SAC_EXTENT_ALL, nullptr));
    std::set<std::uint64_t> all;
    for (std::uint64_t page = 0; page < kPages; ++page)
        all.insert(page);
    for (std::uint32_t r = 0; r < kRequests; ++r)
        w.step(r, all);
    std::uint64_t dead = 0;
    MUST(sac_hot_refresh(w.hot.get(), 0, &dead));
    CHECK_EQ(dead, std::uint64_t{kRequests * kPages});
}

// The file behind an extent is cut: who reads it gets zeros, and the look that follows knows.
TEST(a_file_is_cut_while_requests_are_bound) {
    const World w;
    CHECK_EQ(truncate(w.dir.file("data.1").c_str(), 0), 0);
    Ints units;
    for (std::uint32_t page = 0; page < kPages; ++page)
        units.push_back(static_cast<std::int32_t>(page * kRows + 5));
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(kRequests); ++r)
        resolve(w.hot, {r}, units);  // no crash
    std::uint64_t dead = 0, all = 0;
    MUST(sac_hot_refresh(w.hot.get(), 0, &dead));
    for (std::uint32_t r = 0; r < kRequests; ++r) {
        const auto gone = w.dead(r);
        w.step(r, gone);
        all += gone.size();
    }
    CHECK(all > 0 && all < kRequests * kPages);
    CHECK_EQ(dead, all);
}

// Steps, requests that come and go, sequences that grow, and an extent that goes meanwhile:
// each waits for locks of the others.
TEST(an_extent_is_lost_in_the_middle_of_everything) {
    for (int turn = 0; turn < 4; ++turn) {
        const World w;
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (std::uint32_t r = 0; r < 2; ++r)
            threads.emplace_back([&, r] {
                while (!stop) {
                    Ints units;
                    for (std::uint32_t page = 0; page < kPages; ++page)
                        units.push_back(static_cast<std::int32_t>(page * kRows));
                    resolve(w.hot, {static_cast<std::int32_t>(r)}, units);
                    (void)stats(w.hot);
                    if (r == 1) {
                        MUST(sac_hot_release(w.hot.get(), r, 0));
                        w.bind(r);
                    }
                }
            });
        threads.emplace_back([&] {
            MUST(sac_hot_release(w.hot.get(), 2, 0));
            for (std::uint32_t salt = 0; !stop; ++salt) {
                sac_seq *raw = nullptr;
                MUST(sac_seq_open(w.ns.get(), nullptr, 0, "s", 1, &raw));
                const kit::SeqHandle seq(raw);
                const sac_prefix *const view = sac_seq_view(seq.get());
                MUST(sac_hot_bind(w.hot.get(), 2, view, 0, 0));
                const std::vector<std::uint32_t> tokens(40, salt);
                if (sac_seq_extend(seq.get(), tokens.data(), 40, 0) == SAC_OK) {
                    const std::uint32_t request = 2;
                    (void)sac_hot_extend(w.hot.get(), &request, 1, 0);
                }
                MUST(sac_hot_release(w.hot.get(), 2, 0));
            }
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        MUST(sac_pool_lose(w.pool.get(), 1, nullptr));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        stop = true;
        for (std::thread &t : threads)
            t.join();
        for (const std::uint32_t r : {0u, 1u, 3u})
            w.step(r, w.dead(r));
    }
}

// Closed while the pool loses an extent.
TEST(a_buffer_is_closed_while_an_extent_is_lost) {
    for (int turn = 0; turn < 10; ++turn) {
        World w;
        std::thread closer([&] { w.hot.reset(); });
        MUST(sac_pool_lose(w.pool.get(), 1, nullptr));
        closer.join();
    }
}

// The last one: after an illegal access the driver does nothing for the process any more.
TEST(the_gpu_fails) {
    auto w = std::make_unique<World>();
    const auto &data = w->ns->it->view()->data();
    {
        const auto device = gpu_kit::device();
        const Current current(*device);
        for (const auto &extent : data.extents())
            CHECK_EQ(device->driver().host_unregister(data.data() + extent.offset), 0);
    }
    const Ints requests{0}, units{100}, out(1);
    const sac_hot_call c = call(requests, units, out);
    CHECK_EQ(sac_hot_resolve(w->hot.get(), &c), static_cast<int>(SAC_E_GPU));
    CHECK(gpu_kit::says(sac_last_error()->message, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    CHECK_EQ(sac_hot_resolve(w->hot.get(), &c), static_cast<int>(SAC_E_GPU));
    sac_hot_stats s;
    CHECK_EQ(sac_hot_get_stats(w->hot.get(), &s, nullptr), static_cast<int>(SAC_E_GPU));
    CHECK_EQ(sac_hot_bind(w->hot.get(), 0, w->prefixes[0].get(), 0, 0),
             static_cast<int>(SAC_E_GPU));
    // The pool is as good as before, and has its pages back.
    CHECK_EQ(sac_hot_close(w->hot.release()), static_cast<int>(SAC_E_GPU));
    MUST(sac_pool_lose(w->pool.get(), 1, nullptr));
    w->prefixes.clear();
    CHECK_EQ(kit::stats(w->ns).pinned, 0u);
    w.reset();
}
