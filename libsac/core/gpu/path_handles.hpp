// SPDX-License-Identifier: Apache-2.0
// What is behind sac_gpu_mover of sac_gpu.h.
#pragma once

#include <memory>

#include "path.hpp"

struct sac_gpu_mover {
    std::shared_ptr<sac::gpu::Mover> it;
};
