// SPDX-License-Identifier: Apache-2.0
// sac_server.h: pools of this process, as their daemon sees them.
#include <algorithm>
#include <vector>

#include "abi.hpp"
#include "owned_pool.hpp"
#include "sac_server.h"
#include "scrub.hpp"

namespace {

using sac::abi::guarded;
using sac::abi::need;
using sac::abi::need_struct;

sac::OwnedPool &owned(sac_pool *pool) {
    need(pool, "pool");
    auto *const it = dynamic_cast<sac::OwnedPool *>(pool->it.get());
    if (!it)
        throw sac::Error(SAC_E_ARG, "pool", "the pool belongs to another process");
    return *it;
}

sac_extent_info info(const sac::Extent &e, std::uint64_t bytes, std::uint64_t free) {
    sac_extent_info out{};
    sac::abi::copy_text(out.name, sizeof out.name, e.name);
    out.bytes = bytes, out.free_bytes = free;
    out.align = e.align, out.weight = 1;
    return out;
}

std::uint32_t number_of(std::int32_t extent) {
    if (extent < 0 && extent != SAC_EXTENT_META)
        throw sac::Error(SAC_E_ARG, "extent", sac::format("there is no extent %d", extent));
    return extent < 0 ? sac::Media::kMetadata : static_cast<std::uint32_t>(extent);
}

}  // namespace

extern "C" {

int sac_ns_open_for(sac_pool *pool, const char *name, const sac_ns_options *options,
                    uint32_t uid, uint32_t gid, sac_ns **out) {
    return guarded([&] {
        need(name, "name"), need_struct(options, "options"), need(out, "out");
        *out = new sac_ns{owned(pool).open(name, *options, uid, gid)};
    });
}

int sac_pool_extents(sac_pool *pool, sac_extent_info *out, uint64_t *count) {
    return guarded([&] {
        need(count, "count");
        const sac::Media &media = owned(pool).media();
        media.check_usable();
        const auto states = media.states();
        std::vector<sac_extent_info> all;
        // One that is being added at this moment may be in one list and not yet in the other.
        const auto &extents = media.data().extents();
        for (std::size_t i = 0; i < std::min(states.size(), extents.size()); ++i) {
            const sac::Media::State &s = states[i];
            all.push_back(info(extents[i],
                               (s.slabs - 1) * sac::fmt::kDataSlab,  // 0: the superblock's
                               s.free * sac::fmt::kDataSlab));
            all.back().bad_bytes = s.bad * sac::fmt::kDataSlab;
            all.back().weight = s.weight, all.back().lost = s.lost;
        }
        all.push_back(info(media.meta().extents().front(), media.superblock().bytes,
                           media.free_meta_bytes()));
        all.back().lost = media.meta().guard().faults() != 0;
        const std::uint64_t room = out ? *count : 0;
        *count = all.size();
        std::copy_n(all.begin(), std::min<std::uint64_t>(room, all.size()), out);
    });
}

int sac_pool_set_weights(sac_pool *pool, const uint32_t *weights, uint64_t count) {
    return guarded([&] {
        need(weights, "weights");
        const sac::OwnedPool &it = owned(pool);
        it.media().check_usable();
        it.media().set_weights({weights, count});
    });
}

int sac_pool_quarantine(sac_pool *pool, int32_t extent, uint64_t offset, uint64_t bytes,
                        uint64_t *pages) {
    return guarded([&] {
        const std::uint64_t n = owned(pool).quarantine(number_of(extent), offset, bytes);
        if (pages)
            *pages = n;
    });
}

int sac_pool_check_writable(sac_pool *pool) {
    return guarded([&] { owned(pool).media().check_writable(); });
}

int sac_pool_lose(sac_pool *pool, int32_t extent, uint64_t *pages) {
    return guarded([&] {
        sac::OwnedPool &it = owned(pool);
        std::vector<std::uint32_t> extents;
        if (extent == SAC_EXTENT_ALL) {
            const std::size_t count = it.media().states().size();
            for (std::uint32_t i = 0; i < count; ++i)
                extents.push_back(i);
            extents.push_back(sac::Media::kMetadata);
        } else {
            extents.push_back(number_of(extent));
        }
        const std::uint64_t n = it.lose(extents);
        if (pages)
            *pages = n;
    });
}

int sac_scrub(const sac_extent_fd *extent, uint64_t offset, uint64_t bytes,
              int (*go_on)(void *arg, uint64_t done), void *arg) {
    return guarded([&] {
        need(extent, "extent");
        sac::scrub(*extent, offset, bytes, [&](std::uint64_t done) {
            return go_on == nullptr || go_on(arg, done) != 0;
        });
    });
}

}  // extern "C"
