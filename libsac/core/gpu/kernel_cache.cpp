// SPDX-License-Identifier: Apache-2.0
// An entry: header, cubin, log. Its name is the key; the checksum covers the key as well.
#include "kernel_cache.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "error.hpp"
#include "fork.hpp"

namespace sac::gpu {
namespace {

struct Header {
    char magic[8];
    std::uint64_t cubin_bytes, log_bytes;
    Sha256::Digest checksum;
};
static_assert(sizeof(Header) == 56);
constexpr char kMagic[8] = {'S', 'A', 'C', 'K', 'E', 'R', 'N', '1'};
constexpr std::uint64_t kMost = std::uint64_t{256} << 20;  // of an entry

std::string hex(const void *data, std::size_t bytes) {
    const auto *const p = static_cast<const std::uint8_t *>(data);
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i)
        text += format("%02x", p[i]);
    return text;
}

Sha256::Digest checksum(const Sha256::Digest &key, const std::uint8_t *cubin,
                        std::uint64_t cubin_bytes, const void *log, std::uint64_t log_bytes) {
    Sha256 hash;
    hash.update(key.data(), key.size());
    hash.update(&cubin_bytes, sizeof cubin_bytes);
    hash.update(cubin, cubin_bytes);
    hash.update(log, log_bytes);
    return hash.finish();
}

// Only this user can have written it.
bool ours(const struct stat &s) noexcept {
    return s.st_uid == geteuid() && (s.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool read_all(int fd, std::uint8_t *to, std::uint64_t bytes) noexcept {
    while (bytes != 0) {
        const ssize_t n = read(fd, to, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        to += n, bytes -= static_cast<std::uint64_t>(n);
    }
    return true;
}

bool write_all(int fd, const void *from, std::uint64_t bytes) noexcept {
    const auto *p = static_cast<const std::uint8_t *>(from);
    while (bytes != 0) {
        const ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n, bytes -= static_cast<std::uint64_t>(n);
    }
    return true;
}

// All folders of the path; those made are this user's alone.
bool make_folders(const std::string &path) {
    for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
        if (mkdir(path.substr(0, at).c_str(), 0700) != 0 && errno != EEXIST)
            return false;
        if (at == std::string::npos)
            return true;
    }
}

// The folder; none where it is not there, or not ours: then why says so.
Fd open_folder(const std::string &folder, std::string &why) {
    Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat s;
    if (!fd) {
        why = format("The kernel cache %s cannot be opened: %s.", folder.c_str(),
                     errno_text(errno).c_str());
    } else if (fstat(fd.get(), &s) != 0 || !ours(s)) {
        why = format("The kernel cache %s is not used: others can write to it. It must be "
                     "this user's, with mode 0700.",
                     folder.c_str());
        fd.reset();
    }
    return fd;
}

}  // namespace

std::string KernelCache::default_folder() {
    const char *const cache = std::getenv("XDG_CACHE_HOME");
    if (cache && *cache == '/')  // others are to be ignored
        return std::string(cache) + "/libsac/kernels";
    const char *const home = std::getenv("HOME");
    return home && *home == '/' ? std::string(home) + "/.cache/libsac/kernels" : "";
}

std::optional<KernelCache::Entry> KernelCache::load(const Sha256::Digest &key) const {
    std::string why;
    if (folder_.empty())
        return std::nullopt;
    const Fd folder = open_folder(folder_, why);
    if (!folder)
        return std::nullopt;
    // Without waiting, should it be a pipe.
    const Fd file(openat(folder.get(), hex(key.data(), key.size()).c_str(),
                         O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat s;
    if (!file || fstat(file.get(), &s) != 0 || !S_ISREG(s.st_mode) || !ours(s))
        return std::nullopt;
    const auto bytes = static_cast<std::uint64_t>(s.st_size);
    Header h;
    if (bytes < sizeof h || bytes > kMost ||
        !read_all(file.get(), reinterpret_cast<std::uint8_t *>(&h), sizeof h) ||
        std::memcmp(h.magic, kMagic, sizeof kMagic) != 0 || h.cubin_bytes > kMost ||
        h.log_bytes > kMost || sizeof h + h.cubin_bytes + h.log_bytes != bytes)
        return std::nullopt;
    Entry entry;
    entry.cubin.resize(h.cubin_bytes);
    entry.log.resize(h.log_bytes);
    if (!read_all(file.get(), entry.cubin.data(), h.cubin_bytes) ||
        !read_all(file.get(), reinterpret_cast<std::uint8_t *>(entry.log.data()),
                  h.log_bytes) ||
        checksum(key, entry.cubin.data(), h.cubin_bytes, entry.log.data(), h.log_bytes) !=
            h.checksum)
        return std::nullopt;
    return entry;
}

std::string KernelCache::store(const Sha256::Digest &key, const Entry &entry) const {
    if (folder_.empty())
        return "Compiled kernels are not kept: neither XDG_CACHE_HOME nor HOME is set.";
    const auto failed = [this](const char *what) {
        const int number = errno;
        return format("The kernel cache %s is not used: %s: %s.", folder_.c_str(), what,
                      errno_text(number).c_str());
    };
    if (!make_folders(folder_))
        return failed("it cannot be made");
    std::string why;
    const Fd folder = open_folder(folder_, why);
    if (!folder)
        return why;
    std::uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return failed("there is no random number for a name");
    const std::string name = hex(key.data(), key.size());
    const std::string beside = '.' + name + '.' + hex(&random, sizeof random);
    const Fd file(openat(folder.get(), beside.c_str(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file)
        return failed("a file cannot be made in it");
    Header h{};
    std::memcpy(h.magic, kMagic, sizeof kMagic);
    h.cubin_bytes = entry.cubin.size(), h.log_bytes = entry.log.size();
    h.checksum =
        checksum(key, entry.cubin.data(), h.cubin_bytes, entry.log.data(), h.log_bytes);
    if (!write_all(file.get(), &h, sizeof h) ||
        !write_all(file.get(), entry.cubin.data(), h.cubin_bytes) ||
        !write_all(file.get(), entry.log.data(), h.log_bytes) ||
        renameat(folder.get(), beside.c_str(), folder.get(), name.c_str()) != 0) {
        why = failed("a file cannot be written there");
        (void)unlinkat(folder.get(), beside.c_str(), 0);
    }
    return why;
}

}  // namespace sac::gpu
