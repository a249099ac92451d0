// SPDX-License-Identifier: Apache-2.0
// Keys, page contents that follow from the key, and a page's way into a pool and back.
#pragma once

#include <algorithm>
#include <array>
#include <shared_mutex>

#include "kit.hpp"

namespace kit {

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
    const std::uint64_t at =
        mix(seed ^ (std::uint64_t{plane} << 48 | std::uint64_t{layer} << 32 |
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
            fill_row(seed, plane, layer, h, r,
                     out.data() + (std::size_t{h} * rows + r) * p.row_bytes, p.row_bytes);
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
                const auto rows =
                    page_rows(g, seed_of(keys + missing[i] * SAC_KEY_BYTES), p, l);
                const sac_scatter_req req{p,
                                          l,
                                          i,
                                          1,
                                          rows.data(),
                                          rows.size(),
                                          std::uint64_t{g.at[p].rows} * g.planes[p].row_bytes,
                                          0};
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
    const auto lock = prefix->it->lock();
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
