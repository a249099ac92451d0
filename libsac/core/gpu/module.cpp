// SPDX-License-Identifier: Apache-2.0
#include "module.hpp"

#include <array>

#include "error.hpp"
#include "stream.hpp"

namespace sac::gpu {

Module::Module(std::shared_ptr<Device> device, const KernelSpec &spec, Compiled compiled)
    : device_(std::move(device)), source_(spec.source), log_(std::move(compiled.log)),
      cached_(compiled.cached) {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.module_load(&handle_, compiled.cubin.data()), source_,
                 "cannot load the kernels into the GPU");
}

Module::~Module() {
    try {
        const Current current(*device_);
        (void)device_->driver().module_unload(handle_);
    } catch (const Error &) {
        // A forked child, or a process that is ending: nothing to unload.
    }
}

Function Module::function(const std::string &name) const {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    Function f;
    f.name_ = name;
    f.module_ = shared_from_this();
    const Result found = driver.module_function(&f.handle_, handle_, name.c_str());
    if (found == cuda::kNotFound)
        throw Error(SAC_E_NOT_FOUND, name,
                    format("%s has no kernel %s", source_.c_str(), name.c_str()));
    driver.check(found, name, "cannot find the kernel");
    const auto attribute = [&](int which) {
        int value = 0;
        driver.check(driver.function_attribute(&value, which, f.handle_), name,
                     "cannot ask what the kernel uses");
        return value;
    };
    f.info_.registers = attribute(cuda::kRegisters);
    f.info_.local_bytes = attribute(cuda::kLocal);
    f.info_.shared_bytes = attribute(cuda::kStaticShared);
    f.info_.threads_most = attribute(cuda::kThreadsMost);
    return f;
}

void Function::allow_shared(std::uint32_t bytes) const {
    const Current current(module_->device());
    const Driver &driver = module_->device().driver();
    driver.check(driver.function_set(handle_, cuda::kDynamicShared, static_cast<int>(bytes)),
                 name_, "the GPU does not have so much shared memory a block");
}

int Function::blocks_at_once(std::uint32_t threads, std::uint32_t shared_bytes) const {
    const Current current(module_->device());
    const Driver &driver = module_->device().driver();
    int blocks = 0;
    driver.check(
        driver.function_occupancy(&blocks, handle_, static_cast<int>(threads), shared_bytes),
        name_, "cannot ask how many blocks run at once");
    return blocks;
}

void Function::launch(const Launch &how, void **arguments) const {
    const Current current(module_->device());
    const Driver &driver = module_->device().driver();
    std::array<cuda::LaunchAttribute, 2> attributes{};
    cuda::LaunchConfig config{how.grid_x,
                              how.grid_y,
                              how.grid_z,
                              how.threads,
                              1,
                              1,
                              how.shared_bytes,
                              stream_handle(how.stream),
                              attributes.data(),
                              0};
    if (how.cluster != 0) {
        cuda::LaunchAttribute &a = attributes[config.count++];
        a.id = cuda::kLaunchCluster;
        a.cluster = {how.cluster, 1, 1};
    }
    if (how.overlap) {
        cuda::LaunchAttribute &a = attributes[config.count++];
        a.id = cuda::kLaunchOverlap;
        a.number = 1;
    }
    driver.check(driver.launch(&config, handle_, arguments, nullptr), name_,
                 "cannot launch the kernel");
}

}  // namespace sac::gpu
