// SPDX-License-Identifier: Apache-2.0
// Pins against eviction, by many threads: what is pinned stays as it is.
#include "pins.hpp"

#include <atomic>
#include <thread>

#include "check.hpp"
#include "kit_pages.hpp"

TEST(counts_and_notes) {
    sac::PinTable pins(100);
    CHECK(!pins.pinned(7));
    pins.pin(7);
    pins.pin(7);
    pins.pin(99);
    CHECK_EQ(pins.pinned_slots(), 2u);
    pins.unpin(7);
    CHECK(pins.pinned(7));
    pins.unpin(7);
    CHECK(!pins.pinned(7));
    const std::uint32_t slots[] = {5, 3, 8};
    pins.note(slots, 3);
    pins.note(slots, 1);
    std::vector<std::uint32_t> seen;
    pins.drain([&](std::uint32_t s) { seen.push_back(s); });
    CHECK(seen == std::vector<std::uint32_t>({5, 3, 8, 5}));
    pins.drain([&](std::uint32_t) { CHECK(false); });
}

TEST(notes_that_nobody_reads_are_overwritten) {
    constexpr std::uint32_t kRing = 1 << 16;
    sac::PinTable pins(kRing);  // a smaller one keeps fewer notes
    std::vector<std::uint32_t> many(kRing + 1000);
    for (std::uint32_t i = 0; i < many.size(); ++i) {
        many[i] = i;
    }
    pins.note(many.data(), 500);
    pins.note(many.data(), many.size());
    std::uint32_t expected = 1000, count = 0;
    bool in_order = true;
    pins.drain([&](std::uint32_t s) {
        in_order &= s == expected++;
        ++count;
    });
    CHECK(in_order);
    CHECK_EQ(count, kRing);
}

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRounds = 6000;
#else
constexpr int kRounds = 30000;
#endif

struct Load {
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> wrong{0}, pinned{0}, full{0}, commits{0};
    std::atomic<int> other_error{0};

    // A thread's exception would end the program without a word.
    template <class Fn> void guarded(Fn &&fn) {
        try {
            fn();
        } catch (const std::exception &error) {
            std::printf("  in a thread: %s\n", error.what());
            ++other_error;
        }
    }

    void read(const kit::NsHandle &ns, std::uint64_t keys, std::uint64_t seed) {
        guarded([&] {
            for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
                const auto k = kit::keys(kit::mix(seed + i) % keys / 2 * 2, 2);
                const auto prefix = kit::pin(ns, k);
                const std::uint64_t n = kit::pages(prefix);
                if (n == 0) {
                    continue;
                }
                ++pinned;
                // By gather, and once more in place a little later.
                std::vector<std::uint8_t> out(n * 16 * 64);
                sac_gather_req r{};
                r.prefix = prefix.get(), r.count = n * 16, r.dst = out.data();
                MUST(sac_gather(ns.get(), &r, 1, 0, 1, nullptr));
                for (std::uint64_t p = 0; p < n; ++p) {
                    const auto want = kit::page_rows(ns->it->geometry(),
                                                     kit::seed_of(k.data() + p * 32), 0, 0);
                    wrong += std::memcmp(out.data() + p * want.size(), want.data(),
                                         want.size()) != 0;
                }
                std::this_thread::yield();
                wrong += !kit::intact(ns, prefix, k);
            }
        });
    }

    void write(const kit::NsHandle &ns, std::uint64_t keys, std::uint64_t seed) {
        guarded([&] {
            for (int i = 0; i < kRounds; ++i) {
                const auto k =
                    kit::keys(kit::mix(seed + static_cast<std::uint64_t>(i)) % keys / 2 * 2, 2);
                kit::PutHandle put;
                const int status = kit::begin(ns, k, put);
                if (status == SAC_E_NO_SPACE) {
                    ++full;
                    continue;
                }
                kit::must(status, "begin");
                MUST(kit::write_missing(put.get(), ns->it->geometry(), k.data()));
                std::uint64_t n = 0;
                MUST(sac_put_commit(put.get(), &n));
                commits += n;
            }
        });
    }
};

}  // namespace

// A page of 256 KiB: 16 slots for 64 keys. Readers pin at most two pages each and a writer
// two, so that there is always something to evict: a put is never refused.
TEST(readers_writers_and_an_evictor) {
    constexpr std::uint64_t kKeys = 64;
    kit::Layout layout = kit::plain(16, 64);
    layout.planes[0].row_pitch = 16384;
    const auto pool = kit::pool(4 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", layout);
    Load load;
    std::vector<std::thread> readers, writers;
    for (std::uint64_t t = 0; t < 3; ++t) {
        readers.emplace_back([&, t] { load.read(ns, kKeys, t << 32); });
    }
    for (std::uint64_t t = 0; t < 2; ++t) {
        writers.emplace_back([&, t] { load.write(ns, kKeys, (t + 10) << 32); });
    }
    readers.emplace_back([&] {
        load.guarded([&] {
            while (!load.stop.load()) {
                kit::evict(ns, 1);
                std::this_thread::sleep_for(std::chrono::microseconds(50));
            }
        });
    });
    for (std::thread &t : writers) {
        t.join();
    }
    load.stop = true;
    for (std::thread &t : readers) {
        t.join();
    }
    CHECK_EQ(load.other_error.load(), 0);
    CHECK_EQ(load.wrong.load(), 0u);
    CHECK(load.pinned.load() > 0);
    CHECK(load.commits.load() > 0);
    CHECK_EQ(load.full.load(), 0u);
    const sac_ns_stats s = kit::stats(ns);
    CHECK_EQ(s.pinned, 0u);
    CHECK_EQ(s.reserved, 0u);
    CHECK_EQ(s.quarantined, 0u);
    CHECK(s.evictions > 0);
    CHECK_EQ(s.pages + s.evictions, s.commits);
    // No slot was lost on the way: all 16 can be filled with new pages.
    CHECK_EQ(kit::put(ns, kit::keys(1000, 16)), 16u);
    CHECK_EQ(kit::stats(ns).pages, 16u);
}

TEST(a_page_that_is_pinned_is_not_evicted) {
    const auto pool = kit::pool(2 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 4096));
    const auto all = kit::keys(0, 32);
    CHECK_EQ(kit::put(ns, all), 32u);
    const auto middle = kit::keys(0, 20);
    auto prefix = kit::pin(ns, middle);
    CHECK_EQ(kit::pages(prefix), 20u);
    CHECK_EQ(kit::stats(ns).pinned, 20u);
    CHECK_EQ(kit::evict(ns, 1000), 12u);
    CHECK_EQ(kit::hits(ns, all), 20u);
    CHECK(kit::intact(ns, prefix, middle));
    auto second = kit::pin(ns, kit::keys(0, 5));
    prefix.reset();
    CHECK_EQ(kit::evict(ns, 1000), 15u);
    second.reset();
    CHECK_EQ(kit::evict(ns, 1000), 5u);
    CHECK_EQ(kit::stats(ns).pinned, 0u);
}

// The protocol itself, at its narrowest: a page that was pinned and looked at keeps its
// generation until it is unpinned, however late the pin came behind the look-up.
TEST(a_pin_that_holds_keeps_the_page) {
    constexpr std::uint64_t kKeys = 4;
    const auto pool = kit::pool(2 * kit::kMiB);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 32768));  // four pages
    sac::OwnedNamespace &n = kit::owned(ns.get());
    const auto view = n.view();
    const sac::Index &index = view->index();
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> broken{0}, held{0}, refused{0};
    std::vector<std::thread> readers;
    for (std::uint64_t t = 0; t < 2; ++t) {
        readers.emplace_back([&, t] {
            for (std::uint64_t i = 0; !stop.load(std::memory_order_relaxed); ++i) {
                const sac::Key key = sac::Key::load(kit::key(i % kKeys).data());
                std::uint64_t word = 0;
                const std::uint32_t slot = index.find(key, 0, word);
                if (slot == sac::kNoSlot) {
                    continue;
                }
                if (t == 1 && i % 3 == 0) {
                    std::this_thread::yield();
                }
                const std::uint64_t generation = word & sac::Record::kGeneration;
                if (view->pin(slot, generation) != sac::View::Pinned::yes) {
                    ++refused;
                    continue;
                }
                ++held;
                const sac::Record &r = index.record(slot);
                for (int look = 0; look < 40; ++look) {
                    broken += (r.word.load() & ~sac::Record::kMark) != generation;
                    broken += !(index.key(slot) == key);
                }
                view->pins().unpin(slot);
            }
        });
    }
    const auto end = sac::Clock::now() + std::chrono::milliseconds(1500);
    std::uint64_t evicted = 0;
    for (std::uint64_t i = 0; sac::Clock::now() < end; ++i) {
        evicted += n.control().evict(1 + i % 2);
        auto got = n.control().reserve(1, 0, sac::Clock::now() + std::chrono::minutes(1));
        sac::CommitItem item{got[0], sac::Key::load(kit::key(kit::mix(i) % kKeys).data()),
                             {},     nullptr,
                             0,      false};
        n.control().commit({&item, 1});
    }
    stop = true;
    for (std::thread &t : readers) {
        t.join();
    }
    CHECK_EQ(broken.load(), 0u);
    CHECK(held.load() > 0);
    CHECK(evicted > 0);
    CHECK_EQ(view->pins().pinned_slots(), 0u);
}
