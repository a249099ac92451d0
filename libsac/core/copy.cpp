// SPDX-License-Identifier: Apache-2.0
#include "copy.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "copy_kernels.hpp"

namespace sac {

namespace kernels {

void rows_generic(const RowCopy &job, std::size_t ahead) noexcept {
    constexpr std::size_t kLine = 64, kMost = 8192;  // of a long row the beginning only
    const std::size_t bytes = std::min(job.row_bytes, kMost);
    const std::size_t known = job.count + job.beyond;
    for (std::size_t i = 0; i < job.count + ahead; ++i) {
        if (i < known && job.src[i] != nullptr && !(job.primed && i < ahead)) {
            for (std::size_t at = 0; at < bytes; at += kLine) {
                __builtin_prefetch(job.src[i] + at, 0, 2);
            }
            __builtin_prefetch(job.src[i] + bytes - 1, 0, 2);
        }
        if (i >= ahead) {
            std::uint8_t *dst = job.dst + (i - ahead) * job.dst_pitch;
            if (const std::uint8_t *src = job.src[i - ahead]; src != nullptr) {
                std::memcpy(dst, src, job.row_bytes);
            } else {
                std::memset(dst, 0, job.row_bytes);
            }
        }
    }
}

}  // namespace kernels

namespace {

// How much is on its way from memory before it is copied: by measurement, 6 KiB or more of
// random rows, and more of longer ones. Of small rows more than 16 to 32 bring nothing.
constexpr std::size_t kAheadBytes = 16384, kAheadLeast = 6;
constexpr std::size_t kStreamBytes = std::size_t{1} << 20, kStreamBytesAsked = 4096;
// From here on the loop is better than memcpy, which takes twice as long where source and
// target are not aligned alike (rep movsb, Zen 4): numpy's arrays begin at 16 past a page.
constexpr std::size_t kLoopBytes = 2048;

struct Isa {
    const char *name;
    kernels::Rows rows;
    kernels::Stream stream;  // nullptr: memcpy
};

// From the widest to the plainest.
constexpr std::array kIsas = {
#if defined(__x86_64__)
    Isa{"avx512", kernels::rows_avx512, kernels::stream_avx512},
    Isa{"avx2", kernels::rows_avx2, kernels::stream_avx2},
    Isa{"sse2", kernels::rows_sse2, kernels::stream_sse2},
#endif
    Isa{"generic", kernels::rows_generic, nullptr},
};

bool supported(const char *name) noexcept {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (std::strcmp(name, "avx512") == 0) {
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx2");
    }
    if (std::strcmp(name, "avx2") == 0) {
        return __builtin_cpu_supports("avx2");
    }
#else
    static_cast<void>(name);
#endif
    return true;
}

const Isa *choose() noexcept {
    const char *wanted = std::getenv("SAC_ISA");
    const auto named = [&](const Isa &isa) { return std::strcmp(isa.name, wanted) == 0; };
    // A name that is none of these is as good as no name.
    bool open = wanted == nullptr || std::none_of(kIsas.begin(), kIsas.end(), named);
    for (const Isa &isa : kIsas) {
        open = open || named(isa);
        if (open && supported(isa.name)) {
            return &isa;
        }
    }
    return &kIsas.back();
}

// Chosen at the first use, not in a constructor that others might run before.
const Isa &isa() noexcept {
    static constinit std::atomic<const Isa *> chosen{nullptr};
    const Isa *now = chosen.load(std::memory_order_relaxed);
    if (now == nullptr) {
        now = choose();
        chosen.store(now, std::memory_order_relaxed);
    }
    return *now;
}

}  // namespace

void copy_rows(const RowCopy &job) noexcept {
    if (job.count == 0 || job.row_bytes == 0) {
        return;
    }
    isa().rows(job, std::clamp(kAheadBytes / job.row_bytes, kAheadLeast, kCopyAhead));
}

void copy_bytes(void *dst, const void *src, std::size_t bytes, bool stream) noexcept {
    auto *const to = static_cast<std::uint8_t *>(dst);
    const auto *const from = static_cast<const std::uint8_t *>(src);
    const Isa &now = isa();
    if (now.stream != nullptr && bytes >= (stream ? kStreamBytesAsked : kStreamBytes)) {
        now.stream(to, from, bytes);
    } else if (now.stream != nullptr && bytes >= kLoopBytes) {
        now.rows({&from, 1, bytes, to, bytes, false}, kAheadLeast);
    } else if (bytes > 0) {
        std::memcpy(to, from, bytes);
    }
}

const char *copy_isa() noexcept { return isa().name; }

}  // namespace sac
