// SPDX-License-Identifier: Apache-2.0
#include "directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "error.hpp"

namespace sac {
namespace {

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

void lock_or_busy(int fd, const std::string &name) {
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            throw_errno(name, "cannot lock it");
        const long pid = lock_holder(fd);
        throw Error(SAC_E_BUSY, name,
                    pid == getpid()
                        ? "the pool in " + name +
                              " is open in this process: close it, with all prefixes, "
                              "puts, sequences and views of it"
                    : pid ? format("the pool in %s is open in process %ld; it must close first",
                                   name.c_str(), pid)
                          : "the pool in " + name + " is open elsewhere",
                    EWOULDBLOCK);
    }
}

}  // namespace

void throw_file_errno(const std::string &object, const char *what, const char *advice) {
    if (errno != ENOSPC && errno != EDQUOT)
        throw_errno(object, what, advice);
    const int number = errno;
    throw Error(SAC_E_NO_SPACE, object,
                format("%s: %s: the file system is full. Free some room, or make the pool "
                       "smaller.",
                       object.c_str(), what),
                number);
}

Directory::Directory(const std::string &path, bool create) : path_(path) {
    // Between open and lock another process may put a new directory in place of this one:
    // its lock would guard nothing.
    for (int tries = 0; tries < 16; ++tries) {
        made_ = create && mkdir(path.c_str(), 0700) == 0;
        if (create && !made_ && errno != EEXIST)
            throw_file_errno(path, "cannot create the pool's directory",
                             "Its parent must be a directory that you may write to.");
        const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT && !create)
            throw Error(SAC_E_NOT_FOUND, path,
                        "there is no pool in " + path + "; give a size to create one", ENOENT);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            throw_errno(path, "cannot open the pool's directory");
        lock_ = Fd(fd);
        lock_or_busy(fd, path);
        struct stat held, there;
        if (fstat(fd, &held) == 0 && stat(path.c_str(), &there) == 0 &&
            held.st_dev == there.st_dev && held.st_ino == there.st_ino) {
            const int again = fcntl(fd, F_DUPFD_CLOEXEC, 0);
            if (again < 0)
                throw_errno(path, "cannot keep the pool's directory open");
            fd_ = Fd(again);
            return;
        }
        (void)flock(fd, LOCK_UN);
        lock_.reset();
    }
    throw Error(SAC_E_BUSY, path,
                "the directory " + path + " is replaced again and again by somebody else",
                EWOULDBLOCK);
}

Directory::~Directory() {
    if (lock_)
        (void)flock(lock_.get(), LOCK_UN);
}

bool Directory::relock() {
    if (lock_)
        return true;
    if (flock(fd_.get(), LOCK_EX | LOCK_NB) != 0)
        return false;
    lock_ = std::move(fd_);
    fd_ = Fd(fcntl(lock_.get(), F_DUPFD_CLOEXEC, 0));
    return static_cast<bool>(fd_);
}

bool Directory::has(const std::string &file) const {
    struct stat st;
    return fstatat(fd_.get(), file.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0;
}

Extent Directory::open(const std::string &file, int flags, const std::string &name) const {
    Extent e;
    e.name = name;
    const int fd =
        openat(fd_.get(), file.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == ENOENT && !(flags & O_CREAT))
        return e;
    if (fd < 0)
        throw_file_errno(name, "cannot open the file");
    e.fd = Fd(fd);
    lock_or_busy(fd, name);
    e.locked = true;
    return e;
}

void Directory::remove(const std::string &file) const noexcept {
    (void)unlinkat(fd_.get(), file.c_str(), 0);
}

void Directory::rename(const std::string &from, const std::string &to) const {
    if (renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) != 0)
        throw_file_errno(path(to), "cannot put the file in place");
}

std::uint64_t Directory::free_bytes() const {
    struct statvfs fs;
    if (fstatvfs(fd_.get(), &fs) != 0)
        throw_errno(path_, "cannot ask for free space");
    return std::uint64_t{fs.f_bavail} * fs.f_frsize;
}

}  // namespace sac
