// SPDX-License-Identifier: Apache-2.0
#include "stream.hpp"

#include <utility>

#include "error.hpp"

namespace sac::gpu {

Event::Event(std::shared_ptr<Device> device, bool timing) : device_(std::move(device)) {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.event_create(&handle_, timing ? 0u : unsigned{cuda::kEventNoTiming}),
                 "event", "cannot make an event");
}

Event::Event(Event &&other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

Event &Event::operator=(Event &&other) noexcept {
    if (this != &other) {
        destroy();
        device_ = std::move(other.device_);
        handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
}

Event::~Event() { destroy(); }

void Event::destroy() noexcept {
    if (!handle_)
        return;
    try {
        const Current current(*device_);
        (void)device_->driver().event_destroy(handle_);
    } catch (const Error &) {
        // A forked child, or a process that is ending.
    }
    handle_ = nullptr;
}

void Event::record(std::uintptr_t stream) const {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.event_record(handle_, stream_handle(stream)), "event",
                 "cannot record it");
}

bool Event::done() const {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    const Result result = driver.event_query(handle_);
    if (result == cuda::kNotReady)
        return false;
    driver.check(result, "event", "the work in front of it failed");
    return true;
}

void Event::synchronize() const {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.event_synchronize(handle_), "event", "the work in front of it failed");
}

void Event::make_wait(std::uintptr_t stream) const {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.stream_wait(stream_handle(stream), handle_, 0), "stream",
                 "cannot make it wait for an event");
}

float Event::milliseconds_since(const Event &begin) const {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    float ms = 0;
    driver.check(driver.event_elapsed(&ms, begin.handle_, handle_), "event",
                 "cannot tell the time between two events");
    return ms;
}

Stream::Stream(std::shared_ptr<Device> device, int priority) : device_(std::move(device)) {
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.stream_create(&handle_, cuda::kStreamNonBlocking, priority), "stream",
                 "cannot make a stream");
}

Stream::Stream(Stream &&other) noexcept
    : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}

Stream &Stream::operator=(Stream &&other) noexcept {
    if (this != &other) {
        destroy();
        device_ = std::move(other.device_);
        handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
}

Stream::~Stream() { destroy(); }

void Stream::destroy() noexcept {
    if (!handle_)
        return;
    try {
        const Current current(*device_);
        (void)device_->driver().stream_destroy(handle_);
    } catch (const Error &) {
        // A forked child, or a process that is ending.
    }
    handle_ = nullptr;
}

void synchronize(const Device &device, std::uintptr_t stream) {
    const Current current(device);
    const Driver &driver = device.driver();
    driver.check(driver.stream_synchronize(stream_handle(stream)), "stream",
                 "work in it failed");
}

bool capturing(const Device &device, std::uintptr_t stream) {
    const Current current(device);
    const Driver &driver = device.driver();
    int status = 0;
    driver.check(driver.stream_capturing(stream_handle(stream), &status), "stream",
                 "cannot ask whether it is captured");
    return status != 0;
}

}  // namespace sac::gpu
