// SPDX-License-Identifier: Apache-2.0
// What the kernel tells everybody. All throw Error(SAC_E_SYSTEM).
#pragma once

#include <cstddef>
#include <cstdint>

namespace sac {

// Cryptographic random bytes.
void random_bytes(void *out, std::size_t bytes);
// The id of this boot.
void read_boot_id(std::uint8_t out[16]);

}  // namespace sac
