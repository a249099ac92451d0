// SPDX-License-Identifier: Apache-2.0
// The files of an embedded pool: a directory with meta and data.0 .., or memory.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "error.hpp"
#include "pool.hpp"
#include "stop.hpp"

namespace sac {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }

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

Extent sized(int raw, const std::string &name, std::uint64_t bytes) {
    Extent e;
    e.fd = Fd(raw);
    e.name = name;
    if (ftruncate(raw, static_cast<off_t>(bytes)) != 0)
        throw_errno(name, "cannot give the file its size");
    e.bytes = bytes;
    return e;
}

Extent opened(int raw, const std::string &name) {
    Extent e;
    e.fd = Fd(raw);
    e.name = name;
    struct stat st;
    if (fstat(raw, &st) != 0)
        throw_errno(name, "cannot stat the file");
    if (!S_ISREG(st.st_mode))
        throw Error(SAC_E_CORRUPT, name, name + " is not a file");
    e.bytes = static_cast<std::uint64_t>(st.st_size);
    // Short files would fault instead of failing: refuse before mapping.
    if (e.bytes < 2 * fmt::kMetaSlab || e.bytes % fmt::kMetaSlab != 0)
        throw Error(SAC_E_CORRUPT, name,
                    format("%s has %" PRIu64 " bytes: it is truncated or no extent of a pool",
                           name.c_str(), e.bytes),
                    0, e.bytes);
    return e;
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
                             Fd lock) {
    std::vector<Extent> metas;
    metas.push_back(std::move(meta));
    auto m = std::make_unique<Mapping>(std::move(metas));
    auto d = std::make_unique<Mapping>(std::move(data));
    if (prefault)
        d->prefault();
    if (create)
        Media::create(*m, *d);
    return std::make_shared<Pool>(std::move(m), std::move(d), std::move(lock));
}

std::shared_ptr<Pool> in_memory(const sac_pool_options &o) {
    const Plan p = plan(o, "embedded pool");
    const bool prefault = o.flags & SAC_POOL_PREFAULT;
    const std::uint64_t have = memory_bytes(prefault ? "MemAvailable" : "MemTotal");
    if (o.bytes > have)
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
    return finish(std::move(meta), std::move(data), true, prefault, Fd());
}

// The process that holds the lock on an inode, from /proc/locks; 0: not found.
long lock_holder(int fd) {
    struct stat st;
    std::FILE *const f = fstat(fd, &st) == 0 ? std::fopen("/proc/locks", "re") : nullptr;
    if (!f)
        return 0;
    char line[256];
    long holder = 0, pid = 0;
    unsigned dev_major = 0, dev_minor = 0;
    std::uint64_t inode = 0;
    while (std::fgets(line, sizeof line, f))
        if (std::sscanf(line, "%*d: FLOCK %*s %*s %ld %x:%x:%" SCNu64, &pid, &dev_major,
                        &dev_minor, &inode) == 4 &&
            inode == st.st_ino && dev_major == major(st.st_dev) &&
            dev_minor == minor(st.st_dev))
            holder = pid;
    std::fclose(f);
    return holder;
}

std::string data_path(const std::string &dir, std::size_t i) {
    return format("%s/data.%zu", dir.c_str(), i);
}

std::shared_ptr<Pool> create_files(const sac_pool_options &o, const std::string &dir, Fd lock) {
    const Plan p = plan(o, dir);
    struct statvfs fs;
    if (statvfs(dir.c_str(), &fs) != 0)
        throw_errno(dir, "cannot ask for free space");
    const std::uint64_t have = std::uint64_t{fs.f_bavail} * fs.f_frsize;
    if (o.bytes > have)
        too_large(dir, p.total, have, dir.c_str());
    // meta.new comes first and becomes meta last: without meta there is no pool, and only
    // beside meta.new may data files be overwritten.
    const std::string path = dir + "/meta", unfinished = dir + "/meta.new";
    for (std::size_t i = 0; i < fmt::kMaxExtents && access(unfinished.c_str(), F_OK) != 0; ++i)
        if (access(data_path(dir, i).c_str(), F_OK) == 0)
            throw Error(
                SAC_E_EXISTS, dir,
                format(
                    "%s holds a file data.%zu that belongs to no pool; give another directory",
                    dir.c_str(), i));
    std::vector<std::string> made;
    const auto make = [&](const std::string &file, std::uint64_t bytes) {
        const int fd =
            open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            throw_errno(file, "cannot create the file");
        made.push_back(file);
        return sized(fd, file, bytes);
    };
    try {
        Extent meta = make(unfinished, p.meta);
        SAC_STOP("create.meta");
        std::vector<Extent> data;
        for (std::size_t i = 0; i < p.data.size(); ++i)
            data.push_back(make(data_path(dir, i), p.data[i]));
        // Of an unfinished pool that had more extents: they would be taken for this one's.
        for (std::size_t i = p.data.size(); i < fmt::kMaxExtents; ++i)
            unlink(data_path(dir, i).c_str());
        SAC_STOP("create.files");
        auto pool = finish(std::move(meta), std::move(data), true, o.flags & SAC_POOL_PREFAULT,
                           std::move(lock));
        SAC_STOP("create.formatted");
        if (rename(unfinished.c_str(), path.c_str()) != 0)
            throw_errno(path, "cannot put the metadata in place");
        return pool;
    } catch (...) {
        // meta.new last: it says that the data files are nobody's.
        for (auto file = made.rbegin(); file != made.rend(); ++file)
            unlink(file->c_str());
        throw;
    }
}

std::shared_ptr<Pool> open_files(const sac_pool_options &o, const std::string &dir, Fd lock) {
    const std::string path = dir + "/meta";
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        throw_errno(path, "cannot open the metadata");
    Extent meta = opened(fd, path);
    std::vector<Extent> data;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < fmt::kMaxExtents; ++i) {
        const std::string file = data_path(dir, i);
        const int raw = open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (raw < 0 && errno == ENOENT)
            break;
        if (raw < 0)
            throw_errno(file, "cannot open the extent");
        data.push_back(opened(raw, file));
        bytes += data.back().bytes - std::min(data.back().bytes, fmt::kDataSlab);
    }
    if (data.empty())
        throw Error(SAC_E_CORRUPT, dir,
                    dir + " has metadata but no data.0: the pool's extents have gone");
    const std::size_t extents = data.size();
    if (o.bytes != 0 &&
        (round_up(o.bytes, fmt::kDataSlab) != bytes || (o.extents && o.extents != extents)))
        throw Error(SAC_E_EXISTS, dir,
                    format("the pool in %s has %" PRIu64
                           " MiB in %zu extents, asked were %" PRIu64
                           " MiB in %u. Open it without a size, or remove the directory first.",
                           dir.c_str(), bytes / kMiB, extents, o.bytes / kMiB,
                           o.extents ? o.extents : 1));
    return finish(std::move(meta), std::move(data), false, o.flags & SAC_POOL_PREFAULT,
                  std::move(lock));
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
    const std::string dir = o.path;
    const bool may_create = !(o.flags & SAC_POOL_OPEN) && o.bytes != 0;
    const bool made = may_create && mkdir(dir.c_str(), 0700) == 0;
    if (may_create && !made && errno != EEXIST)
        throw_errno(dir, "cannot create the pool's directory",
                    "Its parent must be a directory that you may write to.");
    const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        throw Error(SAC_E_NOT_FOUND, dir,
                    "there is no pool in " + dir + "; give a size to create one", ENOENT);
    if (fd < 0)
        throw_errno(dir, "cannot open the pool's directory");
    Fd lock(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const long pid = lock_holder(fd);
        throw Error(SAC_E_BUSY, dir,
                    pid == getpid()
                        ? "the pool in " + dir +
                              " is open in this process: close it, with all prefixes, "
                              "puts, sequences and views of it"
                    : pid ? format("the pool in %s is open in process %ld; it must close first",
                                   dir.c_str(), pid)
                          : "the pool in " + dir + " is open elsewhere",
                    EWOULDBLOCK);
    }
    if (access((dir + "/meta").c_str(), F_OK) == 0)
        return open_files(o, dir, std::move(lock));
    if (!may_create)
        throw Error(SAC_E_NOT_FOUND, dir,
                    "there is no pool in " + dir + "; give a size to create one", ENOENT);
    try {
        return create_files(o, dir, std::move(lock));
    } catch (...) {
        if (made)
            rmdir(dir.c_str());
        throw;
    }
}

}  // namespace sac
