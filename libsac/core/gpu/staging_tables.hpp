// SPDX-License-Identifier: Apache-2.0
// Memory for what a launch reads beside its rows: lists of pages, selections, sources. Written
// by the host, copied to the GPU in the order of a stream, and used again when nobody holds it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "memory.hpp"

namespace sac::gpu {

// The same bytes on both sides; a multiple of 16 for each piece put in.
class Table {
public:
    Table(const std::shared_ptr<Device> &device, std::uint64_t bytes, bool on_gpu);

    std::uint64_t room() const noexcept { return host_.bytes(); }
    // Takes so many bytes at the end; their offset. There is room: take() was asked for it.
    std::uint64_t add(std::uint64_t bytes) noexcept;
    void clear() noexcept { used_ = 0; }

    template <class T> T *host(std::uint64_t offset) const noexcept {
        return reinterpret_cast<T *>(host_.data() + offset);
    }
    Address gpu(std::uint64_t offset) const noexcept { return device_.address() + offset; }
    // The host's memory, for the GPU.
    Address host_address(std::uint64_t offset) const noexcept {
        return host_.address() + offset;
    }
    // Copies what was added to the GPU. Throws Error(SAC_E_GPU).
    void send(std::uintptr_t stream) const;
    // And a piece back.
    void fetch(std::uint64_t offset, std::uint64_t bytes, std::uintptr_t stream) const;

    static constexpr std::uint64_t padded(std::uint64_t bytes) noexcept {
        return (bytes + 15) / 16 * 16;
    }

private:
    PinnedBuffer host_;
    DeviceBuffer device_;
    std::uint64_t used_ = 0;
};

class TablePool {
public:
    // on_gpu: tables have memory in the GPU too.
    TablePool(std::shared_ptr<Device> device, bool on_gpu)
        : device_(std::move(device)), on_gpu_(on_gpu) {}

    // An empty table with so much room, the caller's while it holds it: give it up only when
    // the GPU is done. Throws Error: SAC_E_GPU, SAC_E_NO_MEMORY.
    std::shared_ptr<Table> take(std::uint64_t bytes);
    std::uint64_t bytes() const noexcept;  // of pinned memory, held for ever

private:
    std::shared_ptr<Device> device_;
    const bool on_gpu_;
    mutable std::mutex mutex_;
    std::vector<std::shared_ptr<Table>> tables_;
};

}  // namespace sac::gpu
