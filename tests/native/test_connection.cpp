// SPDX-License-Identifier: Apache-2.0
// The client's connection against a daemon that answers wrongly, in pieces or late.
#include <sys/wait.h>

#include "check.hpp"
#include "connection_kit.hpp"
#include "in_child.hpp"

namespace {

using fake::Answer;
using fake::Bytes;
using fake::echo;
using fake::message_of;
using fake::options;
using fake::Request;
using sac::Connection;
namespace wire = sac::wire;

}  // namespace

TEST(a_request_and_its_answer) {
    fake::Daemon daemon(echo);
    Connection c(options(daemon.path()));
    const Bytes payload{1, 2, 3};
    CHECK(c.ask(wire::kStats, payload, [](Connection::Reply &r) { return r.payload; }) ==
          payload);
    const auto seen = daemon.seen();
    CHECK_EQ(seen.size(), 2u);
    CHECK_EQ(seen[0].header.op, wire::kHello);
    wire::HelloRequest h{};
    CHECK_EQ(seen[0].payload.size(), sizeof h);
    std::memcpy(&h, seen[0].payload.data(), sizeof h);
    CHECK_EQ(std::string(h.name), "test");
    CHECK_EQ(int{h.id[0]}, 0);
    CHECK_EQ(seen[1].header.magic, wire::kMagic);
    CHECK(seen[1].header.sequence > seen[0].header.sequence);
}

TEST(large_frames_both_ways) {
    fake::Daemon daemon(echo);
    Connection c(options(daemon.path()));
    Bytes payload(wire::kMaxPayload);
    for (std::size_t i = 0; i < payload.size(); ++i) {
        payload[i] = static_cast<std::uint8_t>(i * 7 >> 3);
    }
    CHECK(c.ask(wire::kCommit, payload, [](Connection::Reply &r) { return r.payload; }) ==
          payload);
    payload.push_back(0);
    CHECK_THROWS(SAC_E_ARG, c.tell(wire::kCommit, payload));
}

TEST(what_the_daemon_refuses) {
    fake::Daemon daemon([](const Request &r) { return fake::bad(r, SAC_E_NO_SPACE, "full"); });
    Connection c(options(daemon.path()));
    CHECK_THROWS(SAC_E_NO_SPACE, c.tell(wire::kReserve, {}));
    CHECK_EQ(message_of([&] { c.tell(wire::kReserve, {}); }), "full");
    CHECK_EQ(daemon.count(wire::kHello), 1u);  // the connection is as good as before
}

TEST(answers_that_are_none) {
    int what = 0;
    fake::Daemon daemon([&](const Request &r) -> Answer {
        wire::Header h = fake::reply_to(r, 0);
        switch (what) {
        case 0:
            h.magic ^= 1;
            break;
        case 1:
            h.version = 2;
            break;
        case 2:
            h.length = wire::kMaxPayload + 1;
            break;
        case 3:
            h.op = wire::kRenew | wire::kReply;
            break;
        case 4:
            h.op = r.header.op;  // a request
            break;
        case 5:
            h.sequence += 1;
            break;
        case 6:  // more than announced
            return {fake::frame(h, Bytes(5)), {}, false};
        case 7:  // a failure whose text is longer than it is
            h.status = SAC_E_ARG, h.length = 24;
            return {fake::frame(h, Bytes(24, 0xff)), {}, false};
        case 8: {  // a status that does not exist
            const Bytes p = wire::error_payload(0, 0, "", "");
            return {fake::frame(fake::reply_to(r, p.size(), 999), p), {}, false};
        }
        default:
            return fake::good(r);
        }
        return {fake::frame(h, {}), {}, false};
    });
    for (what = 0; what < 9; ++what) {
        Connection c(options(daemon.path()));
        const auto ask = [&] { c.tell(wire::kStats, {}); };
        if (what == 1) {
            CHECK_THROWS(SAC_E_VERSION, ask());
            CHECK(message_of(ask).find("version 2") != std::string::npos);
        } else if (what == 7) {
            CHECK_THROWS(SAC_E_CORRUPT, ask());
        } else if (what == 8) {
            CHECK_THROWS(SAC_E_SYSTEM, ask());
        } else {
            CHECK_THROWS(SAC_E_CORRUPT, ask());
        }
        // Nothing of the kind stays in the way of the next one.
        const int kind = what;
        what = 100;
        ask();
        what = kind;
    }
}

TEST(a_reply_that_does_not_fit_the_request) {
    fake::Daemon daemon([](const Request &r) { return fake::good(r, Bytes(3)); });
    Connection c(options(daemon.path()));
    const auto ask = [&] {
        c.ask(wire::kEvict, {}, [](Connection::Reply &r) {
            wire::Reader in(r.payload.data(), r.payload.size(), "EVICT");
            return in.get<std::uint64_t>();
        });
    };
    CHECK_THROWS(SAC_E_CORRUPT, ask());
    CHECK(message_of(ask).find("EVICT") != std::string::npos);
    CHECK_EQ(daemon.count(wire::kHello), 2u);  // made anew: who knows what else was sent
}

TEST(a_reply_in_pieces_and_late) {
    fake::Daemon daemon([](const Request &r) -> Answer {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return fake::good(r, Bytes(300000, 7));
    });
    Connection c(options(daemon.path()));
    const auto got =
        c.ask(wire::kStats, {}, [](Connection::Reply &r) { return std::move(r.payload); });
    CHECK(got == Bytes(300000, 7));
}

TEST(file_descriptors) {
    std::size_t n = 0;
    fake::Daemon daemon([&](const Request &r) {
        std::vector<int> fds;
        for (std::size_t i = 0; i < n; ++i) {
            fds.push_back(memfd_create("one", MFD_CLOEXEC));
            if (write(fds.back(), &i, 1) != 1) {
                throw std::runtime_error("write");
            }
        }
        return fake::good(r, Bytes(100000), std::move(fds));
    });
    Connection c(options(daemon.path()));
    for (n = 0; n <= wire::kMaxFds; n += wire::kMaxFds / 2) {
        c.ask(wire::kAttach, {}, [&](Connection::Reply &r) {
            CHECK_EQ(r.fds.size(), n);
            for (std::size_t i = 0; i < n; ++i) {
                std::uint8_t byte = 0xff;
                CHECK_EQ(pread(r.fds[i].get(), &byte, 1, 0), 1);
                CHECK_EQ(std::size_t{byte}, i);
                CHECK(fcntl(r.fds[i].get(), F_GETFD) & FD_CLOEXEC);
            }
        });
    }
    // Those that nobody expects are closed. The daemon has closed its own by its next answer.
    const auto lowest_free = [&] {
        n = 0;
        c.tell(wire::kStats, {});
        const int fd = dup(0);
        close(fd);
        return fd;
    };
    const int before = lowest_free();
    n = 5;
    c.tell(wire::kStats, {});
    CHECK_EQ(lowest_free(), before);
    n = wire::kMaxFds + 10;  // more than there can be
    CHECK(c.ask(wire::kAttach, {}, [](const Connection::Reply &r) { return r.files_lost; }));
    n = 0;
    c.tell(wire::kStats, {});
}

TEST(threads_take_turns) {
    fake::Daemon daemon(echo);
    Connection c(options(daemon.path()));
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (std::uint8_t t = 0; t < 8; ++t) {
        threads.emplace_back([&c, &wrong, t] {
            for (std::uint8_t i = 0; i < 100; ++i) {
                const Bytes payload{t, i};
                wrong += c.ask(wire::kStats, payload,
                               [](Connection::Reply &r) { return r.payload; }) != payload;
                c.owe({t, c.life(), {}});
            }
        });
    }
    for (auto &t : threads) {
        t.join();
    }
    CHECK_EQ(wrong.load(), 0);
    c.flush();
    CHECK_EQ(daemon.count(wire::kDetach), 800u);
}

TEST(a_forked_child_has_no_connection) {
    fake::Daemon daemon(echo);
    Connection c(options(daemon.path()));
    CHECK_EQ(kit::in_child([&] {
                 CHECK_THROWS(SAC_E_FORKED, c.tell(wire::kStats, {}));
                 c.owe({1, 1, {}});
                 c.flush();
                 c.close();
             }),
             0);
    c.tell(wire::kStats, {});
    CHECK_EQ(daemon.count(wire::kHello), 1u);
}
