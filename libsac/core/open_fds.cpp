// SPDX-License-Identifier: Apache-2.0
#include "open_fds.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cinttypes>

#include "dax.hpp"
#include "error.hpp"
#include "owned_pool.hpp"
#include "superblock.hpp"

namespace sac {
namespace {

constexpr std::uint32_t kKnown = SAC_POOL_PREFAULT | SAC_POOL_SHARED | SAC_POOL_FORMAT;

// How many data extents the metadata names. More may be there: of an extension that a kill cut
// off. Read where it is mapped: devices cannot be read otherwise.
std::uint32_t extents_named(const Mapping &meta) {
    bool alone = false;
    const std::string &name = meta.extents().front().name;
    fmt::Superblock sb{};
    try {
        sb = read_superblock(meta.data(), name, &alone);
    } catch (const Error &) {
        meta.check_alive(0, fmt::kMetaSlab);
        throw;
    }
    return sb.extent_count;
}

// Devices may have several names.
bool same(const struct stat &a, const struct stat &b) noexcept {
    if (S_ISCHR(a.st_mode) && S_ISCHR(b.st_mode))
        return a.st_rdev == b.st_rdev;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

Extent take_extent(const sac_extent_fd &given) {
    Extent e;
    e.name = given.name ? given.name : "";
    if (e.name.empty())
        throw Error(SAC_E_ARG, "extent", "the extent has no name");
    e.fd = Fd(fcntl(given.fd, F_DUPFD_CLOEXEC, 3));
    if (!e.fd)
        throw_errno(e.name, "cannot take the fd");
    struct stat st;
    if (fstat(e.fd.get(), &st) != 0)
        throw_errno(e.name, "cannot stat it");
    const int flags = fcntl(e.fd.get(), F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) != O_RDWR)
        throw Error(SAC_E_ARG, e.name, e.name + " was not opened to read and write");
    if (given.flags & ~std::uint32_t{SAC_EXTENT_DIRTY})
        throw Error(SAC_E_ARG, e.name,
                    format("%s: unknown flags 0x%x", e.name.c_str(), unsigned{given.flags}));
    e.dirty = given.flags & SAC_EXTENT_DIRTY;
    e.weight = given.weight ? given.weight : 1;
    if (S_ISREG(st.st_mode)) {
        e.bytes = static_cast<std::uint64_t>(st.st_size);
    } else {
        const Dax dax = dax_device(e.fd.get(), e.name);
        e.bytes = dax.bytes, e.align = dax.align;
        e.dirty = true;  // the kernel never clears it
    }
    // Short files would fault instead of failing: refuse before mapping.
    if (e.bytes < 2 * fmt::kMetaSlab || e.bytes % fmt::kMetaSlab != 0)
        throw Error(SAC_E_CORRUPT, e.name,
                    format("%s has %" PRIu64 " bytes: it is truncated or no extent of a pool",
                           e.name.c_str(), e.bytes),
                    0, e.bytes);
    while (flock(e.fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            throw_errno(e.name, "cannot lock it");
        throw Error(SAC_E_BUSY, e.name,
                    e.name + " is in use by another process: close the pool there first",
                    EWOULDBLOCK);
    }
    e.locked = true;
    return e;
}

void check_other_file(const Extent &extent, std::span<const Extent> there) {
    struct stat mine, other;
    for (const Extent &e : there)
        if (fstat(extent.fd.get(), &mine) == 0 && fstat(e.fd.get(), &other) == 0 &&
            same(mine, other))
            throw Error(SAC_E_ARG, extent.name,
                        format("%s and %s are one file or device: each extent needs its own",
                               extent.name.c_str(), e.name.c_str()));
}

std::shared_ptr<Pool> Pool::from_fds(const sac_open_options &o) {
    if (o.flags & ~kKnown)
        throw Error(SAC_E_ARG, "pool", format("unknown pool flags 0x%x", o.flags));
    if (o.data_count == 0 || o.data_count > fmt::kMaxExtents)
        throw Error(
            SAC_E_ARG, "pool",
            format("%u data extents; 1 to %u are allowed", o.data_count, fmt::kMaxExtents));
    const bool create = o.flags & SAC_POOL_FORMAT;
    std::vector<Extent> metas, data;
    metas.push_back(take_extent(o.meta));
    auto m = std::make_unique<Mapping>(std::move(metas));
    std::uint32_t count = o.data_count;
    if (!create)
        count = std::min(count, extents_named(*m));
    for (std::uint32_t i = 0; i < count; ++i) {
        Extent e = take_extent(o.data[i]);
        check_other_file(e, m->extents());
        check_other_file(e, data);
        data.push_back(std::move(e));
    }
    auto d = std::make_unique<Mapping>(std::move(data));
    if (o.flags & SAC_POOL_PREFAULT)
        d->prefault();
    if (create)
        Media::create(*m, *d);
    return std::make_shared<OwnedPool>(std::move(m), std::move(d), Fd(),
                                       o.flags & SAC_POOL_SHARED);
}

}  // namespace sac
