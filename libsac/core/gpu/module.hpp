// SPDX-License-Identifier: Apache-2.0
// Kernels in a GPU: what they use, and their launch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device.hpp"

namespace sac::gpu {

struct Launch {
    std::uint32_t grid_x = 1, grid_y = 1, grid_z = 1;
    std::uint32_t threads = 1;       // of a block
    std::uint32_t shared_bytes = 0;  // dynamic; Function::allow_shared() first above 48 KiB
    std::uintptr_t stream = 0;       // a CUstream of the device's context
    std::uint32_t cluster = 0;       // blocks of a cluster along x; 0: none
    bool overlap = false;            // may begin before the kernel in front of it has ended
};

struct FunctionInfo {
    int registers = 0;     // of a thread
    int local_bytes = 0;   // of a thread: 0 where nothing spills
    int shared_bytes = 0;  // static, of a block
    int threads_most = 0;
};

class Module;

class Function {
public:
    const FunctionInfo &info() const noexcept { return info_; }
    const std::string &name() const noexcept { return name_; }
    // How much dynamic shared memory a launch may ask for. Throws Error(SAC_E_GPU).
    void allow_shared(std::uint32_t bytes) const;
    // Blocks of a multiprocessor that run at once. Throws Error(SAC_E_GPU).
    int blocks_at_once(std::uint32_t threads, std::uint32_t shared_bytes) const;
    // Asynchronous, in the order of the stream; can be captured. arguments: addresses of the
    // parameters' values, copied by the call. Throws Error: SAC_E_GPU, SAC_E_FORKED.
    void launch(const Launch &launch, void **arguments) const;
    // Of a kernel with one parameter, a struct by value.
    template <class T> void launch_with(const Launch &how, const T &argument) const {
        void *arguments[] = {const_cast<T *>(&argument)};
        launch(how, arguments);
    }

private:
    friend class Module;
    std::shared_ptr<const Module> module_;  // stays loaded
    FunctionHandle handle_ = nullptr;
    std::string name_;
    FunctionInfo info_;
};

class Module : public std::enable_shared_from_this<Module> {
public:
    // By Device::module().
    Module(std::shared_ptr<Device> device, const KernelSpec &spec, Compiled compiled);
    ~Module();
    Module(const Module &) = delete;
    Module &operator=(const Module &) = delete;

    Device &device() const noexcept { return *device_; }
    // Throws Error: SAC_E_NOT_FOUND, SAC_E_GPU.
    Function function(const std::string &name) const;
    bool cached() const noexcept { return cached_; }
    const std::string &log() const noexcept { return log_; }

private:
    std::shared_ptr<Device> device_;
    std::string source_, log_;
    bool cached_;
    ModuleHandle handle_ = nullptr;
};

}  // namespace sac::gpu
