// SPDX-License-Identifier: Apache-2.0
// Extents that somebody else opened.
#pragma once

#include <span>

#include "mapping.hpp"
#include "sac.h"

namespace sac {

// An fd of our own of the same open file, locked. Throws Error: SAC_E_ARG, SAC_E_BUSY,
// SAC_E_CORRUPT (its size), SAC_E_SYSTEM.
Extent take_extent(const sac_extent_fd &extent);
// Throws Error(SAC_E_ARG) where the extent's file is one of these already.
void check_other_file(const Extent &extent, std::span<const Extent> there);

}  // namespace sac
