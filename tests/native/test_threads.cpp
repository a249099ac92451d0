// SPDX-License-Identifier: Apache-2.0
#include "threads.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "check.hpp"
#include "in_child.hpp"

namespace {

// Cores may be fewer than the threads a test wants; then it still runs, on what there is.
constexpr unsigned kThreads = 4;

void each_part_once(unsigned threads, std::size_t parts) {
    std::vector<std::atomic<int>> runs(parts);
    sac::parallel_for(threads, parts, [&](std::size_t part) { runs[part].fetch_add(1); });
    for (const std::atomic<int> &count : runs) {
        CHECK_EQ(count.load(), 1);
    }
}

}  // namespace

TEST(cores) {
    CHECK(sac::usable_cores() >= 1);
    cpu_set_t before, one;
    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    CHECK_EQ(sac::usable_cores(), static_cast<unsigned>(CPU_COUNT(&before)));
    int first = 0;
    while (!CPU_ISSET(first, &before)) {
        ++first;
    }
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    const unsigned alone = sac::usable_cores();
    CHECK_EQ(sched_setaffinity(0, sizeof before, &before), 0);
    CHECK_EQ(alone, 1u);
}

TEST(every_part_once) {
    for (const unsigned threads : {0u, 1u, 2u, 3u, kThreads, 1000u}) {
        for (const std::size_t parts : {0u, 1u, 2u, 3u, 7u, 100u, 5000u}) {
            each_part_once(threads, parts);
        }
    }
}

// What parts wrote, unsynchronised, is there for the caller: TSan watches.
TEST(results_are_seen) {
    std::vector<std::uint64_t> out(300);
    for (std::uint64_t round = 0; round < 3000; ++round) {
        sac::parallel_for(kThreads, out.size(),
                          [&](std::size_t part) { out[part] = part * round; });
        for (std::size_t part = 0; part < out.size(); ++part) {
            CHECK_EQ(out[part], part * round);
        }
    }
}

TEST(workers_take_part) {
    if (sac::usable_cores() < 2) {
        return;
    }
    std::mutex mutex;
    std::set<std::thread::id> ids;
    // Nobody leaves before two threads are in, so that one cannot do it all.
    std::atomic<int> inside{0};
    sac::parallel_for(2, 2, [&](std::size_t) {
        inside.fetch_add(1);
        while (inside.load() < 2) {
            std::this_thread::yield();
        }
        const std::lock_guard<std::mutex> lock(mutex);
        ids.insert(std::this_thread::get_id());
    });
    CHECK_EQ(ids.size(), 2u);
}

TEST(after_sleep) {  // the workers have gone to sleep between the jobs
    for (int round = 0; round < 30; ++round) {
        std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
        each_part_once(kThreads, 50);
    }
}

TEST(slow_part_is_waited_for) {
    std::atomic<int> done{0};
    sac::parallel_for(2, 3, [&](std::size_t part) {
        std::this_thread::sleep_for(std::chrono::milliseconds(part == 0 ? 0 : 5));
        done.fetch_add(1);
    });
    CHECK_EQ(done.load(), 3);
}

TEST(callers_at_once) {
    std::vector<std::thread> callers;
    std::atomic<std::uint64_t> total{0};
    for (int caller = 0; caller < 6; ++caller) {
        callers.emplace_back([&] {
            for (int round = 0; round < 800; ++round) {
                std::uint64_t mine = 0;
                std::vector<std::uint64_t> parts(17);
                sac::parallel_for(kThreads, parts.size(),
                                  [&](std::size_t part) { parts[part] = part + 1; });
                for (const std::uint64_t part : parts) {
                    mine += part;
                }
                total.fetch_add(mine);
            }
        });
    }
    for (std::thread &caller : callers) {
        caller.join();
    }
    CHECK_EQ(total.load(), 6u * 800u * 153u);
}

TEST(nested) {  // the inner calls find the workers busy and run alone
    std::atomic<int> count{0};
    sac::parallel_for(kThreads, 8, [&](std::size_t) {
        sac::parallel_for(kThreads, 8, [&](std::size_t) { count.fetch_add(1); });
    });
    CHECK_EQ(count.load(), 64);
}

TEST(forked_child_runs_alone) {
    each_part_once(kThreads, 100);  // the parent has workers
    for (int round = 0; round < 5; ++round) {
        const pid_t child = kit::fork_at_rest();
        if (child == 0) {
            std::size_t sum = 0;  // unsynchronised: one thread only
            sac::parallel_for(kThreads, 100, [&](std::size_t part) { sum += part; });
            std::exit(sum == 4950 ? 0 : 1);  // with destructors: they must not hang
        }
        CHECK_EQ(kit::exit_code(child), 0);
    }
    each_part_once(kThreads, 100);
}

TEST(workers_leave_signals_alone) {
    static std::atomic<bool> elsewhere;
    static std::atomic<int> caught;
    static pthread_t self;
    self = pthread_self();
    elsewhere = false;
    caught = 0;
    struct sigaction action{}, before{};
    action.sa_handler = [](int) {
        caught.fetch_add(1);
        if (pthread_equal(pthread_self(), self) == 0) {
            elsewhere = true;
        }
    };
    CHECK_EQ(sigaction(SIGUSR1, &action, &before), 0);
    for (int round = 0; round < 100; ++round) {
        each_part_once(kThreads, 20);
        kill(getpid(), SIGUSR1);
    }
    CHECK_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
    CHECK(caught.load() > 0);
    CHECK(!elsewhere.load());
}

// A process that ends while a job of another thread runs ends all the same.
TEST(exit_during_a_job) {
    if (std::getenv("SAC_TEST_EXIT") == nullptr) {
        for (int round = 0; round < 5; ++round) {
            CHECK_EQ(check::run_again_with("SAC_TEST_EXIT", "1"), 0);
        }
    }
}

namespace {

// In the process that exit_during_a_job starts: runs before main().
const bool exit_early = [] {
    if (std::getenv("SAC_TEST_EXIT") != nullptr) {
        std::thread([] {
            for (;;) {
                sac::parallel_for(2, 64, [](std::size_t) {
                    std::this_thread::sleep_for(std::chrono::microseconds(10));
                });
            }
        }).detach();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::exit(0);
    }
    return false;
}();

}  // namespace
