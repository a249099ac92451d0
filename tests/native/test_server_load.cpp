// SPDX-License-Identifier: Apache-2.0
// The server with many clients at once.
#include <atomic>
#include <chrono>
#include <thread>

#include "check.hpp"
#include "served.hpp"

namespace {

using kit::Answer;
using kit::attach;
using kit::exit_code;
using kit::Raw;
using kit::Served;
using kit::soon;
using kit::start_child;
namespace wire = sac::wire;

TEST(many_at_once) {
    Served s;
    int start[2];
    CHECK_EQ(pipe(start), 0);
    std::vector<pid_t> children;
    for (int c = 0; c < 4; ++c)
        children.push_back(start_child([&] {
            char byte = 0;
            CHECK_EQ(read(start[0], &byte, 1), 1);
            Raw raw(s.place.socket());
            raw.hello();
            const auto n = attach(raw);
            for (std::uint64_t i = 1; i <= 200; ++i) {
                const auto held = kit::reserve(raw, n, 2);
                const auto done =
                    raw.call(wire::kCommit, kit::commit_request(n, held, {i, i + 1000}))
                        .all<wire::CommitResult>();
                for (const auto &r : held)
                    n.table->unpin(r.slot);
                CHECK_EQ(done.size(), 2u);
            }
        }));
    CHECK_EQ(write(start[1], "4444", 4), 4);
    close(start[0]), close(start[1]);
    for (const pid_t child : children)
        CHECK_EQ(exit_code(child), 0);
    Raw raw(s.place.socket());
    raw.hello();
    const auto n = attach(raw);
    CHECK_EQ(kit::stats(raw, n).pages, 400u);
    CHECK(soon([&] { return kit::stats(raw, n).pinned + kit::stats(raw, n).reserved == 0; }));
    std::uint64_t turns = 0, later = 0, ops = 0;
    MUST(sac_server_heartbeat(s.server.get(), &turns));
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    MUST(sac_server_heartbeat(s.server.get(), &later));
    CHECK(later > turns);
    MUST(sac_server_ops(s.server.get(), nullptr, &ops));
    CHECK(ops >= 5);
}

// For TSan above all: clients, the administrator and those who look, at the same time.
TEST(everything_at_once) {
    Served s;
    {
        Raw raw(s.place.socket());
        raw.hello();
        attach(raw, "n"), attach(raw, "m");
    }
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    const auto run = [&](auto fn) {
        threads.emplace_back([&failures, &stop, fn]() mutable {
            try {
                while (!stop)
                    fn();
            } catch (const std::exception &e) {
                std::printf("%s\n", e.what());
                ++failures;
            }
        });
    };
    for (std::uint64_t c = 0; c < 3; ++c)
        run([&s, c, i = std::uint64_t{0}]() mutable {
            Raw raw(s.place.socket());
            raw.hello();
            for (int turn = 0; turn < 20; ++turn) {
                // The administrator may evict it at any time.
                Answer given =
                    raw.call(wire::kAttach, kit::attach_request("p", turn % 2 ? "n" : "m", 0));
                if (given.header.status == SAC_E_ACCESS)
                    return;
                const auto n = kit::attached(std::move(given));
                const Answer room = raw.call(
                    wire::kReserve,
                    wire::Writer().add(wire::ReserveRequest{n.reply.table, 0, 2, 0, 0}));
                if (room.header.status == SAC_E_ACCESS)
                    return;
                if (room.header.status == SAC_E_STALE)
                    continue;
                const auto held = room.all<wire::ReservationItem>();
                ++i;
                const auto done = raw.call(
                    wire::kCommit,
                    kit::commit_request(n, held, {c * 100000 + i, c * 100000 + 50000 + i}));
                if (done.header.status != SAC_OK && done.header.status != SAC_E_ACCESS)
                    done.as<int>();
                if (done.header.status == SAC_E_ACCESS)
                    return;
                for (const auto &r : held)
                    n.table->unpin(r.slot);
                raw.call(wire::kVerify, kit::table_request(n.reply.table));
                kit::stats(raw, n);
                raw.call(wire::kDetach, kit::table_request(n.reply.table));
            }
        });
    run([&] {
        s.tables();
        const auto clients = s.clients();
        std::uint64_t ops = 64;
        std::vector<sac_op_info> out(ops);
        MUST(sac_server_ops(s.server.get(), out.data(), &ops));
        if (!clients.empty() && clients[0].requests % 50 == 7)
            sac_server_evict(s.server.get(), clients[0].id, 0);
    });
    run([&, quota = std::uint64_t{8} << 20]() mutable {
        sac_pool_resize(s.pool.get(), "n", quota += 2 << 20);
        if (quota > 24 << 20)
            quota = 8 << 20;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    std::this_thread::sleep_for(std::chrono::seconds(2));
    stop = true;
    for (std::thread &t : threads)
        t.join();
    CHECK_EQ(failures.load(), 0);
    // Clients of a living process that did not detach, evicted ones, keep their tables.
    std::size_t tables = 0;
    for (const auto &c : s.clients())
        tables += c.tables;
    CHECK_EQ(s.place.count("tables"), tables);
    Raw raw(s.place.socket());
    CHECK_EQ(raw.hello().header.status, 0u);
}

}  // namespace
