// SPDX-License-Identifier: Apache-2.0
#include "fault.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "dead_file.hpp"

namespace {

constexpr std::size_t kBlock = sac::kBlockBytes;

}  // namespace

TEST(arguments) {
    const File file(2 * kMiB);
    CHECK_THROWS(SAC_E_ARG, sac::FaultGuard(file.at(1), kMiB));
    CHECK_THROWS(SAC_E_ARG, sac::FaultGuard(file.at(0), 0));
    CHECK_THROWS(SAC_E_ARG, sac::FaultGuard(nullptr, kMiB));
}

TEST(blocks_die_one_by_one) {
    constexpr std::size_t kBytes = 9 * kMiB;  // the last block is half a one
    const File file(kBytes);
    const sac::FaultGuard guard(file.at(0), kBytes);
    CHECK_EQ(guard.faults(), 0u);
    CHECK_EQ(guard.next_dead(0), UINT64_MAX);
    file.shorten(3 * kMiB);
    CHECK_EQ(file.read(3 * kMiB - 1), 0x77);
    CHECK_EQ(guard.faults(), 0u);

    CHECK_EQ(file.read(3 * kMiB), 0);  // in the block from 2 MiB on
    CHECK_EQ(guard.faults(), 1u);
    CHECK(!guard.dead(2 * kMiB - 1));
    CHECK(guard.dead(2 * kMiB));
    CHECK(guard.dead(4 * kMiB - 1));
    CHECK(!guard.dead(4 * kMiB));
    CHECK_EQ(file.read(2 * kMiB), 0);  // the whole block reads as zeros
    CHECK_EQ(file.read(2 * kMiB - 1), 0x77);
    CHECK_EQ(guard.faults(), 1u);

    CHECK_EQ(file.read(kBytes - 1), 0);
    CHECK_EQ(guard.faults(), 2u);
    CHECK_EQ(guard.next_dead(0), 2 * kMiB);
    CHECK_EQ(guard.next_dead(2 * kMiB), 2 * kMiB);
    CHECK_EQ(guard.next_dead(3 * kMiB), 2 * kMiB);
    CHECK_EQ(guard.next_dead(4 * kMiB), 8 * kMiB);
    CHECK_EQ(guard.next_dead(kBytes), 8 * kMiB);  // in the half block's missing half
    CHECK_EQ(guard.next_dead(10 * kMiB), UINT64_MAX);
    CHECK(!guard.dead(UINT64_MAX));

    *file.at(3 * kMiB) = 1;  // what is written there stays in this process
    CHECK_EQ(file.read(3 * kMiB), 1);
}

// Ranges that start anywhere, next to each other: blocks are cut to their range.
TEST(neighbours) {
    const File file(8 * kMiB);
    const sac::FaultGuard low(file.at(4096), 3 * kMiB);
    const sac::FaultGuard high(file.at(4096 + 3 * kMiB), 3 * kMiB);
    file.shorten(4096);
    CHECK_EQ(file.read(4096 + 3 * kMiB - 1), 0);
    CHECK_EQ(low.faults(), 1u);
    CHECK_EQ(high.faults(), 0u);
    CHECK_EQ(low.next_dead(0), kBlock);
    CHECK_EQ(file.read(4096 + 3 * kMiB), 0);
    CHECK_EQ(high.faults(), 1u);
    CHECK_EQ(high.next_dead(0), 0u);
    CHECK_EQ(file.read(0), 0x77);
}

TEST(far_blocks) {  // more than one word of bits
    constexpr std::size_t kBytes = 300 * kBlock;
    void *at =
        mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    auto *base = static_cast<std::uint8_t *>(at);
    const int fd = memfd_create("hole", MFD_CLOEXEC);  // empty: all of it is dead
    CHECK(mmap(at, kBytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == at);
    {
        const sac::FaultGuard guard(base, kBytes);
        const std::size_t blocks[] = {0, 63, 64, 191, 299};
        for (const std::size_t block : blocks) {
            CHECK_EQ(*static_cast<volatile std::uint8_t *>(base + block * kBlock + 7), 0);
        }
        CHECK_EQ(guard.faults(), 5u);
        CHECK_EQ(guard.next_dead(1), 0u);
        CHECK_EQ(guard.next_dead(kBlock), 63 * kBlock);
        CHECK_EQ(guard.next_dead(64 * kBlock), 64 * kBlock);
        CHECK_EQ(guard.next_dead(65 * kBlock), 191 * kBlock);
        CHECK_EQ(guard.next_dead(192 * kBlock), 299 * kBlock);
        CHECK_EQ(guard.next_dead(300 * kBlock), UINT64_MAX);
    }
    munmap(at, kBytes);
    close(fd);
}

TEST(guards_come_and_go) {
    const File file(2 * kMiB);
    std::vector<std::unique_ptr<sac::FaultGuard>> all;
    for (std::size_t i = 0; i < 65536; ++i) {
        all.push_back(std::make_unique<sac::FaultGuard>(file.at(i % 512 * 4096), 4096));
    }
    CHECK_THROWS(SAC_E_NO_MEMORY, sac::FaultGuard(file.at(0), 4096));
    all.erase(all.begin() + 100, all.begin() + 600);
    const sac::FaultGuard again(file.at(0), 4096);
    all.clear();
    file.shorten(0);
    CHECK_EQ(file.read(9), 0);
    CHECK_EQ(again.faults(), 1u);
}

// A child's own range counts, not the copy of its parent's at the same address.
TEST(forked_child) {
    const File file(2 * kMiB);
    const sac::FaultGuard guard(file.at(0), 2 * kMiB);
    const int status = child_status([&] {
        const sac::FaultGuard mine(file.at(0), 2 * kMiB);
        file.shorten(0);
        _exit(file.read(0) == 0 && mine.faults() == 1 && guard.faults() == 0 ? 0 : 1);
    });
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    CHECK_EQ(file.read(0), 0);  // the file is shared, so it is dead here too
    CHECK_EQ(guard.faults(), 1u);
}

TEST(on_an_alternate_stack) {
    static std::uint8_t stack[65536];
    stack_t own{}, before{};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    CHECK_EQ(sigaltstack(&own, &before), 0);
    {
        const File file(2 * kMiB);
        const sac::FaultGuard guard(file.at(0), 2 * kMiB);
        file.shorten(0);
        CHECK_EQ(file.read(1), 0);
        CHECK_EQ(guard.faults(), 1u);
    }
    CHECK_EQ(sigaltstack(&before, nullptr), 0);
}

// Threads that read the same dying blocks while others' guards come and go: every read gives
// zeros, and faults() has risen when it does.
TEST(many_threads) {
    constexpr std::size_t kBytes = 64 * kBlock;
    const File file(kBytes), other(2 * kMiB);
    const sac::FaultGuard guard(file.at(0), kBytes);
    file.shorten(0);
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::thread changing([&] {
        while (!stop.load()) {
            const sac::FaultGuard a(other.at(0), 4096), b(other.at(8192), 4096);
        }
    });
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) {
        readers.emplace_back([&] {
            for (std::size_t block = 0; block < 64; ++block) {
                if (file.read(block * kBlock + 100) != 0 || guard.faults() < block + 1 ||
                    !guard.dead(block * kBlock)) {
                    wrong.fetch_add(1);
                }
            }
        });
    }
    for (std::thread &reader : readers) {
        reader.join();
    }
    stop.store(true);
    changing.join();
    CHECK_EQ(wrong.load(), 0);
    CHECK_EQ(guard.faults(), 64u);
}
