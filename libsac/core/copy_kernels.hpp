// SPDX-License-Identifier: Apache-2.0
// The row loops behind copy_rows(), one an instruction set; copy.cpp chooses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "copy.hpp"

namespace sac::kernels {

// A loop copies all rows of the job and fences its streaming stores. It prefetches
// `ahead` rows (rows of 8 KiB at most) or pieces of 4 KiB (longer ones) before their copy.
using Rows = void (*)(const RowCopy &job, std::size_t ahead) noexcept;
// One piece with streaming stores, fenced; bytes >= 128.
using Stream = void (*)(std::uint8_t *dst, const std::uint8_t *src, std::size_t bytes) noexcept;

void rows_generic(const RowCopy &job, std::size_t ahead) noexcept;

#if defined(__x86_64__)
void rows_avx512(const RowCopy &job, std::size_t ahead) noexcept;
void rows_avx2(const RowCopy &job, std::size_t ahead) noexcept;
void rows_sse2(const RowCopy &job, std::size_t ahead) noexcept;
void stream_avx512(std::uint8_t *dst, const std::uint8_t *src, std::size_t bytes) noexcept;
void stream_avx2(std::uint8_t *dst, const std::uint8_t *src, std::size_t bytes) noexcept;
void stream_sse2(std::uint8_t *dst, const std::uint8_t *src, std::size_t bytes) noexcept;
#endif

}  // namespace sac::kernels
