// SPDX-License-Identifier: Apache-2.0
// The kernels of the hot buffer, compiled for one group of planes: args.h says what they take.
#include "append.cuh"
#include "resolve.cuh"
#include "upkeep.cuh"
