// SPDX-License-Identifier: Apache-2.0
// Pools and namespaces.
#include "bind.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "sac_server.h"

namespace sac_py {
namespace {

using NativePlane = std::tuple<std::string, std::vector<std::uint32_t>, std::uint32_t,
                               std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                               std::uint32_t, std::uint32_t, std::string>;
using Owner = std::tuple<std::uint32_t, std::uint32_t>;  // uid, gid
using NativeLayout = std::tuple<std::uint32_t, std::vector<NativePlane>>;

template <std::size_t N>
void put_text(char (&to)[N], const std::string &text, const char *what) {
    if (text.size() >= N || text.find('\0') != std::string::npos)
        raise(SAC_E_ARG, what,
              std::string(what) + " '" + text + "' has more than " + std::to_string(N - 1) +
                  " bytes");
    std::memcpy(to, text.c_str(), text.size() + 1);
}

std::vector<sac_plane> planes_of(const NativeLayout &layout) {
    std::vector<sac_plane> out;
    for (const auto &[name, layers, kind, group, heads, per_row, bytes, pitch, window, dtype] :
         std::get<1>(layout)) {
        sac_plane p{};
        put_text(p.name, name, "plane name");
        put_text(p.dtype, dtype, "dtype");
        for (const std::uint32_t l : layers) {
            if (l >= SAC_MAX_LAYERS)
                raise(SAC_E_LAYOUT, name, "plane '" + name + "': layers go from 0 to 511");
            p.layers[l / 64] |= std::uint64_t{1} << (l % 64);
        }
        p.kind = kind, p.group = group, p.heads = heads, p.tokens_per_row = per_row;
        p.row_bytes = bytes, p.row_pitch = pitch, p.window_tokens = window;
        out.push_back(p);
    }
    return out;
}

NativePlane native_plane(const sac_plane &p) {
    std::vector<std::uint32_t> layers;
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
        if (p.layers[l / 64] >> (l % 64) & 1)
            layers.push_back(l);
    return {p.name,           layers,      p.kind,      p.group,         p.heads,
            p.tokens_per_row, p.row_bytes, p.row_pitch, p.window_tokens, p.dtype};
}

// path, bytes, free, bad bytes, lost, weight, alignment.
using ExtentRow = std::tuple<std::string, std::uint64_t, std::uint64_t, std::uint64_t, bool,
                             std::uint32_t, std::uint64_t>;

// Of each data extent, then of the metadata extent.
std::vector<ExtentRow> extents(const Pool &self) {
    const auto pool = self.get("pool");
    std::vector<sac_extent_info> all;
    std::uint64_t count = 0;
    call([&] { return sac_pool_extents(pool.get(), nullptr, &count); });
    while (all.size() < count) {
        all.resize(count);
        call([&] { return sac_pool_extents(pool.get(), all.data(), &count); });
    }
    std::vector<ExtentRow> out;
    for (const sac_extent_info &i : all)
        out.emplace_back(i.name, i.bytes, i.free_bytes, i.bad_bytes, i.lost != 0, i.weight,
                         i.align);
    return out;
}

nb::dict pool_info(const Pool &self) {
    const auto pool = self.get("pool");
    sac_pool_info i{};
    call([&] { return sac_pool_get_info(pool.get(), &i); });
    nb::dict d;
    d["uuid"] = nb::bytes(reinterpret_cast<const char *>(i.uuid), sizeof i.uuid);
    d["data_bytes"] = i.data_bytes, d["free_bytes"] = i.free_bytes;
    d["metadata_bytes"] = i.metadata_bytes, d["slab_bytes"] = i.slab_bytes;
    d["incarnation"] = i.incarnation, d["extents"] = i.extents, d["namespaces"] = i.namespaces;
    d["page_size_obtained"] = i.page_size_obtained;
    d["recovered"] = i.recovered != 0, d["rebooted"] = i.rebooted != 0;
    d["dead_blocks"] = i.dead_blocks;
    return d;
}

nb::dict ns_info(const Namespace &self) {
    const sac_ns_info i = self.info();
    nb::dict d;
    d["name"] = nb::str(i.name), d["model"] = nb::str(i.model);
    d["checksum"] = (i.flags & SAC_NS_DATA_CHECKSUM) != 0;
    d["token_ids"] = (i.flags & SAC_NS_TOKEN_IDS) != 0;
    d["key_scheme"] = nb::str(i.key_scheme == SAC_KEYS_SAC ? "sac" : "engine");
    d["page_tokens"] = i.page_tokens;
    d["body_bytes"] = i.geometry.body_bytes, d["tail_bytes"] = i.geometry.tail_bytes;
    d["tail_pages"] = i.geometry.tail_pages;
    d["layout_hash"] =
        nb::bytes(reinterpret_cast<const char *>(i.geometry.hash), sizeof i.geometry.hash);
    d["quota_bytes"] = i.max_bytes, d["assigned_bytes"] = i.assigned_bytes;
    d["index_bytes"] = i.index_bytes, d["capacity_pages"] = i.capacity_pages;
    d["uid"] = i.uid, d["gid"] = i.gid, d["mode"] = i.mode;
    d["policy"] =
        nb::str(i.policy == 0 ? "lru" : ("policy " + std::to_string(i.policy)).c_str());
    return d;
}

nb::dict ns_stats(const Namespace &self) {
    const auto ns = self.get("namespace");
    sac_ns_stats s{};
    call([&] { return sac_ns_get_stats(ns.get(), &s); });
    nb::dict d;
#define SAC_FIELD(name) d[#name] = s.name
    SAC_FIELD(pages), SAC_FIELD(tails), SAC_FIELD(reserved), SAC_FIELD(quarantined),
        SAC_FIELD(pinned);
    SAC_FIELD(lookups), SAC_FIELD(hits), SAC_FIELD(commits), SAC_FIELD(duplicates),
        SAC_FIELD(aborts);
    SAC_FIELD(evictions), SAC_FIELD(rows_gathered), SAC_FIELD(bytes_gathered),
        SAC_FIELD(bytes_written);
    SAC_FIELD(checks_failed);
#undef SAC_FIELD
    return d;
}

nb::tuple ns_events(const Namespace &self, std::uint64_t next, std::uint64_t most) {
    const auto ns = self.get("namespace");
    std::vector<sac_event> events(most);
    std::uint64_t count = most, lost = 0;
    call([&] { return sac_events(ns.get(), &next, events.data(), &count, &lost); });
    nb::list out;
    const auto bytes = [](const std::uint8_t *k) {
        return nb::bytes(reinterpret_cast<const char *>(k), SAC_KEY_BYTES);
    };
    for (std::uint64_t i = 0; i < count; ++i) {
        const sac_event &e = events[i];
        out.append(nb::make_tuple(e.sequence, e.kind, e.part, e.handle.slot,
                                  e.handle.generation, bytes(e.key), bytes(e.parent)));
    }
    return nb::make_tuple(next, lost, out);
}

std::shared_ptr<Namespace> open_namespace(const Pool &self, const std::string &name,
                                          const std::optional<NativeLayout> &layout,
                                          const std::string &model, std::uint32_t key_scheme,
                                          std::uint64_t max_bytes, bool checksum,
                                          bool token_ids, std::uint32_t mode,
                                          const std::optional<Owner> &owner) {
    const auto pool = self.get("pool");
    std::vector<sac_plane> planes;
    sac_layout native{sizeof(sac_layout), 0, 0, nullptr};
    sac_ns_options o{};
    o.struct_size = sizeof o;
    o.flags = (checksum ? std::uint32_t{SAC_NS_DATA_CHECKSUM} : 0u) |
              (token_ids ? std::uint32_t{SAC_NS_TOKEN_IDS} : 0u);
    o.key_scheme = key_scheme, o.max_bytes = max_bytes, o.model = model.c_str();
    o.mode = mode;
    if (layout) {
        planes = planes_of(*layout);
        native.page_tokens = std::get<0>(*layout);
        native.plane_count = static_cast<std::uint32_t>(planes.size());
        native.planes = planes.data();
        o.layout = &native;
    }
    if (name.find('\0') != std::string::npos)
        raise(SAC_E_ARG, "name", "a namespace's name holds no zero byte");
    sac_ns *ns = nullptr;
    call([&] {
        return owner ? sac_ns_open_for(pool.get(), name.c_str(), &o, std::get<0>(*owner),
                                       std::get<1>(*owner), &ns)
                     : sac_ns_open(pool.get(), name.c_str(), &o, &ns);
    });
    return std::make_shared<Namespace>(ns, sac_ns_close);
}

Bytes ns_keys(const Namespace &self, const TokenArray &tokens, const nb::bytes &salt,
              const std::optional<nb::bytes> &parent) {
    const auto ns = self.get("namespace");
    if (parent && parent->size() != SAC_KEY_BYTES)
        raise(SAC_E_ARG, "parent", "a key has 32 bytes");
    const std::uint64_t count = tokens.size() / self.page_tokens();
    auto keys = std::make_unique<std::uint8_t[]>(count * SAC_KEY_BYTES + 1);
    const auto *const above =
        parent ? reinterpret_cast<const std::uint8_t *>(parent->c_str()) : nullptr;
    call([&] {
        return sac_keys(ns.get(), tokens.data(), tokens.size(), salt.c_str(), salt.size(),
                        above, keys.get());
    });
    return make_keys(std::move(keys), count);
}

}  // namespace

sac_ns_info Namespace::info() const {
    const auto ns = get("namespace");
    sac_ns_info i{};
    call([&] { return sac_ns_get_info(ns.get(), &i); });
    known_.store({i.page_tokens, i.plane_count}, std::memory_order_relaxed);
    return i;
}

Namespace::Known Namespace::known() const {
    Known known = known_.load(std::memory_order_relaxed);
    if (known.page_tokens == 0) {
        const sac_ns_info i = info();
        known = {i.page_tokens, i.plane_count};
    }
    return known;
}

void bind_pool(nb::module_ &m) {
    m.def(
        "embedded",
        [](std::uint64_t bytes, const std::optional<std::string> &path, std::uint32_t extents,
           std::uint64_t metadata_bytes, bool prefault, bool open_only) {
            sac_pool_options o{};
            o.struct_size = sizeof o;
            o.flags = (prefault ? std::uint32_t{SAC_POOL_PREFAULT} : 0u) |
                      (open_only ? std::uint32_t{SAC_POOL_OPEN} : 0u);
            o.bytes = bytes, o.extents = extents, o.metadata_bytes = metadata_bytes;
            o.path = path ? path->c_str() : nullptr;
            sac_pool *pool = nullptr;
            call([&] { return sac_pool_embedded(&o, &pool); });
            return std::make_shared<Pool>(pool, sac_pool_close);
        },
        nb::arg("bytes"), nb::arg("path").none(), nb::arg("extents"), nb::arg("metadata_bytes"),
        nb::arg("prefault"), nb::arg("open_only"));
    m.def(
        "connect",
        [](const std::string &socket, const std::optional<std::string> &pool,
           const std::optional<std::string> &name, std::uint64_t timeout_ms,
           std::uint64_t reconnect_ms) {
            sac_connect_options o{};
            o.struct_size = sizeof o;
            o.socket = socket.c_str();
            o.pool = pool ? pool->c_str() : nullptr;
            o.name = name ? name->c_str() : nullptr;
            o.timeout_ms = timeout_ms, o.reconnect_ms = reconnect_ms;
            sac_pool *connected = nullptr;
            call([&] { return sac_pool_connect(&o, &connected); });
            return std::make_shared<Pool>(connected, sac_pool_close);
        },
        nb::arg("socket"), nb::arg("pool").none(), nb::arg("name").none(),
        nb::arg("timeout_ms"), nb::arg("reconnect_ms"));

    nb::class_<Pool>(m, "Pool")
        .def("info", pool_info)
        .def("names",
             [](const Pool &self) {
                 const auto pool = self.get("pool");
                 std::uint64_t count = 0;
                 std::vector<char> names;
                 for (std::uint64_t room = ~std::uint64_t{0};
                      room < count || room == ~std::uint64_t{0};) {
                     room = count;
                     names.resize(count * SAC_NAME_BYTES + 1);
                     call([&] { return sac_pool_list(pool.get(), names.data(), &count); });
                 }
                 std::vector<std::string> out;
                 for (std::uint64_t i = 0; i < count; ++i)
                     out.emplace_back(names.data() + i * SAC_NAME_BYTES);
                 return out;
             })
        .def("drop",
             [](const Pool &self, const std::string &name) {
                 const auto pool = self.get("pool");
                 call([&] { return sac_pool_drop(pool.get(), name.c_str()); });
             })
        .def("open_namespace", open_namespace, nb::arg("name"), nb::arg("layout").none(),
             nb::arg("model"), nb::arg("key_scheme"), nb::arg("max_bytes"), nb::arg("checksum"),
             nb::arg("token_ids"), nb::arg("mode") = 0, nb::arg("owner") = nb::none())
        .def("extents", extents)
        .def(
            "resize",
            [](const Pool &self, const std::string &name, std::uint64_t max_bytes) {
                const auto pool = self.get("pool");
                call([&] { return sac_pool_resize(pool.get(), name.c_str(), max_bytes); });
            },
            nb::arg("name"), nb::arg("max_bytes"))
        .def("close", &Pool::close)
        .def_prop_ro("closed", &Pool::closed);

    nb::class_<Namespace>(m, "Namespace")
        .def("info", ns_info)
        .def("stats", ns_stats)
        .def("events", ns_events, nb::arg("next"), nb::arg("most"))
        .def("planes",
             [](const Namespace &self) {
                 const auto ns = self.get("namespace");
                 std::vector<NativePlane> out;
                 for (std::uint32_t p = 0; p < self.plane_count(); ++p)
                     out.push_back(native_plane(plane_of(ns.get(), p)));
                 return out;
             })
        .def("keys", ns_keys, nb::arg("tokens"), nb::arg("salt"), nb::arg("parent").none())
        .def("root",
             [](const Namespace &self, const nb::bytes &salt) {
                 const auto ns = self.get("namespace");
                 std::uint8_t key[SAC_KEY_BYTES];
                 check(sac_root(ns.get(), salt.c_str(), salt.size(), key));
                 return nb::bytes(reinterpret_cast<const char *>(key), sizeof key);
             })
        .def("lookup",
             [](const Namespace &self, const KeyArray &keys) {
                 const auto ns = self.get("namespace");
                 const std::uint64_t n = keys.shape(0);
                 auto *const found = new bool[n + 1];
                 const nb::capsule owner(
                     found, [](void *p) noexcept { delete[] static_cast<bool *>(p); });
                 call([&] {
                     std::vector<sac_handle> handles(n);
                     const int status =
                         sac_lookup(ns.get(), keys.data(), n, handles.data(), nullptr);
                     for (std::uint64_t i = 0; i < n; ++i)
                         found[i] = handles[i].generation != 0;
                     return status;
                 });
                 return nb::ndarray<nb::numpy, bool, nb::ndim<1>>(
                     found, {static_cast<std::size_t>(n)}, owner);
             })
        .def("longest",
             [](const Namespace &self, const KeyArray &keys) {
                 const auto ns = self.get("namespace");
                 std::uint64_t pages = 0;
                 call(
                     [&] { return sac_longest(ns.get(), keys.data(), keys.shape(0), &pages); });
                 return pages;
             })
        .def("evict",
             [](const Namespace &self, std::uint64_t count) {
                 const auto ns = self.get("namespace");
                 std::uint64_t n = 0;
                 call([&] { return sac_evict(ns.get(), count, &n); });
                 return n;
             })
        .def("verify",
             [](const Namespace &self) {
                 const auto ns = self.get("namespace");
                 std::uint64_t checked = 0, dropped = 0;
                 call([&] { return sac_verify(ns.get(), &checked, &dropped); });
                 return nb::make_tuple(checked, dropped);
             })
        .def("close", &Namespace::close)
        .def_prop_ro("closed", &Namespace::closed);
}

}  // namespace sac_py
