// SPDX-License-Identifier: Apache-2.0
// Room: chunks that change from bodies to tails and back, and what a refusal leaves alone.
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <mutex>
#include <thread>

#include "check.hpp"
#include "control.hpp"
#include "in_child.hpp"
#include "kit_pages.hpp"

namespace {

using std::chrono::milliseconds;

const auto kLater = sac::Clock::now() + milliseconds(600000);

// Pages of 64 KiB, 32 a slab, with states of so many MiB; the states of 1 MiB lie two a slab.
kit::Layout with_state(std::uint32_t mib) {
    kit::Layout l{16, {kit::plane("k", 1, 4096), kit::plane("state", 1, 0)}};
    l.planes[1].kind = SAC_PLANE_STATE;
    l.planes[1].row_bytes = mib << 20;
    l.planes[1].group = 1;
    return l;
}

// A page without a parent and without a tail.
void put_body(const kit::NsHandle &ns, std::uint64_t key, sac::Key parent = {}) {
    auto &control = kit::owned(ns.get()).control();
    const auto held = control.reserve(1, 0, kLater);
    sac::CommitItem item{held[0], sac::Key::load(kit::key(key).data()), parent, nullptr, 0,
                         false};
    control.commit({&item, 1});
}

std::uint64_t fill(const kit::NsHandle &ns, std::uint64_t first) {
    std::uint64_t n = 0;
    while (kit::stats(ns).evictions == 0) {
        put_body(ns, first + n++);
    }
    return kit::stats(ns).pages;
}

}  // namespace

// Bodies of 3 MiB: a chunk of two slabs, which a kill can find half given back.
kit::Layout large_bodies() {
    kit::Layout l = with_state(1);
    l.planes[0].row_bytes = (3 << 20) / 16;
    return l;
}

// Run in a process of its own by the kill test below, nothing otherwise. First in this file:
// the stop points count from the start.
TEST(child_of_the_kill_test) {
    const char *const dir = std::getenv("SAC_TEST_ROOM_DIR");
    if (!dir) {
        return;
    }
    const kit::PoolHandle pool = kit::pool(24 * kit::kMiB, dir);
    const kit::NsHandle ns = kit::space(pool, "ns", large_bodies());
    fill(ns, 0);
    (void)kit::owned(ns.get()).control().reserve(0, 8, kLater);
    _exit(0);
}

TEST(a_kill_while_chunks_change) {
    for (const char *const stop : {"evict.raised:2", "header.cleared:2", "slab.released:1",
                                   "slab.released:2", "slab.scrubbed:1", "slab.scrubbed:2",
                                   "slab.assigned:13", "slab.assigned:14", "reserve.end:7"}) {
        const kit::Directory dir;
        const pid_t child = kit::fork_at_rest();
        if (child == 0) {
            setenv("SAC_STOP_AT", stop, 1);
            setenv("SAC_TEST_ROOM_DIR", dir.pool().c_str(), 1);
            execl("/proc/self/exe", "room", static_cast<char *>(nullptr));
            _exit(127);
        }
        int status = 0;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        kit::PoolHandle pool;
        MUST(kit::open_pool(pool, 0, dir.pool().c_str(), 0, SAC_POOL_OPEN));
        const kit::NsHandle ns = kit::space(pool, "ns", large_bodies());
        auto &control = kit::owned(ns.get()).control();
        CHECK(kit::stats(ns).pages >= 1u);
        const sac_pool_info i = kit::info(pool);
        CHECK_EQ(i.free_bytes + control.assigned_bytes(), i.data_bytes);  // no slab is lost
        const auto tails = control.reserve(1, 8, kLater);
        control.abort(tails);
        CHECK_EQ(control.reserve(5, 0, kLater).size(), 5u);
    }
}

TEST(tails_take_chunks_back_from_idle_bodies) {
    const kit::PoolHandle pool = kit::pool(16 * kit::kMiB);
    const kit::NsHandle ns = kit::space(pool, "ns", with_state(1));
    auto &control = kit::owned(ns.get()).control();
    const std::uint64_t full = fill(ns, 0);
    CHECK_EQ(full, 7u * 32);
    const std::uint64_t before = kit::stats(ns).evictions;
    const std::uint64_t newest = full;  // the key put last
    const auto two = control.reserve(0, 2, kLater);
    CHECK_EQ(kit::stats(ns).evictions, before);  // the chunk of tails is enough
    const auto more = control.reserve(0, 3, kLater);
    CHECK_EQ(kit::stats(ns).pages, 5u * 32);  // two chunks, no more
    CHECK_EQ(kit::hits(ns, kit::keys(newest, 1)), 1u);
    CHECK_EQ(kit::hits(ns, kit::keys(1, 31)), 31u);  // in the chunk that got the newest
    CHECK_EQ(kit::hits(ns, kit::keys(32, 64)), 0u);  // the coldest ones
    CHECK_THROWS(SAC_E_NO_SPACE, control.reserve(0, 12, kLater));
    CHECK_EQ(kit::stats(ns).pages, 5u * 32);  // in vain, so nothing was evicted
    CHECK_THROWS(SAC_E_NO_SPACE, control.reserve(161, 0, kLater));
    CHECK_EQ(kit::stats(ns).pages, 5u * 32);
    control.abort(two);
    control.abort(more);
    // And back: the tails are idle now.
    const auto bodies = control.reserve(7 * 32, 0, kLater);
    CHECK_EQ(bodies.size(), 7u * 32);
    CHECK_THROWS(SAC_E_NO_SPACE, control.reserve(0, 3, kLater));
    control.abort(bodies);
}

TEST(many_sequences_at_once_beside_a_cache_of_bodies) {
    const kit::PoolHandle pool = kit::pool(32 * kit::kMiB);
    const kit::NsHandle ns = kit::space(pool, "ns", with_state(1));
    fill(ns, 0);
    std::vector<std::thread> threads;
    std::atomic<int> failed{0};
    std::mutex lock;
    std::vector<kit::SeqHandle> all;
    for (std::uint32_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (std::uint32_t i = 0; i < 5; ++i) {
                sac_seq *raw = nullptr;
                std::vector<std::uint32_t> tokens(16, t * 100 + i);
                failed += sac_seq_open(ns.get(), nullptr, 0, nullptr, 0, &raw) != SAC_OK ||
                          sac_seq_extend(raw, tokens.data(), 16, 0) != SAC_OK;
                const std::lock_guard held(lock);
                all.emplace_back(raw);
            }
        });
    }
    for (std::thread &t : threads) {
        t.join();
    }
    CHECK_EQ(failed.load(), 0);
    CHECK_EQ(kit::stats(ns).reserved, 40u);
    CHECK(kit::stats(ns).pages >= 4u * 32);  // what is needed, not more
}

TEST(a_chunk_of_several_slabs_takes_neighbours) {
    const kit::PoolHandle pool = kit::pool(24 * kit::kMiB);
    const kit::NsHandle ns = kit::space(pool, "ns", with_state(3));
    auto &control = kit::owned(ns.get()).control();
    fill(ns, 0);
    const std::uint64_t before = control.assigned_bytes();
    const auto held = control.reserve(0, 3, kLater);
    CHECK_EQ(held.size(), 3u);
    CHECK(control.assigned_bytes() > before);  // the slabs left over are in use, too
    control.abort(held);
}

TEST(pinned_and_reserved_chunks_stay) {
    const kit::PoolHandle pool = kit::pool(12 * kit::kMiB);
    const kit::NsHandle ns = kit::space(pool, "ns", with_state(1));
    auto &control = kit::owned(ns.get()).control();
    const std::uint64_t full = fill(ns, 0);
    // One pinned page in each chunk of bodies: found by slot.
    const auto view = ns->it->view();
    const sac::Index &index = view->index();
    const std::uint32_t per_chunk = ns->it->block().chunk_slots;
    std::vector<std::uint32_t> pinned;
    for (std::uint32_t slot = 0; slot < index.capacity(); slot += per_chunk) {
        const std::uint64_t word = index.record(slot).word.load();
        if ((word & sac::Record::kGeneration) != 0 && (word & sac::Record::kAbsent) == 0) {
            CHECK(view->pin(slot, word & sac::Record::kGeneration) == sac::View::Pinned::yes);
            pinned.push_back(slot);
        }
    }
    CHECK_EQ(pinned.size(), full / 32);
    CHECK_THROWS(SAC_E_NO_SPACE, control.reserve(0, 3, kLater));
    CHECK_EQ(kit::stats(ns).pages, full);
    CHECK_EQ(kit::stats(ns).pinned, pinned.size());
    view->pins().unpin(pinned.back());
    const auto held = control.reserve(0, 3, kLater);
    CHECK_EQ(kit::stats(ns).pages, full - 32);
    control.abort(held);
    pinned.pop_back();
    for (const std::uint32_t slot : pinned) {
        view->pins().unpin(slot);
    }
}

TEST(children_of_a_chunk_that_left_stay) {
    const kit::PoolHandle pool = kit::pool(12 * kit::kMiB);
    const kit::NsHandle ns = kit::space(pool, "ns", with_state(1));
    auto &control = kit::owned(ns.get()).control();
    // One chain through all chunks: parents lie in the first.
    const std::uint64_t all = 5 * 32 - 32;
    for (std::uint64_t i = 0; i < all; ++i) {
        put_body(ns, i, i ? sac::Key::load(kit::key(i - 1).data()) : sac::Key{});
    }
    for (std::uint64_t i = 1000; i < 1032; ++i) {
        put_body(ns, i);
    }
    const std::uint64_t forced = control.index()->forced();
    const std::uint64_t before = kit::stats(ns).pages;
    auto held = control.reserve(0, 3, kLater);
    CHECK_EQ(control.index()->forced(), forced);
    control.abort(held);
    const std::uint64_t left = kit::stats(ns).pages;
    CHECK(left < before);
    CHECK_EQ(kit::evict(ns, 1000), left);  // each is a leaf or becomes one
    CHECK_EQ(kit::stats(ns).pages, 0u);
}

TEST(a_put_that_fails_for_pins_evicts_nothing) {
    const kit::PoolHandle pool = kit::pool(8 * kit::kMiB);
    const kit::NsHandle ns = kit::space(pool, "ns", kit::plain(16, 4096));
    const auto a = kit::keys(0, 64), b = kit::keys(1000, 64);
    CHECK_EQ(kit::put(ns, a), 64u);
    CHECK_EQ(kit::put(ns, b), 64u);
    const auto prefix = kit::pin(ns, a);
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, kit::keys(2000, 65), put), static_cast<int>(SAC_E_NO_SPACE));
    CHECK_EQ(kit::longest(ns, b), 64u);
    CHECK_EQ(kit::stats(ns).evictions, 0u);
    CHECK_EQ(kit::put(ns, kit::keys(3000, 64)), 64u);
    // In front of a pinned page none can leave either.
    const auto c = kit::keys(3063, 1);
    const auto last = kit::pin(ns, c);
    CHECK_EQ(kit::pages(last), 1u);
    CHECK_EQ(kit::begin(ns, kit::keys(4000, 1), put), static_cast<int>(SAC_E_NO_SPACE));
    CHECK_EQ(kit::longest(ns, kit::keys(3000, 64)), 64u);
}

TEST(a_converted_pool_recovers) {
    const kit::Directory dir;
    std::uint64_t pages = 0, tails = 0;
    {
        const kit::PoolHandle pool = kit::pool(16 * kit::kMiB, dir.pool());
        const kit::NsHandle ns = kit::space(pool, "ns", with_state(1));
        auto &control = kit::owned(ns.get()).control();
        fill(ns, 0);
        const auto held = control.reserve(0, 6, kLater);
        std::vector<sac::CommitItem> items;
        for (const auto &r : held) {
            items.push_back(
                {r, sac::Key::load(kit::key(5000 + r.slot).data()), {}, nullptr, 0, false});
        }
        control.commit(items);
        pages = kit::stats(ns).pages, tails = kit::stats(ns).tails;
        CHECK_EQ(tails, 6u);
        CHECK_EQ(pages, 5u * 32);
        // The bytes as a kill would leave them: a copy, made while the pool is open.
        std::filesystem::copy(dir.pool(), dir.pool() + "2");
    }
    kit::PoolHandle pool;
    MUST(kit::open_pool(pool, 0, (dir.pool() + "2").c_str(), 0, SAC_POOL_OPEN));
    const kit::NsHandle ns = kit::space(pool, "ns", with_state(1));
    CHECK_EQ(kit::stats(ns).pages, pages);
    CHECK_EQ(kit::stats(ns).tails, tails);
    const sac_pool_info i = kit::info(pool);
    CHECK_EQ(i.free_bytes + kit::owned(ns.get()).control().assigned_bytes(), i.data_bytes);
    std::filesystem::remove_all(dir.pool() + "2");
}
