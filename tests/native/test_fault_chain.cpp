// SPDX-License-Identifier: Apache-2.0
// What the SIGBUS guard leaves to others. Each test is a child process, for the handler is
// installed once and keeps the one that was there then.
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include "check.hpp"
#include "dead_file.hpp"
#include "fault.hpp"

namespace {

sigjmp_buf jump;
volatile sig_atomic_t handled = 0;

}  // namespace

// The handler that was there before gets the faults outside of all ranges.
TEST(chains_to_a_handler_with_information) {
    const int status = child_status([] {
        struct sigaction action{};
        action.sa_flags = SA_SIGINFO;
        action.sa_sigaction = [](int, siginfo_t *info, void *context) {
            handled = info->si_addr != nullptr && context != nullptr ? 1 : 2;
            siglongjmp(jump, 1);
        };
        sigaction(SIGBUS, &action, nullptr);
        const File guarded(4 * kMiB), open(4 * kMiB);
        const sac::FaultGuard guard(guarded.at(0), 4 * kMiB);
        guarded.shorten(0);
        open.shorten(0);
        if (guarded.read(5) != 0 || guard.faults() != 1 || handled != 0) {
            _exit(1);
        }
        if (sigsetjmp(jump, 1) == 0) {
            open.read(5);
            _exit(2);
        }
        _exit(handled == 1 && guard.faults() == 1 ? 0 : 3);
    });
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

TEST(chains_to_a_plain_handler) {
    const int status = child_status([] {
        struct sigaction action{};
        action.sa_handler = [](int number) {
            handled = number;
            siglongjmp(jump, 1);
        };
        sigaction(SIGBUS, &action, nullptr);
        const File guarded(2 * kMiB), open(2 * kMiB);
        const sac::FaultGuard guard(guarded.at(0), 2 * kMiB);
        open.shorten(0);
        if (sigsetjmp(jump, 1) == 0) {
            open.read(0);
            _exit(2);
        }
        if (handled != SIGBUS) {
            _exit(3);
        }
        handled = 0;
        if (sigsetjmp(jump, 1) == 0) {  // a signal that was sent has no address
            raise(SIGBUS);
            _exit(4);
        }
        _exit(handled == SIGBUS && guard.faults() == 0 ? 0 : 5);
    });
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

TEST(default_action_kills) {
    for (const bool ignored : {false, true}) {
        const int status = child_status([&] {
            signal(SIGBUS, ignored ? SIG_IGN : SIG_DFL);  // also in place of a sanitizer's
            const File guarded(2 * kMiB), open(2 * kMiB);
            const sac::FaultGuard guard(guarded.at(0), 2 * kMiB);
            open.shorten(0);
            open.read(0);
        });
        CHECK(WIFSIGNALED(status));
        CHECK_EQ(WTERMSIG(status), SIGBUS);
    }
}

TEST(sent_signal_to_default_and_ignore) {
    const int killed = child_status([] {
        signal(SIGBUS, SIG_DFL);
        const File guarded(2 * kMiB);
        const sac::FaultGuard guard(guarded.at(0), 2 * kMiB);
        kill(getpid(), SIGBUS);
        usleep(1000);
    });
    CHECK(WIFSIGNALED(killed));
    CHECK_EQ(WTERMSIG(killed), SIGBUS);
    const int lives = child_status([] {
        signal(SIGBUS, SIG_IGN);
        const File guarded(2 * kMiB);
        const sac::FaultGuard guard(guarded.at(0), 2 * kMiB);
        kill(getpid(), SIGBUS);
        usleep(1000);
    });
    CHECK(WIFEXITED(lives));
    CHECK_EQ(WEXITSTATUS(lives), 99);
}
