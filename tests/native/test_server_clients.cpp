// SPDX-License-Identifier: Apache-2.0
// Clients that come back, die, are evicted; daemons that follow each other.
#include "check.hpp"
#include "served.hpp"

namespace {

using kit::attach;
using kit::exit_code;
using kit::Raw;
using kit::Served;
using kit::soon;
using kit::start_child;
namespace wire = sac::wire;

TEST(tables_of_the_dead_go) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    const pid_t child = start_child([&] {
        Raw other(s.place.socket());
        other.hello(nullptr, "other");
        const auto m = attach(other);
        kit::reserve(other, m, 5);
        other.close();  // the process counts, not its socket
        for (;;)
            pause();
    });
    CHECK(soon([&] { return kit::stats(raw, n).reserved == 5; }));
    CHECK(soon([&] {
        for (const auto &c : s.clients())
            if (c.pid == static_cast<std::uint32_t>(child))
                return c.connected == 0 && c.tables == 1;
        return false;
    }));
    CHECK_EQ(s.place.count("tables"), 2u);
    kill(child, SIGKILL);
    CHECK_EQ(exit_code(child), 100 + SIGKILL);
    CHECK(soon([&] { return kit::stats(raw, n).reserved == 0; }));
    CHECK(soon([&] { return s.place.count("tables") == 1 && s.place.count("roster") == 1; }));
}

TEST(a_new_daemon_adopts) {
    Served s;
    auto raw = std::make_unique<Raw>(s.place.socket());
    const auto hello = raw->hello().as<wire::HelloReply>();
    const auto n = attach(*raw);
    const auto kept = kit::reserve(*raw, n, 2), open = kit::reserve(*raw, n, 2);
    const auto done =
        raw->call(wire::kCommit, kit::commit_request(n, kept, {1, 2}, wire::kKeep))
            .all<wire::CommitResult>();
    s.restart();
    CHECK(n.table->revoked());
    CHECK(raw->closed());
    raw = std::make_unique<Raw>(s.place.socket());
    const auto again = raw->hello(hello.id).as<wire::HelloReply>();
    CHECK(std::memcmp(again.id, hello.id, sizeof hello.id) == 0);
    CHECK(again.incarnation != hello.incarnation);
    const auto before = kit::stats(*raw, n);
    CHECK_EQ(before.pages, 2u);
    CHECK_EQ(before.reserved, 2u);
    CHECK_EQ(before.pinned, 2u);
    CHECK_EQ(raw->call(wire::kReserve,
                       wire::Writer().add(wire::ReserveRequest{n.reply.table, 0, 1, 0, 0}))
                 .header.status,
             std::uint32_t{SAC_E_STALE});
    // What was reserved before is committed after, in the old table.
    const auto late = raw->call(wire::kCommit, kit::commit_request(n, open, {3, 4}))
                          .all<wire::CommitResult>();
    CHECK_EQ(late[0].slot, open[0].slot);
    const auto m = attach(*raw);
    sac::Key key{};
    key.w[0] = 1, key.w[3] = std::uint64_t{1} << 56;
    std::uint64_t word = 0;
    CHECK_EQ(m.index->find(key, 0, word), done[0].slot);
    CHECK_EQ(kit::stats(*raw, m).pages, 4u);
    CHECK_EQ(raw->call(wire::kDetach, kit::table_request(n.reply.table)).header.status, 0u);
    CHECK_EQ(kit::stats(*raw, m).pinned, 0u);
}

TEST(a_client_comes_back) {
    Served s;
    Raw first(s.place.socket());
    const auto hello = first.hello().as<wire::HelloReply>();
    const auto n = attach(first);
    Raw second(s.place.socket());
    const auto again = second.hello(hello.id).as<wire::HelloReply>();
    CHECK(std::memcmp(again.id, hello.id, 16) == 0);
    CHECK(first.closed());
    CHECK_EQ(kit::stats(second, n).pages, 0u);
    CHECK_EQ(s.clients().size(), 1u);
    // Another process does not get it.
    const pid_t child = start_child([&] {
        Raw thief(s.place.socket());
        CHECK_EQ(thief.hello(hello.id).header.status, std::uint32_t{SAC_E_ACCESS});
    });
    CHECK_EQ(exit_code(child), 0);
    // One that nobody knows becomes a new one.
    Raw third(s.place.socket());
    std::uint8_t unknown[16] = {1, 2, 3};
    CHECK(std::memcmp(third.hello(unknown).as<wire::HelloReply>().id, unknown, 16) != 0);
}

TEST(evicted_clients_write_no_more) {
    Served s;
    Raw raw(s.place.socket());
    const auto hello = raw.hello().as<wire::HelloReply>();
    const auto n = attach(raw);
    const auto held = kit::reserve(raw, n, 1);
    MUST(sac_server_evict(s.server.get(), hello.id, 0));
    CHECK(n.table->revoked());
    CHECK_EQ(s.clients()[0].evicted, 1u);
    for (const auto &w : {kit::commit_request(n, held, {1})})
        CHECK_EQ(raw.call(wire::kCommit, w).header.status, std::uint32_t{SAC_E_ACCESS});
    CHECK_EQ(raw.call(wire::kAttach, kit::attach_request("p", "n", 0)).header.status,
             std::uint32_t{SAC_E_ACCESS});
    s.restart();
    Raw other(s.place.socket());
    CHECK_EQ(other.hello(hello.id).header.status, std::uint32_t{SAC_E_ACCESS});
    std::uint8_t nobody[16] = {};
    CHECK_EQ(sac_server_evict(s.server.get(), nobody, 0), int{SAC_E_NOT_FOUND});
}

TEST(pools_leave_when_nobody_uses_them) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    CHECK_EQ(sac_server_remove_pool(s.server.get(), "p"), int{SAC_E_BUSY});
    CHECK_EQ(sac_server_add_pool(s.server.get(), "p2", s.pool.get()), int{SAC_E_EXISTS});
    raw.call(wire::kDetach, kit::table_request(n.reply.table));
    MUST(sac_server_remove_pool(s.server.get(), "p"));
    CHECK_EQ(sac_server_remove_pool(s.server.get(), "p"), int{SAC_E_NOT_FOUND});
    CHECK_EQ(raw.call(wire::kAttach, kit::attach_request("p", "n", 0)).header.status,
             std::uint32_t{SAC_E_NOT_FOUND});
}

TEST(a_namespace_that_grew_has_a_new_view) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    wire::AttachRequest r{};
    const kit::Layout large = kit::plain(64, 4096);
    kit::wire::Writer w = kit::attach_request("p", "n", wire::kCreate, large);
    std::vector<std::uint8_t> bytes = w.take();
    std::memcpy(&r, bytes.data(), sizeof r);
    r.max_bytes = 4 << 20;
    std::memcpy(bytes.data(), &r, sizeof r);
    w.add(bytes.data(), bytes.size());
    const auto n = kit::attached(raw.call(wire::kAttach, w));
    const auto held = kit::reserve(raw, n, 1);
    MUST(sac_pool_resize(s.pool.get(), "n", 0));
    CHECK(n.table->revoked());
    CHECK_EQ(raw.call(wire::kReserve,
                      wire::Writer().add(wire::ReserveRequest{n.reply.table, 0, 1, 0, 0}))
                 .header.status,
             std::uint32_t{SAC_E_STALE});
    // Reserved in the old view, committed there.
    CHECK_EQ(raw.call(wire::kCommit, kit::commit_request(n, held, {1})).header.status, 0u);
    const auto m = kit::attached(raw.call(wire::kAttach, kit::attach_request("p", "n", 0)));
    CHECK(m.reply.capacity > n.reply.capacity);
    // Slots that the old table has no place for.
    std::vector<wire::ReservationItem> beyond;
    std::vector<std::uint64_t> keys;
    for (std::uint64_t i = 0; i < 20; ++i) {
        beyond.push_back(kit::reserve(raw, m, 1).at(0));
        keys.push_back(100 + i);
    }
    CHECK_EQ(raw.call(wire::kCommit, kit::commit_request(m, beyond, keys)).header.status, 0u);
    CHECK_EQ(raw.call(wire::kCommit, kit::commit_request(n, beyond, keys)).header.status, 0u);
    raw.call(wire::kAbort, kit::held_request(n, beyond));
    CHECK_EQ(kit::stats(raw, m).pages, 21u);
}

TEST(a_table_that_was_detached_gets_nothing) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    const auto ns = std::dynamic_pointer_cast<sac::OwnedPool>(s.pool->it)->find("n");
    sac::PinTable other(n.reply.capacity);
    const auto later = sac::Clock::now() + std::chrono::seconds(60);
    CHECK_THROWS(SAC_E_STALE, ns->control().reserve(1, 0, later, &other));
    ns->control().attach(std::shared_ptr<sac::PinTable>(&other, [](sac::PinTable *) {}));
    CHECK_EQ(ns->control().reserve(1, 0, later, &other).size(), 1u);
    ns->control().detach(other);
    CHECK_THROWS(SAC_E_STALE, ns->control().reserve(1, 0, later, &other));
    CHECK_EQ(kit::stats(raw, n).reserved, 0u);
}

TEST(one_daemon_a_run_directory) {
    Served s;
    const std::string run = s.place.run(), path = s.place.socket() + "2";
    sac_server_options o{};
    o.struct_size = sizeof o;
    o.socket_path = path.c_str(), o.run_dir = run.c_str(), o.listen_fd = -1;
    sac_server *other = nullptr;
    CHECK_EQ(sac_server_open(&o, &other), int{SAC_E_BUSY});
    CHECK(std::string(sac_last_error()->message).find(std::to_string(getpid())) !=
          std::string::npos);
    // The same socket from another run directory.
    kit::Place elsewhere;
    const std::string same = s.place.socket(), run2 = elsewhere.run();
    o.socket_path = same.c_str(), o.run_dir = run2.c_str();
    MUST(sac_server_open(&o, &other));
    const kit::ServerHandle held(other);
    CHECK_EQ(sac_server_serve(other), int{SAC_E_BUSY});
}

TEST(as_many_clients_as_allowed) {
    Served s(64);
    std::vector<Raw> many;
    for (int i = 0; i < 64; ++i) {
        many.emplace_back(s.place.socket());
        CHECK_EQ(many.back().hello().header.status, 0u);
    }
    Raw more(s.place.socket());
    CHECK_EQ(more.hello().header.status, std::uint32_t{SAC_E_BUSY});
    many.pop_back();
    CHECK(soon([&] {
        Raw again(s.place.socket());
        return again.hello().header.status == SAC_OK;
    }));
}

TEST(a_forked_child_has_no_server) {
    Served s;
    CHECK_EQ(kit::in_child([&] {
                 std::uint64_t n = 0;
                 CHECK_EQ(sac_server_clients(s.server.get(), nullptr, &n), int{SAC_E_FORKED});
                 sac_server_close(s.server.release());
             }),
             0);
    Raw raw(s.place.socket());
    CHECK_EQ(raw.hello().header.status, 0u);
}

}  // namespace
