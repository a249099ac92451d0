// SPDX-License-Identifier: Apache-2.0
// Stop points: places at which a test build may be killed. Nothing in a normal build.
#pragma once

namespace sac {
#ifdef SAC_STOP_POINTS
// SAC_STOP_AT=name:n in the environment sends SIGKILL at the n-th pass of this point.
void stop_point(const char *name) noexcept;
#define SAC_STOP(name) ::sac::stop_point(name)
#else
#define SAC_STOP(name) static_cast<void>(0)
#endif
}  // namespace sac
