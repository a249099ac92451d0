// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)

#define SAC_TARGET gnu::target("avx2")
#include "copy_loop.hpp"

namespace sac::kernels {

[[SAC_TARGET]] void rows_avx2(const RowCopy &job, std::size_t ahead) noexcept {
    if (can_stream<Vec32>(job)) {
        all_rows<Vec32, true>(job, ahead);
    } else {
        all_rows<Vec32, false>(job, ahead);
    }
}

[[SAC_TARGET]] void stream_avx2(std::uint8_t *dst, const std::uint8_t *src,
                                std::size_t bytes) noexcept {
    stream_piece<Vec32>(dst, src, bytes);
}

}  // namespace sac::kernels

#endif
