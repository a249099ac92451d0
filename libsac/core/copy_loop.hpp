// SPDX-License-Identifier: Apache-2.0
// The copy loops as templates over a vector type, for the copy_*.cpp of x86-64, each of
// which defines SAC_TARGET (the instruction set of its functions) before it includes this.
//
// Measured on Zen 4, random rows of 1152 and 656 bytes in 4 GiB (docs/performance.md):
// prefetching into the second-level cache beats the first level by a third, because a miss
// of the first level holds one of few fill buffers until memory answers; 32-byte vectors,
// four loads before four stores, are at least as fast as 64-byte ones, and a fifth faster
// where rows are not aligned to 64.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "copy_kernels.hpp"

#define SAC_INLINE SAC_TARGET, gnu::always_inline

namespace sac::kernels {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kLongRow = 8192;  // longer rows are prefetched piece by piece
constexpr std::size_t kPiece = 4096;
constexpr std::size_t kFirstPieces = 4;  // then the hardware's own prefetch does better
// Of one piece that is streamed: the hardware's prefetch ends at each page of 4 KiB. Line by
// line between the copies; a page at once, a page ahead, takes a quarter longer.
constexpr std::size_t kStreamAhead = 2048;

struct Vec16 {
    using Type = __m128i;
    [[SAC_INLINE]] static inline Type load(const std::uint8_t *p) noexcept {
        return _mm_loadu_si128(reinterpret_cast<const __m128i_u *>(p));
    }
    [[SAC_INLINE]] static inline void store(std::uint8_t *p, Type v) noexcept {
        _mm_storeu_si128(reinterpret_cast<__m128i_u *>(p), v);
    }
    [[SAC_INLINE]] static inline void stream(std::uint8_t *p, Type v) noexcept {
        _mm_stream_si128(reinterpret_cast<__m128i *>(p), v);
    }
};

// Used by the files of AVX2 and AVX-512 only.
struct Vec32 {
    using Type = __m256i;
    [[gnu::target("avx2"), gnu::always_inline]] static inline Type
    load(const std::uint8_t *p) noexcept {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i_u *>(p));
    }
    [[gnu::target("avx2"), gnu::always_inline]] static inline void store(std::uint8_t *p,
                                                                         Type v) noexcept {
        _mm256_storeu_si256(reinterpret_cast<__m256i_u *>(p), v);
    }
    [[gnu::target("avx2"), gnu::always_inline]] static inline void stream(std::uint8_t *p,
                                                                          Type v) noexcept {
        _mm256_stream_si256(reinterpret_cast<__m256i *>(p), v);
    }
};

// Loads every line of [p, p + bytes) into the second-level cache.
template <typename = void>
[[SAC_INLINE]] inline void prefetch(const std::uint8_t *p, std::size_t bytes) noexcept {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(p) % kLine;
    p -= past;
    std::size_t lines = (past + bytes + kLine - 1) / kLine;
    for (; lines >= 4; lines -= 4, p += 4 * kLine) {
        _mm_prefetch(reinterpret_cast<const char *>(p), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char *>(p + kLine), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char *>(p + 2 * kLine), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char *>(p + 3 * kLine), _MM_HINT_T1);
    }
    for (; lines > 0; --lines, p += kLine) {
        _mm_prefetch(reinterpret_cast<const char *>(p), _MM_HINT_T1);
    }
}

// 0 < bytes < 32, in two accesses that overlap.
template <typename Word>
[[SAC_INLINE]] inline void copy_ends(std::uint8_t *dst, const std::uint8_t *src,
                                     std::size_t bytes) noexcept {
    Word first, last;
    std::memcpy(&first, src, sizeof first);
    std::memcpy(&last, src + bytes - sizeof last, sizeof last);
    std::memcpy(dst, &first, sizeof first);
    std::memcpy(dst + bytes - sizeof last, &last, sizeof last);
}

template <typename = void>
[[SAC_INLINE]] inline void copy_small(std::uint8_t *dst, const std::uint8_t *src,
                                      std::size_t bytes) noexcept {
    if (bytes >= 16) {
        const __m128i first = Vec16::load(src), last = Vec16::load(src + bytes - 16);
        Vec16::store(dst, first);
        Vec16::store(dst + bytes - 16, last);
    } else if (bytes >= 8) {
        copy_ends<std::uint64_t>(dst, src, bytes);
    } else if (bytes >= 4) {
        copy_ends<std::uint32_t>(dst, src, bytes);
    } else if (bytes >= 2) {
        copy_ends<std::uint16_t>(dst, src, bytes);
    } else {
        *dst = *src;
    }
}

// What is left of a streamed row, less than a vector; dst is aligned to 16. No overlap
// here: a plain store into a line that is being streamed would break it up.
template <typename = void>
[[SAC_INLINE]] inline void stream_tail(std::uint8_t *dst, const std::uint8_t *src,
                                       std::size_t bytes) noexcept {
    for (; bytes >= 16; dst += 16, src += 16, bytes -= 16) {
        Vec16::stream(dst, Vec16::load(src));
    }
    if (bytes >= 8) {
        long long word;
        std::memcpy(&word, src, 8);
        _mm_stream_si64(reinterpret_cast<long long *>(dst), word);
        dst += 8, src += 8, bytes -= 8;
    }
    if (bytes >= 4) {
        int word;
        std::memcpy(&word, src, 4);
        _mm_stream_si32(reinterpret_cast<int *>(dst), word);
        dst += 4, src += 4, bytes -= 4;
    }
    for (; bytes > 0; ++dst, ++src, --bytes) {
        *dst = *src;
    }
}

// Four vectors, all loads before the first store.
template <typename V, bool kStream>
[[SAC_INLINE]] inline void copy_four(std::uint8_t *dst, const std::uint8_t *src) noexcept {
    constexpr std::size_t w = sizeof(typename V::Type);
    const auto a = V::load(src), b = V::load(src + w);
    const auto c = V::load(src + 2 * w), d = V::load(src + 3 * w);
    if constexpr (kStream) {
        V::stream(dst, a);
        V::stream(dst + w, b);
        V::stream(dst + 2 * w, c);
        V::stream(dst + 3 * w, d);
    } else {
        V::store(dst, a);
        V::store(dst + w, b);
        V::store(dst + 2 * w, c);
        V::store(dst + 3 * w, d);
    }
}

// Copies [at, bytes) of a row. bytes > 0 if plain. kStream: dst aligned to the vector.
template <typename V, bool kStream>
[[SAC_INLINE]] inline void copy_rest(std::uint8_t *dst, const std::uint8_t *src,
                                     std::size_t bytes, std::size_t at) noexcept {
    constexpr std::size_t w = sizeof(typename V::Type);
    for (; at + 4 * w <= bytes; at += 4 * w) {
        copy_four<V, kStream>(dst + at, src + at);
    }
    for (; at + w <= bytes; at += w) {
        if constexpr (kStream) {
            V::stream(dst + at, V::load(src + at));
        } else {
            V::store(dst + at, V::load(src + at));
        }
    }
    if (at == bytes) {
        return;
    }
    if constexpr (kStream) {
        stream_tail(dst + at, src + at, bytes - at);
    } else if (bytes < w) {
        copy_small(dst, src, bytes);
    } else if (at < bytes) {
        V::store(dst + bytes - w, V::load(src + bytes - w));
    }
}

template <typename V, bool kStream>
[[SAC_INLINE]] inline void copy_row(std::uint8_t *dst, const std::uint8_t *src,
                                    std::size_t bytes) noexcept {
    copy_rest<V, kStream>(dst, src, bytes, 0);
}

// The same, and row next prefetched meanwhile, line by line between the copies: a burst of
// prefetches costs streaming stores 4 in 100.
template <typename V, bool kStream>
[[SAC_INLINE]] inline void copy_and_prefetch(std::uint8_t *dst, const std::uint8_t *src,
                                             std::size_t bytes,
                                             const std::uint8_t *next) noexcept {
    constexpr std::size_t step = 4 * sizeof(typename V::Type);
    const std::uint8_t *const end = next + bytes;
    const std::uint8_t *line = next - reinterpret_cast<std::uintptr_t>(next) % kLine;
    std::size_t at = 0;
    for (; at + step <= bytes; at += step) {
        for (std::size_t k = 0; k < step; k += kLine) {
            _mm_prefetch(reinterpret_cast<const char *>(line + k), _MM_HINT_T1);
        }
        line += step;
        copy_four<V, kStream>(dst + at, src + at);
    }
    for (; line < end; line += kLine) {
        _mm_prefetch(reinterpret_cast<const char *>(line), _MM_HINT_T1);
    }
    copy_rest<V, kStream>(dst, src, bytes, at);
}

template <typename V, bool kStream>
[[SAC_TARGET]] void long_rows(const RowCopy &job, std::size_t ahead) noexcept {
    const std::size_t pieces = (job.row_bytes - 1) / kPiece + 1;
    const std::size_t last = job.row_bytes - (pieces - 1) * kPiece;
    std::size_t next_row = 0, next = 0;  // of the piece to prefetch next
    std::size_t lead = 0;                // pieces prefetched and not yet copied
    for (std::size_t row = 0; row < job.count; ++row) {
        for (std::size_t piece = 0; piece < pieces; ++piece) {
            for (; lead <= ahead && next_row < job.count; ++lead) {
                const std::uint8_t *src = job.src[next_row];
                if (src != nullptr && next < kFirstPieces) {
                    prefetch(src + next * kPiece, next + 1 == pieces ? last : kPiece);
                }
                if (++next == pieces) {
                    next = 0;
                    ++next_row;
                }
            }
            --lead;
            std::uint8_t *dst = job.dst + row * job.dst_pitch + piece * kPiece;
            const std::size_t bytes = piece + 1 == pieces ? last : kPiece;
            if (const std::uint8_t *src = job.src[row]; src != nullptr) [[likely]] {
                copy_row<V, kStream>(dst, src + piece * kPiece, bytes);
            } else {
                std::memset(dst, 0, bytes);
            }
        }
    }
}

template <typename V, bool kStream>
[[SAC_TARGET]] void short_rows(const RowCopy &job, std::size_t ahead) noexcept {
    const std::size_t bytes = job.row_bytes, known = job.count + job.beyond;
    for (std::size_t row = 0; !job.primed && row < known && row < ahead; ++row) {
        if (const std::uint8_t *src = job.src[row]; src != nullptr) [[likely]] {
            prefetch(src, bytes);
        }
    }
    std::uint8_t *dst = job.dst;
    for (std::size_t row = 0; row < job.count; ++row, dst += job.dst_pitch) {
        const std::uint8_t *const src = job.src[row];
        const std::uint8_t *const next = row + ahead < known ? job.src[row + ahead] : nullptr;
        if (src != nullptr && next != nullptr) [[likely]] {
            copy_and_prefetch<V, kStream>(dst, src, bytes, next);
            continue;
        }
        if (next != nullptr) {
            prefetch(next, bytes);
        }
        if (src != nullptr) {
            copy_row<V, kStream>(dst, src, bytes);
        } else {
            std::memset(dst, 0, bytes);
        }
    }
}

template <typename V, bool kStream>
[[SAC_TARGET]] inline void all_rows(const RowCopy &job, std::size_t ahead) noexcept {
    if (job.row_bytes > kLongRow) {
        long_rows<V, kStream>(job, ahead);
    } else {
        short_rows<V, kStream>(job, ahead);
    }
    if (kStream && job.beyond == 0) {
        _mm_sfence();
    }
}

// Whether every row of the job starts at a multiple of the vector and holds one.
template <typename V> bool can_stream(const RowCopy &job) noexcept {
    constexpr std::size_t w = sizeof(typename V::Type);
    return job.stream && job.row_bytes >= w &&
           reinterpret_cast<std::uintptr_t>(job.dst) % w == 0 &&
           (job.count == 1 || job.dst_pitch % w == 0);
}

// bytes >= 128.
template <typename V>
[[SAC_TARGET]] void stream_piece(std::uint8_t *dst, const std::uint8_t *src,
                                 std::size_t bytes) noexcept {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(dst) % kLine;
    const std::size_t head = past == 0 ? 0 : kLine - past;
    std::memcpy(dst, src, head);
    dst += head, src += head, bytes -= head;
    const std::size_t body = bytes - bytes % kLine;
    prefetch(src, body < kStreamAhead ? body : kStreamAhead);
    constexpr std::size_t step = 4 * sizeof(typename V::Type);
    std::size_t at = 0;
    for (; at + step <= body; at += step) {
        const std::uint8_t *const next = src + at + kStreamAhead;
        for (std::size_t k = 0; k < step && at + kStreamAhead + k < body; k += kLine) {
            _mm_prefetch(reinterpret_cast<const char *>(next + k), _MM_HINT_T1);
        }
        copy_four<V, true>(dst + at, src + at);
    }
    copy_rest<V, true>(dst, src, body, at);
    std::memcpy(dst + body, src + body, bytes - body);
    _mm_sfence();
}

}  // namespace

}  // namespace sac::kernels
