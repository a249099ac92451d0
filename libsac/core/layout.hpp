// SPDX-License-Identifier: Apache-2.0
// A layout checked, and where each row of a page lies.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sac.h"

namespace sac {

enum Part : std::uint32_t { kBodyPart = 0, kTailPart = 1 };

struct PlaneGeometry {
    std::uint32_t part;
    std::uint32_t rows;  // a page
    std::uint32_t layer_count;
    std::uint64_t offset;        // in the part
    std::uint64_t head_stride;   // rows x row_pitch
    std::uint64_t layer_stride;  // heads x head_stride
    std::uint32_t first_pair;    // number of its first (plane, layer) pair in its part
    std::array<std::int16_t, SAC_MAX_LAYERS> ordinal;  // of a model layer, or -1
};

class Geometry {
public:
    Geometry() = default;
    // Throws Error(SAC_E_LAYOUT) with the rule that is broken.
    explicit Geometry(const sac_layout &layout);

    std::uint32_t page_tokens = 0;
    std::vector<sac_plane> planes;  // row_pitch filled in, strings zero-padded
    std::vector<PlaneGeometry> at;
    std::array<std::uint64_t, 2> part_bytes{};
    std::array<std::uint32_t, 2> pairs{};  // (plane, layer) pairs of each part
    std::uint32_t tail_pages = 0;
    std::array<std::uint8_t, 32> hash{};

    bool has_tail() const noexcept { return part_bytes[kTailPart] != 0; }
    // Byte offset in the part of a plane's and layer's first row. Throws Error(SAC_E_RANGE).
    std::uint64_t offset(std::uint32_t plane, std::uint32_t layer) const;
    // Number of the (plane, layer) pair within its part; plane and layer must be right.
    std::uint32_t pair(std::uint32_t plane, std::uint32_t layer) const noexcept;
    std::uint32_t crc(std::uint32_t part, const std::uint8_t *page) const noexcept;

    // Every difference in a sentence; empty where the layouts are the same.
    std::string difference(const Geometry &other) const;
};

}  // namespace sac
