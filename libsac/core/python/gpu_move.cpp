// SPDX-License-Identifier: Apache-2.0
// Transfers between pages and GPU memory. Addresses are numbers: libsac/gpu looks at tensors.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "gpu.hpp"
#include "pages.hpp"

namespace sac_py {
namespace {

using Mover = Handle<sac_gpu_mover>;

// What sac_gpu_rows says, with sources by layer; slots: 0 for none.
struct Rows {
    std::uint32_t plane;
    std::vector<std::uint32_t> layers;
    std::vector<std::uint64_t> sources;
    std::uint64_t slots;
    bool slots_on_gpu;
    std::uint32_t block_rows;
    std::int64_t block_stride, row_stride, head_stride;
    std::uint64_t source_rows, first, count;

    sac_gpu_rows get() const {
        if (layers.size() != sources.size())
            raise(SAC_E_ARG, "layers", "one source a layer is needed");
        sac_gpu_rows r{};
        r.plane = plane, r.layer_count = static_cast<std::uint32_t>(layers.size());
        r.layers = layers.data(), r.sources = sources.data();
        r.slots = reinterpret_cast<const std::int64_t *>(slots);
        r.slots_on_gpu = slots_on_gpu;
        r.block_rows = block_rows, r.block_stride = block_stride;
        r.row_stride = row_stride, r.head_stride = head_stride;
        r.source_rows = source_rows, r.first = first, r.count = count;
        return r;
    }
};

std::shared_ptr<Mover> mover_open(const Gpu &gpu, const Namespace &ns, std::uint32_t path,
                                  std::uint32_t threads, std::uint64_t staging,
                                  std::uint64_t chunk, bool plain_stores,
                                  std::uint64_t timeout_ms) {
    const auto g = gpu.get("GPU");
    const auto n = ns.get("namespace");
    sac_gpu_mover_options o{};
    o.struct_size = sizeof o;
    o.path = path, o.threads = threads;
    o.flags = plain_stores ? std::uint32_t{SAC_GPU_PLAIN_STORES} : 0u;
    o.staging_bytes = staging, o.chunk_bytes = chunk, o.timeout_ms = timeout_ms;
    sac_gpu_mover *m = nullptr;
    call([&] { return sac_gpu_mover_open(g.get(), n.get(), &o, &m); });
    return std::make_shared<Mover>(m, sac_gpu_mover_close);
}

nb::dict mover_info(const Mover &self) {
    const auto m = self.get("mover");
    sac_gpu_mover_info i;
    call([&] { return sac_gpu_mover_get_info(m.get(), &i); });
    nb::dict d;
    d["path"] = i.path;
    d["forced"] = i.forced != 0;
    d["threads"] = i.threads;
    d["numa_node"] = i.numa_node;
    d["cores"] = i.cores;
    d["row_bytes"] = i.row_bytes;
    d["rows"] = i.rows;
    d["gpu_us"] = i.gpu_us;
    d["cpu_us"] = i.cpu_us;
    d["staging_bytes"] = i.staging_bytes;
    d["why"] = std::string(i.why);
    return d;
}

nb::list mover_faults(const Mover &self) {
    const auto m = self.get("mover");
    std::vector<sac_gpu_fault> faults(1024);
    std::uint64_t n = faults.size();
    call([&] { return sac_gpu_mover_faults(m.get(), faults.data(), &n); });
    nb::list out;
    for (std::uint64_t i = 0; i < n; ++i)
        out.append(nb::make_tuple(faults[i].number, faults[i].request, faults[i].bits));
    return out;
}

std::uint64_t mover_gather(const Mover &self,
                           const std::vector<std::shared_ptr<Prefix>> &prefixes,
                           std::uint32_t plane, std::uint32_t layer, std::uint32_t first_head,
                           std::uint32_t heads, std::uint64_t rows, bool rows_on_gpu,
                           std::uint64_t count, std::uint64_t out, std::uint32_t path,
                           std::uintptr_t stream) {
    const auto m = self.get("mover");
    std::vector<std::shared_ptr<const sac_prefix>> held;
    std::vector<const sac_prefix *> handles;
    for (const auto &p : prefixes) {
        held.push_back(p->get());
        handles.push_back(held.back().get());
    }
    sac_gpu_gather_req r{};
    r.prefixes = handles.data(), r.batch = handles.size();
    r.plane = plane, r.layer = layer, r.first_head = first_head, r.heads = heads;
    r.rows = reinterpret_cast<const std::int32_t *>(rows), r.rows_on_gpu = rows_on_gpu;
    r.path = path, r.count = count, r.out = out;
    std::uint64_t number = 0;
    call([&] { return sac_gpu_gather(m.get(), &r, stream, &number); });
    return number;
}

}  // namespace

void bind_gpu_move(nb::module_ &m) {
    nb::class_<Rows>(m, "GpuRows")
        .def(nb::init<std::uint32_t, std::vector<std::uint32_t>, std::vector<std::uint64_t>,
                      std::uint64_t, bool, std::uint32_t, std::int64_t, std::int64_t,
                      std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t>(),
             nb::arg("plane"), nb::arg("layers"), nb::arg("sources"), nb::arg("slots"),
             nb::arg("slots_on_gpu"), nb::arg("block_rows"), nb::arg("block_stride"),
             nb::arg("row_stride"), nb::arg("head_stride"), nb::arg("source_rows"),
             nb::arg("first"), nb::arg("count"));
    m.def("mover_open", mover_open, nb::arg("gpu"), nb::arg("ns"), nb::arg("path"),
          nb::arg("threads"), nb::arg("staging"), nb::arg("chunk"), nb::arg("plain_stores"),
          nb::arg("timeout_ms"));
    nb::class_<Mover>(m, "GpuMover")
        .def(
            "put",
            [](const Mover &self, const Put &put, const Rows &rows, std::uintptr_t stream) {
                const auto mover = self.get("mover");
                const auto p = put.get("put");
                const sac_gpu_rows r = rows.get();
                call([&] { return sac_gpu_put(mover.get(), p.get(), &r, 1, stream); });
            },
            nb::arg("put"), nb::arg("rows"), nb::arg("stream"))
        .def(
            "put_sequence",
            [](const Mover &self, const Sequence &sequence, const Rows &rows,
               std::uintptr_t stream) {
                const auto mover = self.get("mover");
                const auto s = sequence.get("sequence");
                const sac_gpu_rows r = rows.get();
                call([&] { return sac_gpu_put_sequence(mover.get(), s.get(), &r, 1, stream); });
            },
            nb::arg("sequence"), nb::arg("rows"), nb::arg("stream"))
        .def("gather", mover_gather, nb::arg("prefixes"), nb::arg("plane"), nb::arg("layer"),
             nb::arg("first_head"), nb::arg("heads"), nb::arg("rows"), nb::arg("rows_on_gpu"),
             nb::arg("count"), nb::arg("out"), nb::arg("path"), nb::arg("stream"))
        .def("info", mover_info)
        .def("faults", mover_faults)
        .def("close", &Mover::close)
        .def_prop_ro("closed", &Mover::closed);
    m.def("put_quiet", [](const Put &put) {
        const auto p = put.get("put");
        std::uint32_t quiet = 0;
        call([&] { return sac_gpu_put_quiet(p.get(), &quiet); });
        return quiet != 0;
    });
}

}  // namespace sac_py
