// SPDX-License-Identifier: Apache-2.0
#include "sha256.hpp"

#include <algorithm>
#include <random>

#include "check.hpp"

namespace {

std::string hex(const sac::Sha256::Digest &digest) {
    std::string text;
    for (const std::uint8_t byte : digest) {
        text += sac::format("%02x", byte);
    }
    return text;
}

std::string hash(const std::string &text) {
    sac::Sha256 h;
    h.update(text.data(), text.size());
    return hex(h.finish());
}

}  // namespace

TEST(known_vectors) {  // FIPS 180-4 examples
    CHECK_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
             "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK_EQ(hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                  "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu"),
             "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    CHECK_EQ(hash(std::string(1000000, 'a')),
             "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(null_of_no_bytes) {
    sac::Sha256 h;
    h.update(nullptr, 0);
    CHECK_EQ(hex(h.finish()), hash(""));
}

// Every length around the padding's edges: the digest of the digests of the messages
// (7 i + n) mod 256, i < n, for n = 0 .. 300, computed with Python's hashlib.
TEST(every_length) {
    sac::Sha256 all;
    for (unsigned n = 0; n <= 300; ++n) {
        std::string message;
        for (unsigned i = 0; i < n; ++i) {
            message += static_cast<char>(static_cast<unsigned char>(7 * i + n));
        }
        sac::Sha256 one;
        one.update(message.data(), message.size());
        const sac::Sha256::Digest digest = one.finish();
        all.update(digest.data(), digest.size());
    }
    CHECK_EQ(hex(all.finish()),
             "60d63ff40b5558727a9b786ac0be9300f7ca58fd9ddd3b2f3681b369018a87dc");
}

TEST(split_updates) {
    constexpr unsigned kSeed = 20240601;
    std::printf("split_updates: seed %u\n", kSeed);
    std::mt19937 random(kSeed);
    for (int round = 0; round < 2000; ++round) {
        std::string message(random() % 700, '\0');
        std::generate(message.begin(), message.end(),
                      [&] { return static_cast<char>(random() & 0xff); });
        sac::Sha256 h;
        for (std::size_t at = 0; at < message.size();) {
            const std::size_t take = std::min<std::size_t>(random() % 150, message.size() - at);
            h.update(message.data() + at, take);
            at += take;
        }
        CHECK_EQ(hex(h.finish()), hash(message));
    }
}
