// SPDX-License-Identifier: Apache-2.0
// A client's pool against a real daemon that dies at bad moments.
#include <atomic>
#include <chrono>
#include <thread>

#include "check.hpp"
#include "daemon_process.hpp"
#include "kit_pages.hpp"

namespace {

const kit::Layout kLayout = kit::rich(8, 20);

void check_idle(const kit::NsHandle &ns) {
    const sac_ns_stats s = kit::stats(ns);
    CHECK_EQ(s.pinned, 0u);
    CHECK_EQ(s.reserved, 0u);
    CHECK_EQ(s.quarantined, 0u);
    std::uint64_t checked = 0, dropped = 0;
    MUST(sac_verify(ns.get(), &checked, &dropped));
    CHECK_EQ(checked, s.pages + s.tails);
    CHECK_EQ(dropped, 0u);
}

// Pages that fit when nothing is stored; nothing is stored afterwards.
std::uint64_t room(const kit::NsHandle &ns) {
    kit::evict(ns, 1u << 30);
    std::uint64_t low = 0, high = 4096;
    while (low < high) {
        const std::uint64_t middle = (low + high + 1) / 2;
        kit::PutOptions o;
        o.first_tail = middle;  // no tails
        kit::PutHandle put;
        if (kit::begin(ns, kit::keys(1u << 20, middle), put, o) == SAC_OK) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

// Puts pages, and reads what is there of them; false: no room.
bool put_and_read(const kit::NsHandle &ns, std::uint64_t first, std::uint64_t count) {
    const auto keys = kit::keys(first, count);
    kit::PutHandle put;
    const int status = kit::begin(ns, keys, put);
    if (status == SAC_OK) {
        MUST(kit::write_missing(put.get(), ns->it->geometry(), keys.data()));
        MUST(sac_put_commit(put.get(), nullptr));
    } else if (status != SAC_E_NO_SPACE) {
        kit::must(status, "sac_put_begin");
    }
    put.reset();
    const kit::PrefixHandle prefix = kit::pin(ns, keys);
    CHECK(kit::intact(ns, prefix, keys));
    return status == SAC_OK;
}

}  // namespace

TEST(what_an_embedded_pool_does) {
    kit::DaemonProcess daemon(16 * kit::kMiB);
    const kit::PoolHandle pool = daemon.connect();
    CHECK_EQ(kit::info(pool).data_bytes, 16 * kit::kMiB);
    const kit::NsHandle ns = kit::space(pool, "n", kLayout, 0, SAC_NS_DATA_CHECKSUM);
    const auto keys = kit::keys(1, 40);
    CHECK_EQ(kit::put(ns, keys), 40u);
    CHECK_EQ(kit::put(ns, keys), 0u);
    CHECK_EQ(kit::hits(ns, keys), 40u);
    const kit::NsHandle again = kit::space(pool, "n", kLayout, 0, SAC_NS_DATA_CHECKSUM);
    const kit::PrefixHandle prefix = kit::pin(again, keys);
    CHECK_EQ(kit::pages(prefix), 40u);
    CHECK(kit::intact(again, prefix, keys));
    CHECK_EQ(sac_pool_drop(pool.get(), "n"), SAC_E_BUSY);
}

// More than one frame holds.
TEST(a_commit_of_many_frames) {
    kit::DaemonProcess daemon(16 * kit::kMiB);
    const kit::PoolHandle pool = daemon.connect();
    kit::Layout layout = kit::plain(4096, 1984);  // so that one chunk holds them
    layout.planes[0].tokens_per_row = 4096;
    const kit::NsHandle ns = kit::space(pool, "n", layout, 0, SAC_NS_TOKEN_IDS);
    constexpr std::uint64_t kPages = 1030;
    const auto keys = kit::keys(1, kPages);
    const std::vector<std::uint32_t> tokens(kPages * 4096, 7);
    kit::PutOptions o;
    o.tokens = tokens.data();
    CHECK_EQ(kit::put(ns, keys, o), kPages);
    const kit::PrefixHandle prefix = kit::pin(ns, keys);
    CHECK_EQ(kit::pages(prefix), kPages);
    CHECK(kit::intact(ns, prefix, keys));
}

TEST(an_answer_that_never_came) {
    kit::DaemonProcess daemon(16 * kit::kMiB);
    const kit::PoolHandle pool = daemon.connect();
    const kit::NsHandle ns =
        kit::space(pool, "n", kLayout, 2 * 2 * kit::kMiB, SAC_NS_DATA_CHECKSUM);
    const std::uint64_t all = room(ns);
    CHECK(all > 10);
    std::uint64_t next = 1;
    for (const char *point :
         {"reserve.granted:1",     "reserve.granted:3",     "reserve.end:1",
          "server.granted:1",      "server.before_reply:1", "server.before_reply:2",
          "server.before_reply:3", "server.before_reply:4", "server.commit:1",
          "commit.begin:2",        "commit.header:1",       "commit.end:1",
          "server.committed:1",    "abort.ended:1",         "server.renew:1",
          "adopt.revoked:1",       "adopt.end:1",           "server.attached:1",
          "server.table_made:1",   "server.detach:1",       "detach.end:1"}) {
        daemon.kill();
        bool started = true;
        try {
            daemon.start(point);
        } catch (const std::exception &) {
            started = false;  // it came to the point before it served
        }
        std::atomic<bool> died{false};
        std::thread nurse([&] {
            if (daemon.wait() != SIGKILL) {
                std::abort();
            }
            died = true;
            daemon.start();
        });
        while (!died) {
            put_and_read(ns, next, 4);
            kit::PutHandle given_up;
            (void)kit::begin(ns, kit::keys(next + 2, 4), given_up);
            next += 6;
        }
        nurse.join();
        put_and_read(ns, next, 4);
        check_idle(ns);
        CHECK_EQ(room(ns), all);
        (void)started;
    }
}

TEST(threads_through_restarts) {
    kit::DaemonProcess daemon(16 * kit::kMiB);
    const kit::PoolHandle pool = daemon.connect();
    const kit::NsHandle ns =
        kit::space(pool, "n", kLayout, 4 * 2 * kit::kMiB, SAC_NS_DATA_CHECKSUM);
    std::atomic<bool> ended{false};
    std::atomic<std::uint64_t> stored{0};
    std::vector<std::thread> threads;
    std::vector<std::string> wrong(4);
    for (std::uint64_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            try {
                for (std::uint64_t i = 0; !ended; ++i) {
                    stored += put_and_read(ns, 1 + (t * 37 + i * 11) % 400, 1 + i % 9);
                }
            } catch (const check::Failure &f) {
                wrong[t] = f.text;
            } catch (const std::exception &e) {
                wrong[t] = e.what();
            }
        });
    }
    for (int i = 0; i < 8; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
        daemon.kill();
        daemon.start();
    }
    ended = true;
    for (std::thread &t : threads) {
        t.join();
    }
    for (const std::string &w : wrong) {
        CHECK_EQ(w, "");
    }
    CHECK(stored > 0);
    check_idle(ns);
}

TEST(the_daemon_is_away) {
    kit::DaemonProcess daemon(16 * kit::kMiB);
    const kit::PoolHandle pool = daemon.connect(50);
    const kit::NsHandle ns = kit::space(pool, "n", kLayout);
    const auto keys = kit::keys(1, 20);
    kit::put(ns, keys);
    kit::PutHandle open;
    MUST(kit::begin(ns, kit::keys(100, 4), open));
    daemon.kill();
    const kit::PrefixHandle prefix = kit::pin(ns, keys);
    CHECK(kit::intact(ns, prefix, keys));
    kit::PutHandle none;
    CHECK_EQ(kit::begin(ns, kit::keys(200, 4), none), SAC_E_NO_DAEMON);
    open.reset();
    daemon.start();
    CHECK_EQ(kit::put(ns, kit::keys(200, 4)), 4u);
    CHECK(kit::intact(ns, prefix, keys));
    CHECK_EQ(kit::stats(ns).reserved, 0u);
}
