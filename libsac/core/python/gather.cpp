// SPDX-License-Identifier: Apache-2.0
// gather: index arrays and buffers of any kind to sac_gather_req.
#include "bind.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

namespace sac_py {
namespace {

using Index = nb::ndarray<nb::ro, nb::device::cpu>;
using Target = nb::ndarray<nb::device::cpu>;

[[noreturn]] void bad(const char *object, const std::string &message) {
    raise(SAC_E_ARG, object, message);
}

// Where request (batch, head) begins in an array whose last dimension before the row is k.
struct Walk {
    std::size_t batch_stride = 0, head_stride = 0;  // bytes
};

// index: (batch, [heads,] k) of int32 or int64, or none: rows 0 .. count-1. dst: the same and
// the row behind it. One request for each prefix and head.
void gather(const Namespace &self, const std::vector<std::shared_ptr<Prefix>> &prefixes,
            std::uint32_t plane, std::uint32_t layer, std::uint32_t first_head,
            std::uint32_t heads, const std::optional<Index> &index, std::uint64_t count,
            nb::object out, bool stream, std::uint32_t threads) {
    const auto ns = self.get("namespace");
    const sac_plane p = plane_of(ns.get(), plane);
    if (first_head >= p.heads || heads > p.heads - first_head)
        raise(SAC_E_RANGE, p.name,
              std::string("plane '") + p.name + "' has " + std::to_string(p.heads) + " heads");
    Target dst;
    if (!nb::try_cast<Target>(out, dst, false) || !dst.is_valid())
        bad("out",
            "out must be a writable array in CPU memory: numpy, a torch CPU tensor, or another "
            "that speaks DLPack");
    const std::size_t batch = prefixes.size();
    std::uint64_t k = count;
    std::uint32_t index_bytes = 8;
    Walk from;
    if (index) {
        if (index->dtype().code != static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int) ||
            (index->itemsize() != 4 && index->itemsize() != 8))
            bad("tokens", "tokens must be int32 or int64");
        if (index->ndim() != 3 || index->shape(0) != batch || index->shape(1) != heads)
            bad("tokens", "tokens must have the shape (prefixes, heads, k)");
        k = index->shape(2);
        index_bytes = static_cast<std::uint32_t>(index->itemsize());
        if (k > 1 && index->stride(2) != 1)
            bad("tokens", "the last dimension of tokens must be contiguous");
        from = {static_cast<std::size_t>(index->stride(0)) * index_bytes,
                static_cast<std::size_t>(index->stride(1)) * index_bytes};
    }
    // dst: (batch, heads, k, row ...).
    const auto item = static_cast<std::int64_t>(dst.itemsize());
    if (dst.ndim() < 4 || dst.shape(0) != batch || dst.shape(1) != heads || dst.shape(2) != k)
        bad("out", "out must have the shape of tokens and the row behind it");
    std::int64_t inner = item;
    // Strides of an array without elements mean nothing.
    const bool empty = dst.size() == 0;
    for (std::size_t d = dst.ndim(); d-- > 3;) {
        if (!empty && dst.shape(d) != 1 && dst.stride(d) * item != inner)
            bad("out", "each row of out must be contiguous");
        inner *= static_cast<std::int64_t>(dst.shape(d));
    }
    if (inner != p.row_bytes)
        bad("out", "a row of out has " + std::to_string(inner) +
                       " bytes; the plane's rows have " + std::to_string(p.row_bytes));
    for (std::size_t d = 0; d < 3; ++d)
        if (!empty && dst.shape(d) > 1 && dst.stride(d) <= 0)
            bad("out", "rows of out must not share memory or run backwards");

    std::vector<std::shared_ptr<const sac_prefix>> held;
    std::vector<sac_gather_req> reqs;
    reqs.reserve(batch * heads);
    for (std::size_t b = 0; b < batch; ++b) {
        held.push_back(prefixes[b]->get());
        for (std::uint32_t h = 0; h < heads; ++h) {
            sac_gather_req r{};
            r.prefix = held.back().get();
            r.plane = plane, r.layer = layer, r.head = first_head + h;
            r.index_bytes = index_bytes;
            if (index)
                r.index = static_cast<const std::uint8_t *>(index->data()) +
                          b * from.batch_stride + h * from.head_stride;
            r.count = k;
            r.dst = static_cast<std::uint8_t *>(dst.data()) +
                    static_cast<std::int64_t>(b) * dst.stride(0) * item +
                    static_cast<std::int64_t>(h) * dst.stride(1) * item;
            r.dst_pitch =
                k > 1 ? static_cast<std::uint64_t>(dst.stride(2) * item) : p.row_bytes;
            reqs.push_back(r);
        }
    }
    call([&] {
        return sac_gather(ns.get(), reqs.data(), reqs.size(),
                          stream ? std::uint32_t{SAC_GATHER_STREAM} : 0u, threads, nullptr);
    });
}

}  // namespace

void bind_gather(nb::module_ &m) {
    m.def("gather", gather, nb::arg("ns"), nb::arg("prefixes"), nb::arg("plane"),
          nb::arg("layer"), nb::arg("first_head"), nb::arg("heads"), nb::arg("index").none(),
          nb::arg("count"), nb::arg("out"), nb::arg("stream"), nb::arg("threads"));
}

}  // namespace sac_py
