// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's names: devices, contexts, modules, launches, streams, events.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "kernel.hpp"

namespace {

using namespace sac::gpu;

thread_local std::vector<Context> stack;

constexpr std::uint32_t kSharedMost = 227 << 10, kSharedFree = 48 << 10;

Context the_context(int device) {
    return reinterpret_cast<Context>(static_cast<std::uintptr_t>(0x1000 + device));
}

}  // namespace

namespace fake {

Result entry(bool needs_context) {
    State &s = state();
    const std::lock_guard lock(s.mutex);
    if (s.pid == 0 || s.pid != getpid())
        return kNotInitialized;
    if (s.broken)
        return kIllegalAddress;
    return needs_context && stack.empty() ? kInvalidContext : cuda::kSuccess;
}

}  // namespace fake

struct sac::gpu::FunctionOpaque {
    const fake::Kernel *kernel;
    const ModuleOpaque *module;
    std::uint32_t shared_most = kSharedFree;
};
struct sac::gpu::ModuleOpaque {
    fake::Build build;
    std::vector<std::string> entries;
    std::map<std::string, FunctionOpaque> functions;  // that somebody has asked for
};
struct sac::gpu::EventOpaque {
    bool held = false, recorded = false;
};
struct sac::gpu::StreamOpaque {
    int priority;
};

using fake::state;

FAKE_API Result cuInit(unsigned) {
    const std::lock_guard lock(state().mutex);
    if (state().pid == 0)
        state().pid = getpid();
    return state().knobs["devices"] == 0 ? Result{cuda::kNoDevice} : Result{cuda::kSuccess};
}
FAKE_API Result cuDriverGetVersion(int *version) {
    *version = 13000;
    return 0;
}
FAKE_API Result cuGetErrorName(Result result, const char **name) {
    static const std::map<Result, const char *> names = {
        {0, "CUDA_SUCCESS"},
        {1, "CUDA_ERROR_INVALID_VALUE"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {200, "CUDA_ERROR_INVALID_IMAGE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {500, "CUDA_ERROR_NOT_FOUND"},
        {600, "CUDA_ERROR_NOT_READY"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"}};
    const auto it = names.find(result);
    *name = it == names.end() ? nullptr : it->second;
    return it == names.end() ? 1 : 0;
}
FAKE_API Result cuGetErrorString(Result result, const char **text) {
    *text = result == 0 ? "no error" : "as the fake driver was told";
    return 0;
}
FAKE_API Result cuDeviceGetCount(int *count) {
    *count = static_cast<int>(fake::get("devices"));
    return fake::entry(false);
}
FAKE_API Result cuDeviceGet(DeviceNumber *device, int ordinal) {
    *device = ordinal;
    return fake::entry(false);
}
FAKE_API Result cuDeviceGetName(char *name, int bytes, DeviceNumber device) {
    std::snprintf(name, static_cast<std::size_t>(bytes), "Fake GPU %d", device);
    return fake::entry(false);
}
FAKE_API Result cuDeviceGetPCIBusId(char *id, int bytes, DeviceNumber device) {
    std::snprintf(id, static_cast<std::size_t>(bytes), "FFFF:%02X:00.0", device);
    return fake::entry(false);
}
FAKE_API Result cuDeviceTotalMem_v2(std::size_t *bytes, DeviceNumber) {
    *bytes = static_cast<std::size_t>(fake::get("device_bytes"));
    return fake::entry(false);
}
FAKE_API Result cuDeviceGetAttribute(int *value, int attribute, DeviceNumber) {
    switch (attribute) {
    case cuda::kWarpSize:
        *value = 32;
        break;
    case cuda::kMultiprocessors:
        *value = 132;
        break;
    case cuda::kMajor:
        *value = 9;
        break;
    case cuda::kMinor:
        *value = 0;
        break;
    case cuda::kSharedBytesMost:
        *value = kSharedMost;
        break;
    case cuda::kRegisterSupported:
        *value = static_cast<int>(fake::get("can_register"));
        break;
    case cuda::kSameAddress:
        *value = static_cast<int>(fake::get("same_address"));
        break;
    case cuda::kReadOnlyRegister:
        *value = static_cast<int>(fake::get("read_only"));
        break;
    default:
        return cuda::kInvalidValue;
    }
    return fake::entry(false);
}

FAKE_API Result cuDevicePrimaryCtxRetain(Context *context, DeviceNumber device) {
    *context = the_context(device);
    const Result result = fake::entry(false);
    if (result == cuda::kSuccess)
        fake::add("contexts", 1);
    return result;
}
FAKE_API Result cuDevicePrimaryCtxRelease_v2(DeviceNumber) {
    const Result result = fake::entry(false);
    if (result == cuda::kSuccess)
        fake::add("contexts", -1);
    return result;
}
FAKE_API Result cuCtxGetCurrent(Context *context) {
    *context = stack.empty() ? nullptr : stack.back();
    const Result result = fake::entry(false);
    return fake::ends(result) ? Result{cuda::kSuccess} : result;
}
FAKE_API Result cuCtxPushCurrent_v2(Context context) {
    const Result result = fake::entry(false);
    if (!fake::ends(result))
        return result;
    stack.push_back(context);  // also a context that failed: what it has must be given back
    return cuda::kSuccess;
}
FAKE_API Result cuCtxPopCurrent_v2(Context *context) {
    const Result result = fake::entry(true);
    if (!fake::ends(result))
        return result;
    if (stack.empty())
        return fake::kInvalidContext;
    *context = stack.back();
    stack.pop_back();
    return cuda::kSuccess;
}
FAKE_API Result cuCtxSynchronize() {
    fake::add("waits", 1);
    return fake::entry(true);
}

// A module is the text that the fake NVRTC makes.
FAKE_API Result cuModuleLoadData(ModuleHandle *module, const void *image) {
    if (const Result result = fake::entry(true))
        return result;
    std::istringstream in(static_cast<const char *>(image));
    std::string word;
    if (!(in >> word) || word != "FAKE-CUBIN")
        return fake::kInvalidImage;
    auto *const m = new ModuleOpaque;
    for (std::string kind, name, value; in >> kind >> name;) {
        if (kind == "entry") {
            m->entries.push_back(name);
        } else if (kind == "macro") {
            std::getline(in, value);
            m->build.macros[name] = value.empty() ? "" : value.substr(1);
        }
    }
    *module = m;
    fake::add("modules", 1);
    return 0;
}
FAKE_API Result cuModuleUnload(ModuleHandle module) {
    const Result result = fake::entry(true);
    if (fake::ends(result)) {
        delete module;
        fake::add("modules", -1);
    }
    return result;
}
FAKE_API Result cuModuleGetFunction(FunctionHandle *function, ModuleHandle module,
                                    const char *name) {
    if (const Result result = fake::entry(true))
        return result;
    const fake::Kernel *const kernel = fake::find_kernel(name);
    const auto &all = module->entries;
    if (!kernel || std::find(all.begin(), all.end(), name) == all.end())
        return cuda::kNotFound;
    const std::lock_guard lock(state().mutex);
    *function =
        &module->functions.try_emplace(name, FunctionOpaque{kernel, module}).first->second;
    return 0;
}
FAKE_API Result cuFuncGetAttribute(int *value, int attribute, FunctionHandle) {
    *value = attribute == cuda::kRegisters ? 64 : attribute == cuda::kThreadsMost ? 1024 : 0;
    return fake::entry(true);
}
FAKE_API Result cuFuncSetAttribute(FunctionHandle function, int attribute, int value) {
    if (attribute != cuda::kDynamicShared || value < 0 ||
        static_cast<std::uint32_t>(value) > kSharedMost)
        return cuda::kInvalidValue;
    function->shared_most = static_cast<std::uint32_t>(value);
    return fake::entry(true);
}
FAKE_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, FunctionHandle,
                                                            int threads, std::size_t) {
    *blocks = threads > 0 ? std::max(1, 2048 / threads) : 0;
    return fake::entry(true);
}

FAKE_API Result cuLaunchKernelEx(const cuda::LaunchConfig *config, FunctionHandle function,
                                 void **arguments, void **) {
    if (const Result result = fake::entry(true))
        return result;
    const unsigned threads = config->block_x * config->block_y * config->block_z;
    if (threads == 0 || threads > 1024 || config->grid_x == 0 || config->grid_y == 0 ||
        config->grid_z == 0 || config->grid_y > 65535 || config->grid_z > 65535 ||
        config->shared_bytes > std::max(function->shared_most, kSharedFree))
        return cuda::kInvalidValue;
    fake::add("launches", 1);
    try {
        const std::lock_guard lock(state().working);
        function->kernel->run(arguments, function->module->build,
                              {config->grid_x, config->grid_y, config->grid_z, threads});
    } catch (const fake::IllegalAddress &) {
        const std::lock_guard lock(state().mutex);
        state().broken = true;
        return fake::kIllegalAddress;
    }
    return 0;
}
FAKE_API Result cuLaunchHostFunc(StreamHandle, void (*fn)(void *), void *data) {
    const Result result = fake::entry(true);
    if (result == cuda::kSuccess)
        fn(data);
    return result;
}

FAKE_API Result cuStreamCreateWithPriority(StreamHandle *stream, unsigned, int priority) {
    const Result result = fake::entry(true);
    if (result == cuda::kSuccess) {
        *stream = new StreamOpaque{priority};
        fake::add("streams", 1);
    }
    return result;
}
FAKE_API Result cuStreamDestroy_v2(StreamHandle stream) {
    const Result result = fake::entry(true);
    if (fake::ends(result)) {
        delete stream;
        fake::add("streams", -1);
    }
    return result;
}
FAKE_API Result cuStreamSynchronize(StreamHandle) {
    fake::add("waits", 1);
    return fake::entry(true);
}
FAKE_API Result cuStreamQuery(StreamHandle) { return fake::entry(true); }
FAKE_API Result cuStreamWaitEvent(StreamHandle, EventHandle, unsigned) {
    return fake::entry(true);
}
FAKE_API Result cuStreamIsCapturing(StreamHandle, int *status) {
    *status = static_cast<int>(fake::get("capturing"));
    return fake::entry(true);
}

FAKE_API Result cuThreadExchangeStreamCaptureMode(int *mode) {
    static thread_local int now = 0;
    std::swap(now, *mode);
    return fake::entry(false);
}

FAKE_API Result cuEventCreate(EventHandle *event, unsigned) {
    const Result result = fake::entry(true);
    if (result == cuda::kSuccess) {
        *event = new EventOpaque;
        fake::add("events", 1);
    }
    return result;
}
FAKE_API Result cuEventDestroy_v2(EventHandle event) {
    const Result result = fake::entry(true);
    if (fake::ends(result)) {
        delete event;
        fake::add("events", -1);
    }
    return result;
}
FAKE_API Result cuEventRecord(EventHandle event, StreamHandle) {
    if (const Result result = fake::entry(true))
        return result;
    const std::lock_guard lock(state().mutex);
    event->held = state().knobs["hold_events"] != 0;
    event->recorded = true;
    return 0;
}
FAKE_API Result cuEventQuery(EventHandle event) {
    if (const Result result = fake::entry(true))
        return result;
    const std::lock_guard lock(state().mutex);
    event->held = event->held && state().knobs["hold_events"] != 0;
    return event->held ? Result{cuda::kNotReady} : Result{cuda::kSuccess};
}
FAKE_API Result cuEventSynchronize(EventHandle event) {
    fake::add("waits", 1);
    if (const Result result = fake::entry(true))
        return result;
    std::unique_lock lock(state().mutex);
    state().changed.wait(lock,
                         [&] { return !event->held || state().knobs["hold_events"] == 0; });
    event->held = false;
    return 0;
}
FAKE_API Result cuEventElapsedTime(float *ms, EventHandle, EventHandle) {
    *ms = 0.001f;
    return fake::entry(true);
}
