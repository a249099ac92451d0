// SPDX-License-Identifier: Apache-2.0
// A forked child: its parent's handles refuse, its own pools work, and the parent's go on.
#include <functional>

#include "check.hpp"
#include "in_child.hpp"
#include "kit_pages.hpp"

namespace {

struct All {
    kit::Directory dir;
    kit::PoolHandle pool = kit::pool(8 * kit::kMiB, dir.pool());
    kit::NsHandle ns = kit::space(pool, "ns", kit::rich(16, 20));
    std::vector<std::uint8_t> keys = kit::keys(0, 6);
    kit::PrefixHandle prefix;
    kit::PutHandle put;
    kit::SeqHandle seq;
    std::vector<std::uint32_t> tokens = std::vector<std::uint32_t>(64, 3);

    All() {
        CHECK_EQ(kit::put(ns, keys), 6u);
        prefix = kit::pin(ns, keys);
        MUST(kit::begin(ns, kit::keys(50, 2), put));
        sac_seq *raw = nullptr;
        MUST(sac_seq_open(ns.get(), tokens.data(), 0, nullptr, 0, &raw));
        seq.reset(raw);
        MUST(sac_seq_extend(raw, tokens.data(), 20, 0));
    }
};

}  // namespace

TEST(every_handle_of_the_parent_refuses) {
    All a;
    const auto refuses = [&] {
        std::uint64_t n = 0, m = 0;
        std::uint8_t out[4096] = {};
        const void *at = nullptr;
        void *to = nullptr;
        sac_pool_info pi;
        sac_ns_info ni;
        sac_ns_stats st;
        sac_plane plane;
        sac_handle handles[6];
        sac_event event;
        sac_prefix *prefix = nullptr;
        sac_put *put = nullptr;
        sac_seq *seq = nullptr;
        sac_ns *ns = nullptr;
        sac_gather_req g{};
        g.prefix = a.prefix.get(), g.count = 1, g.dst = out;
        const sac_scatter_req s{0, 0, 0, 1, out, 0, 16 * 48, 0};
        const sac_ns_options o = kit::ns_options(nullptr);
        const std::uint8_t *const k = a.keys.data();
        const int results[] = {
            sac_pool_get_info(a.pool.get(), &pi),
            sac_pool_list(a.pool.get(), nullptr, &n),
            sac_pool_drop(a.pool.get(), "ns"),
            sac_ns_open(a.pool.get(), "ns", &o, &ns),
            sac_ns_get_info(a.ns.get(), &ni),
            sac_ns_plane(a.ns.get(), 0, &plane),
            sac_ns_get_stats(a.ns.get(), &st),
            sac_keys(a.ns.get(), a.tokens.data(), 64, nullptr, 0, nullptr, out),
            sac_root(a.ns.get(), nullptr, 0, out),
            sac_lookup(a.ns.get(), k, 6, nullptr, &n),
            sac_longest(a.ns.get(), k, 6, &n),
            sac_pin(a.ns.get(), k, 6, &prefix),
            sac_prefix_pages(a.prefix.get(), &n),
            sac_prefix_tokens(a.prefix.get(), &n),
            sac_prefix_handles(a.prefix.get(), handles, &(n = 6)),
            sac_put_abort(a.put.get()),
            sac_prefix_rows(a.prefix.get(), 0, 0, &n),
            sac_prefix_view(a.prefix.get(), 0, 0, 0, &at, &n),
            sac_gather(a.ns.get(), &g, 1, 0, 1, nullptr),
            sac_put_begin(a.ns.get(), k, 6, nullptr, &put),
            sac_put_missing(a.put.get(), 0, nullptr, &n),
            sac_put_write(a.put.get(), &s, 1, 1),
            sac_put_view(a.put.get(), 0, 0, 0, &to, &n),
            sac_put_commit(a.put.get(), nullptr),
            sac_seq_open(a.ns.get(), a.tokens.data(), 64, nullptr, 0, &seq),
            sac_seq_extend(a.seq.get(), a.tokens.data(), 1, 0),
            sac_seq_write(a.seq.get(), &s, 1, 1),
            sac_seq_flush(a.seq.get(), nullptr),
            sac_events(a.ns.get(), &m, &event, &(n = 1), nullptr),
            sac_evict(a.ns.get(), 1, nullptr),
            sac_verify(a.ns.get(), nullptr, nullptr),
        };
        int number = 0;
        for (const int r : results) {
            if (r != SAC_E_FORKED) {
                check::fail(__FILE__, __LINE__,
                            "call " + std::to_string(number) + " gives " + sac_status_name(r));
            }
            ++number;
        }
        CHECK_EQ(sac_pool_close(a.pool.release()), static_cast<int>(SAC_E_FORKED));
        // The others have nothing to say, and do no harm.
        a.prefix.reset(), a.put.reset(), a.seq.reset(), a.ns.reset();
    };
    CHECK_EQ(kit::in_child(refuses), 0);
    // The parent has lost nothing.
    CHECK(kit::intact(a.ns, a.prefix, a.keys));
    CHECK_EQ(kit::stats(a.ns).reserved, 2u + 2u + 2u + 2u);
    const auto k = kit::keys(50, 2);
    MUST(kit::write_missing(a.put.get(), a.ns->it->geometry(), k.data()));
    MUST(sac_put_commit(a.put.get(), nullptr));
    CHECK(kit::intact(a.ns, kit::pin(a.ns, k), k));
}

// What was locked at the fork stays locked in the child, whose owner is not there.
TEST(a_child_waits_for_no_lock_of_its_parent) {
    All a;
    const auto reading = a.prefix->it->lock(), growing = a.seq->it->lock();
    CHECK_EQ(kit::in_child([&] {
                 alarm(20);
                 CHECK_EQ(sac_seq_flush(a.seq.get(), nullptr), static_cast<int>(SAC_E_FORKED));
                 CHECK_EQ(sac_prefix_close(a.prefix.release()), SAC_OK);
                 CHECK_EQ(sac_seq_close(a.seq.release()), SAC_OK);
             }),
             0);
}

TEST(a_child_has_pools_of_its_own) {
    const All a;
    CHECK_EQ(kit::in_child([&] {
                 kit::PoolHandle busy;
                 CHECK_EQ(kit::open_pool(busy, 0, a.dir.pool().c_str(), 0, SAC_POOL_OPEN),
                          static_cast<int>(SAC_E_BUSY));
                 const kit::Directory mine;
                 for (const std::string &path : {std::string(), mine.pool()}) {
                     const auto pool = kit::pool(8 * kit::kMiB, path);
                     const auto ns = kit::space(pool, "ns", kit::rich(16, 20));
                     CHECK_EQ(kit::put(ns, a.keys), 6u);
                     const auto prefix = kit::pin(ns, a.keys);
                     CHECK(kit::intact(ns, prefix, a.keys));
                     CHECK_EQ(kit::evict(ns, 10), 0u);
                 }
             }),
             0);
}

// The child does not keep the pool's lock when its parent has gone on to close it.
TEST(a_child_does_not_hold_the_pool) {
    const kit::Directory dir;
    auto pool = kit::pool(4 * kit::kMiB, dir.pool());
    int fds[2], started[2];
    CHECK_EQ(pipe(fds), 0);
    CHECK_EQ(pipe(started), 0);
    char byte = 0;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(fds[1]);
        _exit(write(started[1], &byte, 1) == 1 && read(fds[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(fds[0]);
    CHECK_EQ(read(started[0], &byte, 1), 1);  // its fork handler has run
    pool.reset();
    MUST(kit::open_pool(pool, 0, dir.pool().c_str(), 0, SAC_POOL_OPEN));
    close(fds[1]), close(started[0]), close(started[1]);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}
