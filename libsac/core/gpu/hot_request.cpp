// SPDX-License-Identifier: Apache-2.0
#include "hot_request.hpp"

#include <algorithm>

#include "error.hpp"
#include "hot_apart.hpp"

namespace sac::gpu {

HotFence::HotFence(const std::shared_ptr<Device> &device, std::uintptr_t stream)
    : device_(device), event_(device) {
    event_.record(stream);
}

bool HotFence::done() noexcept {
    try {
        const Apart apart(*device_);
        return event_.done();
    } catch (const Error &) {
        return false;  // a GPU that failed has written nobody knows what
    }
}

HotRequestState::HotRequestState(std::shared_ptr<Prefix> prefix, bool writes)
    : prefix_(std::move(prefix)), sequence_(dynamic_cast<Sequence *>(prefix_.get())) {
    if (!writes)
        follower_.sealed = UINT64_MAX;
    prefix_->borrow();
    try {
        if (sequence_)
            sequence_->join(follower_);
    } catch (...) {
        prefix_->give_back();
        throw;
    }
}

HotRequestState::~HotRequestState() {
    if (sequence_)
        sequence_->leave(follower_);
    prefix_->give_back();
}

std::uint64_t HotRequestState::tokens_now() {
    if (!sequence_) {
        const auto held = prefix_->lock();
        return prefix_->tokens();
    }
    return sequence_->follow(follower_, cut);
}

std::uint64_t HotRequestState::rows_written(const std::vector<std::uint32_t> &planes) const {
    const auto held = prefix_->lock();
    const Geometry &g = prefix_->ns().geometry();
    std::uint64_t least = UINT64_MAX;
    for (const std::uint32_t p : planes)
        for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
            if (g.at[p].ordinal[l] >= 0)
                least = std::min(least, prefix_->rows(p, l));
    return least;
}

std::uint64_t HotRequestState::full_pages(const std::vector<std::uint32_t> &planes) {
    const auto held = prefix_->lock();
    const Geometry &g = prefix_->ns().geometry();
    std::uint64_t least = UINT64_MAX;
    for (const std::uint32_t p : planes)
        for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
            if (g.at[p].ordinal[l] >= 0)
                least = std::min(least, prefix_->rows(p, l) / g.at[p].rows);
    sealing_ = follower_.sealed < least;
    return least;
}

void HotRequestState::seal(const std::shared_ptr<Device> &device, std::uint64_t pages,
                           std::uintptr_t stream) {
    if (!sequence_ || !(sealing_ || pages == UINT64_MAX))
        return;
    sequence_->seal(follower_, pages, std::make_shared<HotFence>(device, stream));
    sealing_ = false;
}

HotRequestState::Seen HotRequestState::look(const Registration *registration,
                                            std::uint64_t most,
                                            std::uint64_t timeout_ms) const {
    const auto held = prefix_->lock();
    const std::uint64_t pages = std::min(prefix_->pages(), most);
    const std::uint64_t bytes = prefix_->ns().geometry().part_bytes[kBodyPart];
    Seen seen;
    seen.losses = prefix_->losses();
    seen.settled = prefix_->settled();
    seen.from = seen.losses == losses_ ? std::min({settled_, addresses_.size(), pages}) : 0;
    seen.addresses.resize(pages - seen.from);
    for (std::uint64_t i = seen.from; i < pages; ++i) {
        if (prefix_->gone(i))
            continue;
        std::uint8_t *const page = prefix_->addresses(kBodyPart)[i];
        std::uint64_t at = registration ? registration->address(page, bytes)
                                        : reinterpret_cast<std::uint64_t>(page);
        if (at == 0) {
            registration->require(timeout_ms);  // an extent that came a moment ago
            at = registration->address(page, bytes);
        }
        seen.addresses[i - seen.from] = at;  // 0: the memory is lost, its pages are about to be
    }
    return seen;
}

std::pair<std::uint64_t, std::uint64_t> HotRequestState::take(const Seen &seen) {
    const std::uint64_t pages = seen.from + seen.addresses.size();
    std::uint64_t first = pages, end = seen.from;
    for (std::uint64_t i = seen.from; i < pages; ++i)
        if (i >= addresses_.size() || addresses_[i] != seen.addresses[i - seen.from])
            first = std::min(first, i), end = i + 1;
    addresses_.resize(seen.from);
    addresses_.insert(addresses_.end(), seen.addresses.begin(), seen.addresses.end());
    losses_ = seen.losses;
    settled_ = seen.settled;
    return {std::min(first, end), end};
}

std::uint64_t HotRequestState::dead() const noexcept {
    return static_cast<std::uint64_t>(std::count(addresses_.begin(), addresses_.end(), 0u));
}

}  // namespace sac::gpu
