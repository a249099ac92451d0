// SPDX-License-Identifier: Apache-2.0
#include "index.hpp"

#include <atomic>
#include <map>
#include <thread>

#include "check.hpp"
#include "kit_pages.hpp"

namespace {

using sac::Index;
using sac::Key;
using sac::kNoSlot;
using sac::Record;

Key key(std::uint64_t n) { return Key::load(kit::key(n).data()); }

std::uint32_t find(const Index &index, std::uint64_t n, std::uint32_t part = 0) {
    std::uint64_t word = 0;
    return index.find(key(n), part, word);
}

}  // namespace

TEST(finds_what_is_there_only) {
    Index index(1000, 100, 1, 1, false);
    CHECK_EQ(index.capacity(), 1000u);
    CHECK_EQ(find(index, 5), kNoSlot);
    index.insert(17, key(5), 40);
    std::uint64_t word = 0;
    CHECK_EQ(index.find(key(5), 0, word), 17u);
    CHECK_EQ(word, 40u);
    CHECK_EQ(find(index, 6), kNoSlot);
    CHECK_EQ(find(index, 5, 1), kNoSlot);  // a tail is another part
    index.insert(18, key(5), 41 | Record::kTailBit);
    CHECK_EQ(find(index, 5, 1), 18u);
    CHECK_EQ(find(index, 5, 0), 17u);
    index.remove(17, Record::kAbsent | 42);
    CHECK_EQ(find(index, 5, 0), kNoSlot);
    CHECK_EQ(find(index, 5, 1), 18u);
}

TEST(a_marked_page_is_still_found) {
    Index index(16, 16, 1, 1, false);
    index.insert(3, key(1), 9);
    index.record(3).word.fetch_or(Record::kMark);
    std::uint64_t word = 0;
    CHECK_EQ(index.find(key(1), 0, word), 3u);
    CHECK((word & Record::kMark) != 0);
}

TEST(full_index_and_reuse_of_every_slot) {
    // Every bucket is in use here, and many entries lie in a neighbour of their own.
    constexpr std::uint32_t kSlots = 4096;
    Index index(kSlots, 64, 7, 1, false);
    std::map<std::uint32_t, std::uint64_t> model;  // slot -> number of its key
    for (std::uint32_t s = 0; s < kSlots; ++s) {
        index.insert(s, key(s), s + 1);
        model[s] = s;
    }
    std::uint64_t next = kSlots;
    for (int step = 0; step < 20000; ++step) {
        const auto slot =
            static_cast<std::uint32_t>(kit::mix(static_cast<std::uint64_t>(step)) % kSlots);
        const std::uint64_t old = model[slot];
        index.remove(slot, Record::kAbsent | next);
        CHECK_EQ(find(index, old), kNoSlot);
        index.insert(slot, key(next), next + 1);
        model[slot] = next++;
        CHECK_EQ(find(index, model[slot]), slot);
    }
    for (const auto &[slot, n] : model) {
        CHECK_EQ(find(index, n), slot);
    }
    for (const auto &[slot, n] : model) {
        index.remove(slot, Record::kAbsent | (next + 1));
    }
    // Nothing is left of the overflow counts either: a miss ends in its own bucket.
    for (std::uint64_t n = 0; n < next; n += 97) {
        CHECK_EQ(find(index, n), kNoSlot);
    }
}

TEST(batch_is_the_same_as_one_by_one) {
    Index index(512, 64, 3, 1, false);
    for (std::uint32_t s = 0; s < 300; ++s) {
        index.insert(s, key(2 * std::uint64_t{s}), s + 10);
    }
    const auto keys = kit::keys(0, 600);  // every second one is there
    std::vector<sac_handle> out(600);
    CHECK_EQ(index.find_batch(keys.data(), 600, 0, out.data()), 300u);
    CHECK_EQ(index.find_batch(keys.data(), 600, 0, nullptr), 300u);
    CHECK_EQ(index.find_batch(keys.data(), 0, 0, nullptr), 0u);
    CHECK_EQ(index.find_batch(keys.data(), 600, 1, out.data()), 0u);
    index.find_batch(keys.data(), 600, 0, out.data());
    for (std::uint64_t i = 0; i < 600; ++i) {
        CHECK_EQ(out[i].generation, i % 2 ? 0 : i / 2 + 10);
        CHECK_EQ(out[i].slot, i % 2 ? 0 : i / 2);
    }
}

TEST(chunks) {
    Index index(300, 100, 3, 1, false);
    index.set_chunk(2, 0x123400000000);
    std::uint32_t within = 0;
    CHECK_EQ(index.chunk(257, within), 0x123400000000u);
    CHECK_EQ(within, 57u);
}

TEST(memory_stays_under_100_bytes_a_page) {
    const Index index(1'000'000, 1000, 3, 1, false);
    CHECK(index.bytes() < 100'000'000);
}

// Readers see every key that stays, at its place, and of keys that come and go only what
// belongs to them: generations are multiples of the number of keys, plus the key's.
TEST(readers_beside_the_writer) {
    constexpr std::uint64_t kSlots = 64, kKeys = 128, kStay = 16;
    Index index(kSlots, 64, 11, 1, false);
    for (std::uint64_t s = 0; s < kStay; ++s) {
        index.insert(static_cast<std::uint32_t>(s), key(s), kKeys + s);
    }
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> wrong{0}, seen{0};
    std::vector<std::thread> readers;
    for (int t = 0; t < 2; ++t) {
        readers.emplace_back([&] {
            const auto all = kit::keys(0, kKeys);
            std::vector<sac_handle> out(kKeys);
            std::uint64_t n = 0;
            while (!stop.load(std::memory_order_relaxed)) {
                for (std::uint64_t i = 0; i < kKeys; ++i) {
                    std::uint64_t word = 0;
                    const std::uint32_t slot =
                        index.find(Key::load(all.data() + i * 32), 0, word);
                    n += slot != kNoSlot;
                    wrong += slot != kNoSlot && (word & Record::kGeneration) % kKeys != i;
                    wrong += i < kStay && slot != i;
                }
                index.find_batch(all.data(), kKeys, 0, out.data());
                for (std::uint64_t i = 0; i < kKeys; ++i) {
                    wrong += out[i].generation != 0 && out[i].generation % kKeys != i;
                    wrong += i < kStay && out[i].generation != kKeys + i;
                }
            }
            seen += n;
        });
    }
    std::vector<std::uint64_t> holds(kSlots, UINT64_MAX);
    std::vector<bool> in(kKeys, false);
    std::uint64_t round = 2;
    for (int step = 0; step < 200000; ++step) {
        const std::uint64_t r = kit::mix(static_cast<std::uint64_t>(step));
        const std::uint64_t slot = kStay + r % (kSlots - kStay);
        const std::uint64_t k = kStay + (r >> 32) % (kKeys - kStay);
        if (holds[slot] != UINT64_MAX) {
            index.remove(static_cast<std::uint32_t>(slot), Record::kAbsent | (++round * kKeys));
            in[holds[slot]] = false;
            holds[slot] = UINT64_MAX;
        }
        if (!in[k]) {
            index.insert(static_cast<std::uint32_t>(slot), key(k), ++round * kKeys + k);
            holds[slot] = k, in[k] = true;
        }
    }
    stop = true;
    for (std::thread &t : readers) {
        t.join();
    }
    CHECK_EQ(wrong.load(), 0u);
    CHECK(seen.load() > 0);
}
