// SPDX-License-Identifier: Apache-2.0
// A GPU of this process: its primary context (the one that torch uses as well), what it is,
// and the kernels loaded into it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "driver.hpp"
#include "kernels.hpp"

namespace sac::gpu {

class Module;

struct DeviceInfo {
    int ordinal = 0;
    std::string name, pci;  // "NVIDIA H200", "0000:17:00.0"
    int major = 0, minor = 0;
    int numa_node = -1;  // of the host, nearest to it; -1: not known
    int multiprocessors = 0;
    int driver_version = 0;  // of CUDA that the driver knows: 13000 for 13.0
    std::uint64_t memory_bytes = 0;
    std::uint32_t shared_bytes = 0;  // the most of shared memory that a block can have
    bool can_register = false;       // memory of the host
    bool same_address = false;       // and sees it where the host does
    bool can_register_read_only = false;

    std::string arch() const;  // "sm_90"
};

class Device : public std::enable_shared_from_this<Device> {
public:
    // The process has one object a GPU while anybody uses it. Throws Error: SAC_E_GPU,
    // SAC_E_RANGE (no such GPU), SAC_E_FORKED.
    static std::shared_ptr<Device> open(int ordinal);
    ~Device();
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;

    const DeviceInfo &info() const noexcept { return info_; }
    const Driver &driver() const noexcept { return driver_; }
    Context context() const noexcept { return context_; }
    // SAC_E_FORKED in a forked child.
    void check_usable() const;
    // Compiled (or from the cache) for this GPU and loaded; one object a specification while
    // it is held. spec.arch is ignored. Throws Error(SAC_E_GPU).
    std::shared_ptr<Module> module(KernelSpec spec);

private:
    explicit Device(int ordinal);

    const Driver &driver_;
    DeviceInfo info_;
    DeviceNumber number_ = 0;
    Context context_ = nullptr;
    std::mutex mutex_;
    std::map<std::string, std::weak_ptr<Module>> modules_;  // by KernelSpec::text()
};

// Makes the device's context current in this thread while it lives; nothing where it is
// already. Every call of the driver that concerns memory, modules or streams needs it. Throws
// Error: SAC_E_FORKED, SAC_E_GPU.
class Current {
public:
    explicit Current(const Device &device);
    ~Current();
    Current(const Current &) = delete;
    Current &operator=(const Current &) = delete;

private:
    const Driver &driver_;
    bool pushed_ = false;
};

}  // namespace sac::gpu
