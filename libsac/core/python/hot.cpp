// SPDX-License-Identifier: Apache-2.0
// Hot buffers: addresses of tensors in, as numbers; libsac/hotbuffer has looked at them.
#include "gpu.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <tuple>
#include <utility>
#include <vector>

namespace sac_py {
namespace {

struct Hot : Handle<sac_hot> {
    using Handle::Handle;
    std::shared_ptr<sac_hot> use() const { return get("hot buffer"); }
};

using Requests = std::vector<std::uint32_t>;
// plane, address, strides of request, token and head in bytes
using Rows = std::tuple<std::uint32_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t>;

// What sac_hot_options points to lives here.
struct Options {
    std::vector<std::uint32_t> groups;
    std::vector<sac_hot_share> share;
    sac_hot_options plain{};

    Options(std::uint32_t requests, std::uint32_t slots, std::uint32_t top_k,
            std::uint32_t block, std::uint32_t policy, std::uint32_t flags,
            std::uint32_t threads, std::uint64_t max_tokens, std::uint64_t timeout_ms,
            std::vector<std::uint32_t> numbers,
            const std::vector<std::pair<std::uint32_t, std::uint32_t>> &followed)
        : groups(std::move(numbers)) {
        for (const auto &[layer, leader] : followed)
            share.push_back({layer, leader});
        sac_hot_options &o = plain;
        o.struct_size = sizeof o;
        o.flags = flags, o.requests = requests, o.slots = slots, o.top_k = top_k;
        o.block = block, o.policy = policy, o.threads = threads, o.max_tokens = max_tokens;
        o.timeout_ms = timeout_ms;
        o.groups = groups.data(), o.group_count = static_cast<std::uint32_t>(groups.size());
        o.share = share.data(), o.share_count = static_cast<std::uint32_t>(share.size());
    }
    Options(const Options &) = delete;
    Options &operator=(const Options &) = delete;
};

void check_options(const Namespace &of, const Options &options) {
    const auto ns = of.get("namespace");
    call([&] { return sac_hot_check(ns.get(), &options.plain); });
}

std::shared_ptr<Hot> open(const Gpu &on, const Namespace &of, const Options &options) {
    const auto gpu = on.get("GPU");
    const auto ns = of.get("namespace");
    sac_hot *hot = nullptr;
    call([&] { return sac_hot_open(gpu.get(), ns.get(), &options.plain, &hot); });
    return std::make_shared<Hot>(hot, sac_hot_close);
}

nb::dict info(const Hot &self) {
    const auto hot = self.use();
    sac_hot_info i;
    call([&] { return sac_hot_get_info(hot.get(), &i); });
    nb::dict d;
    d["rows_bytes"] = i.rows_bytes;
    d["state_bytes"] = i.state_bytes;
    d["table_bytes"] = i.table_bytes;
    d["memory_bytes"] = i.memory_bytes;
    d["max_tokens"] = i.max_tokens;
    d["requests"] = i.requests;
    d["slots"] = i.slots;
    d["top_k"] = i.top_k;
    d["block"] = i.block;
    d["threads"] = i.threads;
    return d;
}

// A torch tensor over GPU memory that keeps the buffer.
nb::object tensor(const std::shared_ptr<sac_hot> &hot, std::uint64_t address,
                  const std::vector<std::size_t> &shape,
                  const std::vector<std::int64_t> &strides, nb::dlpack::dtype dtype,
                  std::int32_t ordinal) {
    using Keep = std::shared_ptr<sac_hot>;
    auto *const kept = new Keep(hot);
    const nb::capsule owner(kept, [](void *q) noexcept {
        const nb::gil_scoped_release release;  // the last one waits for the GPU
        delete static_cast<Keep *>(q);
    });
    const bool on_gpu = ordinal >= 0;
    return nb::cast(nb::ndarray<nb::pytorch>(
        reinterpret_cast<void *>(address), shape.size(), shape.data(), owner, strides.data(),
        dtype, on_gpu ? nb::device::cuda::value : nb::device::cpu::value,
        on_gpu ? ordinal : 0));
}

// (lanes * slots, row_bytes), or (lanes * slots, block, row_bytes), uint8. ordinal: of the GPU;
// -1: the "GPU memory" is the host's (a driver for tests).
nb::object rows(const Hot &self, std::uint32_t plane, std::uint32_t layer,
                std::int32_t ordinal) {
    const auto hot = self.use();
    sac_hot_plane p;
    sac_hot_info i;
    call([&] { return sac_hot_get_plane(hot.get(), plane, layer, &p); });
    call([&] { return sac_hot_get_info(hot.get(), &i); });
    std::vector<std::size_t> shape{std::size_t{p.lanes} * i.slots};
    std::vector<std::int64_t> strides{p.slot_pitch};
    if (i.block > 1)
        shape.push_back(i.block), strides.push_back(p.row_pitch);
    shape.push_back(p.row_bytes), strides.push_back(1);
    return tensor(hot, p.rows, shape, strides, nb::dtype<std::uint8_t>(), ordinal);
}

sac_hot_call call_of(std::uint32_t group, std::uint32_t layer, std::uint32_t batch,
                     std::uint64_t requests, std::uintptr_t stream, std::uint32_t blocks) {
    sac_hot_call c{};
    c.struct_size = sizeof c;
    c.group = group, c.layer = layer, c.batch = batch, c.blocks = blocks;
    c.requests = requests, c.stream = stream;
    return c;
}

using Launch = int (*)(sac_hot *, const sac_hot_call *);

template <Launch launch>
void select(const Hot &self, std::uint32_t group, std::uint32_t layer, std::uint32_t batch,
            std::uint32_t top_k, std::uint64_t requests, std::uint64_t selection,
            std::uint64_t scores, std::uint64_t out, std::uintptr_t stream,
            std::uint32_t blocks, bool plan_only) {
    const auto hot = self.use();
    sac_hot_call c = call_of(group, layer, batch, requests, stream, blocks);
    c.top_k = top_k, c.selection = selection, c.scores = scores, c.out = out;
    c.flags = plan_only ? std::uint32_t{SAC_HOT_PLAN_ONLY} : 0;
    call([&] { return launch(hot.get(), &c); });
}

void append(const Hot &self, std::uint32_t group, std::uint32_t layer, std::uint32_t batch,
            std::uint64_t requests, std::uint64_t first, std::uint32_t count,
            const std::vector<Rows> &planes, std::uintptr_t stream) {
    const auto hot = self.use();
    std::vector<sac_hot_rows> list;
    for (const auto &[plane, address, request, token, head] : planes)
        list.push_back({plane, 0, address, request, token, head});
    const sac_hot_call c = call_of(group, layer, batch, requests, stream, 0);
    call([&] {
        return sac_hot_append(hot.get(), &c, first, count, list.data(),
                              static_cast<std::uint32_t>(list.size()));
    });
}

nb::tuple stats(const Hot &self) {
    const auto hot = self.use();
    sac_hot_info i;
    call([&] { return sac_hot_get_info(hot.get(), &i); });
    sac_hot_stats s;
    std::vector<std::uint32_t> errors(i.requests + 1);
    call([&] { return sac_hot_get_stats(hot.get(), &s, errors.data()); });
    nb::dict d;
    d["hits"] = s.hits;
    d["misses"] = s.misses;
    d["bytes"] = s.bytes;
    d["evictions"] = s.evictions;
    d["kept"] = s.kept;
    d["prefetched"] = s.prefetched;
    d["appended"] = s.appended;
    return nb::make_tuple(d, errors);
}

}  // namespace

void bind_hot(nb::module_ &m) {
    nb::class_<Options>(m, "HotOptions")
        .def(nb::init<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                      std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t,
                      std::vector<std::uint32_t>,
                      const std::vector<std::pair<std::uint32_t, std::uint32_t>> &>(),
             nb::kw_only(), nb::arg("requests"), nb::arg("slots"), nb::arg("top_k"),
             nb::arg("block"), nb::arg("policy"), nb::arg("flags"), nb::arg("threads"),
             nb::arg("max_tokens"), nb::arg("timeout_ms"), nb::arg("groups"), nb::arg("share"));
    m.def("hot_check", check_options, nb::arg("namespace"), nb::arg("options"));
    m.def("hot_open", open, nb::arg("gpu"), nb::arg("namespace"), nb::arg("options"));
    nb::class_<Hot>(m, "Hot")
        .def("info", info)
        .def("rows", rows)
        .def("bind",
             [](const Hot &self, std::uint32_t request, const Prefix &of, bool direct,
                std::uintptr_t stream) {
                 const auto hot = self.use();
                 const auto prefix = of.get();
                 call([&] {
                     return sac_hot_bind(hot.get(), request, prefix.get(),
                                         direct ? 0u : std::uint32_t{SAC_HOT_NO_BYPASS},
                                         stream);
                 });
             })
        .def("extend",
             [](const Hot &self, const Requests &requests, std::uintptr_t stream) {
                 const auto hot = self.use();
                 call([&] {
                     return sac_hot_extend(hot.get(), requests.data(),
                                           static_cast<std::uint32_t>(requests.size()), stream);
                 });
             })
        .def("truncate",
             [](const Hot &self, std::uint32_t request, std::uint64_t tokens,
                std::uintptr_t stream) {
                 const auto hot = self.use();
                 call([&] { return sac_hot_truncate(hot.get(), request, tokens, stream); });
             })
        .def("written",
             [](const Hot &self, const Requests &requests, std::uintptr_t stream) {
                 const auto hot = self.use();
                 call([&] {
                     return sac_hot_written(hot.get(), requests.data(),
                                            static_cast<std::uint32_t>(requests.size()),
                                            stream);
                 });
             })
        .def("release",
             [](const Hot &self, std::uint32_t request, std::uintptr_t stream) {
                 const auto hot = self.use();
                 call([&] { return sac_hot_release(hot.get(), request, stream); });
             })
        .def("refresh",
             [](const Hot &self, std::uintptr_t stream) {
                 const auto hot = self.use();
                 std::uint64_t dead = 0;
                 call([&] { return sac_hot_refresh(hot.get(), stream, &dead); });
                 return dead;
             })
        .def("resolve", select<sac_hot_resolve>)
        .def("prefetch", select<sac_hot_prefetch>)
        .def("replay",
             [](const Hot &self, std::uint32_t group, std::uint32_t layer, std::uint32_t batch,
                std::uint64_t requests, std::uintptr_t stream) {
                 const auto hot = self.use();
                 const sac_hot_call c = call_of(group, layer, batch, requests, stream, 0);
                 call([&] { return sac_hot_replay(hot.get(), &c); });
             })
        .def("append", append)
        .def("stats", stats)
        .def("close", &Hot::close)
        .def_prop_ro("closed", &Hot::closed);
}

}  // namespace sac_py
