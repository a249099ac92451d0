// SPDX-License-Identifier: Apache-2.0
#include "dax.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <string_view>

#include "error.hpp"

namespace sac {
namespace {

// A number in a file of the device's folder in sysfs.
std::uint64_t attribute(const std::string &folder, const char *what, const std::string &name) {
    const std::string path = folder + what;
    std::FILE *const f = std::fopen(path.c_str(), "re");
    std::uint64_t value = 0;
    const bool read = f && std::fscanf(f, "%" SCNu64, &value) == 1;
    const int number = f ? EIO : errno;
    if (f)
        std::fclose(f);
    errno = number;
    if (!read)
        throw_errno(name, ("cannot read " + path).c_str(), "Is /sys mounted?");
    return value;
}

}  // namespace

bool dax_align(std::uint64_t align) noexcept {
    // 4 KiB is possible, too, but not with slabs of 2 MiB that are lost one by one.
    return std::has_single_bit(align) && align >= std::uint64_t{2} << 20 &&
           align <= std::uint64_t{1} << 30;
}

Dax dax_device(int fd, const std::string &name) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        throw_errno(name, "cannot stat it");
    const std::string folder =
        format("/sys/dev/char/%u:%u/", major(st.st_rdev), minor(st.st_rdev));
    char kind[512];
    const ssize_t n = readlink((folder + "subsystem").c_str(), kind, sizeof kind);
    const std::string_view link(kind, n < 0 ? 0 : static_cast<std::size_t>(n));
    if (!S_ISCHR(st.st_mode) || !link.ends_with("/dax"))
        throw Error(SAC_E_ARG, name, name + " is neither a file nor a DAX device");
    const Dax dax{attribute(folder, "size", name), attribute(folder, "align", name)};
    if (!dax_align(dax.align))
        throw Error(SAC_E_ARG, name,
                    format("%s is aligned to %" PRIu64
                           " bytes; 2 MiB to 1 GiB are possible. Make the device anew with "
                           "another alignment.",
                           name.c_str(), dax.align));
    if (dax.bytes == 0 || dax.bytes % dax.align != 0)
        throw Error(SAC_E_ARG, name,
                    format("%s has %" PRIu64 " bytes, which is no multiple of its alignment of "
                           "%" PRIu64 ": it cannot be mapped whole",
                           name.c_str(), dax.bytes, dax.align));
    return dax;
}

}  // namespace sac
