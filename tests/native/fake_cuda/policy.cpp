// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "lane.hpp"

namespace fake {
namespace {

constexpr std::uint16_t kUsed = 0x8000, kSlot = 0x7fff, kReferenced = 1;
constexpr std::uint64_t kStride = 2147483647;

std::uint32_t mix(std::uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

}  // namespace

bool Policy::listed() const {
    return policy_ == HOT_LRU || policy_ == HOT_FIFO || policy_ == HOT_LRU_SCORE;
}

Policy::Policy(const Lane &lane)
    : lane_(lane), slots_(lane.shape.slots), policy_(lane.shape.policy), counter_(0),
      used_(slots_), referenced_(slots_) {
    const HotState &state = at<HotState>(lane.args.state)[lane.lane];
    counter_ = state.counter;
    const std::uint64_t pitch = lane.shape.slots_pitch();
    const std::uint16_t *const words =
        at<std::uint16_t>(lane.args.order) + (lane.lane * 2 + (state.turn >> 16)) * pitch;
    for (std::uint32_t i = 0; i < slots_; ++i) {
        const std::uint32_t slot = listed() ? words[i] & kSlot : i;
        used_[slot] = (words[i] & kUsed) != 0;
        if (listed())
            order_.push_back(slot);
        else
            referenced_[slot] = (words[i] & kReferenced) != 0;
    }
}

void Policy::write() const {
    HotState &state = at<HotState>(lane_.args.state)[lane_.lane];
    const std::uint32_t half = 1 - (state.turn >> 16);
    std::uint16_t *const words = at<std::uint16_t>(lane_.args.order) +
                                 (lane_.lane * 2 + half) * lane_.shape.slots_pitch();
    for (std::uint32_t i = 0; i < slots_; ++i) {
        const std::uint32_t slot = listed() ? order_[i] : i;
        const std::uint32_t low = listed()                                    ? slot
                                  : policy_ == HOT_CLOCK && referenced_[slot] ? kReferenced
                                                                              : 0u;
        words[i] = static_cast<std::uint16_t>(low | (used_[slot] ? kUsed : 0u));
    }
    state.turn = half << 16;
    state.counter = counter_;
}

std::vector<std::uint32_t> Policy::step(const std::vector<bool> &hit, std::size_t missing,
                                        Mode mode, std::vector<std::uint64_t> keys,
                                        const std::vector<std::uint64_t> &missing_keys) {
    std::vector<bool> waits(slots_), fresh(slots_), joins(slots_);
    for (std::uint32_t s = 0; s < slots_; ++s)
        waits[s] = !hit[s] && !(mode == prefetch && used_[s]);
    const std::vector<std::uint32_t> taken = take(waits, missing);
    for (std::size_t k = 0; k < taken.size(); ++k) {
        fresh[taken[k]] = true;
        if (!keys.empty())
            keys[taken[k]] = missing_keys[k];
    }
    const bool hits_join = policy_ != HOT_FIFO && mode != append;
    for (std::uint32_t s = 0; s < slots_; ++s) {
        joins[s] = fresh[s] || (hits_join && hit[s]);
        if (policy_ == HOT_CLOCK && joins[s])
            referenced_[s] = true;
        if (mode == resolve)
            used_[s] = hit[s] || fresh[s];
        else if (fresh[s])
            used_[s] = false;
    }
    if (listed())
        join(joins,
             policy_ == HOT_LRU_SCORE && mode != append ? keys : std::vector<std::uint64_t>{});
    write();
    return taken;
}

// To the end of the list, lowest key first, then lowest slot.
void Policy::join(const std::vector<bool> &joins, const std::vector<std::uint64_t> &keys) {
    std::vector<std::uint32_t> end;
    for (std::uint32_t s = 0; s < slots_; ++s)
        if (joins[s])
            end.push_back(s);
    if (!keys.empty())
        std::stable_sort(end.begin(), end.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return keys[a] < keys[b]; });
    std::erase_if(order_, [&](std::uint32_t s) { return joins[s]; });
    order_.insert(order_.end(), end.begin(), end.end());
}

std::vector<std::uint32_t> Policy::take(const std::vector<bool> &waits, std::size_t missing) {
    if (policy_ == HOT_RANDOM)
        return take_random(waits, missing);
    if (policy_ == HOT_CLOCK)
        return take_clock(waits, missing);
    std::vector<std::uint32_t> out;
    for (const std::uint32_t s : order_)
        if (waits[s] && out.size() < missing)
            out.push_back(s);
    return out;
}

std::vector<std::uint32_t> Policy::take_random(const std::vector<bool> &waits,
                                               std::size_t missing) {
    std::vector<std::uint32_t> candidates, out;
    for (std::uint32_t s = 0; s < slots_; ++s)
        if (waits[s])
            candidates.push_back(s);
    const std::uint64_t h = mix(counter_++);
    for (std::uint64_t k = 0; k < missing && k < candidates.size(); ++k)
        out.push_back(candidates[(h + k * kStride) % candidates.size()]);
    return out;
}

std::vector<std::uint32_t> Policy::take_clock(const std::vector<bool> &waits,
                                              std::size_t missing) {
    std::vector<std::uint32_t> clear, spared;
    for (std::uint32_t i = 0; i < slots_; ++i) {
        const std::uint32_t s = (counter_ + i) % slots_;
        if (waits[s])
            (referenced_[s] ? spared : clear).push_back(s);
    }
    std::vector<std::uint32_t> out = clear;
    out.insert(out.end(), spared.begin(), spared.end());
    out.resize(std::min(missing, out.size()));
    if (out.empty())
        return out;
    const std::uint32_t last = out.back();
    const auto ahead = [&](std::uint32_t s) { return (s + slots_ - counter_) % slots_; };
    for (const std::uint32_t s : spared)
        if (out.size() > clear.size() || ahead(s) < ahead(last))
            referenced_[s] = false;
    counter_ = (last + 1) % slots_;
    return out;
}

}  // namespace fake
