// SPDX-License-Identifier: Apache-2.0
#include "fork.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>

#include "check.hpp"
#include "in_child.hpp"

namespace {

int temporary() {
    const int fd = memfd_create("test_fork", MFD_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

}  // namespace

TEST(epoch_changes_in_children_only) {
    const std::uint64_t before = sac::fork_epoch();
    CHECK_EQ(kit::in_child([&] {
                 const std::uint64_t here = sac::fork_epoch();
                 CHECK(here != before);
                 CHECK_EQ(kit::in_child([&] {
                              CHECK(sac::fork_epoch() != here);
                              CHECK(sac::fork_epoch() != before);
                          }),
                          0);
                 CHECK_EQ(sac::fork_epoch(), here);
             }),
             0);
    CHECK_EQ(sac::fork_epoch(), before);
}

TEST(owner) {
    const int number = temporary();
    {
        const sac::Fd fd(number);
        CHECK(static_cast<bool>(fd));
        CHECK_EQ(fd.get(), number);
    }
    CHECK(!is_open(number));

    sac::Fd a(temporary()), b(temporary());
    const int first = a.get(), second = b.get();
    sac::Fd c(std::move(a));
    CHECK_EQ(c.get(), first);
    c = std::move(b);
    CHECK_EQ(c.get(), second);
    CHECK(!is_open(first));
    c.reset();
    CHECK(!c);
    CHECK(!is_open(second));
    c.reset();

    const sac::Fd none;
    CHECK(!none);
    const sac::Fd negative(-1);
    CHECK(!negative);
}

TEST(not_an_fd) {
    const int number = temporary();
    close(number);
    CHECK_THROWS(SAC_E_SYSTEM, sac::Fd(number));
}

TEST(child_closes) {
    const sac::Fd fd(temporary());
    const int other = temporary();  // of nobody: stays open
    CHECK_EQ(kit::in_child([&] {
                 CHECK(!is_open(fd.get()));
                 CHECK(is_open(other));
             }),
             0);
    CHECK(is_open(fd.get()));
    close(other);
}

// A child's copy of the owner must not close a file that has the number now.
TEST(child_copy_closes_nothing) {
    sac::Fd fd(temporary());
    CHECK_EQ(kit::in_child([&] {
                 const int again = temporary();
                 CHECK_EQ(again, fd.get());
                 fd.reset();
                 CHECK(is_open(again));
                 // The child has owners of its own.
                 const sac::Fd mine(again);
                 CHECK_EQ(kit::in_child([&] { CHECK(!is_open(mine.get())); }), 0);
             }),
             0);
    CHECK(is_open(fd.get()));
}

TEST(child_gives_up_the_lock) {
    char path[] = "/tmp/sac_test_fork_XXXXXX";
    const int made = mkstemp(path);
    CHECK(made >= 0);
    sac::Fd fd(made);
    CHECK_EQ(flock(fd.get(), LOCK_EX | LOCK_NB), 0);
    int go[2], up[2];
    CHECK_EQ(pipe(go), 0);
    CHECK_EQ(pipe(up), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    char byte = 0;
    if (child == 0) {
        close(go[1]);
        if (write(up[1], "x", 1) != 1 || read(go[0], &byte, 1) < 0) {
            _exit(1);
        }
        _exit(0);
    }
    CHECK_EQ(read(up[0], &byte, 1), 1);
    fd.reset();  // the parent closes; the child lives on and must not hold the lock
    const int again = open(path, O_RDWR | O_CLOEXEC);
    CHECK(again >= 0);
    CHECK_EQ(flock(again, LOCK_EX | LOCK_NB), 0);
    close(again);
    close(go[1]);
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    for (const int end : {go[0], up[0], up[1]}) {
        close(end);
    }
    unlink(path);
}

TEST(table_is_full) {
    // One file for all of them: the number of files a process may open is smaller.
    const int file = temporary();
    std::vector<sac::Fd> all;
    int failed = -1;
    for (int i = 0; i < 4200 && failed < 0; ++i) {
        const int fd = dup(file);
        if (fd < 0) {
            CHECK_EQ(errno, EMFILE);  // a small limit here: nothing to see
            break;
        }
        try {
            all.emplace_back(fd);
        } catch (const sac::Error &error) {
            CHECK_EQ(error.status, SAC_E_NO_MEMORY);
            failed = fd;
        }
    }
    if (failed >= 0) {
        CHECK_EQ(all.size(), 4096u);
        CHECK(!is_open(failed));
        all.pop_back();
        const sac::Fd again(dup(file));
        CHECK(static_cast<bool>(again));
    }
    all.clear();
    close(file);
}

// Forks while other threads open and close: no child keeps an fd that was registered, or
// loses one that was not.
TEST(under_contention) {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            while (!stop.load()) {
                const int number = memfd_create("contention", MFD_CLOEXEC);
                if (number >= 0) {
                    const sac::Fd fd(number);
                }
            }
        });
    }
    const sac::Fd held(temporary());
    const int other = temporary();
    bool right = true;
    for (int round = 0; round < 100 && right; ++round) {
        const pid_t child = fork();
        if (child == 0) {
            _exit(!is_open(held.get()) && is_open(other) ? 0 : 1);
        }
        int status = 1;
        right = child > 0 && waitpid(child, &status, 0) == child && status == 0;
    }
    stop.store(true);
    for (std::thread &thread : threads) {
        thread.join();
    }
    close(other);
    CHECK(right);
}
