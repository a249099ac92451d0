// SPDX-License-Identifier: Apache-2.0
// Extents that somebody else opened.
#pragma once

#include "mapping.hpp"
#include "sac.h"

namespace sac {

// An fd of our own of the same open file, locked. Throws Error: SAC_E_ARG, SAC_E_BUSY,
// SAC_E_CORRUPT (its size), SAC_E_SYSTEM.
Extent take_extent(const sac_extent_fd &extent);

}  // namespace sac
