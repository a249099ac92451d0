// SPDX-License-Identifier: Apache-2.0
#include "bind.hpp"

#include <nanobind/stl/string.h>

namespace sac_py {

void raise(sac_status status, const std::string &object, const std::string &message) {
    const nb::object error =
        nb::module_::import_("libsac.errors")
            .attr("from_status")(static_cast<int>(status), message, object, 0, 0);
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
    throw nb::python_error();
}

void check(int status) {
    if (status == SAC_OK)
        return;
    const sac_error *const e = sac_last_error();
    const nb::object error =
        nb::module_::import_("libsac.errors")
            .attr("from_status")(static_cast<int>(e->status),
                                 static_cast<const char *>(e->message),
                                 static_cast<const char *>(e->object), e->sys_errno, e->offset);
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
    throw nb::python_error();
}

Source source(nb::handle array, std::size_t lead, std::uint64_t row_bytes, const char *what) {
    using Any = nb::ndarray<nb::ro>;
    Any a;
    if (!nb::try_cast<Any>(array, a, false) || !a.is_valid() ||
        a.device_type() != nb::device::cpu::value)
        raise(SAC_E_ARG, what,
              std::string(what) +
                  " must be an array in CPU memory: numpy, a torch CPU tensor, or "
                  "another that speaks DLPack");
    if (a.ndim() < lead)
        raise(SAC_E_ARG, what,
              std::string(what) + " has " + std::to_string(a.ndim()) +
                  " dimensions; at least " + std::to_string(lead) + " are needed");
    const auto item = static_cast<std::int64_t>(a.itemsize());
    std::int64_t inner = item;
    bool contiguous = true;
    for (std::size_t d = a.ndim(); d-- > lead;) {
        contiguous &= a.shape(d) == 1 || a.stride(d) * item == inner;
        inner *= static_cast<std::int64_t>(a.shape(d));
    }
    bool empty = false;
    for (std::size_t d = 0; d < a.ndim(); ++d)
        empty |= a.shape(d) == 0;
    if (static_cast<std::uint64_t>(inner) != row_bytes && !(empty && inner == 0))
        raise(SAC_E_ARG, what,
              std::string(what) + ": a row has " + std::to_string(inner) +
                  " bytes; the plane's rows have " + std::to_string(row_bytes));
    if (!contiguous && !empty)
        raise(SAC_E_ARG, what, std::string(what) + ": each row must be contiguous");
    Source s{static_cast<const std::uint8_t *>(a.data()), {}, {}};
    for (std::size_t d = 0; d < lead; ++d) {
        s.shape[d] = static_cast<std::int64_t>(a.shape(d));
        s.stride[d] = a.stride(d) * item;
        if (s.stride[d] < 0 && s.shape[d] > 1)
            raise(SAC_E_ARG, what,
                  std::string(what) + ": negative strides are not supported; copy it first");
    }
    return s;
}

Bytes make_keys(std::unique_ptr<std::uint8_t[]> keys, std::uint64_t count) {
    const nb::capsule owner(keys.get(),
                            [](void *p) noexcept { delete[] static_cast<std::uint8_t *>(p); });
    return Bytes(keys.release(), {static_cast<std::size_t>(count), SAC_KEY_BYTES}, owner);
}

sac_plane plane_of(sac_ns *ns, std::uint32_t plane) {
    sac_plane p;
    check(sac_ns_plane(ns, plane, &p));
    return p;
}

}  // namespace sac_py

NB_MODULE(_core, m) {
    m.doc() = "Native part of libsac; use the package libsac instead.";
    m.def("version", [] { return std::string(sac_version()); });
    sac_py::bind_pool(m);
    sac_py::bind_pages(m);
    sac_py::bind_gather(m);
    sac_py::bind_server(m);
    sac_py::bind_gpu(m);
    sac_py::bind_gpu_move(m);
    sac_py::bind_hot(m);
}
