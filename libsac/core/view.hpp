// SPDX-License-Identifier: Apache-2.0
// A client's way into a namespace: an index, and the client's own table of pins.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "index.hpp"
#include "pins.hpp"

namespace sac {

class View {
public:
    // table_number: to the daemon; 0 in the process that owns the pool.
    View(std::shared_ptr<const Index> index, std::shared_ptr<PinTable> pins,
         std::uint32_t table_number = 0)
        : number(table_number), index_(std::move(index)), pins_(std::move(pins)) {}

    const Index &index() const noexcept { return *index_; }
    PinTable &pins() const noexcept { return *pins_; }
    const std::shared_ptr<PinTable> &table() const noexcept { return pins_; }
    bool revoked() const noexcept { return pins_->revoked(); }

    // Pins the slot if it still holds the page of this generation.
    enum class Pinned { yes, gone, revoked };
    Pinned pin(std::uint32_t slot, std::uint64_t generation) const noexcept;

    const std::uint32_t number;

private:
    std::shared_ptr<const Index> index_;
    std::shared_ptr<PinTable> pins_;
};

}  // namespace sac
