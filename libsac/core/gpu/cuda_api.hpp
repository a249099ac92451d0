// SPDX-License-Identifier: Apache-2.0
// What the library uses of the CUDA driver's and NVRTC's binary interface, declared here: it is
// built without CUDA's headers and finds both libraries at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sac::gpu {

using Result = int;  // CUresult
using DeviceNumber = int;
using Context = struct ContextOpaque *;
using ModuleHandle = struct ModuleOpaque *;
using FunctionHandle = struct FunctionOpaque *;
using StreamHandle = struct StreamOpaque *;
using EventHandle = struct EventOpaque *;
using Address = std::uint64_t;  // CUdeviceptr

namespace cuda {

// Results that are told apart.
enum : Result {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kDeinitialized = 4,  // the process is ending
    kNoDevice = 100,
    kNotFound = 500,
    kNotReady = 600,
    kAlreadyRegistered = 712,
    kNotRegistered = 713,
    kNotSupported = 801,
};

// Attributes of a device.
enum : int {
    kWarpSize = 10,
    kMultiprocessors = 16,
    kMajor = 75,
    kMinor = 76,
    kSharedBytesMost = 97,    // a block, where it is asked for
    kRegisterSupported = 99,  // memory of the host can be registered
    kSameAddress = 91,        // registered memory is seen at the host's own address
    kReadOnlyRegister = 113,
};

// Attributes of a function.
enum : int {
    kThreadsMost = 0,
    kStaticShared = 1,
    kConstant = 2,
    kLocal = 3,
    kRegisters = 4,
    kDynamicShared = 8,
};

// Attributes of an address.
enum : int { kPointerDevice = 3 };

enum : unsigned {
    kRegisterPortable = 1,
    kRegisterMapped = 2,
    kRegisterReadOnly = 8,
    kHostPortable = 1,
    kHostMapped = 2,
    kStreamNonBlocking = 1,
    kEventNoTiming = 2,
};

// What a thread may call while another one captures: a thread of the library's own never
// touches what is captured, and its calls must not end the capture.
enum : int { kCaptureRelaxed = 2 };

// CUlaunchAttribute and CUlaunchConfig.
enum : int { kLaunchCluster = 4, kLaunchOverlap = 6 };
struct LaunchCluster {
    unsigned x, y, z;
};
struct LaunchAttribute {
    int id;
    int pad;
    union {
        char bytes[64];
        int number;
        LaunchCluster cluster;
    };
};
static_assert(sizeof(LaunchAttribute) == 72);
struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    StreamHandle stream;
    LaunchAttribute *attributes;
    unsigned count;
};
static_assert(sizeof(LaunchConfig) == 56);

}  // namespace cuda
}  // namespace sac::gpu
