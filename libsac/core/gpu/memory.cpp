// SPDX-License-Identifier: Apache-2.0
#include "memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <utility>

#include "error.hpp"
#include "stream.hpp"

namespace sac::gpu {
namespace {

constexpr int kPreferred = 1;  // MPOL_PREFERRED, ABI

// A wish: where it cannot be had the memory does as well.
void prefer_node(void *memory, std::uint64_t bytes, int node) noexcept {
    std::array<unsigned long, 16> mask{};
    constexpr std::size_t bits = sizeof(unsigned long) * 8;
    const auto n = static_cast<std::size_t>(node);
    if (node < 0 || n >= mask.size() * bits)
        return;
    mask[n / bits] = 1ul << (n % bits);
    (void)syscall(SYS_mbind, memory, bytes, kPreferred, mask.data(), mask.size() * bits, 0u);
}

}  // namespace

DeviceBuffer::DeviceBuffer(std::shared_ptr<Device> device, std::uint64_t bytes,
                           const std::string &what)
    : device_(std::move(device)), bytes_(bytes) {
    if (bytes == 0)
        return;
    const Current current(*device_);
    const Driver &driver = device_->driver();
    const Result result = driver.memory_allocate(&address_, bytes);
    if (result == cuda::kOutOfMemory) {
        std::size_t free = 0, total = 0;
        (void)driver.memory_info(&free, &total);
        throw Error(SAC_E_GPU, what,
                    format("%s: the GPU has no room for %" PRIu64
                           " bytes: %zu of %zu are free. Make it smaller, or leave it more "
                           "(torch keeps what it has freed: torch.cuda.empty_cache()).",
                           what.c_str(), bytes, free, total),
                    result);
    }
    driver.check(result, what, "cannot allocate memory of the GPU");
}

DeviceBuffer::DeviceBuffer(DeviceBuffer &&other) noexcept
    : device_(std::move(other.device_)), address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer &DeviceBuffer::operator=(DeviceBuffer &&other) noexcept {
    if (this != &other) {
        free();
        device_ = std::move(other.device_);
        address_ = std::exchange(other.address_, 0);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

DeviceBuffer::~DeviceBuffer() { free(); }

void DeviceBuffer::free() noexcept {
    if (address_ == 0)
        return;
    try {
        const Current current(*device_);
        (void)device_->driver().memory_free(address_);
    } catch (const Error &) {
        // A forked child, or a process that is ending.
    }
    address_ = 0;
}

void DeviceBuffer::check_range(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset > bytes_ || bytes > bytes_ - offset)
        throw Error(SAC_E_RANGE, "memory of the GPU",
                    format("%" PRIu64 " bytes at offset %" PRIu64 " of a buffer of %" PRIu64,
                           bytes, offset, bytes_));
}

void DeviceBuffer::copy_in(std::uint64_t offset, const void *from, std::uint64_t bytes,
                           std::uintptr_t stream) const {
    check_range(offset, bytes);
    if (bytes == 0)
        return;
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.copy_in(address_ + offset, from, bytes, stream_handle(stream)),
                 "memory of the GPU", "cannot copy to it");
}

void DeviceBuffer::copy_out(void *to, std::uint64_t offset, std::uint64_t bytes,
                            std::uintptr_t stream) const {
    check_range(offset, bytes);
    if (bytes == 0)
        return;
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.copy_out(to, address_ + offset, bytes, stream_handle(stream)),
                 "memory of the GPU", "cannot copy from it");
}

void DeviceBuffer::fill8(std::uint64_t offset, std::uint8_t value, std::uint64_t bytes,
                         std::uintptr_t stream) const {
    check_range(offset, bytes);
    if (bytes == 0)
        return;
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.fill8(address_ + offset, value, bytes, stream_handle(stream)),
                 "memory of the GPU", "cannot fill it");
}

void DeviceBuffer::fill32(std::uint64_t offset, std::uint32_t value, std::uint64_t count,
                          std::uintptr_t stream) const {
    check_range(offset, count > bytes_ / 4 ? UINT64_MAX : count * 4);
    if (count == 0)
        return;
    const Current current(*device_);
    const Driver &driver = device_->driver();
    driver.check(driver.fill32(address_ + offset, value, count, stream_handle(stream)),
                 "memory of the GPU", "cannot fill it");
}

PinnedBuffer::PinnedBuffer(std::shared_ptr<Device> device, std::uint64_t bytes, int numa_node,
                           const std::string &what)
    : device_(std::move(device)), bytes_(bytes) {
    if (bytes == 0)
        return;
    const Current current(*device_);
    const Driver &driver = device_->driver();
    // Memory of our own, so that it lies on the node before it is pinned there.
    void *const p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        throw Error(SAC_E_NO_MEMORY, what,
                    format("%s: no memory for %" PRIu64 " bytes", what.c_str(), bytes));
    try {
        prefer_node(p, bytes, numa_node);
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        (void)madvise(p, bytes, MADV_DONTFORK);
        driver.check(
            driver.host_register(p, bytes, cuda::kRegisterPortable | cuda::kRegisterMapped),
            what, "cannot pin memory of the host",
            "Free some, or raise the limit on locked memory (ulimit -l).");
        data_ = static_cast<std::uint8_t *>(p);
        driver.check(driver.host_address(&address_, p, 0), what,
                     "the GPU does not see memory of the host");
    } catch (...) {
        if (data_)
            (void)driver.host_unregister(p);
        munmap(p, bytes);
        throw;
    }
}

PinnedBuffer::PinnedBuffer(PinnedBuffer &&other) noexcept
    : device_(std::move(other.device_)), data_(std::exchange(other.data_, nullptr)),
      address_(std::exchange(other.address_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}

PinnedBuffer &PinnedBuffer::operator=(PinnedBuffer &&other) noexcept {
    if (this != &other) {
        free();
        device_ = std::move(other.device_);
        data_ = std::exchange(other.data_, nullptr);
        address_ = std::exchange(other.address_, 0);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

PinnedBuffer::~PinnedBuffer() { free(); }

void PinnedBuffer::free() noexcept {
    // In a forked child the addresses are not there (MADV_DONTFORK), or mean something else.
    if (!data_ || device_->driver().forked())
        return;
    try {
        const Current current(*device_);
        (void)device_->driver().host_unregister(data_);
    } catch (const Error &) {
        // A process that is ending: the driver lets go by itself.
    }
    munmap(data_, bytes_);
    data_ = nullptr;
}

}  // namespace sac::gpu
