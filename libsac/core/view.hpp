// SPDX-License-Identifier: Apache-2.0
// A client's way into a namespace: an index, and the client's own table of pins.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "index.hpp"
#include "mapping.hpp"
#include "pins.hpp"

namespace sac {

class View {
public:
    // data: where the pages lie; outlives the view. table_number: to the daemon; 0 in the
    // process that owns the pool. served: the word in the data that says which incarnation
    // serves the pool; none in that process.
    View(std::shared_ptr<const Index> index, std::shared_ptr<PinTable> pins,
         const Mapping &data, std::uint32_t table_number = 0,
         const std::atomic<std::uint64_t> *served = nullptr)
        : number(table_number), index_(std::move(index)), pins_(std::move(pins)), data_(data),
          served_(served) {}

    const Index &index() const noexcept { return *index_; }
    const Mapping &data() const noexcept { return data_; }
    PinTable &pins() const noexcept { return *pins_; }
    const std::shared_ptr<PinTable> &table() const noexcept { return pins_; }
    bool revoked() const noexcept { return pins_->revoked(); }
    // The daemon was started without its run directory: nothing that is pinned or reserved
    // here counts any more.
    bool lost() const noexcept {
        return served_ && served_->load(std::memory_order_seq_cst) > pins_->incarnation();
    }

    // Pins the slot if it still holds the page of this generation.
    enum class Pinned { yes, gone, revoked };
    Pinned pin(std::uint32_t slot, std::uint64_t generation) const noexcept;

    const std::uint32_t number;

private:
    std::shared_ptr<const Index> index_;
    std::shared_ptr<PinTable> pins_;
    const Mapping &data_;
    const std::atomic<std::uint64_t> *served_;
};

}  // namespace sac
