// SPDX-License-Identifier: Apache-2.0
// The server, spoken to over its socket: what each operation does.
#include <thread>

#include "check.hpp"
#include "served.hpp"

namespace {

using kit::Answer;
using kit::attach;
using kit::Raw;
using kit::Served;
using kit::soon;
namespace wire = sac::wire;

TEST(hello_says_who_is_there) {
    Served s;
    Raw raw(s.place.socket());
    const auto hello = raw.hello().as<wire::HelloReply>();
    CHECK_EQ(hello.pid, static_cast<std::uint32_t>(getpid()));
    CHECK_EQ(std::string(hello.version), std::string(SAC_VERSION));
    const auto clients = s.clients();
    CHECK_EQ(clients.size(), 1u);
    CHECK_EQ(clients[0].pid, static_cast<std::uint32_t>(getpid()));
    CHECK_EQ(clients[0].connected, 1u);
    CHECK_EQ(std::string(clients[0].name), std::string("test"));
    CHECK_EQ(raw.hello().header.status, std::uint32_t{SAC_E_ARG});  // once
    CHECK_EQ(s.place.count("roster"), 1u);
    raw.close();
    CHECK(soon([&] { return s.clients().empty() && s.place.count("roster") == 0; }));
}

TEST(hello_comes_first) {
    Served s;
    Raw raw(s.place.socket());
    CHECK_EQ(raw.call(wire::kPools).header.status, std::uint32_t{SAC_E_ARG});
    CHECK(raw.closed());
}

TEST(pools_and_names) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    CHECK_EQ(std::string(reinterpret_cast<const char *>(raw.call(wire::kPools).payload.data())),
             std::string("p"));
    attach(raw, "one");
    wire::PoolRequest p{};
    wire::set_name(p.pool, sizeof p.pool, "p", "pool");
    const Answer names = raw.call(wire::kNames, wire::Writer().add(p));
    CHECK_EQ(names.payload.size(), 64u);
    CHECK_EQ(raw.call(wire::kPoolInfo, wire::Writer().add(p)).as<sac_pool_info>().namespaces,
             1u);
    CHECK_EQ(raw.call(99).header.status, std::uint32_t{SAC_E_ARG});
}

TEST(a_page_is_put_and_found) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    CHECK_EQ(n.reply.access, 3u);
    CHECK_EQ(n.extents.size(), 2u);
    CHECK_EQ(std::string(n.block.name), std::string("n"));
    const auto held = kit::reserve(raw, n, 2);
    CHECK_EQ(held.size(), 2u);
    CHECK(n.table->pinned(held[0].slot));
    CHECK_EQ(n.table->token(held[0].slot), held[0].token);
    auto info = s.tables();
    CHECK_EQ(info.size(), 1u);
    CHECK_EQ(info[0].reservations, 2u);
    CHECK_EQ(info[0].pinned, 0u);
    const auto done = raw.call(wire::kCommit, kit::commit_request(n, held, {7, 8}, wire::kKeep))
                          .all<wire::CommitResult>();
    CHECK_EQ(done.size(), 2u);
    CHECK_EQ(done[0].duplicate, 0u);
    // Again, as after a lost reply.
    const auto again =
        raw.call(wire::kCommit, kit::commit_request(n, held, {7, 8}, wire::kKeep))
            .all<wire::CommitResult>();
    CHECK_EQ(again[1].slot, done[1].slot);
    CHECK_EQ(again[1].generation, done[1].generation);
    CHECK_EQ(n.table->token(held[0].slot), 0u);
    sac::Key key{};
    key.w[0] = 7, key.w[3] = std::uint64_t{1} << 56;
    std::uint64_t word = 0;
    CHECK_EQ(n.index->find(key, 0, word), done[0].slot);
    CHECK_EQ(word, done[0].generation);
    info = s.tables();
    CHECK_EQ(info[0].reservations, 0u);
    CHECK_EQ(info[0].pinned, 2u);
    CHECK_EQ(kit::stats(raw, n).pages, 2u);
    CHECK_EQ(kit::stats(raw, n).pinned, 2u);

    const auto evict = [&] {
        return raw
            .call(wire::kEvict, wire::Writer().add(wire::EvictRequest{n.reply.table, 0, 10}))
            .as<std::uint64_t>();
    };
    CHECK_EQ(evict(), 0u);
    n.table->unpin(done[0].slot);
    CHECK_EQ(evict(), 1u);
    const auto verified =
        raw.call(wire::kVerify, kit::table_request(n.reply.table)).as<wire::VerifyReply>();
    CHECK_EQ(verified.checked, 1u);
}

TEST(aborted_room_is_free) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    const auto held = kit::reserve(raw, n, 3);
    for (const auto &r : held)
        n.table->unpin(r.slot);
    CHECK_EQ(raw.call(wire::kRenew, kit::held_request(n, held)).header.status, 0u);
    CHECK_EQ(raw.call(wire::kAbort, kit::held_request(n, held)).header.status, 0u);
    CHECK_EQ(n.table->token(held[0].slot), 0u);
    CHECK_EQ(kit::stats(raw, n).reserved, 0u);
    CHECK_EQ(raw.call(wire::kCommit, kit::commit_request(n, held, {1, 2, 3})).header.status,
             std::uint32_t{SAC_E_RESERVATION});
}

TEST(detach_and_numbers_that_are_not_there) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    CHECK_EQ(raw.call(wire::kDetach, kit::table_request(n.reply.table)).header.status, 0u);
    CHECK_EQ(raw.call(wire::kDetach, kit::table_request(n.reply.table)).header.status,
             std::uint32_t{SAC_E_NOT_FOUND});
    CHECK_EQ(raw.call(wire::kStats, kit::table_request(77)).header.status,
             std::uint32_t{SAC_E_NOT_FOUND});
    CHECK_EQ(s.place.count("tables"), 0u);
    CHECK_EQ(s.clients().size(), 1u);
}

TEST(attach_asks_for_what_is_there) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto status = [&](const wire::Writer &w) {
        return raw.call(wire::kAttach, w).header.status;
    };
    CHECK_EQ(status(kit::attach_request("p", "n", 0)), std::uint32_t{SAC_E_NOT_FOUND});
    CHECK_EQ(status(kit::attach_request("q", "n", 0)), std::uint32_t{SAC_E_NOT_FOUND});
    attach(raw);
    CHECK_EQ(status(kit::attach_request("p", "n", wire::kCreate, kit::plain(16, 128))),
             std::uint32_t{SAC_E_LAYOUT});
    CHECK_EQ(status(kit::attach_request("p", "n", wire::kCreate, kit::kLayout, 0640)),
             std::uint32_t{SAC_E_EXISTS});
    const auto reader =
        kit::attached(raw.call(wire::kAttach, kit::attach_request("p", "n", wire::kReadOnly)));
    CHECK_EQ(reader.reply.access, 1u);
    CHECK_EQ(fcntl(reader.extents[0].get(), F_GETFL) & O_ACCMODE, O_RDONLY);
    CHECK_EQ(raw.call(wire::kReserve,
                      wire::Writer().add(wire::ReserveRequest{reader.reply.table, 0, 1, 0, 0}))
                 .header.status,
             std::uint32_t{SAC_E_ACCESS});
    // The extents that it has need not be sent again.
    wire::AttachRequest r{};
    wire::set_name(r.pool, sizeof r.pool, "p", "pool");
    wire::set_name(r.name, sizeof r.name, "n", "name");
    r.have_extents = 1;
    const Answer a = raw.call(wire::kAttach, wire::Writer().add(r));
    CHECK_EQ(a.as<wire::AttachReply>().first_fd, 1u);
    CHECK_EQ(a.fds.size(), 3u);
}

TEST(drop_revokes) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    wire::DropRequest d{};
    wire::set_name(d.pool, sizeof d.pool, "p", "pool");
    wire::set_name(d.name, sizeof d.name, "n", "name");
    const auto held = kit::reserve(raw, n, 1);
    CHECK_EQ(raw.call(wire::kDrop, wire::Writer().add(d)).header.status,
             std::uint32_t{SAC_E_BUSY});
    n.table->unpin(held[0].slot);
    raw.call(wire::kAbort, kit::held_request(n, held));
    CHECK_EQ(raw.call(wire::kDrop, wire::Writer().add(d)).header.status, 0u);
    CHECK(n.table->revoked());
    CHECK(raw.call(wire::kReserve,
                   wire::Writer().add(wire::ReserveRequest{n.reply.table, 0, 1, 0, 0}))
              .header.status != 0);
    CHECK_EQ(raw.call(wire::kDetach, kit::table_request(n.reply.table)).header.status, 0u);
}

TEST(administration) {
    Served s;
    std::thread program([&] {
        for (;;) {
            sac_admin_request r{};
            if (sac_server_admin(s.server.get(), 10000, &r) != SAC_OK)
                return;
            if (r.id == 0)
                continue;
            const std::string body(r.json, r.json_bytes);
            for (std::uint32_t i = 0; i < r.fd_count; ++i)
                close(r.fds[i]);
            const std::string answer =
                body + ' ' + std::to_string(r.pid) + ' ' + std::to_string(r.fd_count);
            sac_server_answer(s.server.get(), r.id, answer.data(), answer.size());
        }
    });
    Raw raw(s.place.socket());
    raw.hello();
    wire::Writer w;
    w.add("{}", 2);
    for (int i = 0; i < 3; ++i) {
        const Answer a = raw.call(wire::kAdmin, w, {0, 1});
        CHECK_EQ(std::string(a.payload.begin(), a.payload.end()),
                 "{} " + std::to_string(getpid()) + " 2");
    }
    {  // nobody is there for the answer
        Raw gone(s.place.socket());
        gone.hello();
        gone.request(wire::kAdmin, w);
    }
    CHECK_EQ(raw.call(wire::kAdmin, w).header.status, 0u);
    MUST(sac_server_stop(s.server.get()));
    program.join();
    sac_admin_request r{};
    CHECK_EQ(sac_server_admin(s.server.get(), 0, &r), int{SAC_E_CLOSED});
}

TEST(events_follow) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    const auto events = [&](std::uint64_t next) {
        return raw.call(wire::kEvents,
                        wire::Writer().add(wire::EventsRequest{n.reply.table, 100, next}));
    };
    const auto first = events(UINT64_MAX).as<wire::EventsReply>();
    raw.call(wire::kCommit, kit::commit_request(n, kit::reserve(raw, n, 2), {1, 2}));
    const Answer a = events(first.next);
    CHECK_EQ(a.as<wire::EventsReply>().count, 2u);
    CHECK_EQ(a.as<sac_event>(sizeof(wire::EventsReply)).kind, std::uint32_t{SAC_EVENT_STORED});
}

TEST(parts_that_pages_do_not_have) {
    Served s;
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    const auto status = [&](std::uint64_t bodies, std::uint64_t tails) {
        return raw
            .call(wire::kReserve,
                  wire::Writer().add(wire::ReserveRequest{n.reply.table, 0, bodies, tails, 0}))
            .header.status;
    };
    CHECK_EQ(status(1, 1), std::uint32_t{SAC_E_ARG});
    CHECK_EQ(status(0, 0), 0u);
    CHECK_EQ(status(1 << 19, 0), std::uint32_t{SAC_E_NO_SPACE});
    CHECK_EQ(status((1 << 19) + 1, 0), std::uint32_t{SAC_E_ARG});
}

}  // namespace
