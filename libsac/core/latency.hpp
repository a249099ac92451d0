// SPDX-License-Identifier: Apache-2.0
// Counts of durations, in buckets of a quarter of an octave.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>

namespace sac {

constexpr std::size_t kLatencyBuckets = 128;

// Bucket 4e + f holds 2^e (1 + f/4) ns up to the next bucket's lower bound.
constexpr std::size_t latency_bucket(std::uint64_t ns) noexcept {
    if (ns < 4)
        return ns == 0 ? 0 : 4 * (std::bit_width(ns) - 1u) + (ns == 3 ? 2 : 0);
    const std::size_t e = std::bit_width(ns) - 1u;
    const std::size_t bucket = 4 * e + (ns >> (e - 2) & 3);
    return bucket < kLatencyBuckets ? bucket : kLatencyBuckets - 1;
}

struct Latency {
    std::atomic<std::uint64_t> bucket[kLatencyBuckets];
    void add(std::uint64_t ns) noexcept {
        bucket[latency_bucket(ns)].fetch_add(1, std::memory_order_relaxed);
    }
    // The time since begin.
    void add(std::chrono::steady_clock::time_point begin) noexcept {
        const auto taken = std::chrono::steady_clock::now() - begin;
        add(static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count()));
    }
};

}  // namespace sac
