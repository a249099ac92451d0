// SPDX-License-Identifier: Apache-2.0
// What the files with the driver's names share.
#pragma once

#include "gpu/cuda_api.hpp"
#include "state.hpp"

namespace fake {

constexpr sac::gpu::Result kNotInitialized = 3, kInvalidImage = 200, kInvalidContext = 201,
                           kIllegalAddress = 700;

// What every call begins with: not in a forked child, not after an illegal address, and, where
// the driver wants one, with a context that is current in the thread.
sac::gpu::Result entry(bool needs_context);

// Whether a call that gives something back does so: after an illegal address it says so, but
// what the context had is gone.
constexpr bool ends(sac::gpu::Result result) {
    return result == sac::gpu::cuda::kSuccess || result == kIllegalAddress;
}

}  // namespace fake
