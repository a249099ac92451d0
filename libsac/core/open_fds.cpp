// SPDX-License-Identifier: Apache-2.0
#include "open_fds.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>

#include "error.hpp"
#include "owned_pool.hpp"
#include "superblock.hpp"

namespace sac {
namespace {

constexpr std::uint32_t kKnown = SAC_POOL_PREFAULT | SAC_POOL_SHARED | SAC_POOL_FORMAT;

// How many data extents the metadata names. More may be there: of an extension that a kill cut
// off.
std::uint32_t extents_named(const Extent &meta) {
    std::vector<std::uint8_t> head(2 * sizeof(fmt::Superblock));
    const ssize_t n = pread(meta.fd.get(), head.data(), head.size(), 0);
    if (n != static_cast<ssize_t>(head.size()))
        throw_errno(meta.name, "cannot read the superblock");
    bool alone = false;
    return read_superblock(head.data(), meta.name, &alone).extent_count;
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
    if (!S_ISREG(st.st_mode))
        throw Error(SAC_E_ARG, e.name, e.name + " is not a file");
    const int flags = fcntl(e.fd.get(), F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) != O_RDWR)
        throw Error(SAC_E_ARG, e.name, e.name + " was not opened to read and write");
    e.bytes = static_cast<std::uint64_t>(st.st_size);
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
            mine.st_dev == other.st_dev && mine.st_ino == other.st_ino)
            throw Error(SAC_E_ARG, extent.name,
                        format("%s and %s are one file: each extent needs its own",
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
    std::uint32_t count = o.data_count;
    if (!create)
        count = std::min(count, extents_named(metas.front()));
    for (std::uint32_t i = 0; i < count; ++i) {
        Extent e = take_extent(o.data[i]);
        check_other_file(e, metas);
        check_other_file(e, data);
        data.push_back(std::move(e));
    }
    auto m = std::make_unique<Mapping>(std::move(metas));
    auto d = std::make_unique<Mapping>(std::move(data));
    if (o.flags & SAC_POOL_PREFAULT)
        d->prefault();
    if (create)
        Media::create(*m, *d);
    return std::make_shared<OwnedPool>(std::move(m), std::move(d), Fd(),
                                       o.flags & SAC_POOL_SHARED);
}

}  // namespace sac
