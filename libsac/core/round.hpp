// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace sac {

// The least multiple of to that is not below n.
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t to) noexcept {
    return (n + to - 1) / to * to;
}

}  // namespace sac
