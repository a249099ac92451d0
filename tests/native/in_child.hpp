// SPDX-License-Identifier: Apache-2.0
// Children of a process that has threads. Include check.hpp before.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>

namespace kit {

// How often each other thread of this process has left its CPU; nothing while one of them runs.
inline std::optional<std::map<std::string, std::string>> resting_threads() {
    std::map<std::string, std::string> out;
    const std::string own = std::to_string(gettid());
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        const std::string id = task.path().filename();
        if (id == own)
            continue;
        std::ifstream status(task.path() / "status");
        for (std::string line; std::getline(status, line);) {
            if (line.starts_with("State:") && !line.starts_with("State:\tS"))
                return std::nullopt;
            if (line.find("ctxt_switches:") != std::string::npos)
                out[id] += line;
        }
        if (out.find(id) == out.end())
            return std::nullopt;  // it ended meanwhile
    }
    return out;
}

// fork() in a moment when no other thread runs. With the sanitizers of GCC 12 and clang 14 a
// child waits for ever for a lock of the allocator that another thread held at the fork.
inline pid_t fork_at_rest() {
    std::fflush(stdout);
    const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    for (int attempt = 0; attempt < 20000; ++attempt, nap()) {
        const auto before = resting_threads();
        if (!before)
            continue;
        int go[2];
        CHECK_EQ(pipe2(go, O_CLOEXEC), 0);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char byte = 0;
            close(go[1]);
            if (read(go[0], &byte, 1) != 1)
                _exit(1);
            close(go[0]);
            return 0;
        }
        close(go[0]);
        // A thread about to sleep is shown asleep a moment before it is counted.
        if (!before->empty())
            nap();
        const bool rested = resting_threads() == before;
        if (rested)
            CHECK_EQ(write(go[1], "g", 1), 1);
        close(go[1]);
        if (rested)
            return child;
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
    check::fail(__FILE__, __LINE__, "the threads of this process did not rest");
}

// Starts a process that does this and ends: with 0, or with 1 where a check failed.
template <class Fn> pid_t start_child(Fn &&fn) {
    const pid_t child = fork_at_rest();
    if (child != 0)
        return child;
    int code = 0;
    try {
        fn();
    } catch (const check::Failure &failure) {
        std::printf("in the child: %s\n", failure.text.c_str());
        code = 1;
    } catch (const std::exception &error) {
        std::printf("in the child: %s\n", error.what());
        code = 1;
    }
    std::fflush(stdout);
    _exit(code);
}

// What it ended with; 100 and the signal's number where one ended it.
inline int exit_code(pid_t child) {
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

template <class Fn> int in_child(Fn &&fn) { return exit_code(start_child(fn)); }

}  // namespace kit
