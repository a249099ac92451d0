// SPDX-License-Identifier: Apache-2.0
// What a daemon leaves in its run directory, and what the next one believes of it.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "peer.hpp"
#include "roster.hpp"
#include "server_kit.hpp"

namespace {

using sac::Roster;
namespace fs = std::filesystem;

Roster::Client client() {
    Roster::Client c;
    c.id = sac::random_id();
    c.process = {static_cast<std::uint32_t>(getpid()),
                 sac::start_time_of(static_cast<std::uint32_t>(getpid()))};
    c.uid = 1000, c.gid = 100, c.since_ms = 12345, c.name = "a name";
    return c;
}

Roster::Table table(const Roster::Client &of) {
    Roster::Table t;
    t.client = of.id, t.pool = sac::random_id(), t.space = sac::random_id();
    t.number = 0xdeadbeef, t.writable = true, t.capacity = 12345678901;
    return t;
}

std::string only(const std::string &folder) {
    const auto it = fs::directory_iterator(folder);
    return it == fs::directory_iterator() ? std::string() : it->path().string();
}

TEST(what_is_written_is_there_again) {
    kit::Place place;
    Roster::Client c = client();
    const Roster::Table t = table(c);
    {
        Roster roster(place.run());
        roster.write(c);
        c.evicted = true;
        roster.write(c);
        CHECK_EQ(lseek(roster.create(t, 100).get(), 0, SEEK_END), 100);
        CHECK_THROWS(SAC_E_SYSTEM, roster.create(t, 100));
    }
    Roster roster(place.run());
    std::vector<Roster::Client> clients;
    std::vector<Roster::Table> tables;
    roster.load(clients, tables);
    CHECK_EQ(clients.size(), 1u);
    CHECK(clients[0].id == c.id);
    CHECK(clients[0].process == c.process);
    CHECK_EQ(clients[0].uid, 1000u);
    CHECK_EQ(clients[0].gid, 100u);
    CHECK(clients[0].evicted);
    CHECK_EQ(clients[0].since_ms, 12345u);
    CHECK_EQ(clients[0].name, std::string("a name"));
    CHECK_EQ(tables.size(), 1u);
    CHECK(tables[0] == t);
    CHECK(static_cast<bool>(roster.open(t)));
    roster.remove(t), roster.remove(c.id);
    roster.load(clients, tables);
    CHECK(clients.empty() && tables.empty());
}

TEST(damaged_records_are_removed) {
    for (const std::size_t at : {0u, 9u, 20u, 50u, 175u}) {
        kit::Place place;
        const Roster::Client c = client();
        Roster roster(place.run());
        roster.write(c);
        roster.create(table(c), 100);
        const std::string path = only(place.run() + "/roster");
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(static_cast<std::streamoff>(at));
        const char old = static_cast<char>(file.get());
        file.seekp(static_cast<std::streamoff>(at));
        file.put(static_cast<char>(old ^ 1));
        file.close();
        std::vector<Roster::Client> clients;
        std::vector<Roster::Table> tables;
        roster.load(clients, tables);
        CHECK(clients.empty() && tables.empty());
        CHECK_EQ(place.count("roster") + place.count("tables"), 0u);
    }
}

TEST(cut_off_and_foreign_files_are_removed) {
    kit::Place place;
    const Roster::Client c = client();
    Roster roster(place.run());
    roster.write(c);
    const std::string record = only(place.run() + "/roster");
    fs::copy_file(record, record + ".new");
    fs::copy_file(record, place.run() + "/roster/" + std::string(32, 'a'));
    std::ofstream(place.run() + "/tables/what").put('x');
    roster.create(table(client()), 100);  // of nobody
    std::vector<Roster::Client> clients;
    std::vector<Roster::Table> tables;
    roster.load(clients, tables);
    CHECK_EQ(clients.size(), 1u);
    CHECK(tables.empty());
    CHECK_EQ(place.count("roster"), 1u);
    CHECK_EQ(place.count("tables"), 0u);
    fs::resize_file(record, 100);
    roster.load(clients, tables);
    CHECK(clients.empty());
}

TEST(directories_of_others_are_refused) {
    kit::Place place;
    fs::permissions(place.run(), fs::perms(0777));
    CHECK_THROWS(SAC_E_ACCESS, Roster(place.run()));
    fs::permissions(place.run(), fs::perms(0700));
    fs::create_directory_symlink(place.run(), place.run() + "2");
    CHECK_THROWS(SAC_E_SYSTEM, Roster(place.run() + "2"));
    CHECK_THROWS(SAC_E_SYSTEM, Roster(place.run() + "3"));
    Roster roster(place.run());
    CHECK_THROWS(SAC_E_BUSY, Roster(place.run()));
}

TEST(processes_are_told_apart) {
    const auto own = static_cast<std::uint32_t>(getpid());
    const std::uint64_t start = sac::start_time_of(own);
    CHECK(start != 0);
    CHECK(static_cast<bool>(sac::open_process({own, start})));
    CHECK(!sac::open_process({own, start + 1}));
    CHECK(!sac::open_process({0x3fffff, start}));
    CHECK(!sac::process_name(own).empty());
    const pid_t child = fork();
    if (child == 0)
        _exit(0);
    siginfo_t info;
    waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
    CHECK_EQ(sac::start_time_of(static_cast<std::uint32_t>(child)), 0u);  // a zombie
    waitpid(child, nullptr, 0);
    CHECK_EQ(sac::start_time_of(static_cast<std::uint32_t>(child)), 0u);
}

TEST(a_process_that_cannot_be_looked_at_has_not_ended) {
    const auto own = static_cast<std::uint32_t>(getpid());
    const std::uint64_t start = sac::start_time_of(own);
    rlimit before{};
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = dup(0);  // the lowest number that is free
    close(next);
    for (const int room : {0, 1}) {
        const rlimit few{static_cast<rlim_t>(next + room), before.rlim_max};
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        CHECK_THROWS(SAC_E_SYSTEM, sac::open_process({own, start}));
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    }
    CHECK(static_cast<bool>(sac::open_process({own, start})));
}

TEST(peers_are_known) {
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const sac::Fd a(pair[0]), b(pair[1]);
    const sac::Peer peer = sac::peer_of(a.get());
    CHECK_EQ(peer.process.pid, static_cast<std::uint32_t>(getpid()));
    CHECK_EQ(peer.process.start_time, sac::start_time_of(peer.process.pid));
    CHECK_EQ(peer.uid, getuid());
    CHECK(peer.in_group(getgid()));
    CHECK(!peer.in_group(123456));
}

}  // namespace
