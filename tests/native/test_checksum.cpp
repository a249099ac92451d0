// SPDX-License-Identifier: Apache-2.0
#include "checksum.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>

#include "check.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

// Bit by bit, from the polynomial.
std::uint32_t plain(std::uint32_t crc, const std::uint8_t *p, std::size_t n) {
    crc = ~crc;
    for (std::size_t i = 0; i < n; ++i) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
        }
    }
    return ~crc;
}

Bytes random_bytes(std::mt19937 &random, std::size_t n) {
    Bytes bytes(n);
    std::generate(bytes.begin(), bytes.end(),
                  [&] { return static_cast<std::uint8_t>(random()); });
    return bytes;
}

}  // namespace

TEST(known_vectors) {  // RFC 3720, B.4, and the usual check value
    CHECK_EQ(sac::crc32c(0, "123456789", 9), 0xe3069283u);
    Bytes bytes(32, 0);
    CHECK_EQ(sac::crc32c(0, bytes.data(), 32), 0x8a9136aau);
    std::fill(bytes.begin(), bytes.end(), std::uint8_t{0xff});
    CHECK_EQ(sac::crc32c(0, bytes.data(), 32), 0x62a8ab43u);
    for (std::size_t i = 0; i < 32; ++i) {
        bytes[i] = static_cast<std::uint8_t>(i);
    }
    CHECK_EQ(sac::crc32c(0, bytes.data(), 32), 0x46dd794eu);
    std::reverse(bytes.begin(), bytes.end());
    CHECK_EQ(sac::crc32c(0, bytes.data(), 32), 0x113fdb5cu);
}

TEST(no_bytes) {
    CHECK_EQ(sac::crc32c(0, nullptr, 0), 0u);
    CHECK_EQ(sac::crc32c(0x12345678u, nullptr, 0), 0x12345678u);
}

// Every length to beyond two rounds of the three streams, at every alignment of a word.
TEST(every_length) {
    constexpr unsigned kSeed = 7001;
    std::printf("every_length: seed %u\n", kSeed);
    std::mt19937 random(kSeed);
    const Bytes bytes = random_bytes(random, 20000);
    for (std::size_t at = 0; at < 8; ++at) {
        for (std::size_t n = 0; n <= 1300; ++n) {
            CHECK_EQ(sac::crc32c(0, bytes.data() + at, n), plain(0, bytes.data() + at, n));
        }
    }
    std::uint32_t crc = 0;  // plain, grown by one byte a time
    for (std::size_t n = 0; n < 14000; ++n) {
        CHECK_EQ(sac::crc32c(0, bytes.data() + 3, n), crc);
        crc = plain(crc, bytes.data() + 3 + n, 1);
    }
}

TEST(long_input) {
    constexpr unsigned kSeed = 7002;
    std::printf("long_input: seed %u\n", kSeed);
    std::mt19937 random(kSeed);
    const Bytes bytes = random_bytes(random, (1u << 20) + 77);
    CHECK_EQ(sac::crc32c(5, bytes.data(), bytes.size()), plain(5, bytes.data(), bytes.size()));
}

TEST(split_updates) {
    constexpr unsigned kSeed = 7003;
    std::printf("split_updates: seed %u\n", kSeed);
    std::mt19937 random(kSeed);
    const Bytes bytes = random_bytes(random, 30000);
    for (int round = 0; round < 500; ++round) {
        const std::size_t size = random() % bytes.size();
        std::uint32_t crc = 0;
        for (std::size_t at = 0; at < size;) {
            const std::size_t limit = random() % 2 == 0 ? 40 : 9000;
            const std::size_t take = std::min<std::size_t>(random() % limit, size - at);
            crc = sac::crc32c(crc, bytes.data() + at, take);
            at += take;
        }
        CHECK_EQ(crc, sac::crc32c(0, bytes.data(), size));
    }
}

// Each flipped bit of a 128 B header is seen.
TEST(flipped_bits) {
    Bytes bytes(128, 0x5a);
    const std::uint32_t right = sac::crc32c(0, bytes.data(), bytes.size());
    for (std::size_t bit = 0; bit < 1024; ++bit) {
        bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ (1u << (bit % 8)));
        CHECK(sac::crc32c(0, bytes.data(), bytes.size()) != right);
        bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ (1u << (bit % 8)));
    }
}

TEST(without_the_instruction) {
    if (std::getenv("SAC_ISA") == nullptr) {
        CHECK_EQ(check::run_again_with("SAC_ISA", "generic"), 0);
    }
}
