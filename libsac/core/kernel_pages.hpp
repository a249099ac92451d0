// SPDX-License-Identifier: Apache-2.0
// The kernel's huge pages, and numbers of madvise() that older headers lack. They are ABI.
#pragma once

#include <cstdint>

namespace sac {

constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;

constexpr int kPopulateWrite = 23;  // Linux 5.14
constexpr int kCollapse = 25;       // Linux 6.1

}  // namespace sac
