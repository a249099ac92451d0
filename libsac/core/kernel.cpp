// SPDX-License-Identifier: Apache-2.0
#include "kernel.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstring>

#include "error.hpp"

namespace sac {

void random_bytes(void *out, std::size_t n) {
    if (getrandom(out, n, 0) != static_cast<ssize_t>(n))
        throw_errno("getrandom", "cannot draw random bytes");
}

void read_boot_id(std::uint8_t out[16]) {
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[37] = {};
    const ssize_t n = fd < 0 ? -1 : read(fd, text, 36);
    if (fd >= 0)
        close(fd);
    if (n != 36)
        throw_errno("/proc/sys/kernel/random/boot_id", "cannot read the boot id");
    std::size_t digits = 0, wrong = 0;
    std::memset(out, 0, 16);
    for (const char c : text) {
        const int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (v < 0 || digits == 32) {
            wrong += c != '-' && c != 0;
            continue;
        }
        out[digits / 2] = static_cast<std::uint8_t>(out[digits / 2] << 4 | v);
        ++digits;
    }
    if (digits != 32 || wrong != 0)
        throw Error(SAC_E_SYSTEM, "/proc/sys/kernel/random/boot_id", "is no boot id");
}

}  // namespace sac
