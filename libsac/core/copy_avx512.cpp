// SPDX-License-Identifier: Apache-2.0
// 64-byte vectors for streaming stores only, where each fills a line and leaves at once.
// Plain copies keep to 32 bytes: see copy_loop.hpp.
#if defined(__x86_64__)

#define SAC_TARGET gnu::target("avx512f,avx2")
#include "copy_loop.hpp"

namespace sac::kernels {

namespace {

struct Vec64 {
    using Type = __m512i;
    [[SAC_INLINE]] static inline Type load(const std::uint8_t *p) noexcept {
        return _mm512_loadu_si512(p);
    }
    [[SAC_INLINE]] static inline void stream(std::uint8_t *p, Type v) noexcept {
        _mm512_stream_si512(reinterpret_cast<__m512i *>(p), v);
    }
};

}  // namespace

[[SAC_TARGET]] void rows_avx512(const RowCopy &job, std::size_t ahead) noexcept {
    if (can_stream<Vec64>(job)) {
        all_rows<Vec64, true>(job, ahead);
    } else if (can_stream<Vec32>(job)) {
        all_rows<Vec32, true>(job, ahead);
    } else {
        all_rows<Vec32, false>(job, ahead);
    }
}

[[SAC_TARGET]] void stream_avx512(std::uint8_t *dst, const std::uint8_t *src,
                                  std::size_t bytes) noexcept {
    stream_piece<Vec64>(dst, src, bytes);
}

}  // namespace sac::kernels

#endif
