// SPDX-License-Identifier: Apache-2.0
// What the tests of hot buffers share: one made by sac_gpu.h on the fake driver, whose GPU
// memory is memory, and pages whose rows follow from their keys. Include check.hpp before.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "gpu_move_kit.hpp"

namespace hot_kit {

using move_kit::GpuHandle;
using HotHandle = std::unique_ptr<sac_hot, kit::Closer<sac_hot_close>>;
using Ints = std::vector<std::int32_t>;

constexpr std::uint32_t kRows = 16, kBytes = 32768;  // of a page; of a row

struct Options : sac_hot_options {
    Options(std::uint32_t of_requests, std::uint32_t of_slots, std::uint32_t of_top_k)
        : sac_hot_options{} {
        struct_size = sizeof(sac_hot_options);
        requests = of_requests, slots = of_slots, top_k = of_top_k, max_tokens = 1024;
    }
};

inline HotHandle hot(const GpuHandle &gpu, const kit::NsHandle &ns,
                     const sac_hot_options &options) {
    sac_hot *out = nullptr;
    kit::must(sac_hot_open(gpu.get(), ns.get(), &options, &out), "sac_hot_open");
    return HotHandle(out);
}

template <class T> std::uint64_t address(const std::vector<T> &of) {
    return reinterpret_cast<std::uintptr_t>(of.data());
}

// A call for group 0 and layer 0; what it names must outlive it.
inline sac_hot_call call(const Ints &requests, const Ints &selection = {},
                         const Ints &out = {}) {
    sac_hot_call c{};
    c.struct_size = sizeof c;
    c.batch = static_cast<std::uint32_t>(requests.size());
    c.top_k =
        requests.empty() ? 0 : static_cast<std::uint32_t>(selection.size() / requests.size());
    c.requests = address(requests), c.selection = address(selection), c.out = address(out);
    return c;
}

inline Ints resolve(const HotHandle &hot, const Ints &requests, const Ints &selection) {
    Ints out(selection.size(), -7);
    const sac_hot_call c = call(requests, selection, out);
    kit::must(sac_hot_resolve(hot.get(), &c), "sac_hot_resolve");
    return out;
}

inline sac_hot_stats stats(const HotHandle &hot, std::vector<std::uint32_t> *errors = nullptr) {
    sac_hot_stats s{};
    kit::must(sac_hot_get_stats(hot.get(), &s, errors ? errors->data() : nullptr),
              "sac_hot_get_stats");
    return s;
}
inline std::vector<std::uint32_t> errors(const HotHandle &hot, std::uint32_t requests) {
    std::vector<std::uint32_t> out(requests + 1, 77);
    stats(hot, &out);
    return out;
}

// Whether the row of a unit lies at the place that resolve gave.
inline bool there(const HotHandle &hot, const std::vector<std::uint8_t> &keys,
                  std::int32_t unit, std::int32_t place) {
    sac_hot_plane p{};
    kit::must(sac_hot_get_plane(hot.get(), 0, 0, &p), "sac_hot_get_plane");
    const auto number = static_cast<std::uint64_t>(unit);
    std::vector<std::uint8_t> want(p.row_bytes);
    kit::fill_row(kit::seed_of(keys.data() + number / kRows * SAC_KEY_BYTES), 0, 0, 0,
                  number % kRows, want.data(), p.row_bytes);
    return std::memcmp(reinterpret_cast<const void *>(
                           p.rows + static_cast<std::uint64_t>(place) * p.slot_pitch),
                       want.data(), want.size()) == 0;
}

}  // namespace hot_kit
