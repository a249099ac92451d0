// SPDX-License-Identifier: Apache-2.0
#include "pool.hpp"

#include <fcntl.h>

#include <atomic>
#include <thread>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

int open_only(kit::PoolHandle &out, const std::string &path) {
    return kit::open_pool(out, 0, path.c_str(), 0, SAC_POOL_OPEN);
}

void touch(const std::string &path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, "mine", 4), 4);
    close(fd);
}

}  // namespace

TEST(pages_outlive_a_clean_close) {
    kit::Directory dir;
    const auto k = kit::keys(0, 20);
    const auto layout = kit::rich(16, 20);
    {
        const auto pool = kit::pool(8 * kit::kMiB, dir.pool(), 2);
        CHECK_EQ(kit::put(kit::space(pool, "ns", layout), k), 20u);
    }
    kit::PoolHandle pool;
    MUST(open_only(pool, dir.pool()));
    CHECK_EQ(kit::info(pool).recovered, 0u);
    const auto ns = kit::space(pool, "ns", layout);
    const auto prefix = kit::pin(ns, k);
    CHECK_EQ(kit::pages(prefix), 20u);
    CHECK(kit::intact(ns, prefix, k));
    CHECK_EQ(kit::evict(ns, 1), 0u);
}

TEST(leaf_first_also_after_recovery) {
    kit::Directory dir;
    const auto layout = kit::plain(16, 64);
    const auto k = kit::keys(0, 10);
    CHECK_EQ(kit::put(kit::space(kit::pool(4 * kit::kMiB, dir.pool()), "ns", layout), k), 10u);
    kit::PoolHandle pool;
    MUST(open_only(pool, dir.pool()));
    const auto ns = kit::space(pool, "ns", layout);
    for (std::uint64_t left = 10; left-- > 0;) {
        CHECK_EQ(kit::evict(ns, 1), 1u);
        CHECK_EQ(kit::longest(ns, k), left);
        CHECK_EQ(kit::hits(ns, k), left);
    }
}

TEST(one_owner_at_a_time) {
    kit::Directory dir;
    auto pool = kit::pool(4 * kit::kMiB, dir.pool());
    kit::PoolHandle second;
    CHECK_EQ(open_only(second, dir.pool()), as_int(SAC_E_BUSY));
    const auto ns = kit::space(pool, "ns", kit::plain(16, 64));
    pool.reset();
    CHECK_EQ(open_only(second, dir.pool()), as_int(SAC_E_BUSY));  // the namespace maps it
    std::uint64_t n = 0;
    CHECK_EQ(sac_longest(ns.get(), nullptr, 0, &n), as_int(SAC_E_CLOSED));
    const_cast<kit::NsHandle &>(ns).reset();
    MUST(open_only(second, dir.pool()));
}

TEST(what_is_there_must_be_what_is_asked_for) {
    kit::Directory dir;
    kit::PoolHandle pool;
    CHECK_EQ(open_only(pool, dir.pool()), as_int(SAC_E_NOT_FOUND));
    pool = kit::pool(8 * kit::kMiB, dir.pool(), 2);
    const auto layout = kit::plain(16, 64);
    (void)kit::space(pool, "ns", layout);
    const auto other = kit::plain(16, 128);
    const auto open = [&](const char *name, const sac_ns_options &o) {
        sac_ns *ns = nullptr;
        const int status = sac_ns_open(pool.get(), name, &o, &ns);
        sac_ns_close(ns);
        return status;
    };
    const sac_layout same = layout.get(), differs = other.get();
    CHECK_EQ(open("ns", kit::ns_options(&same)), as_int(SAC_OK));
    CHECK_EQ(open("ns", kit::ns_options(nullptr)), as_int(SAC_OK));
    CHECK_EQ(open("ns", kit::ns_options(&differs)), as_int(SAC_E_LAYOUT));
    CHECK(std::strstr(sac_last_error()->message, "row_bytes 64 and 128") != nullptr);
    CHECK_EQ(open("ns", kit::ns_options(&same, 1000)), as_int(SAC_E_EXISTS));
    CHECK_EQ(open("ns", kit::ns_options(&same, 0, SAC_NS_TOKEN_IDS)), as_int(SAC_E_EXISTS));
    CHECK_EQ(open("none", kit::ns_options(nullptr)), as_int(SAC_E_NOT_FOUND));
    CHECK_EQ(open("no/name", kit::ns_options(&same)), as_int(SAC_E_ARG));
    CHECK_EQ(open("", kit::ns_options(&same)), as_int(SAC_E_ARG));
    CHECK_EQ(open(std::string(64, 'a').c_str(), kit::ns_options(&same)), as_int(SAC_E_ARG));
    CHECK_EQ(open("a", kit::ns_options(&same, 0, 0x80)), as_int(SAC_E_ARG));
    CHECK_EQ(sac_pool_drop(pool.get(), "none"), as_int(SAC_E_NOT_FOUND));
    pool.reset();
    kit::PoolHandle again;
    CHECK_EQ(kit::open_pool(again, 6 * kit::kMiB, dir.pool().c_str(), 2), as_int(SAC_E_EXISTS));
    CHECK_EQ(kit::open_pool(again, 8 * kit::kMiB, dir.pool().c_str(), 1), as_int(SAC_E_EXISTS));
    MUST(kit::open_pool(again, 8 * kit::kMiB, dir.pool().c_str(), 2));
}

TEST(drop_gives_everything_back_unless_in_use) {
    const auto pool = kit::pool(8 * kit::kMiB);
    const std::uint64_t free = kit::info(pool).free_bytes;
    const auto k = kit::keys(0, 5);
    const auto ns = kit::space(pool, "ns", kit::plain(16, 64));
    CHECK_EQ(kit::put(ns, k), 5u);
    auto prefix = kit::pin(ns, k);
    CHECK_EQ(sac_pool_drop(pool.get(), "ns"), as_int(SAC_E_BUSY));
    CHECK(std::strstr(sac_last_error()->message, "5 pages") != nullptr);
    CHECK_EQ(kit::hits(ns, k), 5u);  // as if nothing had been asked
    prefix.reset();
    kit::PutHandle put;
    MUST(kit::begin(ns, kit::keys(10, 2), put));
    CHECK_EQ(sac_pool_drop(pool.get(), "ns"), as_int(SAC_E_BUSY));
    put.reset();
    MUST(sac_pool_drop(pool.get(), "ns"));
    CHECK_EQ(kit::info(pool).free_bytes, free);
    CHECK_EQ(kit::info(pool).namespaces, 0u);
    std::uint64_t n = 0;
    CHECK_EQ(sac_longest(ns.get(), k.data(), 5, &n), as_int(SAC_E_CLOSED));
    CHECK_EQ(sac_evict(ns.get(), 1, &n), as_int(SAC_E_CLOSED));
    const auto anew = kit::space(pool, "ns", kit::plain(16, 64));
    CHECK_EQ(kit::hits(anew, k), 0u);
    CHECK_EQ(kit::put(anew, k), 5u);
}

// Whoever is late finds the namespace dropped, and leaves no trace in the pool.
TEST(drop_beside_putters_and_evictors) {
    const auto pool = kit::pool(16 * kit::kMiB);
    const auto layout = kit::rich(16, 20);
    const auto keep = kit::space(pool, "keep", kit::plain(16, 4096));
    const auto kept = kit::keys(500, 8);
    CHECK_EQ(kit::put(keep, kept), 8u);
    const std::uint64_t free = kit::info(pool).free_bytes;
    std::atomic<int> wrong{0};
    for (std::uint64_t round = 0; round < 60; ++round) {
        const auto ns = kit::space(pool, "ns", layout);
        std::vector<std::thread> threads;
        for (int t = 0; t < 2; ++t) {
            threads.emplace_back([&, t] {
                for (std::uint64_t i = 0; i < 50; ++i) {
                    try {
                        kit::put(ns, kit::keys(round * 100 + i, 2));
                        kit::evict(ns, t ? 1 : 0);
                    } catch (const std::exception &) {
                        wrong += sac_last_error()->status != SAC_E_CLOSED;
                        return;
                    }
                }
            });
        }
        int status = SAC_E_BUSY;
        while (status == SAC_E_BUSY) {
            status = sac_pool_drop(pool.get(), "ns");
        }
        for (std::thread &t : threads) {
            t.join();
        }
        CHECK_EQ(status, as_int(SAC_OK));
        CHECK_EQ(wrong.load(), 0);
        CHECK_EQ(kit::info(pool).free_bytes, free);
    }
    CHECK(kit::intact(keep, kit::pin(keep, kept), kept));
}

TEST(a_drop_that_was_cut_off_is_completed) {
    kit::Directory dir;
    auto pool = kit::pool(8 * kit::kMiB, dir.pool());
    auto ns = kit::space(pool, "ns", kit::plain(16, 65536));
    CHECK_EQ(kit::put(ns, kit::keys(0, 4)), 4u);
    CHECK_EQ(kit::owned(ns.get()).drop(), 0u);  // marked on memory, and then nothing more
    ns.reset();
    pool.reset();
    MUST(open_only(pool, dir.pool()));
    CHECK_EQ(kit::info(pool).namespaces, 0u);
    CHECK_EQ(kit::info(pool).free_bytes, kit::info(pool).data_bytes);
}

TEST(a_damaged_namespace_does_not_keep_the_others_down) {
    kit::Directory dir;
    auto pool = kit::pool(8 * kit::kMiB, dir.pool());
    const auto layout = kit::plain(16, 64);
    const auto k = kit::keys(0, 4);
    CHECK_EQ(kit::put(kit::space(pool, "good", layout), k), 4u);
    CHECK_EQ(kit::put(kit::space(pool, "bad", layout), k), 4u);
    std::uint64_t block = 0;
    {
        const auto bad = kit::space(pool, "bad", layout);
        block = kit::owned(bad.get()).media().owned().at(bad->it->block().id).blocks.at(0);
    }
    pool.reset();
    const int fd = open(dir.file("meta").c_str(), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(pwrite(fd, "xx", 2, static_cast<off_t>(block * 65536 + 32768 + 200)), 2);
    close(fd);
    MUST(open_only(pool, dir.pool()));
    CHECK_EQ(kit::hits(kit::space(pool, "good", layout), k), 4u);
    const auto names = pool->it->names();
    CHECK_EQ(names.size(), 2u);
    CHECK_EQ(names[0], std::string("damaged.2"));
    sac_ns *none = nullptr;
    const sac_ns_options o = kit::ns_options(nullptr);
    CHECK_EQ(sac_ns_open(pool.get(), "damaged.2", &o, &none), as_int(SAC_E_CORRUPT));
    MUST(sac_pool_drop(pool.get(), "damaged.2"));
    CHECK_EQ(kit::info(pool).namespaces, 1u);
    CHECK_EQ(kit::info(pool).free_bytes, 6 * kit::kMiB);
}

TEST(files_of_others_are_left_alone) {
    for (const char *name : {"data.0", "data.1"}) {
        kit::Directory dir;
        CHECK_EQ(mkdir(dir.pool().c_str(), 0700), 0);
        touch(dir.file(name));
        kit::PoolHandle pool;
        CHECK_EQ(kit::open_pool(pool, 8 * kit::kMiB, dir.pool().c_str(), 2),
                 as_int(SAC_E_EXISTS));
        CHECK_EQ(kit::size_of(dir.file(name)), 4u);
        CHECK_EQ(kit::size_of(dir.file("meta.new")), UINT64_MAX);
    }
}

// Three extents were begun and never completed; a pool of one takes their place.
TEST(an_unfinished_pool_leaves_nothing_behind) {
    kit::Directory dir;
    CHECK_EQ(mkdir(dir.pool().c_str(), 0700), 0);
    for (const char *name : {"meta.new", "data.0", "data.1", "data.2"}) {
        touch(dir.file(name));
    }
    kit::pool(8 * kit::kMiB, dir.pool(), 1).reset();
    CHECK_EQ(kit::size_of(dir.file("data.1")), UINT64_MAX);
    kit::PoolHandle pool;
    MUST(open_only(pool, dir.pool()));
    CHECK_EQ(kit::info(pool).extents, 1u);
}
