// SPDX-License-Identifier: Apache-2.0
// The Python module's classes of the GPU.
#pragma once

#include "bind.hpp"
#include "sac_gpu.h"

namespace sac_py {

using Gpu = Handle<sac_gpu>;
using GpuRegistration = Handle<sac_gpu_registration>;

}  // namespace sac_py
