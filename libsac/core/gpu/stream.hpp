// SPDX-License-Identifier: Apache-2.0
// Streams and events: a caller's, by its number, and the library's own.
#pragma once

#include <cstdint>
#include <memory>

#include "device.hpp"

namespace sac::gpu {

inline StreamHandle stream_handle(std::uintptr_t number) noexcept {
    return reinterpret_cast<StreamHandle>(number);
}

// An event of the library's. Move-only.
class Event {
public:
    Event() noexcept = default;
    // Throws Error: SAC_E_GPU, SAC_E_FORKED.
    explicit Event(std::shared_ptr<Device> device, bool timing = false);
    Event(Event &&other) noexcept;
    Event &operator=(Event &&other) noexcept;
    Event(const Event &) = delete;
    Event &operator=(const Event &) = delete;
    ~Event();

    explicit operator bool() const noexcept { return handle_ != nullptr; }
    // The rest throws Error: SAC_E_GPU, SAC_E_FORKED. An event that was never recorded is done.
    void record(std::uintptr_t stream) const;
    bool done() const;
    void synchronize() const;
    // The stream goes on when the event is there; the host does not wait.
    void make_wait(std::uintptr_t stream) const;
    float milliseconds_since(const Event &begin) const;

private:
    void destroy() noexcept;

    std::shared_ptr<Device> device_;
    EventHandle handle_ = nullptr;
};

// A stream of the library's, which does not wait for the default stream. Move-only.
class Stream {
public:
    Stream() noexcept = default;
    // priority: lower numbers go first. Throws Error: SAC_E_GPU, SAC_E_FORKED.
    explicit Stream(std::shared_ptr<Device> device, int priority = 0);
    Stream(Stream &&other) noexcept;
    Stream &operator=(Stream &&other) noexcept;
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    ~Stream();

    explicit operator bool() const noexcept { return handle_ != nullptr; }
    std::uintptr_t number() const noexcept { return reinterpret_cast<std::uintptr_t>(handle_); }

private:
    void destroy() noexcept;

    std::shared_ptr<Device> device_;
    StreamHandle handle_ = nullptr;
};

// Waits until the stream is done. Throws Error: SAC_E_GPU, SAC_E_FORKED.
void synchronize(const Device &device, std::uintptr_t stream);
// Whether what is put into the stream goes into a graph. Throws as above.
bool capturing(const Device &device, std::uintptr_t stream);

}  // namespace sac::gpu
