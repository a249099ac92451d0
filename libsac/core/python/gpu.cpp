// SPDX-License-Identifier: Apache-2.0
// The GPU: devices, registration, compiling.
#include "gpu.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

namespace sac_py {
namespace {

nb::dict gpu_info(const Gpu &self) {
    const auto gpu = self.get("GPU");
    sac_gpu_info i;
    call([&] { return sac_gpu_get_info(gpu.get(), &i); });
    nb::dict d;
    d["ordinal"] = i.ordinal;
    d["name"] = static_cast<const char *>(i.name);
    d["capability"] = nb::make_tuple(i.major, i.minor);
    d["pci"] = static_cast<const char *>(i.pci);
    d["numa_node"] = i.numa_node;
    d["multiprocessors"] = i.multiprocessors;
    d["driver_version"] = i.driver_version;
    d["can_register"] = i.can_register != 0;
    d["can_register_read_only"] = i.can_register_read_only != 0;
    d["memory_bytes"] = i.memory_bytes;
    d["free_bytes"] = i.free_bytes;
    return d;
}

nb::dict registration_info(const GpuRegistration &self) {
    const auto registration = self.get("registration");
    sac_registration_info i;
    call([&] { return sac_gpu_registration_get_info(registration.get(), &i); });
    nb::dict d;
    d["state"] = i.state;
    d["chunks"] = i.chunks;
    d["chunks_done"] = i.chunks_done;
    d["bytes"] = i.bytes;
    d["bytes_done"] = i.bytes_done;
    d["bytes_foreign"] = i.bytes_foreign;
    d["result"] = i.result;
    d["reason"] = static_cast<const char *>(i.reason);
    return d;
}

nb::dict compile(const std::string &source, const std::string &arch,
                 const std::vector<std::tuple<std::string, std::string>> &macros) {
    std::vector<sac_gpu_macro> list;
    for (const auto &[name, value] : macros)
        list.push_back({name.c_str(), value.c_str()});
    sac_gpu_compiled made{};
    std::string log(std::size_t{1} << 20, '\0');
    call([&] {
        return sac_gpu_compile(source.c_str(), arch.c_str(), list.data(),
                               static_cast<std::uint32_t>(list.size()), &made, log.data(),
                               log.size());
    });
    nb::dict d;
    d["cubin_bytes"] = made.cubin_bytes;
    d["cached"] = made.cached != 0;
    d["nvrtc_version"] = made.nvrtc;
    d["arch"] = static_cast<const char *>(made.arch);
    d["not_kept"] = static_cast<const char *>(made.not_kept);
    d["log"] = log.c_str();
    return d;
}

std::vector<std::tuple<std::string, std::string>> sources() {
    std::vector<std::tuple<std::string, std::string>> out;
    sac_gpu_source s;
    for (std::uint32_t i = 0; sac_gpu_get_source(i, &s) == SAC_OK; ++i)
        out.emplace_back(s.name, std::string(s.text, s.bytes));
    return out;
}

}  // namespace

void bind_gpu(nb::module_ &m) {
    m.def(
        "gpu_open",
        [](std::int32_t ordinal) {
            sac_gpu *gpu = nullptr;
            call([&] { return sac_gpu_open(ordinal, &gpu); });
            return std::make_shared<Gpu>(gpu, sac_gpu_close);
        },
        nb::arg("ordinal"));
    m.def(
        "gpu_set_nvrtc",
        [](const std::string &path) { check(sac_gpu_set_nvrtc(path.c_str())); },
        nb::arg("path"));
    m.def("gpu_sources", sources);
    m.def("gpu_compile", compile, nb::arg("source"), nb::arg("arch"), nb::arg("macros"));

    nb::class_<Gpu>(m, "Gpu")
        .def("info", gpu_info)
        .def(
            "register",
            [](const Gpu &self, const Namespace &of, std::uint64_t chunk_bytes) {
                const auto gpu = self.get("GPU");
                const auto ns = of.get("namespace");
                sac_gpu_registration *made = nullptr;
                call([&] { return sac_gpu_register(gpu.get(), ns.get(), chunk_bytes, &made); });
                return std::make_shared<GpuRegistration>(made, sac_gpu_registration_close);
            },
            nb::arg("namespace"), nb::arg("chunk_bytes"))
        .def("close", &Gpu::close)
        .def_prop_ro("closed", &Gpu::closed);

    nb::class_<GpuRegistration>(m, "GpuRegistration")
        .def("info", registration_info)
        .def(
            "wait",
            [](const GpuRegistration &self, std::uint64_t timeout_ms) {
                const auto registration = self.get("registration");
                call([&] { return sac_gpu_registration_wait(registration.get(), timeout_ms); });
            },
            nb::arg("timeout_ms"))
        .def("unregister",
             [](const GpuRegistration &self) {
                 const auto registration = self.get("registration");
                 call([&] { return sac_gpu_unregister(registration.get()); });
             })
        .def("close", &GpuRegistration::close)
        .def_prop_ro("closed", &GpuRegistration::closed);
}

}  // namespace sac_py
