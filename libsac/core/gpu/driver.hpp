// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, found at run time: its functions, and errors with its own words for them.
#pragma once

#include <string>

#include "cuda_api.hpp"

namespace sac::gpu {

// name in the table, symbol in the library, parameters
#define SAC_CUDA_FUNCTIONS(X)                                                                  \
    X(init, cuInit, (unsigned flags))                                                          \
    X(version, cuDriverGetVersion, (int *version))                                             \
    X(error_name, cuGetErrorName, (Result, const char **))                                     \
    X(error_text, cuGetErrorString, (Result, const char **))                                   \
    X(device_count, cuDeviceGetCount, (int *))                                                 \
    X(device_get, cuDeviceGet, (DeviceNumber *, int ordinal))                                  \
    X(device_name, cuDeviceGetName, (char *, int bytes, DeviceNumber))                         \
    X(device_attribute, cuDeviceGetAttribute, (int *, int attribute, DeviceNumber))            \
    X(device_memory, cuDeviceTotalMem_v2, (std::size_t *, DeviceNumber))                       \
    X(device_pci, cuDeviceGetPCIBusId, (char *, int bytes, DeviceNumber))                      \
    X(context_retain, cuDevicePrimaryCtxRetain, (Context *, DeviceNumber))                     \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (DeviceNumber))                           \
    X(context_current, cuCtxGetCurrent, (Context *))                                           \
    X(context_push, cuCtxPushCurrent_v2, (Context))                                            \
    X(context_pop, cuCtxPopCurrent_v2, (Context *))                                            \
    X(context_synchronize, cuCtxSynchronize, ())                                               \
    X(module_load, cuModuleLoadData, (ModuleHandle *, const void *image))                      \
    X(module_unload, cuModuleUnload, (ModuleHandle))                                           \
    X(module_function, cuModuleGetFunction, (FunctionHandle *, ModuleHandle, const char *))    \
    X(function_attribute, cuFuncGetAttribute, (int *, int attribute, FunctionHandle))          \
    X(function_set, cuFuncSetAttribute, (FunctionHandle, int attribute, int value))            \
    X(function_occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor,                         \
      (int *, FunctionHandle, int threads, std::size_t shared))                                \
    X(launch, cuLaunchKernelEx,                                                                \
      (const cuda::LaunchConfig *, FunctionHandle, void **arguments, void **extra))            \
    X(launch_host, cuLaunchHostFunc, (StreamHandle, void (*)(void *), void *))                 \
    X(memory_allocate, cuMemAlloc_v2, (Address *, std::size_t))                                \
    X(memory_free, cuMemFree_v2, (Address))                                                    \
    X(memory_info, cuMemGetInfo_v2, (std::size_t *free, std::size_t *total))                   \
    X(host_allocate, cuMemHostAlloc, (void **, std::size_t, unsigned flags))                   \
    X(host_free, cuMemFreeHost, (void *))                                                      \
    X(host_register, cuMemHostRegister_v2, (void *, std::size_t, unsigned flags))              \
    X(host_unregister, cuMemHostUnregister, (void *))                                          \
    X(host_address, cuMemHostGetDevicePointer_v2, (Address *, void *, unsigned flags))         \
    X(pointer_attribute, cuPointerGetAttribute, (void *, int attribute, Address))              \
    X(copy_in, cuMemcpyHtoDAsync_v2, (Address, const void *, std::size_t, StreamHandle))       \
    X(copy_out, cuMemcpyDtoHAsync_v2, (void *, Address, std::size_t, StreamHandle))            \
    X(copy, cuMemcpyDtoDAsync_v2, (Address, Address, std::size_t, StreamHandle))               \
    X(fill8, cuMemsetD8Async, (Address, unsigned char, std::size_t, StreamHandle))             \
    X(fill32, cuMemsetD32Async, (Address, unsigned, std::size_t, StreamHandle))                \
    X(stream_create, cuStreamCreateWithPriority,                                               \
      (StreamHandle *, unsigned flags, int priority))                                          \
    X(stream_destroy, cuStreamDestroy_v2, (StreamHandle))                                      \
    X(stream_synchronize, cuStreamSynchronize, (StreamHandle))                                 \
    X(stream_query, cuStreamQuery, (StreamHandle))                                             \
    X(stream_wait, cuStreamWaitEvent, (StreamHandle, EventHandle, unsigned flags))             \
    X(stream_capturing, cuStreamIsCapturing, (StreamHandle, int *status))                      \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                            \
    X(event_create, cuEventCreate, (EventHandle *, unsigned flags))                            \
    X(event_destroy, cuEventDestroy_v2, (EventHandle))                                         \
    X(event_record, cuEventRecord, (EventHandle, StreamHandle))                                \
    X(event_query, cuEventQuery, (EventHandle))                                                \
    X(event_synchronize, cuEventSynchronize, (EventHandle))                                    \
    X(event_elapsed, cuEventElapsedTime, (float *ms, EventHandle, EventHandle))

class Driver {
public:
    // Loads the library at its first call (SAC_LIBCUDA, else libcuda.so.1) and keeps it.
    // Throws Error: SAC_E_GPU (no driver, or one without what is used), SAC_E_FORKED (a parent
    // process initialised CUDA: a forked child cannot use it).
    static const Driver &get();

#define SAC_CUDA_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;
    SAC_CUDA_FUNCTIONS(SAC_CUDA_MEMBER)
#undef SAC_CUDA_MEMBER

    // Throws Error(SAC_E_GPU) for a result that is no success: "<object>: <what>: <the
    // driver's name and words>. <advice>". sys_errno is the result.
    void check(Result result, const std::string &object, const char *what,
               const char *advice = "") const;
    // The driver's name and words for a result.
    std::string text(Result result) const;
    const std::string &path() const noexcept { return path_; }
    // Whether this is a forked child of the process that initialised CUDA: no call may be made.
    bool forked() const noexcept;

private:
    Driver();

    std::string path_;
    std::uint64_t epoch_;
};

}  // namespace sac::gpu
