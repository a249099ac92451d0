// SPDX-License-Identifier: Apache-2.0
// Copies selected rows of several prefixes into given buffers.
#pragma once

#include <cstdint>
#include <span>

#include "namespace.hpp"

namespace sac {

// As sac_gather. Throws Error before a byte is written, but for SAC_E_MEDIA and SAC_E_STALE,
// which are found while copying; failed is then the first request hit.
void gather(Namespace &ns, std::span<const sac_gather_req> reqs, std::uint32_t flags,
            std::uint32_t threads, std::uint64_t &failed);

}  // namespace sac
