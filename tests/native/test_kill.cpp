// SPDX-License-Identifier: Apache-2.0
// Kills kill_child at every stop point, at the first pass and at later ones, and looks at
// what recovery finds: all that was acknowledged, intact, and nothing else.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "check.hpp"
#include "in_child.hpp"
#include "kill_layout.hpp"

namespace {

// Sanitizers make a round some ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kPasses[] = {1, 23};
constexpr const char *kPages = "60";
#else
constexpr int kPasses[] = {1, 2, 7, 40, 150};
constexpr const char *kPages = "260";
#endif

using Part = std::tuple<std::string, std::string, int>;  // namespace, key, part

// What a pool must hold, by the words of the processes that worked on it.
struct Ledger {
    std::map<Part, std::uint64_t> there;  // generation
    std::set<std::uint64_t> generations;  // of all commits ever seen
    std::uint64_t newest = 0;             // of them, before this process
    std::uint64_t may_bodies = 0, may_tails = 0;
    bool dropping = false;
    std::uint64_t commits = 0;

    void commit(const Part &part, std::uint64_t generation) {
        CHECK(generation > newest);
        CHECK(generations.insert(generation).second);
        there[part] = generation;
        ++commits;
    }

    void lines(const std::string &text) {
        std::istringstream in(text);
        std::string line;
        may_bodies = may_tails = 0;
        newest = generations.empty() ? 0 : *generations.rbegin();
        while (std::getline(in, line)) {
            std::istringstream words(line);
            std::string what, ns, key;
            int part = 0;
            std::uint64_t generation = 0;
            words >> what;
            CHECK(what != "wrong");
            if (what == "may") {
                words >> may_bodies >> may_tails;
            } else if (what == "page" || what == "gone") {
                words >> ns >> key >> part >> generation;
                if (what == "page") {
                    commit({ns, key, part}, generation);
                } else {
                    CHECK_EQ(there.erase({ns, key, part}), 1u);
                }
            } else if (what == "dropping") {
                dropping = true;
            } else if (what == "dropped") {
                dropping = false;
                std::erase_if(there,
                              [](const auto &e) { return std::get<0>(e.first) == "other"; });
            }
        }
    }
};

std::string child_output(const std::vector<std::string> &args, const std::string &stop,
                         int &status) {
    int fds[2];
    CHECK_EQ(pipe(fds), 0);
    const pid_t child = kit::fork_at_rest();
    if (child == 0) {
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]), close(fds[1]);
        if (!stop.empty()) {
            setenv("SAC_STOP_AT", stop.c_str(), 1);
        }
        std::vector<char *> argv{const_cast<char *>(SAC_KILL_CHILD)};
        for (const std::string &a : args) {
            argv.push_back(const_cast<char *>(a.c_str()));
        }
        argv.push_back(nullptr);
        execv(SAC_KILL_CHILD, argv.data());
        _exit(127);
    }
    close(fds[1]);
    std::string out;
    char buffer[65536];
    for (ssize_t n; (n = read(fds[0], buffer, sizeof buffer)) > 0;) {
        out.append(buffer, static_cast<std::size_t>(n));
    }
    close(fds[0]);
    CHECK_EQ(waitpid(child, &status, 0), child);
    return out.substr(0, out.rfind('\n') + 1);
}

// Recovers the pool here and compares with the ledger, which then takes over what a killed
// process had done without saying so.
void compare(Ledger &ledger, const std::string &dir, const std::string &where) {
    kit::PoolHandle pool;
    const int status = kit::open_pool(pool, 0, dir.c_str(), 0, SAC_POOL_OPEN);
    if (status == SAC_E_NOT_FOUND) {
        CHECK(ledger.there.empty());
        return;
    }
    kit::must(status, where.c_str());
    std::map<Part, std::uint64_t> found;
    std::uint64_t assigned = 0;
    for (const std::string &name : pool->it->names()) {
        const doomed::State state = doomed::look(pool, name.c_str());
        std::uint64_t used = 0;
        for (const doomed::Page &p : state.pages) {
            CHECK(p.intact);
            std::string hex;
            for (const std::uint8_t b : p.key) {
                char two[3];
                std::snprintf(two, sizeof two, "%02x", b);
                hex += two;
            }
            CHECK(found.emplace(Part{name, hex, p.part}, p.generation).second);
            ++used;
        }
        CHECK_EQ(state.reservable, state.slots - used);
        assigned += state.assigned_bytes;
    }
    const sac_pool_info i = kit::info(pool);
    CHECK_EQ(i.free_bytes + assigned, i.data_bytes);  // no slab is nobody's
    std::array<std::uint64_t, 2> missing{};
    for (const auto &[part, generation] : ledger.there) {
        const auto it = found.find(part);
        if (it != found.end() && it->second >= generation) {
            continue;
        }
        if (std::get<0>(part) == "other") {
            CHECK(ledger.dropping);
        } else {
            ++missing[static_cast<std::size_t>(std::get<2>(part))];
        }
    }
    CHECK(missing[0] <= ledger.may_bodies);
    CHECK(missing[1] <= ledger.may_bodies + ledger.may_tails);
    // Marked as being dropped: then it is dropped to the end, not brought back in part.
    if (ledger.dropping &&
        (where.rfind("drop.marked", 0) == 0 || where.rfind("slab.released", 0) == 0)) {
        CHECK_EQ(pool->it->names().size(), 1u);
    }
    for (const auto &[part, generation] : found) {
        const auto it = ledger.there.find(part);
        if (it == ledger.there.end() || it->second != generation) {
            // Committed, and killed before it was said; or marked for eviction, not evicted.
            ledger.generations.insert(generation);
        }
    }
    ledger.there = found;
    ledger.dropping = false;
}

void round_trip(const char *point, int pass, bool &hit) {
    const kit::Directory dir;
    Ledger ledger;
    const std::string where = std::string(point) + ':' + std::to_string(pass);
    int status = 0;
    // A pool that is filled already, killed, recovered, worked on again, killed, recovered.
    const bool early =
        std::strncmp(point, "create", 6) == 0 || std::strncmp(point, "format", 6) == 0;
    for (int run = 0; run < 4; ++run) {
        const bool stop = early ? run == 0 : run % 2 == 1;
        const auto text = child_output({dir.pool(), std::to_string(pass * 10 + run), kPages},
                                       stop ? where : std::string(), status);
        const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        CHECK(stop || !killed);
        CHECK(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
        hit |= killed;
        ledger.lines(text);
        compare(ledger, dir.pool(), where);
    }
    CHECK(ledger.commits > 50);
}

}  // namespace

TEST(list_of_points_is_complete) {
    std::set<std::string> listed(std::begin(doomed::kPoints), std::end(doomed::kPoints)), found;
    const auto core = std::filesystem::path(__FILE__).parent_path() / "../../libsac/core";
    for (const auto &entry : std::filesystem::directory_iterator(core)) {
        std::ifstream in(entry.path());
        std::string line;
        while (std::getline(in, line)) {
            const auto at = line.find("SAC_STOP(\"");
            if (at != std::string::npos) {
                const auto from = at + 10;
                found.insert(line.substr(from, line.find('"', from) - from));
            }
        }
    }
    for (const char *served : doomed::kServed) {
        std::erase_if(found, [&](const std::string &p) { return p.rfind(served, 0) == 0; });
    }
    CHECK(listed == found);
}

TEST(every_stop_point) {
    for (const char *point : doomed::kPoints) {
        bool hit = false;
        for (const int pass : kPasses) {
            try {
                round_trip(point, pass, hit);
            } catch (const check::Failure &failure) {
                throw check::Failure{std::string(point) + ':' + std::to_string(pass) + ": " +
                                     failure.text};
            }
        }
        if (!hit) {
            throw check::Failure{std::string(point) + " was never passed"};
        }
    }
}
