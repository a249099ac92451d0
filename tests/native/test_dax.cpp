// SPDX-License-Identifier: Apache-2.0
// What is a DAX device and what is not. Pools on devices themselves are tried in a machine that
// has some: tests/vm/scenarios/dax_core.py.
#include "dax.hpp"

#include <fcntl.h>

#include "check.hpp"
#include "fork.hpp"

TEST(other_devices_are_refused) {
    for (const char *path : {"/dev/null", "/dev/zero"}) {
        const sac::Fd fd(open(path, O_RDWR | O_CLOEXEC));
        CHECK_THROWS(SAC_E_ARG, sac::dax_device(fd.get(), path));
    }
    for (const std::uint64_t align : {std::uint64_t{2} << 20, std::uint64_t{1} << 30})
        CHECK(sac::dax_align(align));
    for (const std::uint64_t align : {std::uint64_t{0}, std::uint64_t{4096},
                                      std::uint64_t{3} << 20, std::uint64_t{2} << 30})
        CHECK(!sac::dax_align(align));
}
