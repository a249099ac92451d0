// SPDX-License-Identifier: Apache-2.0
// Calls of the driver that have nothing to do with a graph some thread is just capturing.
#pragma once

#include "device.hpp"

namespace sac::gpu {

// While it lives, the device's context is current in this thread, and what the thread asks of
// the driver (is an event there? more memory) does not end a capture that torch has begun, here
// or in another thread. Throws as Current.
class Apart {
public:
    explicit Apart(const Device &device) : current_(device), driver_(device.driver()) {
        (void)driver_.capture_mode(&mode_);
    }
    ~Apart() { (void)driver_.capture_mode(&mode_); }  // as it was
    Apart(const Apart &) = delete;
    Apart &operator=(const Apart &) = delete;

private:
    const Current current_;
    const Driver &driver_;
    int mode_ = cuda::kCaptureRelaxed;
};

}  // namespace sac::gpu
