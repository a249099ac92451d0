// SPDX-License-Identifier: Apache-2.0
// NVRTC, the run-time compiler, found at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sources.hpp"

namespace sac::gpu {

class Nvrtc {
public:
    // Loads it at the first call and keeps it: SAC_NVRTC, the path that was set, then
    // libnvrtc.so.13 and .12. Throws Error(SAC_E_GPU), with what to install.
    static const Nvrtc &get();
    // A path to try before the system's. No effect once it is loaded.
    static void set_path(const std::string &path);

    int version() const noexcept { return version_; }  // 13000 for 13.0
    const std::string &path() const noexcept { return path_; }
    // The architecture to compile for so that the code runs on arch: itself, or the nearest
    // below of the same family. Throws Error(SAC_E_GPU) where this NVRTC knows none.
    std::string nearest(const std::string &arch) const;

    struct Result {
        std::vector<std::uint8_t> cubin;
        std::string log;
    };
    // Throws Error(SAC_E_GPU) with the log.
    Result compile(const Source &source, const std::vector<std::string> &options) const;

private:
    Nvrtc();
    void check(int result, const std::string &object, const char *what) const;

    struct Functions;
    const Functions *f_;
    std::string path_;
    int version_ = 0;
    std::vector<int> archs_;  // ascending: 90 for sm_90
};

}  // namespace sac::gpu
