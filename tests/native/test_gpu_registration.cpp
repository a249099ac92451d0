// SPDX-License-Identifier: Apache-2.0
// A pool's memory registered with CUDA: in chunks, once, refused, undone in time.
#include <atomic>
#include <numeric>
#include <thread>

#include "check.hpp"
#include "extent_kit.hpp"
#include "gpu/chunks.hpp"
#include "gpu/registration.hpp"
#include "gpu_kit.hpp"
#include "kit_pages.hpp"
#include "sac_gpu.h"

using namespace sac::gpu;
using State = Registration::State;

namespace {

constexpr std::uint64_t kWait = 60000;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

int as_int(sac_status s) { return static_cast<int>(s); }

// What a test registers is gone with it.
struct Clean {
    long registered = gpu_kit::get("registered_bytes");
    long late = gpu_kit::get("unregistered_late");
    ~Clean() = default;
    void check() const {
        CHECK_EQ(gpu_kit::get("registered_bytes"), registered);
        CHECK_EQ(gpu_kit::get("unregistered_late"), late);
    }
};

// Extents in memfds, mapped.
std::unique_ptr<sac::Mapping> mapping(const std::vector<std::uint64_t> &bytes,
                                      bool writable = true) {
    std::vector<sac::Extent> extents;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        sac::Extent e;
        e.fd = kit::memory(bytes[i]);
        e.bytes = bytes[i];
        e.name = "extent " + std::to_string(i);
        extents.push_back(std::move(e));
    }
    return std::make_unique<sac::Mapping>(std::move(extents), writable);
}

struct Watcher : RegistrationUser {
    std::vector<std::pair<const std::uint8_t *, std::uint64_t>> gone;
    long registered_then = -1;
    void going(const std::uint8_t *memory, std::uint64_t bytes) noexcept override {
        gone.emplace_back(memory, bytes);
        registered_then = gpu_kit::get("registered_bytes");
    }
};

}  // namespace

TEST(chunks_by_arithmetic) {
    CHECK(cut(0, 0, kChunkMost).empty());
    CHECK((cut(5, 1, kChunkMost) == std::vector<Chunk>{{5, 1}}));
    CHECK((cut(0, 64 * kGiB, kChunkMost) == std::vector<Chunk>{{0, 64 * kGiB}}));
    CHECK((cut(kGiB, 64 * kGiB + 4096, kChunkMost) ==
           std::vector<Chunk>{{kGiB, 64 * kGiB}, {65 * kGiB, 4096}}));
    // 6 TiB behind 2^43: nothing is lost or doubled, no chunk is larger than it may be.
    const std::uint64_t begin = std::uint64_t{1} << 43, bytes = 6144 * kGiB + (2 << 20);
    std::uint64_t at = begin;
    const auto all = cut(begin, bytes, kChunkMost);
    CHECK_EQ(all.size(), 97u);
    for (const Chunk &c : all) {
        CHECK_EQ(c.offset, at);
        CHECK(c.bytes <= kChunkMost);
        at += c.bytes;
    }
    CHECK_EQ(at, begin + bytes);
    const Chunk far{5 * kGiB, kGiB};
    CHECK(far.touches(5 * kGiB, 1) && far.touches(0, 5 * kGiB + 1));
    CHECK(!far.touches(6 * kGiB, kGiB) && !far.touches(0, 5 * kGiB));
    CHECK(!far.touches(5 * kGiB + (std::uint64_t{1} << 32), 1));
}

TEST(dead_blocks_are_left_out) {
    const auto m = mapping({16 << 20});
    constexpr std::uint64_t k = sac::kBlockBytes;
    CHECK((cut_living(m->guard(), 0, 16 << 20, 6 << 20) ==
           std::vector<Chunk>{{0, 3 * k}, {3 * k, 3 * k}, {6 * k, 2 * k}}));
    m->mark_dead(0, 1);
    m->mark_dead(4 * k, 2 * k);
    m->mark_dead(7 * k + 5, 1);
    CHECK((cut_living(m->guard(), 0, 16 << 20, 64 << 20) ==
           std::vector<Chunk>{{k, 3 * k}, {6 * k, k}}));
    CHECK((cut_living(m->guard(), 0, 16 << 20, 4 << 20) ==
           std::vector<Chunk>{{k, 2 * k}, {3 * k, k}, {6 * k, k}}));
    m->mark_dead(0, 16 << 20);
    CHECK(cut_living(m->guard(), 0, 16 << 20, 4 << 20).empty());
}

TEST(large_pools_in_chunks_of_64_gib) {
    const auto device = gpu_kit::device();
    const Clean clean;
    {
        // Nothing of it is touched.
        const auto m = mapping({130 * kGiB, 3 * kGiB});
        const long before = gpu_kit::get("registrations");
        const auto r = Registration::start(device, *m);
        CHECK(r->wait(kWait) == State::registered);
        CHECK_EQ(gpu_kit::get("registrations"), before + 4);  // 64, 64, 2; 3
        const auto i = r->info();
        CHECK_EQ(i.bytes, 133 * kGiB);
        CHECK_EQ(i.bytes_done, 133 * kGiB);
        CHECK_EQ(i.bytes_foreign, 0u);
        CHECK_EQ(i.chunks_done, 4u);
        const std::uint8_t *const base = m->data();
        for (const std::uint64_t at : {std::uint64_t{0}, 4 * kGiB - 1, 64 * kGiB - 1, 64 * kGiB,
                                       128 * kGiB + 5, 133 * kGiB - 1})
            CHECK_EQ(r->address(base + at, 1), reinterpret_cast<std::uintptr_t>(base + at));
        CHECK(r->address(base + 64 * kGiB - 8, 16) != 0);  // over a border of chunks
        CHECK(r->address(base, 133 * kGiB) != 0);
        CHECK_EQ(r->address(base, 133 * kGiB + 1), 0u);
        CHECK_EQ(r->address(base + 133 * kGiB, 1), 0u);
        CHECK_EQ(r->address(base - 1, 2), 0u);
    }
    clean.check();
}

TEST(no_chunk_is_larger_than_asked_for) {
    const auto device = gpu_kit::device();
    const auto m = mapping({10 << 20, 4 << 20});
    gpu_kit::set("most_at_once", 0);
    const auto r = Registration::start(device, *m, 3 << 20);
    CHECK(r->wait(kWait) == State::registered);
    CHECK_EQ(gpu_kit::get("most_at_once"), 3 << 20);
    CHECK_EQ(r->info().chunks_done, 6u);
    CHECK_THROWS(SAC_E_ARG, Registration::start(device, *m, 4095));
    CHECK_THROWS(SAC_E_ARG, Registration::start(device, *m, 128 * kGiB));
}

TEST(in_the_background_and_once) {
    const auto device = gpu_kit::device();
    const Clean clean;
    {
        const gpu_kit::Turned slow("slow_ms", 30);
        const auto m = mapping({8 << 20});
        CHECK(Registration::of(*m) == nullptr);
        const auto begin = std::chrono::steady_clock::now();
        const auto r = Registration::start(device, *m, 2 << 20);
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(30));
        CHECK(r->info().state == State::running);
        CHECK_EQ(r->info().bytes, std::uint64_t{8 << 20});
        CHECK_EQ(r->address(m->data(), 1), 0u);
        CHECK_THROWS(SAC_E_BUSY, r->require(1));
        CHECK(Registration::start(device, *m, 4096) == r);
        CHECK(Registration::of(*m) == r);
        r->require(kWait);
        CHECK_EQ(r->info().chunks_done, 4u);
    }
    clean.check();
}

TEST(ended_while_it_runs) {
    const auto device = gpu_kit::device();
    const Clean clean;
    const gpu_kit::Turned slow("slow_ms", 5);
    for (int i = 0; i < 5; ++i) {
        auto m = mapping({64 << 20});
        const auto r = Registration::start(device, *m, 1 << 20);
        while (r->info().chunks_done < 2)
            std::this_thread::yield();
        m.reset();
        clean.check();
        CHECK(r->wait(0) == State::ended);
        CHECK_EQ(r->info().bytes, 0u);
        CHECK_THROWS(SAC_E_GPU, r->require(0));
    }
}

TEST(a_refusal_is_told_and_leaves_nothing) {
    const auto device = gpu_kit::device();
    const Clean clean;
    const gpu_kit::Turned most("refuse_after", clean.registered + (5 << 20));
    const gpu_kit::Turned how("refuse_result", 2);
    const auto m = mapping({8 << 20});
    const auto r = Registration::start(device, *m, 2 << 20);
    CHECK(r->wait(kWait) == State::refused);
    clean.check();
    const auto i = r->info();
    CHECK_EQ(i.result, 2);
    CHECK_EQ(i.bytes_done, 0u);
    CHECK(gpu_kit::says(i.reason, "2097152 bytes of extent 0"));
    CHECK(gpu_kit::says(i.reason, "CUDA_ERROR_OUT_OF_MEMORY"));
    CHECK(gpu_kit::says(i.reason, "ulimit -l"));
    CHECK_EQ(r->address(m->data(), 1), 0u);
    try {
        r->require(kWait);
        CHECK(false);
    } catch (const sac::Error &e) {
        CHECK_EQ(e.status, SAC_E_GPU);
        CHECK_EQ(e.sys_errno, 2);
        CHECK_EQ(e.message, i.reason);
    }
    // Not tried again before it is ended.
    gpu_kit::set("refuse_after", -1);
    CHECK(Registration::start(device, *m)->wait(kWait) == State::refused);
    r->unregister();
    CHECK(Registration::start(device, *m)->wait(kWait) == State::registered);
}

// Whoever sees a state sees what it says, however long the driver takes.
TEST(what_was_pinned_is_let_go_before_the_state_says_so) {
    const auto device = gpu_kit::device();
    const Clean clean;
    {
        const gpu_kit::Turned slow("slow_end_ms", 20);
        const auto m = mapping({2 << 20, 2 << 20});
        {
            const gpu_kit::Turned most("refuse_after", clean.registered + (2 << 20));
            const auto r = Registration::start(device, *m, 1 << 20);
            while (r->wait(0) == State::running)
                std::this_thread::yield();
            clean.check();
            r->unregister();
        }
        // Of two extents the second is refused; the first goes just then.
        for (int round = 0; round < 4; ++round) {
            const auto other = mapping({2 << 20, 2 << 20});
            const gpu_kit::Turned most("refuse_after", clean.registered + (2 << 20));
            const auto r = Registration::start(device, *other, 1 << 20);
            while (gpu_kit::get("registered_bytes") < clean.registered + (2 << 20))
                std::this_thread::yield();
            std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
            other->lose(other->extents()[0]);
            CHECK(r->wait(kWait) == State::refused);
            clean.check();
        }
        // One thread unregisters while another begins anew.
        const auto r = Registration::start(device, *m);
        CHECK(r->wait(kWait) == State::registered);
        std::thread ending([&] { r->unregister(); });
        while (r->wait(0) != State::ended)
            std::this_thread::yield();
        const auto again = Registration::start(device, *m);
        CHECK(again->wait(kWait) == State::registered);
        ending.join();
        CHECK_EQ(again->info().bytes_foreign, 0u);
        CHECK_EQ(gpu_kit::get("registered_bytes"), clean.registered + (4 << 20));
        CHECK(again->address(m->data(), 4 << 20) != 0);
    }
    clean.check();
}

TEST(what_the_gpu_cannot) {
    for (const char *ability : {"can_register", "same_address"}) {
        const gpu_kit::Turned without(ability, 0);
        const auto device = gpu_kit::device();
        const auto m = mapping({4 << 20});
        const auto r = Registration::start(device, *m);
        CHECK(r->wait(kWait) == State::refused);
        CHECK(gpu_kit::says(r->info().reason, "cannot read memory of the host in place"));
        CHECK_EQ(r->info().result, 801);
    }
}

TEST(read_only_memory) {
    const Clean clean;
    {
        const auto device = gpu_kit::device();
        const auto m = mapping({4 << 20}, false);
        const auto r = Registration::start(device, *m);
        CHECK(r->wait(kWait) == State::registered);
    }
    {
        const gpu_kit::Turned without("read_only", 0);
        const auto device = gpu_kit::device();
        const auto m = mapping({4 << 20}, false);
        const auto r = Registration::start(device, *m);
        CHECK(r->wait(kWait) == State::refused);
        CHECK(gpu_kit::says(r->info().reason, "Open the namespace to write"));
        const auto w = mapping({4 << 20}, true);
        CHECK(Registration::start(device, *w)->wait(kWait) == State::registered);
    }
    clean.check();
}

// An engine that pins all of the pool itself, before us or in parts.
TEST(registered_by_others) {
    const auto device = gpu_kit::device();
    const auto &driver = device->driver();
    const Current current(*device);
    const auto m = mapping({8 << 20});
    const auto pin = [&](std::uint64_t offset, std::uint64_t bytes) {
        CHECK_EQ(driver.host_register(m->data() + offset, bytes, 3), 0);
    };
    pin(0, 4 << 20), pin(4 << 20, 4 << 20);
    const long theirs = gpu_kit::get("registered_bytes");
    {
        const auto r = Registration::start(device, *m);
        CHECK(r->wait(kWait) == State::registered);
        CHECK_EQ(r->info().bytes_foreign, std::uint64_t{8 << 20});
        CHECK(r->address(m->data() + (3 << 20), 2 << 20) != 0);
        r->unregister();
        CHECK_EQ(gpu_kit::get("registered_bytes"), theirs);
    }
    CHECK_EQ(driver.host_unregister(m->data() + (4 << 20)), 0);
    const auto r = Registration::start(device, *m);
    CHECK(r->wait(kWait) == State::refused);
    CHECK(gpu_kit::says(r->info().reason, "a part of it, not all"));
    CHECK_EQ(r->info().result, 712);
    CHECK_EQ(driver.host_unregister(m->data()), 0);
}

TEST(an_extent_that_comes_and_one_that_goes) {
    const auto device = gpu_kit::device();
    const Clean clean;
    {
        const auto m = mapping({4 << 20, 6 << 20});
        const auto r = Registration::start(device, *m, 2 << 20);
        CHECK(r->wait(kWait) == State::registered);
        sac::Extent e;
        e.fd = kit::memory(2 << 20), e.bytes = 2 << 20, e.name = "late";
        m->append(std::move(e));
        CHECK(r->wait(kWait) == State::registered);
        CHECK_EQ(r->info().bytes_done, std::uint64_t{12 << 20});
        CHECK(r->address(m->data() + (10 << 20), 2 << 20) != 0);
        Watcher watcher;
        r->add(watcher);
        m->lose(m->extents()[1]);
        CHECK_EQ(watcher.gone.size(), 1u);
        CHECK_EQ(watcher.gone[0].first - m->data(), 4 << 20);
        CHECK_EQ(watcher.gone[0].second, std::uint64_t{6 << 20});
        CHECK_EQ(watcher.registered_then, clean.registered + (12 << 20));  // told before
        CHECK_EQ(gpu_kit::get("registered_bytes"), clean.registered + (6 << 20));
        CHECK_EQ(r->address(m->data() + (4 << 20), 1), 0u);
        CHECK(r->address(m->data(), 4 << 20) != 0);
        CHECK(r->address(m->data() + (10 << 20), 1) != 0);
        CHECK(r->info().state == State::registered);
        r->remove(watcher);
        r->unregister();
        CHECK_EQ(watcher.gone.size(), 1u);
        // Begun again, without what is dead.
        CHECK(Registration::start(device, *m)->wait(kWait) == State::registered);
        CHECK_EQ(r->info().bytes_done, std::uint64_t{6 << 20});
    }
    clean.check();
}

TEST(a_late_extent_that_is_refused_leaves_the_others) {
    const auto device = gpu_kit::device();
    const long before = gpu_kit::get("registered_bytes");
    const auto m = mapping({4 << 20});
    const auto r = Registration::start(device, *m);
    CHECK(r->wait(kWait) == State::registered);
    const gpu_kit::Turned most("refuse_after", before + (5 << 20));
    sac::Extent e;
    e.fd = kit::memory(2 << 20), e.bytes = 2 << 20, e.name = "late";
    m->append(std::move(e));
    CHECK(r->wait(kWait) == State::refused);
    CHECK(gpu_kit::says(r->info().reason, "late"));
    CHECK(r->address(m->data(), 4 << 20) != 0);
    CHECK_EQ(r->address(m->data() + (4 << 20), 1), 0u);
}

TEST(extents_come_and_go_while_it_runs) {
    const auto device = gpu_kit::device();
    const Clean clean;
    {
        const gpu_kit::Turned slow("slow_ms", 1);
        const auto m = mapping({16 << 20, 16 << 20});
        const auto r = Registration::start(device, *m, 1 << 20);
        std::thread more([&] {
            for (int i = 0; i < 8; ++i) {
                sac::Extent e;
                e.fd = kit::memory(4 << 20), e.bytes = 4 << 20, e.name = "late";
                m->append(std::move(e));
            }
        });
        m->lose(m->extents()[1]);
        more.join();
        CHECK(r->wait(kWait) == State::registered);
        CHECK_EQ(r->info().bytes_done, std::uint64_t{48 << 20});
        CHECK_EQ(gpu_kit::get("registered_bytes"), clean.registered + (48 << 20));
    }
    clean.check();
}

TEST(a_forked_child_gets_errors_and_does_no_harm) {
    const auto device = gpu_kit::device();
    auto m = mapping({4 << 20});
    auto r = Registration::start(device, *m);
    CHECK(r->wait(kWait) == State::registered);
    Watcher watcher;
    r->add(watcher);
    CHECK_EQ(kit::in_child([&] {
                 CHECK_THROWS(SAC_E_FORKED, r->info());
                 CHECK_THROWS(SAC_E_FORKED, r->wait(0));
                 CHECK_THROWS(SAC_E_FORKED, r->require(0));
                 CHECK_THROWS(SAC_E_FORKED, Registration::start(device, *m));
                 CHECK_EQ(r->address(m->data(), 1), 0u);
                 r->unregister();
                 CHECK(watcher.gone.empty());
                 m.reset(), r.reset();  // does not hang
             }),
             0);
    CHECK(r->address(m->data(), 4 << 20) != 0);
    r->remove(watcher);
}

// As an engine does it: a pool, and what sac_gpu.h says about it.
TEST(a_pool_until_the_last_handle) {
    gpu_kit::use_fake();
    sac_gpu *gpu = nullptr;
    MUST(sac_gpu_open(0, &gpu));
    const Clean clean;
    {
        kit::Directory dir;
        auto pool = kit::pool(16 * kit::kMiB, dir.pool());
        auto ns = kit::space(pool, "ns", kit::plain(16, 65536));
        const auto k = kit::keys(0, 4);
        kit::put(ns, k);
        sac_gpu_registration *r = nullptr, *again = nullptr;
        MUST(sac_gpu_register(gpu, ns.get(), 4096 * 1024, &r));
        MUST(sac_gpu_registration_wait(r, kWait));
        MUST(sac_gpu_register(gpu, ns.get(), 0, &again));
        sac_registration_info i;
        MUST(sac_gpu_registration_get_info(again, &i));
        CHECK_EQ(i.state, std::uint32_t{SAC_REGISTRATION_REGISTERED});
        CHECK_EQ(i.bytes, i.bytes_done);
        CHECK_EQ(i.chunks, i.chunks_done);
        CHECK(i.bytes_done >= 16 * kit::kMiB);
        CHECK_EQ(gpu_kit::get("registered_bytes"),
                 clean.registered + static_cast<long>(i.bytes_done));
        MUST(sac_gpu_registration_close(again));
        auto prefix = kit::pin(ns, k);
        ns.reset(), pool.reset();
        CHECK(gpu_kit::get("registered_bytes") > clean.registered);  // the prefix has it still
        prefix.reset();
        clean.check();
        MUST(sac_gpu_registration_get_info(r, &i));
        CHECK_EQ(i.state, std::uint32_t{SAC_REGISTRATION_ENDED});
        CHECK_EQ(sac_gpu_registration_wait(r, 0), as_int(SAC_E_GPU));
        MUST(sac_gpu_registration_close(r));
    }
    MUST(sac_gpu_close(gpu));
    CHECK_EQ(gpu_kit::get("contexts"), 0);
}

TEST(a_lost_extent_of_a_pool) {
    gpu_kit::use_fake();
    sac_gpu *gpu = nullptr;
    MUST(sac_gpu_open(0, &gpu));
    const Clean clean;
    {
        kit::Directory dir;
        auto pool = kit::pool(16 * kit::kMiB, dir.pool(), 2);
        auto ns = kit::space(pool, "ns", kit::plain(16, 65536));
        sac_gpu_registration *r = nullptr;
        MUST(sac_gpu_register(gpu, ns.get(), 0, &r));
        MUST(sac_gpu_registration_wait(r, kWait));
        sac_registration_info i;
        MUST(sac_gpu_registration_get_info(r, &i));
        const std::uint64_t before = i.bytes_done;
        CHECK_EQ(i.chunks_done, 2u);
        MUST(sac_pool_lose(pool.get(), 1, nullptr));
        MUST(sac_gpu_registration_get_info(r, &i));
        CHECK_EQ(i.chunks_done, 1u);
        CHECK(i.bytes_done < before);
        MUST(sac_gpu_unregister(r));
        CHECK_EQ(gpu_kit::get("registered_bytes"), clean.registered);
        MUST(sac_gpu_registration_close(r));
    }
    clean.check();
    MUST(sac_gpu_close(gpu));
}
