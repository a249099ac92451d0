// SPDX-License-Identifier: Apache-2.0
// The baseline of x86-64.
#if defined(__x86_64__)

#define SAC_TARGET gnu::target("sse2")
#include "copy_loop.hpp"

namespace sac::kernels {

void rows_sse2(const RowCopy &job, std::size_t ahead) noexcept {
    if (can_stream<Vec16>(job)) {
        all_rows<Vec16, true>(job, ahead);
    } else {
        all_rows<Vec16, false>(job, ahead);
    }
}

void stream_sse2(std::uint8_t *dst, const std::uint8_t *src, std::size_t bytes) noexcept {
    stream_piece<Vec16>(dst, src, bytes);
}

}  // namespace sac::kernels

#endif
