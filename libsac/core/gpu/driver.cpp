// SPDX-License-Identifier: Apache-2.0
#include "driver.hpp"

#include <cstdlib>
#include <mutex>

#include "error.hpp"
#include "fork.hpp"
#include "library.hpp"

namespace sac::gpu {
namespace {

constexpr const char *kWhatHelps = "Install NVIDIA's driver (580 or newer for CUDA 13), and in "
                                   "a container give it the GPU (docker run --gpus all).";

constexpr const char *kSetRight =
    "Set it right, or unset it: then the system's libcuda.so.1 is used.";

std::mutex load_mutex;
// Never destroyed: threads may outlive static objects.
const Driver *loaded = nullptr;

}  // namespace

const Driver &Driver::get() {
    const std::lock_guard lock(load_mutex);
    if (!loaded)
        loaded = new Driver;
    if (loaded->forked())
        throw Error(SAC_E_FORKED, loaded->path(),
                    "The parent process has initialised CUDA; a forked child cannot use it. "
                    "Start workers with the method 'spawn', or before CUDA is used.");
    return *loaded;
}

Driver::Driver() : epoch_(fork_epoch()) {
    const char *const setting = std::getenv("SAC_LIBCUDA");
    const bool given = setting && *setting;
    const std::string name = given ? setting : "libcuda.so.1";
    const Library library({name});
    path_ = library.name();
    if (path_.empty())
        throw Error(SAC_E_GPU, name,
                    given ? format("SAC_LIBCUDA names a CUDA driver that cannot be loaded "
                                   "(%s). %s",
                                   library.failures().c_str(), kSetRight)
                          : format("The CUDA driver is not there (%s). %s",
                                   library.failures().c_str(), kWhatHelps));
    if (!library.symbol("cuInit"))
        throw Error(SAC_E_GPU, path_,
                    format("%s%s is no CUDA driver: it has no cuInit. %s",
                           given ? "SAC_LIBCUDA: " : "", path_.c_str(),
                           given ? kSetRight : kWhatHelps));
    const auto find = [&](auto &function, const char *symbol) {
        void *const found = library.symbol(symbol);
        if (!found)
            throw Error(SAC_E_GPU, path_,
                        format("%s: the CUDA driver has no %s: it is too old. %s",
                               path_.c_str(), symbol, kWhatHelps));
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
#define SAC_CUDA_FIND(name, symbol, parameters) find(this->name, #symbol);
    SAC_CUDA_FUNCTIONS(SAC_CUDA_FIND)
#undef SAC_CUDA_FIND
    check(init(0), path_, "cannot initialise the CUDA driver",
          "Look whether nvidia-smi shows the GPU.");
}

std::string Driver::text(Result result) const {
    const char *name = nullptr, *words = nullptr;
    if (error_name(result, &name) != cuda::kSuccess || !name)
        return format("CUDA error %d", result);
    if (error_text(result, &words) != cuda::kSuccess || !words)
        return name;
    return format("%s, %s", name, words);
}

void Driver::check(Result result, const std::string &object, const char *what,
                   const char *advice) const {
    if (result == cuda::kSuccess)
        return;
    std::string message = format("%s: %s: %s.", object.c_str(), what, text(result).c_str());
    if (*advice != '\0') {
        message += ' ';
        message += advice;
    }
    throw Error(SAC_E_GPU, object, std::move(message), result);
}

bool Driver::forked() const noexcept { return epoch_ != fork_epoch(); }

}  // namespace sac::gpu
