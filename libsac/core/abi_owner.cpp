// SPDX-License-Identifier: Apache-2.0
// sac_server.h: pools of this process, as their daemon sees them.
#include <algorithm>
#include <vector>

#include "abi.hpp"
#include "owned_pool.hpp"
#include "sac_server.h"

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

sac_extent_info info(const std::string &name, std::uint64_t bytes, std::uint64_t free) {
    sac_extent_info out{};
    sac::abi::copy_text(out.name, sizeof out.name, name);
    out.bytes = bytes, out.free_bytes = free;
    return out;
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
        const auto slabs = media.extent_slabs(), free = media.extent_free();
        std::vector<sac_extent_info> all;
        // One that is being added at this moment may be in one list and not yet in the other.
        const auto &extents = media.data().extents();
        for (std::size_t i = 0; i < std::min({slabs.size(), free.size(), extents.size()}); ++i)
            all.push_back(info(extents[i].name,
                               (slabs[i] - 1) * sac::fmt::kDataSlab,  // 0: the superblock's
                               free[i] * sac::fmt::kDataSlab));
        all.push_back(info(media.meta().extents().front().name, media.superblock().bytes,
                           media.free_meta_bytes()));
        const std::uint64_t room = out ? *count : 0;
        *count = all.size();
        std::copy_n(all.begin(), std::min<std::uint64_t>(room, all.size()), out);
    });
}

}  // extern "C"
