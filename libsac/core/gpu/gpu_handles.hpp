// SPDX-License-Identifier: Apache-2.0
// What is behind the handles of sac_gpu.h.
#pragma once

#include <memory>

#include "device.hpp"
#include "registration.hpp"

struct sac_gpu {
    std::shared_ptr<sac::gpu::Device> it;
};
struct sac_gpu_registration {
    std::shared_ptr<sac::gpu::Registration> it;
};
