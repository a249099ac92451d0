// SPDX-License-Identifier: Apache-2.0
// Machines without CUDA, or with the wrong one: errors that say what to do.
#include <fstream>

#include "check.hpp"
#include "gpu/kernels.hpp"
#include "gpu_kit.hpp"
#include "sac_gpu.h"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

}  // namespace

TEST(without_a_driver) {
    setenv("SAC_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    sac_gpu *gpu = nullptr;
    CHECK_EQ(sac_gpu_open(0, &gpu), as_int(SAC_E_GPU));
    CHECK(gpu == nullptr);
    const std::string text = sac_last_error()->message;
    CHECK(gpu_kit::says(text, "/nowhere/libcuda.so.1"));
    CHECK(gpu_kit::says(text, "SAC_LIBCUDA names"));
    CHECK_EQ(std::string(sac_status_name(SAC_E_GPU)), "SAC_E_GPU");
}

TEST(what_is_no_driver) {
    setenv("SAC_LIBCUDA", "libc.so.6", 1);
    CHECK_THROWS(SAC_E_GPU, sac::gpu::Driver::get());
    sac_gpu *gpu = nullptr;
    CHECK_EQ(sac_gpu_open(0, &gpu), as_int(SAC_E_GPU));
    CHECK(gpu_kit::says(sac_last_error()->message, "libc.so.6 is no CUDA driver"));
}

TEST(without_nvrtc) {
    setenv("SAC_NVRTC", "/nowhere/libnvrtc.so.13", 1);
    sac_gpu_compiled out;
    CHECK_EQ(sac_gpu_compile("args.h", "sm_90", nullptr, 0, &out, nullptr, 0),
             as_int(SAC_E_GPU));
    CHECK(gpu_kit::says(sac_last_error()->message, "pip install nvidia-cuda-nvrtc"));
    CHECK(gpu_kit::says(sac_last_error()->message, "SAC_NVRTC"));
}

// What was not there is looked for again: no failure is remembered.
TEST(found_later) {
    setenv("SAC_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    CHECK_THROWS(SAC_E_GPU, sac::gpu::Driver::get());
    gpu_kit::use_fake();
    CHECK_EQ(sac::gpu::Driver::get().path(), std::string(SAC_FAKE_CUDA));
    // From now on it stays.
    setenv("SAC_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    CHECK_EQ(sac::gpu::Driver::get().path(), std::string(SAC_FAKE_CUDA));
}

TEST(no_such_gpu) {
    gpu_kit::use_fake();
    sac_gpu *gpu = nullptr;
    CHECK_EQ(sac_gpu_open(1, &gpu), as_int(SAC_E_RANGE));
    CHECK(gpu_kit::says(sac_last_error()->message, "CUDA sees 1"));
    CHECK_EQ(sac_gpu_open(-1, &gpu), as_int(SAC_E_RANGE));
    const gpu_kit::Turned none("devices", 0);
    CHECK_EQ(sac_gpu_open(0, &gpu), as_int(SAC_E_RANGE));
}

TEST(null_arguments) {
    CHECK_EQ(sac_gpu_open(0, nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_gpu_get_info(nullptr, nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_gpu_register(nullptr, nullptr, 0, nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_gpu_registration_wait(nullptr, 0), as_int(SAC_E_ARG));
    CHECK_EQ(sac_gpu_registration_get_info(nullptr, nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_gpu_unregister(nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_gpu_set_nvrtc(nullptr), as_int(SAC_E_ARG));
    CHECK_EQ(sac_gpu_compile(nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0),
             as_int(SAC_E_ARG));
    CHECK_EQ(sac_gpu_close(nullptr), as_int(SAC_OK));
    CHECK_EQ(sac_gpu_registration_close(nullptr), as_int(SAC_OK));
}
