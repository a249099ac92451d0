// SPDX-License-Identifier: Apache-2.0
// Which page leaves first. The policy sees only leaves: parts with no resident child, so
// that the tail of a prefix goes first. The caller serialises all calls.
#pragma once

#include <cstdint>
#include <memory>

#include "index.hpp"

namespace sac {

class EvictionPolicy {
public:
    virtual ~EvictionPolicy() = default;
    // A part became a leaf. Its record's stamp says when it was last used.
    virtual void add(std::uint32_t slot) noexcept = 0;
    virtual void remove(std::uint32_t slot) noexcept = 0;
    // A leaf was used; its stamp is already the new one.
    virtual void used(std::uint32_t slot) noexcept = 0;
    // The leaf to evict next, or kNoSlot.
    virtual std::uint32_t victim() const noexcept = 0;
    // The one to evict after this leaf, or kNoSlot.
    virtual std::uint32_t next(std::uint32_t slot) const noexcept = 0;
    virtual std::uint64_t leaves() const noexcept = 0;
    // The records lie in another index now, which holds the same.
    virtual void moved(Index &index) noexcept = 0;
};

// Least recently used first. Links and stamps live in the index's records.
class Lru final : public EvictionPolicy {
public:
    explicit Lru(Index &index) : index_(&index) {}
    void add(std::uint32_t slot) noexcept override;
    void remove(std::uint32_t slot) noexcept override;
    void used(std::uint32_t slot) noexcept override;
    std::uint32_t victim() const noexcept override { return coldest_; }
    std::uint32_t next(std::uint32_t slot) const noexcept override {
        return index_->record(slot).hotter;
    }
    std::uint64_t leaves() const noexcept override { return count_; }
    void moved(Index &index) noexcept override { index_ = &index; }

private:
    void link(std::uint32_t slot, std::uint32_t colder, std::uint32_t hotter) noexcept;

    Index *index_;
    std::uint32_t coldest_ = kNoSlot, hottest_ = kNoSlot;
    std::uint64_t count_ = 0;
};

}  // namespace sac
