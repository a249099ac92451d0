// SPDX-License-Identifier: Apache-2.0
// Compiled kernels on disk. What lies there is loaded into the GPU, so nothing that another
// user could have written is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sha256.hpp"

namespace sac::gpu {

class KernelCache {
public:
    struct Entry {
        std::vector<std::uint8_t> cubin;
        std::string log;
    };

    // $XDG_CACHE_HOME/libsac/kernels, or ~/.cache/libsac/kernels; "" where neither is known.
    static std::string default_folder();
    explicit KernelCache(std::string folder) : folder_(std::move(folder)) {}

    // The entry; none where there is none, where it is damaged, or where another user could
    // have written it.
    std::optional<Entry> load(const Sha256::Digest &key) const;
    // Writes it beside, then renames it: a reader sees all of it or nothing. Returns "", or a
    // sentence about why it was not kept. Makes the folder with mode 0700.
    std::string store(const Sha256::Digest &key, const Entry &entry) const;

private:
    std::string folder_;
};

}  // namespace sac::gpu
