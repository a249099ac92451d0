// SPDX-License-Identifier: Apache-2.0
// The files of an embedded pool: a directory with meta and data.0 .., or memory.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "directory.hpp"
#include "error.hpp"
#include "owned_pool.hpp"
#include "round.hpp"
#include "stop.hpp"

namespace sac {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
// What a pool of 2^50 bytes takes by itself, and some.
constexpr std::uint64_t kMostMetadata = std::uint64_t{1} << 45;

// The sizes of a new pool's files.
struct Plan {
    std::vector<std::uint64_t> data;
    std::uint64_t meta = 0, total = 0;
};

Plan plan(const sac_pool_options &o, const std::string &name) {
    const std::uint32_t extents = o.extents ? o.extents : 1;
    if (extents > fmt::kMaxExtents)
        throw Error(SAC_E_ARG, name,
                    format("%u extents; at most %u are allowed", extents, fmt::kMaxExtents));
    if (o.bytes < extents * fmt::kDataSlab || o.bytes > (std::uint64_t{1} << 50))
        throw Error(SAC_E_ARG, name,
                    format("a pool of %" PRIu64
                           " bytes over %u extents: each extent needs 2 MiB at "
                           "least, the whole at most 2^50",
                           o.bytes, extents));
    if (o.metadata_bytes > kMostMetadata)
        throw Error(SAC_E_ARG, name,
                    format("metadata of %" PRIu64 " bytes; at most %" PRIu64 " are allowed",
                           o.metadata_bytes, kMostMetadata));
    Plan p;
    std::uint64_t slabs = (o.bytes + fmt::kDataSlab - 1) / fmt::kDataSlab;
    for (std::uint32_t i = extents; i > 0; --i) {
        const std::uint64_t share = (slabs + i - 1) / i;
        p.data.push_back((share + 1) * fmt::kDataSlab);  // one slab for the superblock
        p.total += p.data.back();
        slabs -= share;
    }
    const std::uint64_t least = Media::meta_bytes_needed(p.total, extents);
    // 128 bytes for each 4 KiB page, and room for namespaces. Files are sparse: what is not
    // used costs nothing.
    p.meta = round_up(o.metadata_bytes ? std::max(o.metadata_bytes, least)
                                       : least + p.total / 32 + 16 * kMiB,
                      fmt::kMetaSlab);
    p.total += p.meta;
    return p;
}

void check_size(Extent &e) {
    struct stat st;
    if (fstat(e.fd.get(), &st) != 0)
        throw_errno(e.name, "cannot stat the file");
    if (!S_ISREG(st.st_mode))
        throw Error(SAC_E_CORRUPT, e.name, e.name + " is not a file");
    e.bytes = static_cast<std::uint64_t>(st.st_size);
    // Short files would fault instead of failing: refuse before mapping.
    if (e.bytes < 2 * fmt::kMetaSlab || e.bytes % fmt::kMetaSlab != 0)
        throw Error(SAC_E_CORRUPT, e.name,
                    format("%s has %" PRIu64 " bytes: it is truncated or no extent of a pool",
                           e.name.c_str(), e.bytes),
                    0, e.bytes);
}

std::uint64_t memory_bytes(const char *what) {
    std::FILE *const f = std::fopen("/proc/meminfo", "re");
    if (!f)
        return UINT64_MAX;
    char line[256], key[64];
    std::uint64_t kb = 0, found = UINT64_MAX;
    while (std::fgets(line, sizeof line, f))
        if (std::sscanf(line, "%63[^:]: %" SCNu64, key, &kb) == 2 &&
            std::strcmp(key, what) == 0)
            found = kb * 1024;
    std::fclose(f);
    return found;
}

[[noreturn]] void too_large(const std::string &name, std::uint64_t want, std::uint64_t have,
                            const char *where) {
    throw Error(SAC_E_NO_SPACE, name,
                format("the pool needs %" PRIu64 " MiB, %s has %" PRIu64
                       " MiB. Make the pool smaller or free memory.",
                       want / kMiB, where, have / kMiB));
}

std::shared_ptr<Pool> finish(Extent meta, std::vector<Extent> data, bool create, bool prefault,
                             Fd &lock) {
    std::vector<Extent> metas;
    metas.push_back(std::move(meta));
    auto m = std::make_unique<Mapping>(std::move(metas));
    auto d = std::make_unique<Mapping>(std::move(data));
    if (prefault)
        d->prefault();
    if (create)
        Media::create(*m, *d);
    return std::make_shared<OwnedPool>(std::move(m), std::move(d), std::move(lock));
}

std::shared_ptr<Pool> in_memory(const sac_pool_options &o) {
    const Plan p = plan(o, "embedded pool");
    const bool prefault = o.flags & SAC_POOL_PREFAULT;
    const std::uint64_t have = memory_bytes(prefault ? "MemAvailable" : "MemTotal");
    if (o.bytes > have || o.metadata_bytes > have)
        too_large("embedded pool", p.total, have, "this machine");
    // Ordinary memory rather than a memfd: the kernel gives it huge pages far more often.
    const auto memory = [](const std::string &name, std::uint64_t bytes) {
        Extent e;
        e.name = name;
        e.bytes = bytes;
        return e;
    };
    Extent meta = memory("metadata", p.meta);
    std::vector<Extent> data;
    for (std::size_t i = 0; i < p.data.size(); ++i)
        data.push_back(memory(format("data.%zu", i), p.data[i]));
    Fd none;
    return finish(std::move(meta), std::move(data), true, prefault, none);
}

std::string data_file(std::size_t i) { return format("data.%zu", i); }

std::shared_ptr<Pool> create_files(const sac_pool_options &o, Directory &dir) {
    const Plan p = plan(o, dir.path());
    const std::uint64_t have = dir.free_bytes();
    if (o.bytes > have || o.metadata_bytes > have)
        too_large(dir.path(), p.total, have, dir.path().c_str());
    // meta.new comes first and becomes meta last: without meta there is no pool, and only
    // beside meta.new may data files be overwritten.
    for (std::size_t i = 0; i < fmt::kMaxExtents && !dir.has("meta.new"); ++i)
        if (dir.has(data_file(i)))
            throw Error(
                SAC_E_EXISTS, dir.path(),
                format(
                    "%s holds a file data.%zu that belongs to no pool; give another directory",
                    dir.path().c_str(), i));
    std::vector<std::string> made;
    const auto make = [&](const std::string &file, const char *name, std::uint64_t bytes) {
        const bool there = dir.has(file);
        made.push_back(file);  // first: what fails behind open() leaves a file, too
        Extent e;
        try {
            e = dir.open(file, O_CREAT, dir.path(name));
        } catch (...) {
            if (there)
                made.pop_back();  // somebody else's
            throw;
        }
        // To nothing first: not one old byte may stay.
        if (ftruncate(e.fd.get(), 0) != 0 ||
            ftruncate(e.fd.get(), static_cast<off_t>(bytes)) != 0)
            throw_file_errno(e.name, "cannot give the file its size");
        e.bytes = bytes;
        return e;
    };
    try {
        Extent meta = make("meta.new", "meta", p.meta);  // its final name, for all messages
        SAC_STOP("create.meta");
        std::vector<Extent> data;
        for (std::size_t i = 0; i < p.data.size(); ++i) {
            const std::string file = data_file(i);
            data.push_back(make(file, file.c_str(), p.data[i]));
        }
        // Of an unfinished pool that had more extents: they would be taken for this one's.
        for (std::size_t i = p.data.size(); i < fmt::kMaxExtents; ++i)
            dir.remove(data_file(i));
        SAC_STOP("create.files");
        auto pool = finish(std::move(meta), std::move(data), true, o.flags & SAC_POOL_PREFAULT,
                           dir.lock());
        SAC_STOP("create.formatted");
        dir.rename("meta.new", "meta");
        return pool;
    } catch (...) {
        // meta.new last: it says that the data files are nobody's.
        if (dir.relock() && !dir.has("meta"))
            for (auto file = made.rbegin(); file != made.rend(); ++file)
                dir.remove(*file);
        throw;
    }
}

std::shared_ptr<Pool> open_files(const sac_pool_options &o, Directory &dir) {
    Extent meta = dir.open("meta", 0, dir.path("meta"));
    if (!meta.fd)
        throw Error(SAC_E_NOT_FOUND, dir.path(), "there is no pool in " + dir.path(), ENOENT);
    check_size(meta);
    std::vector<Extent> data;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < fmt::kMaxExtents; ++i) {
        Extent e = dir.open(data_file(i), 0, dir.path(data_file(i)));
        if (!e.fd)
            break;
        check_size(e);
        data.push_back(std::move(e));
        bytes += data.back().bytes - std::min(data.back().bytes, fmt::kDataSlab);
    }
    if (data.empty())
        throw Error(SAC_E_CORRUPT, dir.path(),
                    dir.path() + " has metadata but no data.0: the pool's extents have gone");
    const std::size_t extents = data.size();
    if (o.bytes != 0 &&
        (round_up(o.bytes, fmt::kDataSlab) != bytes || (o.extents && o.extents != extents)))
        throw Error(SAC_E_EXISTS, dir.path(),
                    format("the pool in %s has %" PRIu64
                           " MiB in %zu extents, asked were %" PRIu64
                           " MiB in %u. Open it without a size, or remove the directory first.",
                           dir.path().c_str(), bytes / kMiB, extents, o.bytes / kMiB,
                           o.extents ? o.extents : 1));
    return finish(std::move(meta), std::move(data), false, o.flags & SAC_POOL_PREFAULT,
                  dir.lock());
}

}  // namespace

std::shared_ptr<Pool> Pool::embedded(const sac_pool_options &o) {
    if (o.flags & ~static_cast<std::uint32_t>(SAC_POOL_PREFAULT | SAC_POOL_OPEN))
        throw Error(SAC_E_ARG, "pool", format("unknown pool flags 0x%x", o.flags));
    if (!o.path) {
        if (o.flags & SAC_POOL_OPEN)
            throw Error(SAC_E_ARG, "pool", "SAC_POOL_OPEN needs a path");
        return in_memory(o);
    }
    if (*o.path == '\0')
        throw Error(SAC_E_ARG, "pool",
                    "the path is empty; give a directory, or no path for a pool in memory");
    const bool may_create = !(o.flags & SAC_POOL_OPEN) && o.bytes != 0;
    Directory dir(o.path, may_create);
    if (dir.has("meta"))
        return open_files(o, dir);
    if (!may_create)
        throw Error(SAC_E_NOT_FOUND, dir.path(),
                    "there is no pool in " + dir.path() + "; give a size to create one",
                    ENOENT);
    try {
        return create_files(o, dir);
    } catch (...) {
        if (dir.made() && dir.relock())
            rmdir(dir.path().c_str());
        throw;
    }
}

}  // namespace sac
