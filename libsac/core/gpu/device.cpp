// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

#include "error.hpp"
#include "module.hpp"

namespace sac::gpu {
namespace {

std::mutex devices_mutex;
std::map<int, std::weak_ptr<Device>> &devices() {
    static auto *const all = new std::map<int, std::weak_ptr<Device>>;
    return *all;
}

// Of the host, as the kernel says; -1 where it does not (one node, or a virtual machine).
int numa_node_of(const std::string &pci) {
    std::ifstream file("/sys/bus/pci/devices/" + pci + "/numa_node");
    int node = -1;
    return file >> node ? node : -1;
}

}  // namespace

std::string DeviceInfo::arch() const { return format("sm_%d%d", major, minor); }

std::shared_ptr<Device> Device::open(int ordinal) {
    const Driver &driver = Driver::get();
    int count = 0;
    driver.check(driver.device_count(&count), "CUDA", "cannot count the GPUs");
    if (ordinal < 0 || ordinal >= count)
        throw Error(SAC_E_RANGE, format("GPU %d", ordinal),
                    format("There is no GPU %d: CUDA sees %d%s. CUDA_VISIBLE_DEVICES chooses "
                           "them.",
                           ordinal, count, count > 0 ? ", counted from 0" : ""));
    const std::lock_guard lock(devices_mutex);
    std::weak_ptr<Device> &known = devices()[ordinal];
    std::shared_ptr<Device> device = known.lock();
    if (!device) {
        device.reset(new Device(ordinal));
        known = device;
    }
    return device;
}

Device::Device(int ordinal) : driver_(Driver::get()) {
    const std::string object = format("GPU %d", ordinal);
    const auto check = [&](Result result, const char *what) {
        driver_.check(result, object, what);
    };
    info_.ordinal = ordinal;
    check(driver_.device_get(&number_, ordinal), "cannot open it");
    const auto attribute = [&](int which) {
        int value = 0;
        check(driver_.device_attribute(&value, which, number_), "cannot ask what it can do");
        return value;
    };
    std::array<char, 256> text{};
    check(driver_.device_name(text.data(), static_cast<int>(text.size()), number_),
          "cannot ask for its name");
    info_.name = text.data();
    text.fill(0);
    check(driver_.device_pci(text.data(), static_cast<int>(text.size()), number_),
          "cannot ask for its PCI address");
    info_.pci = text.data();
    // As sysfs has it: in small letters.
    std::transform(info_.pci.begin(), info_.pci.end(), info_.pci.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    info_.numa_node = numa_node_of(info_.pci);
    info_.major = attribute(cuda::kMajor), info_.minor = attribute(cuda::kMinor);
    info_.multiprocessors = attribute(cuda::kMultiprocessors);
    info_.shared_bytes = static_cast<std::uint32_t>(attribute(cuda::kSharedBytesMost));
    info_.can_register = attribute(cuda::kRegisterSupported) != 0;
    info_.same_address = attribute(cuda::kSameAddress) != 0;
    info_.can_register_read_only = attribute(cuda::kReadOnlyRegister) != 0;
    check(driver_.version(&info_.driver_version), "cannot ask for the driver's version");
    std::size_t bytes = 0;
    check(driver_.device_memory(&bytes, number_), "cannot ask for its memory");
    info_.memory_bytes = bytes;
    check(driver_.context_retain(&context_, number_), "cannot take its primary context");
}

Device::~Device() {
    if (!driver_.forked())
        (void)driver_.context_release(number_);
}

void Device::check_usable() const {
    if (driver_.forked())
        throw Error(SAC_E_FORKED, info_.name,
                    "the GPU was opened by the parent process; a forked child cannot use CUDA "
                    "after that. Start workers with the method 'spawn'.");
}

std::shared_ptr<Module> Device::module(KernelSpec spec) {
    check_usable();
    spec.arch = info_.arch();
    const std::string key = spec.text();
    // Held while it is compiled: two threads that want the same one shall not both do it.
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Module> module = modules_[key].lock();
    if (!module) {
        module = std::make_shared<Module>(shared_from_this(), spec, compile(spec));
        modules_[key] = module;
    }
    return module;
}

Current::Current(const Device &device) : driver_(device.driver()) {
    device.check_usable();
    Context now = nullptr;
    driver_.check(driver_.context_current(&now), device.info().name,
                  "cannot ask for the current context");
    if (now == device.context())
        return;
    driver_.check(driver_.context_push(device.context()), device.info().name,
                  "cannot make its context current");
    pushed_ = true;
}

Current::~Current() {
    Context popped = nullptr;
    if (pushed_)
        (void)driver_.context_pop(&popped);
}

}  // namespace sac::gpu
