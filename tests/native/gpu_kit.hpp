// SPDX-License-Identifier: Apache-2.0
// What the tests of the GPU's side share: the fake driver with its knobs, a folder for the
// kernel cache, children. Include check.hpp before.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "gpu/device.hpp"
#include "in_child.hpp"

namespace gpu_kit {

// A new folder, gone with all in it.
class Folder {
public:
    Folder() {
        std::string name = (std::filesystem::temp_directory_path() / "sac-gpu-XXXXXX").string();
        CHECK(mkdtemp(name.data()) != nullptr);
        path = name;
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    std::filesystem::path path;
};

// The fake driver and NVRTC are those of the process from now on.
inline void use_fake() {
    setenv("SAC_LIBCUDA", SAC_FAKE_CUDA, 1);
    setenv("SAC_NVRTC", SAC_FAKE_CUDA, 1);
}

template <class F> F symbol(const char *name) {
    void *const library = dlopen(SAC_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    void *const found = dlsym(library, name);
    CHECK(found != nullptr);
    return reinterpret_cast<F>(found);
}
inline long get(const char *knob) {
    static const auto function = symbol<long (*)(const char *)>("fake_cuda_get");
    return function(knob);
}
inline void set(const char *knob, long value) {
    static const auto function = symbol<void (*)(const char *, long)>("fake_cuda_set");
    function(knob, value);
}
// A knob turned for a while.
class Turned {
public:
    Turned(const char *knob, long value) : knob_(knob), before_(get(knob)) { set(knob, value); }
    ~Turned() { set(knob_, before_); }
    Turned(const Turned &) = delete;
    Turned &operator=(const Turned &) = delete;

private:
    const char *const knob_;
    const long before_;
};

inline std::shared_ptr<sac::gpu::Device> device() {
    use_fake();
    return sac::gpu::Device::open(0);
}

inline bool says(const std::string &text, const char *part) {
    return text.find(part) != std::string::npos;
}

}  // namespace gpu_kit
