// SPDX-License-Identifier: Apache-2.0
// Reservations, commits, the order of eviction, events.
#include "control.hpp"

#include <thread>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

using std::chrono::milliseconds;

// 32 pages of 64 KiB: one slab.
struct Small {
    kit::PoolHandle pool = kit::pool(2 * kit::kMiB);
    kit::NsHandle ns = kit::space(pool, "ns", kit::plain(16, 4096));
    sac::CacheControl &control = kit::owned(ns.get()).control();
};

// Keys of pages that do not follow one another.
void put_alone(const kit::NsHandle &ns, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
        CHECK_EQ(kit::put(ns, kit::keys(i, 1)), 1u);
    }
}

void touch(const kit::NsHandle &ns, std::uint64_t key) {
    CHECK_EQ(kit::pages(kit::pin(ns, kit::keys(key, 1))), 1u);
}

std::vector<sac_event> events(const kit::NsHandle &ns, std::uint64_t &next,
                              std::uint64_t room = 1000) {
    std::vector<sac_event> out(room);
    std::uint64_t lost = 0;
    MUST(sac_events(ns.get(), &next, out.data(), &room, &lost));
    CHECK_EQ(lost, 0u);
    out.resize(room);
    return out;
}

}  // namespace

TEST(least_recently_used_goes_first) {
    const Small s;
    put_alone(s.ns, 0, 10);
    touch(s.ns, 0);
    touch(s.ns, 3);
    std::uint64_t next = UINT64_MAX;
    (void)events(s.ns, next, 0);
    CHECK_EQ(kit::evict(s.ns, 100), 10u);
    std::vector<kit::Bytes32> order;
    for (const sac_event &e : events(s.ns, next)) {
        CHECK_EQ(e.kind, static_cast<std::uint32_t>(SAC_EVENT_REMOVED));
        kit::Bytes32 k;
        std::copy_n(e.key, k.size(), k.begin());
        order.push_back(k);
    }
    std::vector<kit::Bytes32> expected;
    for (const std::uint64_t n : {1, 2, 4, 5, 6, 7, 8, 9, 0, 3}) {
        expected.push_back(kit::key(n));
    }
    CHECK(order == expected);
}

// What was read before pages came is colder than they, whenever that is looked at; their own
// writer may not have said yet that it used them.
TEST(pages_that_just_came_are_the_hottest) {
    const Small s;
    for (std::uint64_t chain = 0; chain < 7; ++chain)
        CHECK_EQ(kit::put(s.ns, kit::keys(chain * 4, 4)), 4u);
    for (std::uint64_t n = 0; n < 28; ++n)
        touch(s.ns, n);
    const auto keys = kit::keys(100, 4);
    std::vector<sac::CommitItem> items;
    for (const auto &r : s.control.reserve(4, 0, sac::Clock::now() + milliseconds(60000))) {
        const std::size_t i = items.size();
        const auto key = [&](std::size_t n) {
            return sac::Key::load(keys.data() + n * SAC_KEY_BYTES);
        };
        items.push_back({r, key(i), i ? key(i - 1) : sac::Key{}, nullptr, 0, false});
    }
    s.control.commit(items);
    CHECK_EQ(kit::put(s.ns, kit::keys(200, 4)), 4u);  // four leave
    CHECK_EQ(kit::hits(s.ns, keys), 4u);
    CHECK_EQ(kit::hits(s.ns, kit::keys(0, 28)), 24u);
}

TEST(the_tail_of_a_prefix_goes_first) {
    const Small s;
    CHECK_EQ(kit::put(s.ns, kit::keys(0, 8)), 8u);    // one chain, the colder one
    CHECK_EQ(kit::put(s.ns, kit::keys(100, 4)), 4u);  // another
    const auto chain = kit::keys(0, 8);
    for (std::uint64_t left = 8; left-- > 0;) {
        CHECK_EQ(kit::evict(s.ns, 1), 1u);
        CHECK_EQ(kit::longest(s.ns, chain), left);
        CHECK_EQ(kit::hits(s.ns, chain), left);  // nothing behind a gap
    }
    CHECK_EQ(kit::longest(s.ns, kit::keys(100, 4)), 4u);
}

TEST(a_shared_head_outlives_its_branches) {
    const Small s;
    const auto head = kit::keys(0, 2);
    CHECK_EQ(kit::put(s.ns, head), 2u);
    for (std::uint64_t branch = 1; branch <= 3; ++branch) {
        auto k = head;
        const auto rest = kit::keys(branch * 100, 2);
        k.insert(k.end(), rest.begin(), rest.end());
        CHECK_EQ(kit::put(s.ns, k), 2u);
    }
    CHECK_EQ(kit::evict(s.ns, 6), 6u);
    CHECK_EQ(kit::longest(s.ns, head), 2u);
    CHECK_EQ(kit::stats(s.ns).pages, 2u);
    CHECK_EQ(kit::evict(s.ns, 6), 2u);
}

TEST(two_writers_of_one_key) {
    for (const bool second_commits_first : {false, true}) {
        const Small s;
        const auto k = kit::keys(0, 3);
        kit::PutHandle a, b;
        MUST(kit::begin(s.ns, k, a));
        MUST(kit::begin(s.ns, k, b));
        MUST(kit::write_missing(a.get(), s.ns->it->geometry(), k.data()));
        MUST(kit::write_missing(b.get(), s.ns->it->geometry(), k.data()));
        CHECK_EQ(kit::stats(s.ns).reserved, 6u);
        std::uint64_t first = 0, second = 0;
        MUST(sac_put_commit((second_commits_first ? b : a).get(), &first));
        const auto prefix = kit::pin(s.ns, k);
        MUST(sac_put_commit((second_commits_first ? a : b).get(), &second));
        CHECK_EQ(first, 3u);
        CHECK_EQ(second, 0u);
        CHECK(kit::intact(s.ns, prefix, k));
        const sac_ns_stats now = kit::stats(s.ns);
        CHECK_EQ(now.pages, 3u);
        CHECK_EQ(now.duplicates, 3u);
        CHECK_EQ(now.reserved, 0u);
        CHECK_EQ(kit::put(s.ns, kit::keys(50, 29)), 29u);  // the loser's slots came back
        CHECK_EQ(kit::stats(s.ns).pages, 32u);
    }
}

TEST(writers_of_one_key_at_the_same_time) {
    const Small s;
    for (std::uint64_t round = 0; round < 40; ++round) {
        std::vector<std::thread> writers;
        std::atomic<std::uint64_t> won{0};
        std::atomic<int> failed{0};
        for (int t = 0; t < 3; ++t) {
            writers.emplace_back([&] {
                try {
                    won += kit::put(s.ns, kit::keys(round * 4, 4));
                } catch (const std::exception &) {
                    ++failed;
                }
            });
        }
        for (std::thread &t : writers) {
            t.join();
        }
        CHECK_EQ(failed.load(), 0);
        CHECK_EQ(won.load(), 4u);
        const auto k = kit::keys(round * 4, 4);
        CHECK(kit::intact(s.ns, kit::pin(s.ns, k), k));
    }
    CHECK_EQ(kit::stats(s.ns).reserved, 0u);
}

TEST(an_expired_slot_waits_for_its_writer) {
    const Small s;
    kit::PutOptions o;
    o.deadline_ms = 1;
    const auto k = kit::keys(0, 30);
    kit::PutHandle put;
    MUST(kit::begin(s.ns, k, put, o));
    MUST(kit::write_missing(put.get(), s.ns->it->geometry(), k.data()));
    std::this_thread::sleep_for(milliseconds(5));
    put_alone(s.ns, 100, 4);  // two slots for four pages: those of the writer are not given out
    sac_ns_stats now = kit::stats(s.ns);
    CHECK_EQ(now.pages, 2u);
    CHECK_EQ(now.reserved, 30u);
    CHECK_EQ(now.quarantined, 30u);
    CHECK_EQ(sac_put_commit(put.get(), nullptr), static_cast<int>(SAC_E_RESERVATION));
    CHECK_EQ(kit::hits(s.ns, k), 0u);
    put.reset();
    now = kit::stats(s.ns);
    CHECK_EQ(now.reserved, 0u);
    CHECK_EQ(now.quarantined, 0u);
    CHECK_EQ(kit::put(s.ns, kit::keys(200, 30)), 30u);
    CHECK_EQ(kit::stats(s.ns).pages, 32u);
}

// A writer that was too late may still write: never into a page that is somebody else's.
TEST(writes_after_a_refused_commit_hit_nobody) {
    const Small s;
    kit::PutOptions o;
    o.deadline_ms = 1;
    const auto late = kit::keys(0, 32), other = kit::keys(100, 32);
    kit::PutHandle put;
    MUST(kit::begin(s.ns, late, put, o));
    MUST(kit::write_missing(put.get(), s.ns->it->geometry(), late.data()));
    std::this_thread::sleep_for(milliseconds(5));
    CHECK_EQ(sac_put_commit(put.get(), nullptr), static_cast<int>(SAC_E_RESERVATION));
    kit::PutHandle second;
    if (kit::begin(s.ns, other, second) == SAC_OK) {
        MUST(kit::write_missing(second.get(), s.ns->it->geometry(), other.data()));
        MUST(sac_put_commit(second.get(), nullptr));
    }
    (void)kit::write_missing(put.get(), s.ns->it->geometry(), late.data());
    put.reset();
    second.reset();
    CHECK(kit::intact(s.ns, kit::pin(s.ns, other), other));
    CHECK_EQ(kit::stats(s.ns).reserved, 0u);
}

TEST(only_the_token_ends_a_reservation) {
    const Small s;
    const auto later = sac::Clock::now() + milliseconds(60000);
    auto held = s.control.reserve(2, 0, later);
    CHECK_EQ(held.size(), 2u);
    CHECK(held[0].generation != held[1].generation);
    auto forged = held;
    forged[0].token ^= 1, forged[1].slot += 20;
    s.control.abort(forged);
    CHECK_EQ(kit::stats(s.ns).reserved, 2u);
    sac::CommitItem item{forged[0], sac::Key::load(kit::key(1).data()), {}, nullptr, 0, false};
    CHECK_THROWS(SAC_E_RESERVATION, s.control.commit({&item, 1}));
    CHECK_EQ(kit::hits(s.ns, kit::keys(1, 1)), 0u);
    s.control.abort(held);
    CHECK_EQ(kit::stats(s.ns).reserved, 0u);
    CHECK_EQ(kit::stats(s.ns).aborts, 2u);
}

TEST(renewed_reservations_live_on) {
    const Small s;
    const auto held = s.control.reserve(1, 0, sac::Clock::now() + milliseconds(2));
    s.control.renew(held, sac::Clock::now() + milliseconds(60000));
    std::this_thread::sleep_for(milliseconds(6));
    put_alone(s.ns, 10, 1);
    CHECK_EQ(kit::stats(s.ns).quarantined, 0u);
    const auto expired = s.control.reserve(1, 0, sac::Clock::now() - milliseconds(1));
    put_alone(s.ns, 11, 1);
    s.control.renew(expired, sac::Clock::now() + milliseconds(60000));  // too late
    CHECK_EQ(kit::stats(s.ns).quarantined, 1u);
    s.control.abort(held);
    s.control.abort(expired);
}

TEST(events_tell_what_came_and_went) {
    const Small s;
    put_alone(s.ns, 0, 1);
    std::uint64_t next = 0, room = 0, lost = 0;
    MUST(sac_events(s.ns.get(), &next, nullptr, &room, &lost));
    CHECK_EQ(lost, 1u);  // before the first call
    CHECK_EQ(kit::put(s.ns, kit::keys(10, 2)), 2u);
    CHECK_EQ(kit::evict(s.ns, 1), 1u);
    CHECK_EQ(events(s.ns, next, 1).size(), 1u);
    const auto rest = events(s.ns, next);
    CHECK_EQ(rest.size(), 2u);
    CHECK_EQ(rest[0].kind, static_cast<std::uint32_t>(SAC_EVENT_STORED));
    CHECK(std::memcmp(rest[0].key, kit::key(11).data(), 32) == 0);
    CHECK(std::memcmp(rest[0].parent, kit::key(10).data(), 32) == 0);
    CHECK_EQ(rest[1].kind, static_cast<std::uint32_t>(SAC_EVENT_REMOVED));
    CHECK(std::memcmp(rest[1].key, kit::key(0).data(), 32) == 0);
    CHECK_EQ(rest[1].sequence, 3u);
    CHECK_EQ(next, 4u);
    // More than the ring holds: the oldest are lost, and counted.
    for (std::uint64_t i = 0; i < 8300; ++i) {
        put_alone(s.ns, 1000 + i, 1);
    }
    std::vector<sac_event> out(20000);
    room = out.size();
    MUST(sac_events(s.ns.get(), &next, out.data(), &room, &lost));
    CHECK_EQ(room, 16384u);
    CHECK_EQ(lost, next - 4 - room);
    CHECK_EQ(out.front().sequence, 4 + lost);
}
