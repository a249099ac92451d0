// SPDX-License-Identifier: Apache-2.0
// Gathers to GPU memory, on the fake driver: both paths against sac_gather, and which is taken.
#include <chrono>
#include <thread>

#include "gpu_move_kit.hpp"
#include "sac_gpu.h"

using namespace move_kit;
using kit::must;

namespace {

constexpr std::uint64_t kPages = 6;
constexpr long kPool = 16 << 20;  // bytes

int as_int(sac_status s) { return static_cast<int>(s); }

struct World {
    GpuHandle gpu = move_kit::gpu();
    kit::PoolHandle pool = kit::pool(std::uint64_t{kPool});
    kit::NsHandle ns = kit::space(pool, "ns", kit::rich(8, 12));
    std::vector<std::uint8_t> keys = kit::keys(0, kPages);
    MoverHandle mover;
    kit::PrefixHandle prefix;
    explicit World(const sac_gpu_mover_options &options = Options()) {
        kit::put(ns, keys);
        prefix = kit::pin(ns, keys);
        mover = move_kit::mover(gpu, ns, options);
    }
};

struct Gather {
    std::vector<const sac_prefix *> prefixes;
    std::vector<std::int32_t> rows;
    std::vector<std::uint8_t> out, want;
    sac_gpu_gather_req req{};

    // All heads of the plane; rows of [0, end) and -1, some twice.
    Gather(const World &w, std::uint32_t plane, std::uint32_t layer, std::uint64_t batch,
           std::uint64_t count, std::uint64_t end) {
        const sac_plane &p = w.ns->it->geometry().planes[plane];
        prefixes.assign(batch, w.prefix.get());
        for (std::uint64_t i = 0; i < batch * p.heads * count; ++i) {
            const std::uint64_t r = kit::mix(i) % (end + 1);
            rows.push_back(r == end ? -1 : static_cast<std::int32_t>(r));
        }
        out.assign(rows.size() * p.row_bytes + 64, 0xcc);
        want = out;
        std::vector<sac_gather_req> reqs;
        for (std::uint64_t j = 0; j < batch * p.heads; ++j) {
            sac_gather_req r{};
            r.prefix = w.prefix.get(), r.plane = plane, r.layer = layer;
            r.head = static_cast<std::uint32_t>(j % p.heads);
            r.index_bytes = 4, r.index = rows.data() + j * count, r.count = count;
            r.dst = want.data() + j * count * p.row_bytes;
            reqs.push_back(r);
        }
        must(sac_gather(w.ns.get(), reqs.data(), reqs.size(), 0, 1, nullptr), "sac_gather");
        req.prefixes = prefixes.data(), req.batch = batch;
        req.plane = plane, req.layer = layer, req.heads = p.heads;
        req.rows = rows.data(), req.count = count;
        req.out = reinterpret_cast<std::uintptr_t>(out.data());
    }
    Gather(const Gather &) = delete;
    Gather &operator=(const Gather &) = delete;
};

std::vector<sac_gpu_fault> faults(const MoverHandle &mover) {
    std::vector<sac_gpu_fault> out(2000);
    std::uint64_t n = out.size();
    must(sac_gpu_mover_faults(mover.get(), out.data(), &n), "sac_gpu_mover_faults");
    out.resize(n);
    return out;
}
// Those of a gather that has ended, which a thread notes a moment later.
std::vector<sac_gpu_fault> wait_for_faults(const MoverHandle &mover, std::size_t n) {
    std::vector<sac_gpu_fault> all;
    for (int i = 0; i < 2000 && all.size() < n; ++i) {
        const auto more = faults(mover);
        all.insert(all.end(), more.begin(), more.end());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return all;
}

}  // namespace

TEST(both_paths_bring_what_the_cores_gather_brings) {
    World w;
    for (const std::uint32_t path : {SAC_GPU_PATH_GPU, SAC_GPU_PATH_CPU})
        for (const bool on_gpu : {false, true})
            for (const auto &[plane, layer] :
                 {std::pair<std::uint32_t, std::uint32_t>{0, 2}, {1, 1}})
                for (const std::uint64_t batch : {1u, 3u}) {
                    Gather g(w, plane, layer, batch, 37, kPages * 8);
                    g.req.path = path, g.req.rows_on_gpu = on_gpu;
                    std::uint64_t number = 0;
                    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, &number));
                    CHECK(number != 0);
                    CHECK(g.out == g.want);
                }
    CHECK(faults(w.mover).empty());
}

TEST(rows_of_the_last_pages_window_and_single_heads) {
    World w;
    for (const std::uint32_t path : {SAC_GPU_PATH_GPU, SAC_GPU_PATH_CPU}) {
        std::vector<std::uint8_t> out(8 * 48), want(8 * 48);
        const sac_prefix *const prefix = w.prefix.get();
        std::vector<std::int32_t> rows = {0, 7, 8, 47, -1, 20, 20, 1};
        sac_gather_req c{};
        c.prefix = prefix, c.plane = 0, c.layer = 0, c.head = 1, c.index_bytes = 4;
        c.index = rows.data(), c.count = 8, c.dst = want.data();
        MUST(sac_gather(w.ns.get(), &c, 1, 0, 1, nullptr));
        sac_gpu_gather_req r{};
        r.prefixes = &prefix, r.batch = 1, r.plane = 0, r.layer = 0;
        r.first_head = 1, r.heads = 1, r.rows = rows.data(), r.count = 8, r.path = path;
        r.out = reinterpret_cast<std::uintptr_t>(out.data());
        MUST(sac_gpu_gather(w.mover.get(), &r, 0, nullptr));
        CHECK(out == want);
        // The window: kept for the last pages only.
        r.plane = 2, r.layer = 0, r.first_head = 0;
        rows.assign(8, 47);
        MUST(sac_gpu_gather(w.mover.get(), &r, 0, nullptr));
        kit::fill_row(kit::seed_of(w.keys.data() + 5 * SAC_KEY_BYTES), 2, 0, 0, 7, want.data(),
                      40);
        CHECK(std::memcmp(out.data(), want.data(), 40) == 0);
        rows[3] = 0;
        CHECK_EQ(sac_gpu_gather(w.mover.get(), &r, 0, nullptr), as_int(SAC_E_RANGE));
        r.rows_on_gpu = 1;
        std::uint64_t number = 0;
        MUST(sac_gpu_gather(w.mover.get(), &r, 0, &number));
        CHECK(std::all_of(out.begin() + 3 * 40, out.begin() + 4 * 40,
                          [](std::uint8_t b) { return b == 0; }));
        CHECK(std::memcmp(out.data() + 4 * 40, want.data(), 40) == 0);
        const auto f = wait_for_faults(w.mover, 1);
        CHECK_EQ(f.size(), 1u);
        CHECK(f[0].number == number && f[0].request == 0 && f[0].bits == SAC_GPU_FAULT_PAGE);
    }
}

TEST(wrong_rows_are_refused_where_the_host_sees_them_and_zeros_where_not) {
    World w;
    for (const std::uint32_t path : {SAC_GPU_PATH_GPU, SAC_GPU_PATH_CPU})
        for (const std::int32_t bad : {48, -2, INT32_MAX, INT32_MIN}) {
            Gather g(w, 1, 1, 2, 5, 48);
            g.req.path = path;
            g.rows[7] = bad;
            const auto before = g.out;
            CHECK_EQ(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr), as_int(SAC_E_RANGE));
            CHECK(g.out == before);
            g.req.rows_on_gpu = 1;
            std::uint64_t number = 0;
            MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, &number));
            std::fill_n(g.want.begin() + 7 * 24, 24, std::uint8_t{0});
            CHECK(g.out == g.want);
            const auto f = wait_for_faults(w.mover, 1);
            CHECK_EQ(f.size(), 1u);
            CHECK_EQ(f[0].number, number);
            CHECK_EQ(f[0].request, 1u);
            CHECK_EQ(f[0].bits, std::uint32_t{SAC_GPU_FAULT_RANGE});
        }
}

TEST(staging_smaller_than_the_rows_goes_in_turns) {
    for (const std::uint64_t chunk : {0u, 100u, 1000u}) {
        Options o(SAC_GPU_PATH_CPU);
        o.staging_bytes = 4096, o.chunk_bytes = chunk;
        World w(o);
        for (const bool on_gpu : {false, true}) {
            Gather g(w, 0, 2, 2, 333, kPages * 8);
            g.req.rows_on_gpu = on_gpu;
            MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
            CHECK(g.out == g.want);
        }
    }
}

TEST(a_prefix_can_be_closed_at_once_and_stays_pinned_till_the_gpu_is_done) {
    for (const std::uint32_t path : {SAC_GPU_PATH_GPU, SAC_GPU_PATH_CPU}) {
        World w;
        Gather g(w, 0, 0, 1, 9, 48);
        g.req.path = path, g.req.rows_on_gpu = 1;
        const std::uint64_t pinned = kit::stats(w.ns).pinned;
        CHECK(pinned != 0);
        {
            const gpu_kit::Turned held("hold_events", 1);
            MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
            w.prefix.reset();
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            CHECK_EQ(kit::stats(w.ns).pinned, pinned);
        }
        for (int i = 0; i < 2000 && kit::stats(w.ns).pinned != 0; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK_EQ(kit::stats(w.ns).pinned, 0u);
        CHECK(g.out == g.want);
    }
}

TEST(the_first_gather_measures_and_the_mover_says_which_and_why) {
    World w;
    sac_gpu_mover_info i;
    MUST(sac_gpu_mover_get_info(w.mover.get(), &i));
    CHECK_EQ(i.path, std::uint32_t{SAC_GPU_PATH_AUTO});
    Gather g(w, 0, 0, 1, 9, 48);
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
    CHECK(g.out == g.want);
    MUST(sac_gpu_mover_get_info(w.mover.get(), &i));
    CHECK_EQ(i.path, i.gpu_us <= i.cpu_us ? std::uint32_t{SAC_GPU_PATH_GPU}
                                          : std::uint32_t{SAC_GPU_PATH_CPU});
    CHECK(i.gpu_us > 0 && i.cpu_us > 0);
    CHECK_EQ(i.rows, 2048u);
    CHECK_EQ(i.forced, 0u);
    CHECK_EQ(i.row_bytes, 48u);
    CHECK(gpu_kit::says(i.why, "2048 rows of 48 bytes"));
    CHECK(i.threads >= 1 && i.threads <= 3);
    const double before = i.gpu_us;
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
    MUST(sac_gpu_mover_get_info(w.mover.get(), &i));
    CHECK_EQ(i.gpu_us, before);  // once
}

TEST(memory_that_cuda_refuses_goes_by_the_cpu_and_that_is_said) {
    const gpu_kit::Turned refuse("can_register", 0);
    World w;
    Gather g(w, 0, 0, 1, 9, 48);
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
    CHECK(g.out == g.want);
    sac_gpu_mover_info i;
    MUST(sac_gpu_mover_get_info(w.mover.get(), &i));
    CHECK_EQ(i.path, std::uint32_t{SAC_GPU_PATH_CPU});
    CHECK_EQ(i.forced, 1u);
    CHECK(gpu_kit::says(i.why, "cannot read the pool's memory"));
    g.req.path = SAC_GPU_PATH_GPU;
    CHECK_EQ(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr), as_int(SAC_E_GPU));
}

TEST(the_cpus_path_alone_registers_nothing) {
    Options o(SAC_GPU_PATH_CPU);
    o.staging_bytes = 8192;
    World w{o};
    Gather g(w, 0, 0, 1, 9, 48);
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
    CHECK(g.out == g.want);
    CHECK(gpu_kit::get("registered_bytes") < kPool);  // only what it pins
    g.req.path = SAC_GPU_PATH_GPU;
    CHECK_EQ(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr), as_int(SAC_E_ARG));
}

TEST(memory_that_was_unregistered_is_not_read_any_more) {
    World w{Options(SAC_GPU_PATH_GPU)};
    Gather g(w, 0, 0, 1, 9, 48);
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
    sac_gpu_registration *r = nullptr;
    MUST(sac_gpu_register(w.gpu.get(), w.ns.get(), 0, &r));
    std::thread ending;
    {
        const gpu_kit::Turned held("hold_events", 1);
        MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
        ending = std::thread([&] { must(sac_gpu_unregister(r), "sac_gpu_unregister"); });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        // The gather in front is not done: the memory is still registered.
        CHECK(gpu_kit::get("registered_bytes") >= kPool);
    }
    ending.join();
    CHECK(gpu_kit::get("registered_bytes") < kPool);
    CHECK_EQ(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr), as_int(SAC_E_GPU));
    sac_gpu_registration *again = nullptr;
    MUST(sac_gpu_register(w.gpu.get(), w.ns.get(), 0, &again));
    MUST(sac_gpu_registration_wait(again, 10000));
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
    CHECK(g.out == g.want);
    CHECK(faults(w.mover).empty());
    sac_gpu_registration_close(r);
    sac_gpu_registration_close(again);
}

TEST(bad_input_is_refused) {
    World w;
    Gather g(w, 0, 0, 1, 9, 48);
    const auto refused = [&](sac_status status, auto &&change) {
        sac_gpu_gather_req bad = g.req;
        change(bad);
        CHECK_EQ(sac_gpu_gather(w.mover.get(), &bad, 0, nullptr), as_int(status));
    };
    const sac_prefix *const none = nullptr;
    for (const std::uint32_t path : {SAC_GPU_PATH_GPU, SAC_GPU_PATH_CPU}) {
        g.req.path = path;
        refused(SAC_E_RANGE, [](auto &r) { r.plane = 99; });
        refused(SAC_E_RANGE, [](auto &r) { r.layer = 1; });
        refused(SAC_E_RANGE, [](auto &r) { r.heads = 3; });
        refused(SAC_E_RANGE, [](auto &r) { r.first_head = UINT32_MAX; });
        refused(SAC_E_ARG, [&](auto &r) { r.prefixes = &none; });
        refused(SAC_E_ARG, [](auto &r) { r.prefixes = nullptr; });
        refused(SAC_E_ARG, [](auto &r) { r.out = 0; });
        refused(SAC_E_ARG, [](auto &r) { r.batch = 1 << 20; });
        refused(SAC_E_ARG, [](auto &r) { r.count = UINT64_MAX; });
        refused(SAC_E_RANGE, [](auto &r) { r.rows = nullptr, r.count = 49; });
        const gpu_kit::Turned capturing("capturing", 1);
        refused(SAC_E_ARG, [](auto &) {});
    }
    refused(SAC_E_ARG, [](auto &r) { r.path = 3; });
    g.req.batch = 0;
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
    Options o;
    o.path = 7;
    sac_gpu_mover *m = nullptr;
    CHECK_EQ(sac_gpu_mover_open(w.gpu.get(), w.ns.get(), &o, &m), as_int(SAC_E_ARG));
    o = Options();
    o.struct_size = 3;
    CHECK_EQ(sac_gpu_mover_open(w.gpu.get(), w.ns.get(), &o, &m), as_int(SAC_E_ARG));
}

TEST(a_forked_child_is_refused_and_ends_cleanly) {
    World w;
    Gather g(w, 0, 0, 1, 9, 48);
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // its threads sleep by now
    CHECK_EQ(kit::in_child([&] {
                 CHECK_EQ(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr),
                          as_int(SAC_E_FORKED));
                 w.mover.reset();
             }),
             0);
    MUST(sac_gpu_gather(w.mover.get(), &g.req, 0, nullptr));
}
