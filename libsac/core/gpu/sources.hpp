// SPDX-License-Identifier: Apache-2.0
// The kernels' sources (libsac/hotbuffer/kernels), embedded by cmake/kernels.cmake.
#pragma once

#include <span>
#include <string_view>

namespace sac::gpu {

struct Source {
    std::string_view name;  // "hot.cu", "args.h"
    std::string_view text;  // a zero follows it
};

// All of them, ordered by name.
std::span<const Source> sources() noexcept;

}  // namespace sac::gpu
