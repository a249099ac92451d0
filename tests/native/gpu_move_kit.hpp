// SPDX-License-Identifier: Apache-2.0
// What the tests of transfers share: movers, and an engine's tensors in several orders. Memory
// of the fake GPU is memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "check.hpp"
#include "gpu_kit.hpp"
#include "kit_pages.hpp"
#include "sac_gpu.h"

namespace move_kit {

using GpuHandle = std::unique_ptr<sac_gpu, kit::Closer<sac_gpu_close>>;
using MoverHandle = std::unique_ptr<sac_gpu_mover, kit::Closer<sac_gpu_mover_close>>;

inline GpuHandle gpu() {
    gpu_kit::use_fake();
    sac_gpu *out = nullptr;
    kit::must(sac_gpu_open(0, &out), "sac_gpu_open");
    return GpuHandle(out);
}

struct Options : sac_gpu_mover_options {
    explicit Options(std::uint32_t way = SAC_GPU_PATH_AUTO) : sac_gpu_mover_options{} {
        struct_size = sizeof(sac_gpu_mover_options);
        path = way, threads = 3;
    }
};

inline MoverHandle mover(const GpuHandle &gpu, const kit::NsHandle &ns,
                         const sac_gpu_mover_options &options = Options()) {
    sac_gpu_mover *out = nullptr;
    kit::must(sac_gpu_mover_open(gpu.get(), ns.get(), &options, &out), "sac_gpu_mover_open");
    return MoverHandle(out);
}

enum class Order { layer_token, page_layer, layer_page_head };

// All rows of a plane in an engine's order; row i of the pages lies in slot slots[i].
struct Tensor {
    std::vector<std::uint8_t> bytes;
    std::vector<std::uint32_t> layers;
    std::vector<std::uint64_t> sources;
    std::vector<std::int64_t> slots;
    sac_gpu_rows rows{};

    // seeds: of the pages to be put, in turn. slot_count: at least their rows.
    Tensor(const sac::Geometry &g, std::uint32_t plane, Order order,
           const std::vector<std::uint64_t> &seeds, std::uint64_t slot_count, bool shuffled) {
        const sac_plane &p = g.planes[plane];
        const std::uint64_t heads = p.heads, row = p.row_bytes, block = g.at[plane].rows;
        slot_count = (slot_count + block - 1) / block * block;
        for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
            if (g.at[plane].ordinal[l] >= 0)
                layers.push_back(l);
        const std::uint64_t count = layers.size();
        bytes.assign(count * slot_count * heads * row + 16, 0xee);
        std::uint8_t *const base =
            bytes.data() + (16 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 16) % 16;
        std::uint64_t layer_stride = 0, head_stride = row, row_stride = heads * row,
                      block_stride = 0;
        rows.block_rows = 0;
        if (order == Order::layer_token) {
            layer_stride = slot_count * heads * row;
        } else if (order == Order::page_layer) {
            layer_stride = block * heads * row, block_stride = count * layer_stride;
            rows.block_rows = static_cast<std::uint32_t>(block);
        } else {
            layer_stride = slot_count * heads * row, block_stride = block * heads * row;
            head_stride = block * row, row_stride = row;
            rows.block_rows = static_cast<std::uint32_t>(block);
        }
        slots.resize(seeds.size() * block);
        std::iota(slots.begin(), slots.end(), std::int64_t{0});
        if (shuffled) {
            std::vector<std::int64_t> all(slot_count);
            std::iota(all.begin(), all.end(), std::int64_t{0});
            for (std::uint64_t i = all.size(); i-- > 1;)
                std::swap(all[i], all[kit::mix(i) % (i + 1)]);
            std::copy_n(all.begin(), slots.size(), slots.begin());
        }
        for (std::uint64_t l = 0; l < count; ++l) {
            sources.push_back(reinterpret_cast<std::uintptr_t>(base + l * layer_stride));
            for (std::uint64_t i = 0; i < slots.size(); ++i)
                for (std::uint32_t h = 0; h < heads; ++h) {
                    const auto s = static_cast<std::uint64_t>(slots[i]);
                    const std::uint64_t at = rows.block_rows == 0 ? s * row_stride
                                                                  : s / block * block_stride +
                                                                        s % block * row_stride;
                    kit::fill_row(seeds[i / block], plane, layers[l], h, i % block,
                                  base + l * layer_stride + at + h * head_stride, p.row_bytes);
                }
        }
        rows.plane = plane;
        rows.layer_count = static_cast<std::uint32_t>(count);
        rows.layers = layers.data(), rows.sources = sources.data();
        rows.slots = shuffled ? slots.data() : nullptr;
        rows.block_stride = static_cast<std::int64_t>(block_stride);
        rows.row_stride = static_cast<std::int64_t>(row_stride);
        rows.head_stride = static_cast<std::int64_t>(head_stride);
        rows.source_rows = slot_count;
        rows.count = seeds.size();
    }
    Tensor(const Tensor &) = delete;
    Tensor &operator=(const Tensor &) = delete;
};

// Seeds of the missing pages of a part.
inline std::vector<std::uint64_t> seeds(sac_put *put, std::uint32_t part,
                                        const std::vector<std::uint8_t> &keys) {
    std::uint64_t n = 0;
    kit::must(sac_put_missing(put, part, nullptr, &n), "sac_put_missing");
    std::vector<std::uint64_t> missing(n), out;
    kit::must(sac_put_missing(put, part, missing.data(), &n), "sac_put_missing");
    for (const std::uint64_t m : missing)
        out.push_back(kit::seed_of(keys.data() + m * SAC_KEY_BYTES));
    return out;
}

// Tensors of all planes for what a put misses.
inline std::vector<std::unique_ptr<Tensor>> tensors(const kit::NsHandle &ns, sac_put *put,
                                                    const std::vector<std::uint8_t> &keys,
                                                    Order order, bool shuffled) {
    std::vector<std::unique_ptr<Tensor>> out;
    const sac::Geometry &g = ns->it->geometry();
    for (std::uint32_t p = 0; p < g.planes.size(); ++p) {
        const auto of = seeds(put, g.at[p].part, keys);
        out.push_back(
            std::make_unique<Tensor>(g, p, order, of, of.size() * g.at[p].rows + 5, shuffled));
    }
    return out;
}

}  // namespace move_kit
