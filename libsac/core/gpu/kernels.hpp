// SPDX-License-Identifier: Apache-2.0
// A kernel source with its macros, compiled for one architecture, or taken from the cache.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sac::gpu {

struct KernelSpec {
    std::string source;                                       // "resolve.cu": of sources()
    std::vector<std::pair<std::string, std::string>> macros;  // name, value
    std::string arch;                                         // "sm_90"

    KernelSpec &define(const std::string &name, std::int64_t value);
    std::string text() const;  // one line that tells specifications apart
};

struct Compiled {
    std::vector<std::uint8_t> cubin;
    std::string log;       // the compiler's, with what each kernel uses of the GPU
    std::string arch;      // compiled for; runs on the one that was asked for
    int nvrtc;             // 13000 for 13.0
    bool cached;           // it was in the cache
    std::string not_kept;  // why the cache could not be used: a sentence; else ""
};

// Needs NVRTC, no GPU. Headers are those of sources(). Throws Error: SAC_E_NOT_FOUND (no such
// source), SAC_E_ARG (a macro's name), SAC_E_GPU (no NVRTC; or the compiler refuses: its log).
Compiled compile(const KernelSpec &spec);

}  // namespace sac::gpu
