// SPDX-License-Identifier: Apache-2.0
// What the tests of pools share: handles that close themselves, small layouts, keys, and
// page contents that follow from the key. Failures are exceptions; check.hpp reports them,
// and programs without check.hpp can use this file too.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "handles.hpp"
#include "namespace.hpp"
#include "sac.h"

namespace kit {

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

// ---- keys and contents

constexpr std::uint64_t mix(std::uint64_t x) noexcept {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

using Bytes32 = std::array<std::uint8_t, SAC_KEY_BYTES>;

inline Bytes32 key(std::uint64_t n) {
    Bytes32 out;
    for (std::uint64_t i = 0; i < 4; ++i) {
        const std::uint64_t w = mix(n * 4 + i + 1);
        std::memcpy(out.data() + i * 8, &w, 8);
    }
    return out;
}

inline std::vector<std::uint8_t> keys(std::uint64_t first, std::uint64_t count) {
    std::vector<std::uint8_t> out;
    for (std::uint64_t i = first; i < first + count; ++i) {
        const Bytes32 k = key(i);
        out.insert(out.end(), k.begin(), k.end());
    }
    return out;
}

// What the rows of a key's page hold: (plane, layer, head, row, byte) -> byte.
inline std::uint64_t seed_of(const std::uint8_t *key) noexcept {
    std::uint64_t s;
    std::memcpy(&s, key, 8);
    return s;
}
inline void fill_row(std::uint64_t seed, std::uint32_t plane, std::uint32_t layer,
                     std::uint32_t head, std::uint64_t row, std::uint8_t *out,
                     std::uint32_t bytes) noexcept {
    const std::uint64_t at = mix(seed ^ (std::uint64_t{plane} << 48 | std::uint64_t{layer} << 32 |
                                         std::uint64_t{head} << 24 | row));
    for (std::uint32_t i = 0; i < bytes; i += 8) {
        const std::uint64_t w = mix(at + i);
        std::memcpy(out + i, &w, std::min<std::uint32_t>(8, bytes - i));
    }
}
// One page of a plane and layer: heads x rows x row_bytes, dense.
inline std::vector<std::uint8_t> page_rows(const sac::Geometry &g, std::uint64_t seed,
                                           std::uint32_t plane, std::uint32_t layer) {
    const sac_plane &p = g.planes[plane];
    const std::uint32_t rows = g.at[plane].rows;
    std::vector<std::uint8_t> out(std::size_t{p.heads} * rows * p.row_bytes);
    for (std::uint32_t h = 0; h < p.heads; ++h) {
        for (std::uint32_t r = 0; r < rows; ++r) {
            fill_row(seed, plane, layer, h, r, out.data() + (std::size_t{h} * rows + r) * p.row_bytes,
                     p.row_bytes);
        }
    }
    return out;
}

template <class Fn> void each_pair(const sac::Geometry &g, Fn &&fn) {
    for (std::uint32_t p = 0; p < g.planes.size(); ++p) {
        for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l) {
            if (g.at[p].ordinal[l] >= 0) {
                fn(p, l);
            }
        }
    }
}

// Writes everything that is missing, from each page's key.
inline int write_missing(sac_put *put, const sac::Geometry &g, const std::uint8_t *keys) {
    int status = SAC_OK;
    for (std::uint32_t part = 0; part < 2; ++part) {
        std::uint64_t n = 0;
        must(sac_put_missing(put, part, nullptr, &n), "sac_put_missing");
        std::vector<std::uint64_t> missing(n);
        must(sac_put_missing(put, part, missing.data(), &n), "sac_put_missing");
        each_pair(g, [&](std::uint32_t p, std::uint32_t l) {
            if (g.at[p].part != part) {
                return;
            }
            for (std::uint64_t i = 0; i < n && status == SAC_OK; ++i) {
                const auto rows = page_rows(g, seed_of(keys + missing[i] * SAC_KEY_BYTES), p, l);
                const sac_scatter_req req{p, l, i, 1, rows.data(), rows.size(),
                                          std::uint64_t{g.at[p].rows} * g.planes[p].row_bytes, 0};
                status = sac_put_write(put, &req, 1, 1);
            }
        });
    }
    return status;
}

struct PutOptions : sac_put_options {
    PutOptions() : sac_put_options{} {
        struct_size = sizeof(sac_put_options);
        first_tail = UINT64_MAX;
    }
};

inline int begin(const NsHandle &ns, const std::vector<std::uint8_t> &keys, PutHandle &out,
                 const sac_put_options &options = PutOptions()) {
    sac_put *put = nullptr;
    const int status =
        sac_put_begin(ns.get(), keys.data(), keys.size() / SAC_KEY_BYTES, &options, &put);
    out.reset(put);
    return status;
}

// Begin, write, commit; the bodies that this put made visible.
inline std::uint64_t put(const NsHandle &ns, const std::vector<std::uint8_t> &keys,
                         const sac_put_options &options = PutOptions()) {
    PutHandle p;
    must(begin(ns, keys, p, options), "sac_put_begin");
    must(write_missing(p.get(), ns->it->geometry(), keys.data()), "sac_put_write");
    std::uint64_t n = 0;
    must(sac_put_commit(p.get(), &n), "sac_put_commit");
    return n;
}

inline PrefixHandle pin(const NsHandle &ns, const std::vector<std::uint8_t> &keys) {
    sac_prefix *prefix = nullptr;
    must(sac_pin(ns.get(), keys.data(), keys.size() / SAC_KEY_BYTES, &prefix), "sac_pin");
    return PrefixHandle(prefix);
}

inline std::uint64_t pages(const PrefixHandle &prefix) {
    std::uint64_t n = 0;
    must(sac_prefix_pages(prefix.get(), &n), "sac_prefix_pages");
    return n;
}

inline std::uint64_t longest(const NsHandle &ns, const std::vector<std::uint8_t> &keys) {
    std::uint64_t n = 0;
    must(sac_longest(ns.get(), keys.data(), keys.size() / SAC_KEY_BYTES, &n), "sac_longest");
    return n;
}

inline std::uint64_t hits(const NsHandle &ns, const std::vector<std::uint8_t> &keys) {
    std::uint64_t n = 0;
    must(sac_lookup(ns.get(), keys.data(), keys.size() / SAC_KEY_BYTES, nullptr, &n),
         "sac_lookup");
    return n;
}

inline std::uint64_t evict(const NsHandle &ns, std::uint64_t count) {
    std::uint64_t n = 0;
    must(sac_evict(ns.get(), count, &n), "sac_evict");
    return n;
}

// Whether all rows of a pinned page that are held are those of its key. at: of the parts.
inline bool page_intact(const sac::Geometry &g, std::uint32_t part, const std::uint8_t *at,
                        const std::uint8_t *key) {
    bool good = true;
    each_pair(g, [&](std::uint32_t p, std::uint32_t l) {
        if (g.at[p].part != part) {
            return;
        }
        const auto want = page_rows(g, seed_of(key), p, l);
        const sac_plane &plane = g.planes[p];
        const std::uint64_t rows = std::uint64_t{plane.heads} * g.at[p].rows;
        for (std::uint64_t r = 0; r < rows && good; ++r) {
            good = std::memcmp(at + g.offset(p, l) + r * plane.row_pitch,
                               want.data() + r * plane.row_bytes, plane.row_bytes) == 0;
        }
    });
    return good;
}

// Gathers all rows of a prefix, plane by plane, layer by layer, and compares; window and
// state planes where they are held.
inline bool intact(const NsHandle &ns, const PrefixHandle &prefix,
                   const std::vector<std::uint8_t> &keys) {
    const sac::Geometry &g = ns->it->geometry();
    const sac::Prefix &p = *prefix->it;
    const std::shared_lock lock(p.mutex());
    for (std::uint64_t i = 0; i < p.pages(); ++i) {
        for (const std::uint32_t part : {sac::kBodyPart, sac::kTailPart}) {
            const std::uint8_t *const at =
                part == sac::kTailPart && !g.has_tail() ? nullptr : p.addresses(part)[i];
            if (at && !page_intact(g, part, at, keys.data() + i * SAC_KEY_BYTES)) {
                return false;
            }
        }
    }
    return true;
}

}  // namespace kit
