// SPDX-License-Identifier: Apache-2.0
// The daemon's side, for libsac/server.py.
#include "bind.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <exception>
#include <optional>
#include <tuple>
#include <vector>

#include "sac_server.h"

namespace sac_py {
namespace {

struct Server : Handle<sac_server> {
    using Handle::Handle;
};
using ServerPtr = std::shared_ptr<Server>;
// fd, path, dirty, weight.
using GivenExtent = std::tuple<int, std::string, bool, std::uint16_t>;
using Counts = nb::ndarray<nb::numpy, std::uint64_t>;

ServerPtr make_server(const std::string &run_dir, const std::optional<std::string> &socket_path,
                      int listen_fd, std::uint32_t socket_mode, std::uint32_t socket_gid,
                      std::uint32_t creators_gid, std::uint32_t max_clients) {
    sac_server_options o{};
    o.struct_size = sizeof o;
    o.run_dir = run_dir.c_str();
    o.socket_path = socket_path ? socket_path->c_str() : nullptr;
    o.listen_fd = listen_fd;
    o.socket_mode = socket_mode, o.socket_gid = socket_gid;
    o.creators_gid = creators_gid, o.max_clients = max_clients;
    sac_server *server = nullptr;
    call([&] { return sac_server_open(&o, &server); });
    return std::make_shared<Server>(server, sac_server_close);
}

// A copy of so many counts, in rows of SAC_LATENCY_BUCKETS where there are several.
Counts counts(const std::uint64_t *from, std::size_t rows) {
    const std::size_t n = rows * SAC_LATENCY_BUCKETS;
    auto *const copy = new std::uint64_t[n];
    std::memcpy(copy, from, n * sizeof *copy);
    const nb::capsule owner(copy,
                            [](void *p) noexcept { delete[] static_cast<std::uint64_t *>(p); });
    return rows == 1 ? Counts(copy, {SAC_LATENCY_BUCKETS}, owner)
                     : Counts(copy, {rows, SAC_LATENCY_BUCKETS}, owner);
}

// All records that get(server, out, &count) has; more may come between two calls.
template <class T, class Get> std::vector<T> all(const Server &self, Get get) {
    const auto server = self.get("server");
    std::vector<T> out;
    std::uint64_t count = 0;
    call([&] { return get(server.get(), nullptr, &count); });
    while (out.size() < count) {
        out.resize(count);
        call([&] { return get(server.get(), out.data(), &count); });
    }
    out.resize(count);
    return out;
}

nb::bytes id_bytes(const std::uint8_t (&id)[16]) {
    return nb::bytes(reinterpret_cast<const char *>(id), sizeof id);
}

nb::list clients(const Server &self) {
    nb::list out;
    for (const sac_client_info &i : all<sac_client_info>(self, sac_server_clients)) {
        nb::dict d;
        d["id"] = id_bytes(i.id);
        d["pid"] = i.pid, d["uid"] = i.uid, d["gid"] = i.gid;
        d["connected"] = i.connected != 0, d["evicted"] = i.evicted != 0;
        d["tables"] = i.tables, d["start_time"] = i.start_time;
        d["since_ms"] = i.since_ms, d["requests"] = i.requests;
        // As the process calls itself: any bytes.
        d["name"] = nb::bytes(i.name, strnlen(i.name, sizeof i.name))
                        .attr("decode")("utf-8", "replace");
        out.append(d);
    }
    return out;
}

nb::list tables(const Server &self) {
    nb::list out;
    for (const sac_table_info &i : all<sac_table_info>(self, sac_server_tables)) {
        nb::dict d;
        d["client"] = id_bytes(i.client);
        d["pool"] = nb::str(i.pool), d["name"] = nb::str(i.name);
        d["table"] = i.table;
        d["writable"] = i.writable != 0, d["revoked"] = i.revoked != 0;
        d["pinned"] = i.pinned, d["reservations"] = i.reservations;
        d["lookups"] = i.lookups, d["hits"] = i.hits;
        d["rows_gathered"] = i.rows_gathered, d["bytes_gathered"] = i.bytes_gathered;
        d["bytes_written"] = i.bytes_written, d["puts"] = i.puts;
        d["gathers"] = i.gathers, d["pins"] = i.pins;
        d["latency"] = counts(i.latency[0], 4);
        out.append(d);
    }
    return out;
}

nb::list ops(const Server &self) {
    nb::list out;
    for (const sac_op_info &i : all<sac_op_info>(self, sac_server_ops)) {
        nb::dict d;
        d["op"] = i.op, d["count"] = i.count, d["errors"] = i.errors;
        d["latency"] = counts(i.latency, 1);
        out.append(d);
    }
    return out;
}

nb::object next_request(const Server &self, std::uint64_t timeout_ms) {
    const auto server = self.get("server");
    sac_admin_request r{};
    call([&] { return sac_server_admin(server.get(), timeout_ms, &r); });
    if (r.id == 0)
        return nb::none();
    nb::list groups, fds;
    for (std::uint32_t i = 0; i < r.group_count; ++i)
        groups.append(r.groups[i]);
    for (std::uint32_t i = 0; i < r.fd_count; ++i)
        fds.append(r.fds[i]);
    return nb::make_tuple(r.id, r.pid, r.uid, r.gid, groups, fds,
                          nb::bytes(r.json, r.json_bytes));
}

// Valid as long as what it is made of.
sac_extent_fd extent_of(const GivenExtent &given) {
    const auto &[fd, name, dirty, weight] = given;
    return {fd, static_cast<std::uint16_t>(dirty ? SAC_EXTENT_DIRTY : 0), weight, name.c_str()};
}

std::shared_ptr<Pool> open_fds(const GivenExtent &meta, const std::vector<GivenExtent> &data,
                               bool create, bool prefault) {
    std::vector<sac_extent_fd> extents;
    for (const GivenExtent &given : data)
        extents.push_back(extent_of(given));
    sac_open_options o{};
    o.struct_size = sizeof o;
    o.flags = std::uint32_t{SAC_POOL_SHARED} | (create ? std::uint32_t{SAC_POOL_FORMAT} : 0u) |
              (prefault ? std::uint32_t{SAC_POOL_PREFAULT} : 0u);
    o.data_count = static_cast<std::uint32_t>(extents.size());
    o.meta = extent_of(meta);
    o.data = extents.data();
    sac_pool *pool = nullptr;
    call([&] { return sac_pool_open_fds(&o, &pool); });
    return std::make_shared<Pool>(pool, sac_pool_close);
}

// Called between two pieces, without the GIL; what goes wrong here ends the scrubbing.
struct Progress {
    const nb::object &told;
    std::exception_ptr error;

    static int go_on(void *arg, std::uint64_t done) {
        auto &self = *static_cast<Progress *>(arg);
        const nb::gil_scoped_acquire gil;
        try {
            if (PyErr_CheckSignals() != 0)
                throw nb::python_error();
            if (!self.told.is_none())
                self.told(done);
            return 1;
        } catch (...) {
            self.error = std::current_exception();
            return 0;
        }
    }
};

void scrub(const GivenExtent &given, std::uint64_t offset, std::uint64_t bytes,
           const nb::object &progress) {
    const sac_extent_fd extent = extent_of(given);
    Progress p{progress, nullptr};
    int status = SAC_OK;
    {
        const nb::gil_scoped_release release;
        status = sac_scrub(&extent, offset, bytes, Progress::go_on, &p);
    }
    if (p.error)
        std::rethrow_exception(p.error);
    check(status);
}

}  // namespace

void bind_server(nb::module_ &m) {
    m.def("open_fds", open_fds, nb::arg("meta"), nb::arg("data"), nb::arg("create"),
          nb::arg("prefault"));
    m.def("scrub", scrub, nb::arg("extent"), nb::arg("offset"), nb::arg("bytes"),
          nb::arg("progress").none());

    nb::borrow<nb::class_<Pool>>(m.attr("Pool"))
        .def(
            "extend",
            [](const Pool &self, const GivenExtent &given) {
                const auto pool = self.get("pool");
                const sac_extent_fd extent = extent_of(given);
                call([&] { return sac_pool_extend(pool.get(), &extent); });
            },
            nb::arg("extent"))
        .def(
            "set_weights",
            [](const Pool &self, const std::vector<std::uint32_t> &weights) {
                const auto pool = self.get("pool");
                call([&] {
                    return sac_pool_set_weights(pool.get(), weights.data(), weights.size());
                });
            },
            nb::arg("weights"))
        .def(
            "quarantine",
            [](const Pool &self, std::int32_t extent, std::uint64_t offset,
               std::uint64_t bytes) {
                const auto pool = self.get("pool");
                std::uint64_t pages = 0;
                call([&] {
                    return sac_pool_quarantine(pool.get(), extent, offset, bytes, &pages);
                });
                return pages;
            },
            nb::arg("extent"), nb::arg("offset"), nb::arg("bytes"))
        .def("check_writable",
             [](const Pool &self) {
                 const auto pool = self.get("pool");
                 call([&] { return sac_pool_check_writable(pool.get()); });
             })
        .def(
            "lose",
            [](const Pool &self, std::int32_t extent) {
                const auto pool = self.get("pool");
                std::uint64_t pages = 0;
                call([&] { return sac_pool_lose(pool.get(), extent, &pages); });
                return pages;
            },
            nb::arg("extent"));

    nb::class_<Server>(m, "Server")
        .def(nb::new_(&make_server), nb::arg("run_dir"), nb::arg("socket_path").none(),
             nb::arg("listen_fd"), nb::arg("socket_mode"), nb::arg("socket_gid"),
             nb::arg("creators_gid"), nb::arg("max_clients"))
        .def(
            "add_pool",
            [](const Server &self, const std::string &name, const Pool &pool) {
                const auto server = self.get("server");
                const auto held = pool.get("pool");
                call([&] {
                    return sac_server_add_pool(server.get(), name.c_str(), held.get());
                });
            },
            nb::arg("name"), nb::arg("pool"))
        .def(
            "remove_pool",
            [](const Server &self, const std::string &name, bool force) {
                const auto server = self.get("server");
                call([&] {
                    return force ? sac_server_lose_pool(server.get(), name.c_str())
                                 : sac_server_remove_pool(server.get(), name.c_str());
                });
            },
            nb::arg("name"), nb::arg("force") = false)
        .def("serve",
             [](const Server &self) {
                 const auto server = self.get("server");
                 call([&] { return sac_server_serve(server.get()); });
             })
        .def("stop",
             [](const Server &self) {
                 const auto server = self.get("server");
                 call([&] { return sac_server_stop(server.get()); });
             })
        .def("close", &Server::close)
        .def_prop_ro("closed", &Server::closed)
        .def("heartbeat",
             [](const Server &self) {
                 const auto server = self.get("server");
                 std::uint64_t turns = 0;
                 call([&] { return sac_server_heartbeat(server.get(), &turns); });
                 return turns;
             })
        .def("next_request", next_request, nb::arg("timeout_ms"))
        .def(
            "answer",
            [](const Server &self, std::uint64_t id, const nb::bytes &body) {
                const auto server = self.get("server");
                call([&] {
                    return sac_server_answer(server.get(), id, body.c_str(), body.size());
                });
            },
            nb::arg("id"), nb::arg("body"))
        .def("clients", clients)
        .def("tables", tables)
        .def("ops", ops)
        .def(
            "evict",
            [](const Server &self, const nb::bytes &id, bool kill) {
                const auto server = self.get("server");
                if (id.size() != 16)
                    raise(SAC_E_ARG, "id", "a client's id has 16 bytes");
                call([&] {
                    return sac_server_evict(
                        server.get(), reinterpret_cast<const std::uint8_t *>(id.c_str()), kill);
                });
            },
            nb::arg("id"), nb::arg("kill"));
}

}  // namespace sac_py
