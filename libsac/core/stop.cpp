// SPDX-License-Identifier: Apache-2.0
#include "stop.hpp"

#ifdef SAC_STOP_POINTS
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace sac {

void stop_point(const char *name) noexcept {
    static const char *const wanted = std::getenv("SAC_STOP_AT");
    static std::atomic<long> left{
        wanted && std::strchr(wanted, ':') ? std::atol(std::strchr(wanted, ':') + 1) : 1};
    if (!wanted)
        return;
    const char *colon = std::strchr(wanted, ':');
    const std::size_t n =
        colon ? static_cast<std::size_t>(colon - wanted) : std::strlen(wanted);
    if (std::strlen(name) != n || std::memcmp(name, wanted, n) != 0)
        return;
    if (left.fetch_sub(1) == 1)
        kill(getpid(), SIGKILL);
}

}  // namespace sac
#endif
