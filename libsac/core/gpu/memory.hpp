// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU, and memory of the host that it reaches. Freed by the destructor, which may
// wait for the GPU; not in a forked child.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device.hpp"

namespace sac::gpu {

// Its first bytes are on a boundary of 256. Move-only.
class DeviceBuffer {
public:
    DeviceBuffer() noexcept = default;
    // what: for the message where there is no room. Throws Error: SAC_E_GPU, SAC_E_FORKED.
    DeviceBuffer(std::shared_ptr<Device> device, std::uint64_t bytes, const std::string &what);
    DeviceBuffer(DeviceBuffer &&other) noexcept;
    DeviceBuffer &operator=(DeviceBuffer &&other) noexcept;
    DeviceBuffer(const DeviceBuffer &) = delete;
    DeviceBuffer &operator=(const DeviceBuffer &) = delete;
    ~DeviceBuffer();

    Address address() const noexcept { return address_; }
    std::uint64_t bytes() const noexcept { return bytes_; }
    explicit operator bool() const noexcept { return address_ != 0; }
    // In the order of the stream. Throws Error: SAC_E_RANGE, SAC_E_GPU. The host's memory must
    // stay until the stream is there; unpinned memory makes the call wait for it.
    void copy_in(std::uint64_t offset, const void *from, std::uint64_t bytes,
                 std::uintptr_t stream) const;
    void copy_out(void *to, std::uint64_t offset, std::uint64_t bytes,
                  std::uintptr_t stream) const;
    void fill8(std::uint64_t offset, std::uint8_t value, std::uint64_t bytes,
               std::uintptr_t stream) const;
    void fill32(std::uint64_t offset, std::uint32_t value, std::uint64_t count,
                std::uintptr_t stream) const;

private:
    void check_range(std::uint64_t offset, std::uint64_t bytes) const;
    void free() noexcept;

    std::shared_ptr<Device> device_;
    Address address_ = 0;
    std::uint64_t bytes_ = 0;
};

// Pinned memory of the host, zeroed, seen by every GPU of the process at the same address.
// With a NUMA node its pages lie there, as far as the kernel allows. Move-only.
class PinnedBuffer {
public:
    PinnedBuffer() noexcept = default;
    // numa_node: -1 for any. Throws Error: SAC_E_GPU, SAC_E_NO_MEMORY, SAC_E_FORKED.
    PinnedBuffer(std::shared_ptr<Device> device, std::uint64_t bytes, int numa_node,
                 const std::string &what);
    PinnedBuffer(PinnedBuffer &&other) noexcept;
    PinnedBuffer &operator=(PinnedBuffer &&other) noexcept;
    PinnedBuffer(const PinnedBuffer &) = delete;
    PinnedBuffer &operator=(const PinnedBuffer &) = delete;
    ~PinnedBuffer();

    std::uint8_t *data() const noexcept { return data_; }
    Address address() const noexcept { return address_; }  // for the GPU
    std::uint64_t bytes() const noexcept { return bytes_; }
    explicit operator bool() const noexcept { return data_ != nullptr; }

private:
    void free() noexcept;

    std::shared_ptr<Device> device_;
    std::uint8_t *data_ = nullptr;
    Address address_ = 0;
    std::uint64_t bytes_ = 0;
};

}  // namespace sac::gpu
