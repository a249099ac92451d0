// SPDX-License-Identifier: Apache-2.0
// The client's connection when it is lost, or a daemon not there: what is asked again, and what
// comes before it.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>

#include "check.hpp"
#include "connection_kit.hpp"

namespace {

using fake::Answer;
using fake::Bytes;
using fake::echo;
using fake::message_of;
using fake::options;
using fake::Request;
using fake::seconds_since;
using sac::Connection;
namespace wire = sac::wire;

const auto kAnything = [](const Connection::Reply &) {};

}  // namespace

TEST(cut_replies_are_asked_for_again) {
    std::size_t sent = 0;
    fake::Daemon daemon([&](const Request &r) -> Answer {
        Answer a = fake::good(r, r.payload);
        if (sent < a.bytes.size()) {
            a.bytes.resize(sent);
            a.close = true;
            sent = SIZE_MAX;
        }
        return a;
    });
    for (std::size_t at : {0, 1, 23, 24, 25, 30}) {
        Connection c(options(daemon.path()));
        sent = at;
        const Bytes payload(8, 3);
        CHECK(c.ask(wire::kRenew, payload, [](Connection::Reply &r) { return r.payload; }) ==
              payload);
    }
    CHECK_EQ(daemon.count(wire::kRenew), 12u);
    // The same client comes again.
    const auto seen = daemon.seen();
    wire::HelloRequest h{};
    std::memcpy(&h, seen[2].payload.data(), sizeof h);
    CHECK_EQ(seen[2].header.op, wire::kHello);
    CHECK_EQ(int{h.id[0]}, 1);
}

TEST(a_daemon_that_comes_back) {
    fake::Daemon daemon(echo);
    Connection c(options(daemon.path()));
    c.tell(wire::kStats, {});
    daemon.stop();
    std::thread later([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        daemon.start();
    });
    c.tell(wire::kStats, {});
    later.join();
    CHECK_EQ(c.life(), 1u);
    daemon.stop();
    daemon.start();  // unnoticed
    c.tell(wire::kStats, {});
    daemon.id = 2;
    daemon.stop();
    daemon.start();
    c.tell(wire::kStats, {});
    CHECK_EQ(c.life(), 2u);  // it did not know the client any more
}

TEST(a_daemon_that_stays_away) {
    fake::Daemon daemon(echo);
    Connection c(options(daemon.path(), 300));
    daemon.stop();
    auto begin = std::chrono::steady_clock::now();
    CHECK_THROWS(SAC_E_NO_DAEMON, c.tell(wire::kStats, {}));
    CHECK(seconds_since(begin) >= 0.25);
    // From then on it is known.
    begin = std::chrono::steady_clock::now();
    const std::string message = message_of([&] { c.tell(wire::kStats, {}); });
    CHECK(seconds_since(begin) < 0.25);
    CHECK(message.find("sacctl daemon run") != std::string::npos);
    CHECK(message.find(daemon.path()) != std::string::npos);
    daemon.start();
    c.tell(wire::kStats, {});
}

TEST(a_request_that_kills_the_daemon_is_not_sent_for_ever) {
    fake::Daemon daemon([](const Request &) { return fake::hang_up(); });
    Connection c(options(daemon.path(), 200));
    const auto begin = std::chrono::steady_clock::now();
    CHECK_THROWS(SAC_E_NO_DAEMON, c.tell(wire::kStats, {}));
    CHECK(seconds_since(begin) < 5);
    CHECK(daemon.count(wire::kStats) > 1);
    CHECK(daemon.count(wire::kStats) < 50);
}

TEST(nobody_there_at_first) {
    kit::Directory directory;
    Connection::Options o = options(directory.file("none"));
    CHECK_THROWS(SAC_E_NO_DAEMON, Connection(o));
    o.timeout_ms = 200;
    const auto begin = std::chrono::steady_clock::now();
    CHECK_THROWS(SAC_E_NO_DAEMON, Connection(o));
    CHECK(seconds_since(begin) >= 0.15);
    o.socket = std::string(200, 'x');
    CHECK_THROWS(SAC_E_ARG, Connection(o));
    if (geteuid() != 0) {
        fake::Daemon daemon(echo);
        chmod(daemon.path().c_str(), 0);
        CHECK_THROWS(SAC_E_ACCESS, Connection(options(daemon.path())));
    }
}

// What was asked may have been done: it is mended before it, or anything else, is asked.
TEST(mended_before_it_is_asked_again) {
    std::vector<std::uint16_t> answered;
    bool cut = true;
    fake::Daemon daemon([&](const Request &r) -> Answer {
        if (r.header.op == wire::kReserve && cut) {
            cut = false;
            return fake::hang_up();
        }
        answered.push_back(r.header.op);
        return fake::good(r);
    });
    Connection c(options(daemon.path()));
    int mended = 0;
    Connection::Care care;
    care.mend = [&] {
        ++mended;
        c.once(wire::kAbort, {});
    };
    c.ask(wire::kReserve, {}, kAnything, care);
    CHECK_EQ(mended, 1);
    CHECK(answered == (std::vector<std::uint16_t>{wire::kAbort, wire::kReserve}));
    c.tell(wire::kStats, {});
    CHECK_EQ(mended, 1);
}

TEST(mended_by_whoever_comes_next) {
    bool refuse = true;
    fake::Daemon daemon([&](const Request &r) -> Answer {
        return refuse && r.header.op == wire::kReserve ? fake::hang_up() : fake::good(r);
    });
    Connection c(options(daemon.path(), 50));
    int mended = 0;
    Connection::Care care;
    care.mend = [&] { ++mended; };
    CHECK_THROWS(SAC_E_NO_DAEMON, c.ask(wire::kReserve, {}, kAnything, care));
    const int before = mended;
    c.tell(wire::kStats, {});
    CHECK(mended > before);
    const int after = mended;
    c.tell(wire::kStats, {});
    CHECK_EQ(mended, after);
    // A reply that cannot be taken is as good as none.
    refuse = false;
    CHECK_THROWS(SAC_E_CORRUPT,
                 c.ask(
                     wire::kReserve, {},
                     [](const Connection::Reply &) { throw sac::Error(SAC_E_ARG, "", ""); },
                     care));
    c.tell(wire::kStats, {});
    CHECK_EQ(mended, after + 1);
    // A daemon that does not know the client has nothing of it.
    refuse = true;
    CHECK_THROWS(SAC_E_NO_DAEMON, c.ask(wire::kReserve, {}, kAnything, care));
    const int last = mended;
    daemon.id = 9;
    c.tell(wire::kStats, {});
    CHECK_EQ(mended, last);
}

TEST(not_asked_where_it_makes_no_sense_any_more) {
    fake::Daemon daemon(echo);
    Connection c(options(daemon.path()));
    Connection::Care care;
    care.still = [] { return false; };
    CHECK_THROWS(SAC_E_STALE, c.ask(wire::kReserve, {}, kAnything, care));
    CHECK_EQ(daemon.count(wire::kReserve), 0u);
    c.tell(wire::kStats, {});
}

TEST(what_is_owed_is_said_first) {
    fake::Daemon daemon([](const Request &r) -> Answer {
        return r.header.op == wire::kAbort ? fake::bad(r, SAC_E_ARG, "no such") : fake::good(r);
    });
    {
        Connection c(options(daemon.path()));
        c.owe({7, c.life(), {{3, 0, 99}}});
        c.owe({7, c.life(), {}});
        c.owe({8, c.life() + 1, {}});  // of another life: nobody would know what it means
        CHECK_EQ(daemon.seen().size(), 1u);
        c.tell(wire::kStats, {});
        const auto seen = daemon.seen();
        CHECK_EQ(seen.size(), 4u);
        CHECK_EQ(seen[1].header.op, wire::kAbort);
        wire::HeldRequest h{};
        std::memcpy(&h, seen[1].payload.data(), sizeof h);
        CHECK_EQ(h.table, 7u);
        CHECK_EQ(h.count, 1u);
        CHECK_EQ(seen[2].header.op, wire::kDetach);
        c.owe({9, c.life(), {}});
        c.flush();
        CHECK_EQ(daemon.count(wire::kDetach), 2u);
        c.close();
        CHECK_THROWS(SAC_E_CLOSED, c.tell(wire::kStats, {}));
        c.owe({10, c.life(), {}});  // at once: nobody asks any more
        CHECK_EQ(daemon.count(wire::kDetach), 3u);
        daemon.stop();
        c.owe({11, c.life(), {}});
    }
    CHECK_EQ(daemon.count(wire::kDetach), 3u);
}
