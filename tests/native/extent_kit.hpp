// SPDX-License-Identifier: Apache-2.0
// Extents by their fds: memfds, files or the devices that are lent to the tests.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "kit_pages.hpp"
#include "sac_server.h"

namespace kit {

// A memfd, all of one byte.
inline sac::Fd memory(std::uint64_t bytes, int content = 0) {
    sac::Fd fd(memfd_create("extent", MFD_CLOEXEC));
    must(fd && ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 ? 0 : SAC_E_SYSTEM, "memfd");
    const std::vector<std::uint8_t> some(kMiB, static_cast<std::uint8_t>(content));
    for (std::uint64_t at = 0; content != 0 && at < bytes; at += some.size())
        must(pwrite(fd.get(), some.data(), some.size(), static_cast<off_t>(at)) ==
                     static_cast<ssize_t>(some.size())
                 ? 0
                 : SAC_E_SYSTEM,
             "pwrite");
    return fd;
}

inline std::vector<std::uint8_t> content(const sac::Fd &fd, std::uint64_t offset,
                                         std::uint64_t bytes) {
    std::vector<std::uint8_t> out(bytes);
    must(pread(fd.get(), out.data(), bytes, static_cast<off_t>(offset)) ==
                 static_cast<ssize_t>(bytes)
             ? 0
             : SAC_E_SYSTEM,
         "pread");
    return out;
}

inline bool all(const std::vector<std::uint8_t> &bytes, int value) {
    return std::all_of(bytes.begin(), bytes.end(), [&](auto b) { return b == value; });
}

// A pool's extents: the metadata, then the data.
struct Extents {
    std::vector<sac::Fd> fds;
    std::vector<std::string> names;
    std::vector<std::uint16_t> weights;

    // Memory that is all of one byte.
    Extents(std::uint64_t meta, const std::vector<std::uint64_t> &data, int value = 0) {
        add(memory(meta, value), "meta");
        for (std::size_t i = 0; i < data.size(); ++i)
            add(memory(data[i], value), "data." + std::to_string(i));
    }
    Extents() = default;
    void add(sac::Fd fd, std::string name) {
        fds.push_back(std::move(fd)), names.push_back(std::move(name));
        weights.push_back(0);
    }

    int open(PoolHandle &out, std::uint32_t flags, std::uint16_t extent_flags = 0) const {
        std::vector<sac_extent_fd> all;
        for (std::size_t i = 0; i < fds.size(); ++i)
            all.push_back({fds[i].get(), extent_flags, weights[i], names[i].c_str()});
        sac_open_options o{};
        o.struct_size = sizeof o;
        o.flags = flags, o.meta = all.front(), o.data = all.data() + 1;
        o.data_count = static_cast<std::uint32_t>(all.size() - 1);
        sac_pool *pool = nullptr;
        const int status = sac_pool_open_fds(&o, &pool);
        out.reset(pool);
        return status;
    }
    PoolHandle pool(std::uint32_t flags = 0, std::uint16_t extent_flags = 0) const {
        PoolHandle out;
        must(open(out, flags, extent_flags), "sac_pool_open_fds");
        return out;
    }
};

inline int gather_row(const NsHandle &ns, const PrefixHandle &prefix, std::int64_t row,
                      std::vector<std::uint8_t> &out) {
    out.resize(ns->it->geometry().planes[0].row_bytes);
    sac_gather_req r{};
    r.prefix = prefix.get(), r.index = &row, r.index_bytes = 8, r.count = 1, r.dst = out.data();
    return sac_gather(ns.get(), &r, 1, 0, 1, nullptr);
}

}  // namespace kit
