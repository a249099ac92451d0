// SPDX-License-Identifier: Apache-2.0
// Tables of clients: what is granted in them, adopted from them, and given back with them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <span>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

using Table = std::shared_ptr<sac::PinTable>;

const auto kLater = sac::Clock::now() + std::chrono::minutes(10);

// A pool whose pages are 64 KiB, 32 a slab, and a namespace of two slabs of it.
struct Fixture {
    kit::Directory dir;
    kit::PoolHandle pool = kit::pool(16 * kit::kMiB, dir.pool());
    kit::NsHandle ns = kit::space(pool, "ns", kit::plain(16, 4096), 4 * kit::kMiB);
    sac::CacheControl *control = &kit::owned(ns.get()).control();

    // As a daemon that was killed and started again finds it.
    void restart() {
        ns.reset(), pool.reset();
        kit::must(kit::open_pool(pool, 0, dir.pool().c_str(), 0, SAC_POOL_OPEN), "open");
        const sac_ns_options o = kit::ns_options(nullptr);
        sac_ns *raw = nullptr;
        kit::must(sac_ns_open(pool.get(), "ns", &o, &raw), "open");
        ns.reset(raw);
        control = &kit::owned(ns.get()).control();
    }
    std::uint64_t capacity() { return control->index()->capacity(); }
    Table memory() { return std::make_shared<sac::PinTable>(capacity()); }
};

int file(std::uint64_t bytes) {
    const int fd = memfd_create("table", MFD_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    return fd;
}

sac::CommitItem item(const sac::Reservation &r, std::uint64_t key) {
    return {r, sac::Key::load(kit::key(key).data()), {}, nullptr, 0, false};
}

std::uint64_t found(Fixture &f, std::uint64_t key) {
    std::uint64_t word = 0;
    const auto slot = f.control->index()->find(sac::Key::load(kit::key(key).data()), 0, word);
    return slot == sac::kNoSlot ? 0 : word & sac::Record::kGeneration;
}

// Reservations until there is no more room.
std::uint64_t room(Fixture &f) {
    std::vector<sac::Reservation> all;
    try {
        for (;;) {
            const auto some = f.control->reserve(1, 0, kLater);
            all.push_back(some[0]);
        }
    } catch (const sac::Error &e) {
        CHECK_EQ(e.status, SAC_E_NO_SPACE);
    }
    f.control->abort(all);
    return all.size();
}

}  // namespace

TEST(a_grant_is_in_the_table_until_it_ends) {
    Fixture f;
    const Table t = f.memory();
    f.control->attach(t);
    const auto held = f.control->reserve(3, 0, kLater, t.get());
    for (const sac::Reservation &r : held) {
        CHECK_EQ(t->token(r.slot), r.token);
        CHECK(t->pinned(r.slot));
    }
    CHECK_EQ(kit::stats(f.ns).reserved, 3u);
    CHECK_EQ(kit::stats(f.ns).pinned, 0u);
    CHECK_EQ(f.control->reservations_of(*t), 3u);
    sac::CommitItem one = item(held[0], 1);
    f.control->commit({&one, 1}, *t, false);
    CHECK(!one.duplicate);
    CHECK_EQ(t->token(held[0].slot), 0u);
    CHECK(t->pinned(held[0].slot));  // the client takes it back itself
    t->unpin(held[0].slot);
    t->unpin(held[1].slot), t->unpin(held[2].slot);
    f.control->abort(std::span(held).subspan(1));
    CHECK_EQ(t->token(held[1].slot), 0u);
    CHECK_EQ(kit::stats(f.ns).reserved, 0u);
    CHECK_EQ(found(f, 1), one.reservation.generation);
}

TEST(a_client_that_goes_leaves_nothing) {
    Fixture f;
    const std::uint64_t all = room(f);
    {
        const Table t = f.memory();
        f.control->attach(t);
        const auto held = f.control->reserve(5, 0, kLater, t.get());
        sac::CommitItem one = item(held[0], 1);
        f.control->commit({&one, 1}, *t, true);  // stays pinned
        CHECK_EQ(f.control->evict(10), 0u);
        t->counters().lookups = 7;
        f.control->detach(*t);
        f.control->detach(*t);  // nothing more
    }
    CHECK_EQ(kit::stats(f.ns).reserved, 0u);
    CHECK_EQ(kit::stats(f.ns).lookups, 7u);
    CHECK_EQ(f.control->evict(10), 1u);
    CHECK_EQ(room(f), all);
}

TEST(a_commit_that_is_repeated_gets_the_same_answer) {
    Fixture f;
    const Table t = f.memory(), other = f.memory();
    f.control->attach(t), f.control->attach(other);
    for (const bool keep : {false, true}) {
        const std::uint64_t base = keep ? 10 : 20;
        const auto held = f.control->reserve(2, 0, kLater, t.get());
        std::vector<sac::CommitItem> items{item(held[0], base), item(held[1], base + 1)};
        f.control->commit({items.data(), 1}, *t, keep);
        auto again = items;
        again[0].reservation = held[0];
        f.control->commit(again, *t, keep);
        CHECK(!again[0].duplicate && !again[1].duplicate);
        CHECK_EQ(again[0].reservation.slot, held[0].slot);
        CHECK_EQ(again[0].reservation.generation, items[0].reservation.generation);
        CHECK_EQ(kit::stats(f.ns).commits, keep ? 4u : 2u);

        // Another writer of the key: a duplicate, however often it is said.
        const auto late = f.control->reserve(1, 0, kLater, other.get());
        for (int i = 0; i < 2; ++i) {
            sac::CommitItem dup = item(late[0], base);
            f.control->commit({&dup, 1}, *other, keep);
            CHECK(dup.duplicate);
            CHECK_EQ(dup.reservation.slot, held[0].slot);
            CHECK_EQ(dup.reservation.generation, items[0].reservation.generation);
        }
        CHECK_EQ(f.control->reservations_of(*other), keep ? 1u : 0u);
        other->unpin(late[0].slot);
        f.control->abort(late);
        CHECK_EQ(f.control->reservations_of(*other), 0u);
    }
    // What was never the client's.
    sac::CommitItem stolen = item({0, 0, 1, 99}, 77);
    CHECK_THROWS(SAC_E_RESERVATION, f.control->commit({&stolen, 1}, *t, false));
    const auto held = f.control->reserve(1, 0, kLater, other.get());
    stolen = item(held[0], 78);
    CHECK_THROWS(SAC_E_RESERVATION, f.control->commit({&stolen, 1}, *t, false));
    CHECK_EQ(found(f, 77) + found(f, 78), 0u);
}

TEST(tables_are_adopted) {
    Fixture f;
    const std::uint64_t all = room(f);
    const int fd = file(sac::PinTable::file_bytes(f.capacity()));
    const auto open = [&] {
        return std::make_shared<sac::PinTable>(sac::Fd(fcntl(fd, F_DUPFD_CLOEXEC, 3)),
                                               f.capacity(), "table");
    };
    const Table client = open();  // its side of the file
    Table daemon = open();
    f.control->attach(daemon);
    auto held = f.control->reserve(6, 0, kLater, daemon.get());
    std::vector<sac::CommitItem> items{item(held[0], 1), item(held[1], 2)};
    f.control->commit(items, *daemon, true);
    daemon->end_grant(held[4].slot);  // ended by the daemon, still written to by the client
    client->unpin(held[5].slot);      // about to be given up
    CHECK(!client->revoked());
    f.restart();

    daemon = open();
    f.control->adopt({&daemon, 1});
    CHECK(client->revoked());
    CHECK_EQ(f.control->reservations_of(*daemon), 2u);  // 2 and 3
    CHECK_EQ(kit::stats(f.ns).pages, 2u);
    CHECK_EQ(f.control->evict(10), 0u);  // both are pinned
    CHECK_EQ(room(f), all - 2 - 2 - 1);
    // The client goes on: it commits, by its token, what it was given before.
    items = {item(held[2], 3), item(held[0], 1)};
    f.control->commit(items, *daemon, false);
    CHECK(!items[0].duplicate && !items[1].duplicate);
    CHECK(found(f, 3) > 0);
    f.control->abort({&held[3], 1});
    for (const std::size_t i : {0, 1, 2, 3, 4}) {
        client->unpin(held[i].slot);
    }
    CHECK_EQ(f.control->evict(10), 3u);
    CHECK_EQ(room(f), all);
    CHECK_EQ(client->pinned_slots(), 0u);
    close(fd);
}

TEST(nobody_is_given_what_another_claims_to_write) {
    Fixture f;
    const Table honest = f.memory(), liar = f.memory();
    const auto held = f.control->reserve(1, 0, kLater);
    honest->grant(held[0].slot, 5);
    liar->grant(held[0].slot, 6);
    for (std::uint32_t slot = 0; slot < f.capacity(); ++slot) {
        liar->grant(slot, 7);  // more than there is
    }
    f.control->abort(held);
    const Table both[] = {honest, liar};
    f.control->adopt(both);
    CHECK_EQ(f.control->reservations_of(*honest), 1u);
    sac::CommitItem one = item({held[0].slot, 0, 0, 5}, 1);
    f.control->commit({&one, 1}, *honest, false);
    f.control->detach(*liar);
    honest->unpin(held[0].slot);
    f.control->detach(*honest);
    CHECK_EQ(kit::stats(f.ns).pages, 1u);
    CHECK_EQ(kit::stats(f.ns).reserved, 0u);
}

TEST(a_table_that_was_cut_short_holds_nothing) {
    Fixture f;
    const int fd = file(sac::PinTable::file_bytes(f.capacity()));
    const Table t = std::make_shared<sac::PinTable>(sac::Fd(fcntl(fd, F_DUPFD_CLOEXEC, 3)),
                                                    f.capacity(), "table");
    f.control->attach(t);
    const auto held = f.control->reserve(4, 0, kLater, t.get());
    sac::CommitItem one = item(held[0], 1);
    f.control->commit({&one, 1}, *t, true);
    CHECK_EQ(ftruncate(fd, 0), 0);
    CHECK_EQ(f.control->evict(10), 1u);
    (void)kit::stats(f.ns);
    f.control->detach(*t);
    CHECK_EQ(kit::stats(f.ns).reserved, 0u);
    close(fd);
}

TEST(quota_grows_and_shrinks_under_readers) {
    Fixture f;
    const auto few = kit::keys(1, 16);
    CHECK_EQ(kit::put(f.ns, few), 16u);
    kit::PrefixHandle prefix = kit::pin(f.ns, few);
    CHECK_EQ(room(f), 64u - 16u);
    CHECK_EQ(kit::longest(f.ns, few), 16u);
    MUST(sac_pool_resize(f.pool.get(), "ns", 8 * kit::kMiB));
    CHECK_EQ(room(f), 128u - 16u);
    CHECK(kit::intact(f.ns, prefix, few));
    CHECK_EQ(kit::longest(f.ns, few), 16u);  // in a new view
    const auto many = kit::keys(100, 100);
    CHECK_EQ(kit::put(f.ns, many), 100u);
    CHECK(kit::intact(f.ns, kit::pin(f.ns, many), many));
    // Smaller than what is pinned: as far as it goes.
    CHECK_EQ(sac_pool_resize(f.pool.get(), "ns", kit::kMiB), static_cast<int>(SAC_OK));
    CHECK(kit::intact(f.ns, prefix, few));
    CHECK_EQ(f.control->assigned_bytes(), 2 * kit::kMiB);
    CHECK_EQ(kit::longest(f.ns, few), 16u);
    prefix.reset();
    f.restart();
    CHECK_EQ(kit::longest(f.ns, few), 16u);
    sac_ns_info i{};
    MUST(sac_ns_get_info(f.ns.get(), &i));
    CHECK_EQ(i.max_bytes, kit::kMiB);
}

TEST(pins_keep_a_quota_from_shrinking) {
    Fixture f;
    const auto all = kit::keys(1, 64);
    CHECK_EQ(kit::put(f.ns, all), 64u);
    const kit::PrefixHandle prefix = kit::pin(f.ns, all);
    CHECK_EQ(sac_pool_resize(f.pool.get(), "ns", 2 * kit::kMiB), static_cast<int>(SAC_E_BUSY));
    CHECK(kit::intact(f.ns, prefix, all));
    sac_ns_info i{};
    MUST(sac_ns_get_info(f.ns.get(), &i));
    CHECK_EQ(i.max_bytes, 4 * kit::kMiB);
    CHECK_EQ(sac_pool_resize(f.pool.get(), "none", 0), static_cast<int>(SAC_E_NOT_FOUND));
}

TEST(a_sequence_lives_on_in_the_next_view) {
    Fixture f;
    std::vector<std::uint32_t> tokens(64);
    for (std::uint32_t i = 0; i < 64; ++i) {
        tokens[i] = i;
    }
    sac_seq *raw = nullptr;
    MUST(sac_seq_open(f.ns.get(), tokens.data(), 0, nullptr, 0, &raw));
    const kit::SeqHandle seq(raw);
    const std::vector<std::uint8_t> rows(64 * 4096, 42);
    const auto write = [&](std::uint64_t first, std::uint64_t count) {
        sac_scatter_req req{};
        req.first = first, req.count = count, req.src = rows.data();
        MUST(sac_seq_write(seq.get(), &req, 1, 1));
    };
    MUST(sac_seq_extend(seq.get(), tokens.data(), 20, 0));
    write(0, 20);
    MUST(sac_pool_resize(f.pool.get(), "ns", 8 * kit::kMiB));
    std::uint64_t n = 0;
    MUST(sac_seq_flush(seq.get(), &n));  // held in the old view
    CHECK_EQ(n, 1u);
    MUST(sac_seq_extend(seq.get(), tokens.data() + 20, 30, 0));
    write(20, 30);
    MUST(sac_seq_flush(seq.get(), &n));
    CHECK_EQ(n, 2u);
    CHECK_EQ(f.control->evict(10), 0u);
    CHECK_EQ(kit::stats(f.ns).pinned, 3u);
    MUST(sac_pool_resize(f.pool.get(), "ns", 12 * kit::kMiB));
    MUST(sac_seq_extend(seq.get(), tokens.data() + 50, 14, 0));
    CHECK_EQ(kit::stats(f.ns).pinned, 3u);
    std::vector<std::uint8_t> out(50 * 4096);
    sac_gather_req g{};
    g.prefix = sac_seq_view(seq.get()), g.count = 50, g.dst = out.data();
    MUST(sac_gather(f.ns.get(), &g, 1, 0, 1, nullptr));
    CHECK(std::all_of(out.begin(), out.end(), [](std::uint8_t b) { return b == 42; }));
}

TEST(a_pool_grows_by_an_extent) {
    Fixture f;
    kit::NsHandle open = kit::space(f.pool, "open", kit::plain(16, 4096));
    const auto some = kit::keys(1, 32);
    CHECK_EQ(kit::put(open, some), 32u);
    kit::PrefixHandle prefix = kit::pin(open, some);
    const std::uint64_t before = kit::info(f.pool).data_bytes;
    const std::string path = f.dir.file("data.1");
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK_EQ(ftruncate(fd, 10 << 20), 0);
    const sac_extent_fd extent{fd, 0, 0, path.c_str()};
    const sac_extent_fd nameless{fd, 0, 0, nullptr};
    CHECK_EQ(sac_pool_extend(f.pool.get(), &nameless), static_cast<int>(SAC_E_ARG));
    MUST(sac_pool_extend(f.pool.get(), &extent));
    CHECK_EQ(kit::info(f.pool).data_bytes, before + (8 << 20));
    CHECK(kit::intact(open, prefix, some));
    const auto more = kit::keys(100, 300);
    CHECK_EQ(kit::put(open, more), 300u);
    CHECK(kit::intact(open, kit::pin(open, more), more));
    CHECK_EQ(sac_pool_extend(f.pool.get(), &extent), static_cast<int>(SAC_E_ARG));
    close(fd);
    prefix.reset(), open.reset();
    f.restart();
    CHECK_EQ(kit::info(f.pool).data_bytes, before + (8 << 20));
    const kit::NsHandle again = kit::space(f.pool, "open", kit::plain(16, 4096));
    CHECK(kit::intact(again, kit::pin(again, more), more));
}

TEST(a_pool_with_clients_is_not_opened_without_them) {
    Fixture f;
    f.ns.reset(), f.pool.reset();
    const auto names = {f.dir.file("meta"), f.dir.file("data.0")};
    std::vector<sac_extent_fd> extents;
    for (const std::string &name : names) {
        extents.push_back({::open(name.c_str(), O_RDWR | O_CLOEXEC), 0, 0, name.c_str()});
    }
    sac_open_options o{};
    o.struct_size = sizeof o, o.flags = SAC_POOL_SHARED;
    o.meta = extents[0], o.data = &extents[1], o.data_count = 1;
    const int fd = file(4096);
    // Another process goes on reading, but not after the first and the last of these.
    for (const bool client : {false, true, false}) {
        sac_pool *raw = nullptr;
        MUST(sac_pool_open_fds(&o, &raw));
        kit::PoolHandle served(raw);
        const sac_ns_options as_it_is = kit::ns_options(nullptr);
        sac_ns *ns = nullptr;
        MUST(sac_ns_open(raw, "ns", &as_it_is, &ns));
        kit::NsHandle handle(ns);
        auto &control = kit::owned(ns).control();
        CHECK(control.index()->fd() >= 0);
        Table t;
        if (client) {
            t = std::make_shared<sac::PinTable>(sac::Fd(fcntl(fd, F_DUPFD_CLOEXEC, 3)),
                                                control.index()->capacity(), "table");
            control.attach(t);
        }
        served.reset(), handle.reset();
        const int status = kit::open_pool(f.pool, 0, f.dir.pool().c_str(), 0, SAC_POOL_OPEN);
        if (client) {
            CHECK_EQ(status, static_cast<int>(SAC_E_BUSY));
            CHECK(std::string(sac_last_error()->message).find("daemon") != std::string::npos);
        }
        f.pool.reset();
    }
    MUST(kit::open_pool(f.pool, 0, f.dir.pool().c_str(), 0, SAC_POOL_OPEN));
    for (const sac_extent_fd &e : extents) {
        close(e.fd);
    }
    close(fd);
}
