// SPDX-License-Identifier: Apache-2.0
// Under every instruction set of this machine: the test starts itself with SAC_ISA set.
#include "copy.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <random>

#include "check.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

// Memory whose neighbours on both sides must not be touched.
class Guarded {
public:
    explicit Guarded(std::size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
        void *at = mmap(nullptr, bytes_ + 2 * kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED);
        map_ = static_cast<std::uint8_t *>(at);
        CHECK_EQ(mprotect(map_, kPage, PROT_NONE), 0);
        CHECK_EQ(mprotect(map_ + kPage + bytes_, kPage, PROT_NONE), 0);
    }
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;
    ~Guarded() { munmap(map_, bytes_ + 2 * kPage); }

    std::uint8_t *begin() const { return map_ + kPage; }
    std::uint8_t *end() const { return map_ + kPage + bytes_; }

private:
    static constexpr std::size_t kPage = 4096;
    std::size_t bytes_;
    std::uint8_t *map_;
};

void fill(std::mt19937_64 &random, std::uint8_t *begin, std::uint8_t *end) {
    std::generate(begin, end, [&] { return static_cast<std::uint8_t>(random()); });
}

const std::vector<std::size_t> &row_sizes() {
    static const std::vector<std::size_t> sizes = [] {
        std::vector<std::size_t> all;
        for (std::size_t n = 1; n <= 300; ++n) {
            all.push_back(n);
        }
        const std::size_t larger[] = {352,  384,  448,  512,  528,  576,   584,   656,  768,
                                      1024, 1152, 2048, 4096, 8192, 12288, 16384, 65536};
        for (const std::size_t n : larger) {
            for (const std::size_t near : {n - 1, n, n + 1}) {
                all.push_back(near);
            }
        }
        return all;
    }();
    return sizes;
}

// The row copy without any art.
void plain(const sac::RowCopy &job) {
    for (std::size_t i = 0; i < job.count; ++i) {
        for (std::size_t k = 0; k < job.row_bytes; ++k) {
            job.dst[i * job.dst_pitch + k] = job.src[i] == nullptr ? 0 : job.src[i][k];
        }
    }
}

}  // namespace

// One row that ends, and one that begins, at the edge of its memory, on both sides.
TEST(edges_of_memory) {
    std::mt19937_64 random(1);
    for (const std::size_t row : row_sizes()) {
        const Guarded src(row), dst(row);
        fill(random, src.begin(), src.end());
        for (const bool stream : {false, true}) {
            for (const bool src_at_end : {false, true}) {
                for (const bool dst_at_end : {false, true}) {
                    const std::uint8_t *from = src_at_end ? src.end() - row : src.begin();
                    std::uint8_t *to = dst_at_end ? dst.end() - row : dst.begin();
                    std::fill(to, to + row, std::uint8_t{0xee});
                    sac::copy_rows({&from, 1, row, to, row, stream});
                    CHECK(std::equal(to, to + row, from));
                }
            }
        }
    }
}

// Rows that fill their memory to both edges; nothing between them when the pitch is the row.
TEST(all_row_sizes) {
    constexpr unsigned kSeed = 4711;
    std::printf("all_row_sizes: seed %u\n", kSeed);
    std::mt19937_64 random(kSeed);
    for (const std::size_t row : row_sizes()) {
        const std::size_t count = row > 4000 ? 5 : 40;
        const Guarded src(4 * row);
        fill(random, src.begin(), src.end());
        const std::size_t room = static_cast<std::size_t>(src.end() - src.begin());
        const std::array pitches = {row,
                                    row + 1,
                                    row + 17,
                                    (row + 15) / 16 * 16,
                                    (row + 31) / 32 * 32,
                                    (row + 63) / 64 * 64};
        for (const std::size_t pitch : pitches) {
            std::vector<const std::uint8_t *> rows(count);
            for (const std::uint8_t *&at : rows) {
                at = random() % 8 == 0 ? nullptr : src.begin() + random() % (room - row + 1);
            }
            const std::size_t bytes = (count - 1) * pitch + row;
            const Guarded dst(bytes);
            for (const bool stream : {false, true}) {
                // From the beginning of the memory (aligned), and to its very end.
                for (std::uint8_t *to : {dst.begin(), dst.end() - bytes}) {
                    std::fill(dst.begin(), dst.end(), std::uint8_t{0xa5});
                    Bytes right(bytes, 0xa5);
                    plain({rows.data(), count, row, right.data(), pitch, false});
                    sac::copy_rows({rows.data(), count, row, to, pitch, stream});
                    CHECK(std::equal(right.begin(), right.end(), to));
                    const auto untouched = [](std::uint8_t byte) { return byte == 0xa5; };
                    CHECK(std::all_of(dst.begin(), to, untouched));
                    CHECK(std::all_of(to + bytes, dst.end(), untouched));
                }
            }
        }
    }
}

TEST(any_alignment) {
    constexpr unsigned kSeed = 4712;
    std::printf("any_alignment: seed %u\n", kSeed);
    std::mt19937_64 random(kSeed);
    Bytes src(20000), dst(40000), right(40000);
    fill(random, src.data(), src.data() + src.size());
    for (int round = 0; round < 4000; ++round) {
        const std::size_t row = 1 + random() % 1300, count = random() % 9;
        const std::size_t pitch = row + random() % 70;
        std::vector<const std::uint8_t *> rows(count);
        for (const std::uint8_t *&at : rows) {
            at = random() % 5 == 0 ? nullptr : src.data() + random() % (src.size() - row);
        }
        const std::size_t at = random() % 130;
        std::fill(dst.begin(), dst.end(), std::uint8_t{1});
        std::fill(right.begin(), right.end(), std::uint8_t{1});
        plain({rows.data(), count, row, right.data() + at, pitch, false});
        sac::copy_rows({rows.data(), count, row, dst.data() + at, pitch, random() % 2 == 0});
        CHECK(dst == right);
    }
}

TEST(nothing_to_do) {
    std::uint8_t byte = 7;
    const std::uint8_t *row = &byte;
    sac::copy_rows({nullptr, 0, 100, nullptr, 100, false});
    sac::copy_rows({&row, 1, 0, &byte, 0, true});
    sac::copy_bytes(nullptr, nullptr, 0);
    CHECK_EQ(byte, 7);
}

TEST(many_rows) {  // more than are prefetched ahead, all of them different
    constexpr std::size_t kRow = 1152, kCount = 3000;
    std::mt19937_64 random(3);
    const Guarded src(kRow * kCount), dst(kRow * kCount);
    fill(random, src.begin(), src.end());
    std::vector<const std::uint8_t *> rows(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
        rows[i] = src.begin() + i * kRow;
    }
    std::shuffle(rows.begin(), rows.end(), random);
    for (const bool stream : {false, true}) {
        std::fill(dst.begin(), dst.end(), std::uint8_t{0});
        sac::copy_rows({rows.data(), kCount, kRow, dst.begin(), kRow, stream});
        for (std::size_t i = 0; i < kCount; ++i) {
            CHECK(std::equal(rows[i], rows[i] + kRow, dst.begin() + i * kRow));
        }
    }
}

TEST(pieces) {
    constexpr unsigned kSeed = 4713;
    std::printf("pieces: seed %u\n", kSeed);
    std::mt19937_64 random(kSeed);
    constexpr std::size_t kMiB = std::size_t{1} << 20;
    const Guarded src(3 * kMiB), dst(3 * kMiB);
    fill(random, src.begin(), src.end());
    std::vector<std::size_t> sizes = {1, 63, 64, 4096, kMiB - 1, kMiB, kMiB + 1, 3 * kMiB};
    for (int i = 0; i < 30; ++i) {
        sizes.push_back(kMiB - 100 + random() % (2 * kMiB));
    }
    for (const std::size_t n : sizes) {
        const std::size_t from = random() % 2 == 0 ? 0 : 3 * kMiB - n;
        const std::size_t to = random() % 2 == 0 ? 0 : 3 * kMiB - n;
        std::memset(dst.begin(), 0x3c, 3 * kMiB);
        sac::copy_bytes(dst.begin() + to, src.begin() + from, n);
        CHECK_EQ(std::memcmp(dst.begin() + to, src.begin() + from, n), 0);
        const auto untouched = [](std::uint8_t byte) { return byte == 0x3c; };
        CHECK(std::all_of(dst.begin(), dst.begin() + to, untouched));
        CHECK(std::all_of(dst.begin() + to + n, dst.end(), untouched));
    }
}

TEST(every_instruction_set) {
    if (const char *wanted = std::getenv("SAC_ISA"); wanted != nullptr) {
        // What the machine has, at most what was asked for.
        static const std::vector<std::string> order = {"generic", "sse2", "avx2", "avx512"};
        const auto rank = [](const std::string &name) {
            return std::find(order.begin(), order.end(), name) - order.begin();
        };
        CHECK(rank(sac::copy_isa()) <= rank(wanted));
        return;
    }
    CHECK(std::string(sac::copy_isa()) != "");
    for (const char *isa : {"avx512", "avx2", "sse2", "generic", "no such"}) {
        CHECK_EQ(check::run_again_with("SAC_ISA", isa), 0);
    }
}
