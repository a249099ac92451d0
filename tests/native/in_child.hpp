// SPDX-License-Identifier: Apache-2.0
// Checks in a forked child. Include check.hpp before.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>

namespace kit {

// 0 when they hold; 100 and the signal's number where one ended the child.
inline int in_child(const std::function<void()> &checks) {
    std::fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int code = 0;
        try {
            checks();
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
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

}  // namespace kit
