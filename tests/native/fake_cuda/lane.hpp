// SPDX-License-Identifier: Apache-2.0
// What the fake kernels of the hot buffer share: the build, a lane, and its state.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "args.h"
#include "kernel.hpp"

namespace fake {

struct PlaneShape {
    std::uint64_t row_bytes, unit_bytes, pool_pitch, slot_pitch;
};

// The macros of args.h, as numbers.
struct Shape {
    explicit Shape(const Build &build);

    std::uint32_t slots, top_k, threads, policy, block, page_units;
    std::uint64_t units_max, group_bytes = 0;
    std::vector<PlaneShape> planes;
    std::uint64_t slots_pitch() const { return hot_slots_pitch(slots, threads); }
};

// Row `row` of the batch, and a head.
struct Lane {
    Lane(const HotArgs &args, const Shape &shape, unsigned row, unsigned head);

    bool bound() const { return known && (flags & HOT_BOUND) != 0; }
    bool direct() const { return (flags & HOT_DIRECT) != 0 && units <= shape.slots; }
    // Says why the lane is not served; false where it is.
    bool refused() const;
    void report(std::uint32_t bits) const;
    void count(HotCounter which, std::uint64_t n) const;
    HotPlan *plan() const;
    std::int32_t *slot_token() const;
    std::uint64_t page(std::uint64_t unit) const;  // 0: dead
    std::uint8_t *in_pool(std::uint32_t plane, std::uint64_t unit, std::uint64_t bytes,
                          std::uint64_t offset = 0, bool writing = false) const;
    std::uint8_t *in_slot(std::uint32_t plane, std::uint32_t slot) const;
    // All planes of a unit, unless its page is dead.
    void fetch(std::uint64_t unit, std::uint32_t slot) const;

    const HotArgs &args;
    const Shape &shape;
    unsigned row, head;
    std::uint32_t request = 0, flags = 0;
    std::uint64_t units = 0, rows = 0, open = 0, lane = 0;
    const std::uint64_t *pages = nullptr;
    bool known = false, twice = false;
};

// Which slots give way, one slot after the other: libsac/hotbuffer/policies.py in C++.
class Policy {
public:
    enum Mode { resolve, prefetch, append };
    explicit Policy(const Lane &lane);  // reads the lane's state
    // Slots for `missing` units; scores (may be empty): a key of every slot, then one of every
    // missing unit. Writes the state back.
    std::vector<std::uint32_t> step(const std::vector<bool> &hit, std::size_t missing,
                                    Mode mode, std::vector<std::uint64_t> keys = {},
                                    const std::vector<std::uint64_t> &missing_keys = {});

private:
    bool listed() const;
    std::vector<std::uint32_t> take(const std::vector<bool> &waits, std::size_t missing);
    std::vector<std::uint32_t> take_random(const std::vector<bool> &waits, std::size_t missing);
    std::vector<std::uint32_t> take_clock(const std::vector<bool> &waits, std::size_t missing);
    void join(const std::vector<bool> &joins, const std::vector<std::uint64_t> &keys);
    void write() const;

    const Lane &lane_;
    std::uint32_t slots_, policy_, counter_;
    std::vector<std::uint32_t> order_;  // of a listed policy
    std::vector<bool> used_, referenced_;
};

}  // namespace fake
