// SPDX-License-Identifier: Apache-2.0
// What the tests of pools share: handles that close themselves and small layouts. Failures
// are exceptions, which check.hpp reports; programs without check.hpp can use this file too.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "handles.hpp"
#include "owned_pool.hpp"
#include "sac.h"

namespace kit {

// What is behind a handle of a pool of this process.
inline sac::OwnedNamespace &owned(sac::Namespace &ns) {
    return dynamic_cast<sac::OwnedNamespace &>(ns);
}
inline sac::OwnedNamespace &owned(sac_ns *ns) { return owned(*ns->it); }

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

inline void must(int status, const char *call) {
    if (status != SAC_OK) {
        throw std::runtime_error(std::string(call) + ": " + sac_status_name(status) + " on '" +
                                 sac_last_error()->object + "': " + sac_last_error()->message);
    }
}
#define MUST(call) kit::must((call), #call)

template <auto Close> struct Closer {
    template <class T> void operator()(T *handle) const noexcept { Close(handle); }
};
using PoolHandle = std::unique_ptr<sac_pool, Closer<sac_pool_close>>;
using NsHandle = std::unique_ptr<sac_ns, Closer<sac_ns_close>>;
using PrefixHandle = std::unique_ptr<sac_prefix, Closer<sac_prefix_close>>;
using PutHandle = std::unique_ptr<sac_put, Closer<sac_put_close>>;
using SeqHandle = std::unique_ptr<sac_seq, Closer<sac_seq_close>>;

// Of a file; UINT64_MAX: there is none.
inline std::uint64_t size_of(const std::string &path) {
    struct stat st{};
    return stat(path.c_str(), &st) == 0 ? static_cast<std::uint64_t>(st.st_size) : UINT64_MAX;
}

// A new directory, removed with its files (a pool's directory has no folders).
class Directory {
public:
    Directory() {
        const char *const base = std::getenv("TMPDIR");
        std::string name = std::string(base ? base : "/tmp") + "/sac-test-XXXXXX";
        if (!mkdtemp(name.data())) {
            throw std::runtime_error("mkdtemp " + name);
        }
        path_ = name;
    }
    ~Directory() {
        empty(path_ + "/pool");
        rmdir((path_ + "/pool").c_str());
        empty(path_);
        rmdir(path_.c_str());
    }
    Directory(const Directory &) = delete;
    Directory &operator=(const Directory &) = delete;
    std::string pool() const { return path_ + "/pool"; }
    std::string file(const char *name) const { return pool() + '/' + name; }

    static void empty(const std::string &path) {
        DIR *const dir = opendir(path.c_str());
        while (const dirent *const entry = dir ? readdir(dir) : nullptr) {
            unlink((path + '/' + entry->d_name).c_str());
        }
        if (dir) {
            closedir(dir);
        }
    }

private:
    std::string path_;
};

// ---- layouts

inline sac_plane plane(const char *name, std::uint64_t layers, std::uint32_t row_bytes) {
    sac_plane p{};
    std::strncpy(p.name, name, sizeof p.name - 1);
    p.layers[0] = layers;
    p.heads = 1;
    p.tokens_per_row = 1;
    p.row_bytes = row_bytes;
    return p;
}

struct Layout {
    std::uint32_t page_tokens = 0;
    std::vector<sac_plane> planes;
    sac_layout get() const {
        return {sizeof(sac_layout), page_tokens, static_cast<std::uint32_t>(planes.size()),
                planes.data()};
    }
};

// One plane, one layer: a page of page_tokens rows of row_bytes.
inline Layout plain(std::uint32_t page_tokens, std::uint32_t row_bytes) {
    return {page_tokens, {plane("kv", 1, row_bytes)}};
}

// Two planes with heads and a pitch, a window over window_tokens, and a state.
inline Layout rich(std::uint32_t page_tokens, std::uint32_t window_tokens, bool state = true) {
    Layout l{page_tokens, {plane("k", 0x5, 48), plane("index", 0x2, 24)}};
    l.planes[0].heads = 2;
    l.planes[1].row_pitch = 32;
    l.planes[1].group = 1;
    if (window_tokens) {
        l.planes.push_back(plane("window", 0x1, 40));
        l.planes.back().kind = SAC_PLANE_WINDOW;
        l.planes.back().group = 2;
        l.planes.back().window_tokens = window_tokens;
    }
    if (state) {
        l.planes.push_back(plane("state", 0x3, 72));
        l.planes.back().kind = SAC_PLANE_STATE;
        l.planes.back().group = 3;
    }
    return l;
}

// ---- pools and namespaces

inline int open_pool(PoolHandle &out, std::uint64_t bytes, const char *path = nullptr,
                     std::uint32_t extents = 1, std::uint32_t flags = 0) {
    sac_pool_options o{};
    o.struct_size = sizeof o;
    o.bytes = bytes, o.path = path, o.extents = extents, o.flags = flags;
    sac_pool *pool = nullptr;
    const int status = sac_pool_embedded(&o, &pool);
    out.reset(pool);
    return status;
}

inline PoolHandle pool(std::uint64_t bytes, const std::string &path = {},
                       std::uint32_t extents = 1) {
    PoolHandle out;
    must(open_pool(out, bytes, path.empty() ? nullptr : path.c_str(), extents), "open pool");
    return out;
}

inline sac_ns_options ns_options(const sac_layout *layout, std::uint64_t max_bytes = 0,
                                 std::uint32_t flags = 0) {
    sac_ns_options o{};
    o.struct_size = sizeof o;
    o.layout = layout, o.max_bytes = max_bytes, o.flags = flags;
    return o;
}

inline NsHandle space(const PoolHandle &pool, const char *name, const Layout &layout,
                      std::uint64_t max_bytes = 0, std::uint32_t flags = 0) {
    const sac_layout l = layout.get();
    const sac_ns_options o = ns_options(&l, max_bytes, flags);
    sac_ns *ns = nullptr;
    must(sac_ns_open(pool.get(), name, &o, &ns), "sac_ns_open");
    return NsHandle(ns);
}

inline sac_ns_stats stats(const NsHandle &ns) {
    sac_ns_stats s{};
    must(sac_ns_get_stats(ns.get(), &s), "sac_ns_get_stats");
    return s;
}

inline sac_pool_info info(const PoolHandle &pool) {
    sac_pool_info i{};
    must(sac_pool_get_info(pool.get(), &i), "sac_pool_get_info");
    return i;
}

}  // namespace kit
