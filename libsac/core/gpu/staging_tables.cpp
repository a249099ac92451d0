// SPDX-License-Identifier: Apache-2.0
#include "staging_tables.hpp"

#include <algorithm>
#include <bit>

namespace sac::gpu {
namespace {

constexpr std::uint64_t kLeast = 64 << 10;
constexpr const char *kWhat = "lists for transfers";

}  // namespace

Table::Table(const std::shared_ptr<Device> &device, std::uint64_t bytes, bool on_gpu)
    : host_(device, bytes, device->info().numa_node, kWhat) {
    if (on_gpu)
        device_ = DeviceBuffer(device, bytes, kWhat);
}

std::uint64_t Table::add(std::uint64_t bytes) noexcept {
    const std::uint64_t at = used_;
    used_ += padded(bytes);
    return at;
}

void Table::send(std::uintptr_t stream) const {
    if (used_ != 0)
        device_.copy_in(0, host_.data(), used_, stream);
}

void Table::fetch(std::uint64_t offset, std::uint64_t bytes, std::uintptr_t stream) const {
    device_.copy_out(host_.data() + offset, offset, bytes, stream);
}

std::shared_ptr<Table> TablePool::take(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Table> *best = nullptr;
    for (auto &t : tables_)
        if (t.use_count() == 1 && t->room() >= bytes && (!best || t->room() < (*best)->room()))
            best = &t;
    if (!best) {
        const std::uint64_t room = std::bit_ceil(std::max(bytes, kLeast));
        tables_.push_back(std::make_shared<Table>(device_, room, on_gpu_));
        best = &tables_.back();
    }
    (*best)->clear();
    return *best;
}

std::uint64_t TablePool::bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    std::uint64_t sum = 0;
    for (const auto &t : tables_)
        sum += t->room();
    return sum;
}

}  // namespace sac::gpu
