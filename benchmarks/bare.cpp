// SPDX-License-Identifier: Apache-2.0
// The limit a gather is measured against: rows copied from addresses computed beforehand, with
// software prefetch, by the widest vectors this processor has. Nothing else is done.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

// Found best on the machine of docs/performance.md; more changed nothing.
constexpr std::size_t kAhead = 6;

inline void prefetch(const std::uint8_t *p, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char *>(p + i), _MM_HINT_T0);
}

template <bool stream>
__attribute__((target("avx512f"))) void rows512(const std::uint8_t *const *src, std::size_t n,
                                                std::size_t bytes, std::uint8_t *dst) {
    for (std::size_t i = 0; i < n && i < kAhead; ++i)
        prefetch(src[i], bytes);
    for (std::size_t i = 0; i < n; ++i, dst += bytes) {
        if (i + kAhead < n)
            prefetch(src[i + kAhead], bytes);
        for (std::size_t b = 0; b < bytes; b += 64) {
            const __m512i v = _mm512_loadu_si512(src[i] + b);
            if constexpr (stream)
                _mm512_stream_si512(reinterpret_cast<__m512i *>(dst + b), v);
            else
                _mm512_storeu_si512(dst + b, v);
        }
    }
    if (stream)
        _mm_sfence();
}

template <bool stream>
__attribute__((target("avx2"))) void rows256(const std::uint8_t *const *src, std::size_t n,
                                             std::size_t bytes, std::uint8_t *dst) {
    for (std::size_t i = 0; i < n && i < kAhead; ++i)
        prefetch(src[i], bytes);
    for (std::size_t i = 0; i < n; ++i, dst += bytes) {
        if (i + kAhead < n)
            prefetch(src[i + kAhead], bytes);
        for (std::size_t b = 0; b < bytes; b += 32) {
            const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(src[i] + b));
            if constexpr (stream)
                _mm256_stream_si256(reinterpret_cast<__m256i *>(dst + b), v);
            else
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(dst + b), v);
        }
    }
    if (stream)
        _mm_sfence();
}

}  // namespace

extern "C" {

// bytes: a multiple of 64; dst: aligned to 64.
void bare_rows(const std::uint8_t *const *src, std::size_t n, std::size_t bytes,
               std::uint8_t *dst, int stream) {
    if (__builtin_cpu_supports("avx512f"))
        stream ? rows512<true>(src, n, bytes, dst) : rows512<false>(src, n, bytes, dst);
    else
        stream ? rows256<true>(src, n, bytes, dst) : rows256<false>(src, n, bytes, dst);
}

void bare_memcpy(const std::uint8_t *src, std::size_t n, std::uint8_t *dst) {
    std::memcpy(dst, src, n);
}
}
