// SPDX-License-Identifier: Apache-2.0
// What a hot buffer holds and where: checked options, lanes, pitches, offsets in GPU memory,
// and the macros its kernels are compiled with. Arithmetic only; needs no GPU.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../../hotbuffer/kernels/args.h"
#include "kernels.hpp"
#include "layout.hpp"

namespace sac::gpu {

struct HotOptions {
    std::uint32_t requests = 0, slots = 0, top_k = 0, block = 1;
    std::uint32_t policy = HOT_LRU;
    bool padded = false;  // slots at multiples of 128 bytes
    bool cpu = false;     // CPU threads gather the rows by the plan, which every layer keeps
    std::uint32_t threads = 0;  // of the CPU; 0: chosen
    std::uint64_t max_tokens = 0;
    std::vector<std::uint32_t> groups;  // none: the group of the first plane of kind ROWS
    std::vector<std::pair<std::uint32_t, std::uint32_t>> share;  // layer, its leader
};

struct HotPlaneShape {
    std::uint32_t plane;  // of the layout
    std::uint32_t row_bytes, row_pitch;
    std::uint32_t unit_bytes, pool_pitch, slot_pitch, access;
    std::uint64_t rows;         // offset of its first layer in the rows' memory
    std::uint64_t layer_bytes;  // from layer to layer there
};

class HotGroup {
public:
    std::uint32_t number;  // of the layout
    std::uint32_t heads, lanes;
    std::uint32_t rows_a_page, page_units, tokens_per_row, units_max;
    std::vector<HotPlaneShape> planes;
    std::array<std::int16_t, SAC_MAX_LAYERS> ordinal{};  // of a layer; -1: none
    std::array<std::int16_t, SAC_MAX_LAYERS> state{};    // number of its (leader's) state
    std::array<std::int16_t, SAC_MAX_LAYERS> plan{};     // number of its (leader's) plan
    std::array<bool, SAC_MAX_LAYERS> follows{}, followed{};
    std::uint32_t layers = 0, states = 0, plans = 0;
    bool early = false;                                       // SAC_EARLY
    std::uint64_t slot_token = 0, order = 0, lane_state = 0;  // in the tables
    std::uint64_t plan_at = 0;                                // in what is shared

    // Units that so many rows make, the last perhaps in part.
    std::uint64_t units(std::uint64_t rows, std::uint32_t block) const noexcept {
        return (rows + block - 1) / block;
    }
    std::vector<std::uint32_t> numbers() const;  // of its planes in the layout
    bool has(std::uint32_t layer) const noexcept {
        return layer < SAC_MAX_LAYERS && ordinal[layer] >= 0;
    }
};

class HotGeometry {
public:
    // Throws Error: SAC_E_ARG, SAC_E_RANGE, SAC_E_NOT_FOUND, with the rule that is broken.
    // shared_most: bytes of shared memory that a block can have.
    HotGeometry(const Geometry &layout, const HotOptions &options, std::uint32_t shared_most);

    HotOptions options;
    std::uint32_t threads = 0, slots_pitch = 0, plan_bytes = 0;
    std::uint64_t pages_max = 0;  // of a request
    std::vector<HotGroup> groups;
    // One piece of GPU memory for the rows, one for the tables that kernels change, one for
    // what the CPU's threads look at as well: on their path that one is pinned memory of the
    // host.
    std::uint64_t rows_bytes = 0, tables_bytes = 0, shared_bytes = 0;
    std::uint64_t state_bytes = 0;  // of the tables, what lanes take
    // In the tables: i32[requests] that counts from 0; counters; errors.
    std::uint64_t numbers = 0, counters = 0, errors = 0;
    // Shared, with the plans: u64[requests][pages_max]; HotRequest[groups][requests].
    std::uint64_t pages = 0, requests = 0;

    // Throws Error(SAC_E_RANGE) where the buffer has no such group, or the group no such layer.
    const HotGroup &group(std::uint32_t number) const;
    const HotGroup &group(std::uint32_t number, std::uint32_t layer) const;
    // The group and shape of a plane of the layout. Throws Error(SAC_E_RANGE).
    const HotGroup &of_plane(std::uint32_t plane, const HotPlaneShape *&shape) const;

    std::uint64_t table(const HotGroup &g) const noexcept {
        return requests + static_cast<std::uint64_t>(&g - groups.data()) * options.requests *
                              sizeof(HotRequest);
    }
    // Of a thread block of the kernels that plan, without what sac_resolve has beyond it.
    std::uint32_t block_bytes(const HotGroup &g, std::uint32_t top_k) const noexcept {
        return hot_shared_bytes(options.slots, top_k, threads, g.units_max, options.policy);
    }
    std::uint32_t resolve_bytes(const HotGroup &g) const noexcept {
        return block_bytes(g, options.top_k) +
               (g.early ? hot_early_bytes(options.top_k, threads, g.units_max) : 0);
    }
    KernelSpec spec(const HotGroup &g, const std::string &source) const;

private:
    void check_options() const;
    void add_group(const Geometry &layout, std::uint32_t number);
    void share_layers(HotGroup &g);
    void place();
};

}  // namespace sac::gpu
