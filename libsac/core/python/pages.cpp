// SPDX-License-Identifier: Apache-2.0
// Prefixes, puts and sequences.
#include "pages.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace sac_py {
namespace {

std::uint32_t rows_a_page(const sac_plane &p, std::uint32_t page_tokens) {
    return p.kind == SAC_PLANE_STATE ? 1 : page_tokens / p.tokens_per_row;
}

std::shared_ptr<Prefix> pin(const Namespace &self, const KeyArray &keys) {
    const auto ns = self.get("namespace");
    sac_prefix *p = nullptr;
    call([&] { return sac_pin(ns.get(), keys.data(), keys.shape(0), &p); });
    return std::make_shared<Prefix>(Prefix{
        std::shared_ptr<const sac_prefix>(
            p, [](const sac_prefix *q) { sac_prefix_close(const_cast<sac_prefix *>(q)); }),
        ns});
}

// A page's rows in place, so many bytes in all: (heads, rows, row_bytes) with the plane's
// pitch. The array holds what keeps the memory: the prefix, or the put.
nb::object page_array(std::uint8_t *data, const sac_plane &p, std::uint64_t bytes,
                      std::shared_ptr<const void> keep, bool writable) {
    const std::uint64_t rows = bytes / p.heads / p.row_pitch;
    using Keep = std::shared_ptr<const void>;
    auto *const kept = new Keep(std::move(keep));
    const nb::capsule owner(kept, [](void *q) noexcept { delete static_cast<Keep *>(q); });
    const std::size_t shape[3] = {p.heads, rows, p.row_bytes};
    const std::int64_t strides[3] = {static_cast<std::int64_t>(rows) * p.row_pitch, p.row_pitch,
                                     1};
    if (writable)
        return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(data, 3, shape, owner, strides));
    return nb::cast(nb::ndarray<nb::numpy, const std::uint8_t>(data, 3, shape, owner, strides));
}

std::shared_ptr<Put> put(const Namespace &self, const KeyArray &keys,
                         const std::optional<KeyArray> &parents,
                         const std::optional<TokenArray> &tokens, std::uint64_t deadline_ms,
                         std::uint64_t timeout_ms, std::uint64_t first_tail) {
    const auto ns = self.get("namespace");
    const std::uint32_t tokens_a_page = self.page_tokens();
    sac_put_options o{};
    o.struct_size = sizeof o;
    o.deadline_ms = deadline_ms, o.timeout_ms = timeout_ms, o.first_tail = first_tail;
    if (parents) {
        if (parents->shape(0) != keys.shape(0))
            raise(SAC_E_ARG, "parents", "one parent a key is needed");
        o.parents = parents->data();
    }
    if (tokens) {
        if (tokens->size() != keys.shape(0) * tokens_a_page)
            raise(SAC_E_ARG, "tokens", "tokens must hold page_tokens ids for each key");
        o.tokens = tokens->data();
    }
    sac_put *p = nullptr;
    call([&] { return sac_put_begin(ns.get(), keys.data(), keys.shape(0), &o, &p); });
    return std::make_shared<Put>(p, ns, tokens_a_page);
}

nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>> put_missing(const Put &self,
                                                              std::uint32_t part) {
    const auto p = self.get("put");
    std::uint64_t count = 0;
    check(sac_put_missing(p.get(), part, nullptr, &count));
    auto *const out = new std::uint64_t[count + 1];
    const nb::capsule owner(out,
                            [](void *q) noexcept { delete[] static_cast<std::uint64_t *>(q); });
    check(sac_put_missing(p.get(), part, out, &count));
    return {reinterpret_cast<std::int64_t *>(out), {static_cast<std::size_t>(count)}, owner};
}

// A stride of 0 has another meaning to the C interface.
[[noreturn]] void shared(const sac_plane &p) {
    raise(SAC_E_ARG, p.name,
          std::string("rows of plane '") + p.name +
              "': heads and rows must not share memory (a broadcast array); copy it first");
}

// rows: (pages, rows, ...) or, with heads > 1, (pages, heads, rows, ...).
void put_write(const Put &self, std::uint32_t plane, std::uint32_t layer, nb::object rows,
               std::uint64_t first, std::uint32_t threads) {
    const auto p = self.get("put");
    const auto ns = self.ns;  // a close by another thread lets go of it
    const sac_plane pl = plane_of(ns.get(), plane);
    const bool heads = pl.heads > 1;
    const Source s = source(rows, heads ? 3 : 2, pl.row_bytes, "rows");
    const std::int64_t per_page = rows_a_page(pl, self.page_tokens);
    if (s.shape[heads ? 2 : 1] != per_page || (heads && s.shape[1] != pl.heads))
        raise(SAC_E_ARG, pl.name,
              std::string("rows of plane '") + pl.name + "' must have the shape (pages, " +
                  (heads ? std::to_string(pl.heads) + ", " : std::string()) +
                  std::to_string(per_page) + ", row)");
    sac_scatter_req r{};
    r.plane = plane, r.layer = layer, r.first = first;
    r.count = static_cast<std::uint64_t>(s.shape[0]);
    r.src = s.data;
    r.page_stride = static_cast<std::uint64_t>(s.stride[0]);
    r.head_stride = heads ? static_cast<std::uint64_t>(s.stride[1]) : 0;
    r.row_stride = static_cast<std::uint64_t>(s.stride[heads ? 2 : 1]);
    if (per_page == 1)
        r.row_stride = 0;
    // Strides of an array without elements mean nothing.
    if (r.count != 0 && ((heads && r.head_stride == 0) || (per_page > 1 && r.row_stride == 0)))
        shared(pl);
    // A broadcast array: the same rows for every page, each asked for by itself.
    std::vector<sac_scatter_req> reqs(1, r);
    if (r.page_stride == 0 && r.count > 1) {
        reqs[0].count = 1;
        reqs.resize(r.count, reqs[0]);
        for (std::uint64_t i = 0; i < r.count; ++i)
            reqs[i].first = first + i;
    }
    call([&] { return sac_put_write(p.get(), reqs.data(), reqs.size(), threads); });
}

void seq_write(const Sequence &self, std::uint32_t plane, std::uint32_t layer, nb::object rows,
               std::uint64_t first, std::uint32_t threads) {
    const auto seq = self.get("sequence");
    const auto ns = self.ns;
    const sac_plane pl = plane_of(ns.get(), plane);
    const bool heads = pl.heads > 1;
    const Source s = source(rows, heads ? 2 : 1, pl.row_bytes, "rows");
    if (heads && s.shape[0] != pl.heads)
        raise(SAC_E_ARG, pl.name,
              std::string("rows of plane '") + pl.name + "' must have the shape (" +
                  std::to_string(pl.heads) + ", rows, row)");
    sac_scatter_req r{};
    r.plane = plane, r.layer = layer, r.first = first;
    r.count = static_cast<std::uint64_t>(s.shape[heads ? 1 : 0]);
    r.src = s.data;
    r.head_stride = heads ? static_cast<std::uint64_t>(s.stride[0]) : 0;
    r.row_stride = r.count > 1 ? static_cast<std::uint64_t>(s.stride[heads ? 1 : 0]) : 0;
    if (r.count != 0 && ((heads && r.head_stride == 0) || (r.count > 1 && r.row_stride == 0)))
        shared(pl);
    call([&] { return sac_seq_write(seq.get(), &r, 1, threads); });
}

void bind_prefix(nb::module_ &m) {
    nb::class_<Prefix>(m, "Prefix")
        .def_prop_ro("pages",
                     [](const Prefix &self) {
                         const auto held = self.get();
                         std::uint64_t n = 0;
                         call([&] { return sac_prefix_pages(held.get(), &n); });
                         return n;
                     })
        .def_prop_ro("tokens",
                     [](const Prefix &self) {
                         const auto held = self.get();
                         std::uint64_t n = 0;
                         call([&] { return sac_prefix_tokens(held.get(), &n); });
                         return n;
                     })
        .def("rows",
             [](const Prefix &self, std::uint32_t plane, std::uint32_t layer) {
                 const auto held = self.get();
                 std::uint64_t n = 0;
                 call([&] { return sac_prefix_rows(held.get(), plane, layer, &n); });
                 return n;
             })
        .def("handles",
             [](const Prefix &self) {
                 const auto held = self.get();
                 std::uint64_t n = 0;
                 call([&] { return sac_prefix_pages(held.get(), &n); });
                 std::vector<sac_handle> handles(n);
                 const std::uint64_t room = n;
                 call([&] { return sac_prefix_handles(held.get(), handles.data(), &n); });
                 handles.resize(std::min(room, n));  // a sequence may have grown meanwhile
                 nb::list out;
                 for (const sac_handle &h : handles)
                     out.append(nb::make_tuple(h.slot, h.generation));
                 return out;
             })
        .def("view",
             [](const Prefix &self, std::uint64_t page, std::uint32_t plane,
                std::uint32_t layer) {
                 const auto held = self.get();
                 const auto ns = self.ns;
                 const void *rows = nullptr;
                 std::uint64_t bytes = 0;
                 call([&] {
                     return sac_prefix_view(held.get(), page, plane, layer, &rows, &bytes);
                 });
                 const sac_plane p = plane_of(ns.get(), plane);
                 return page_array(static_cast<std::uint8_t *>(const_cast<void *>(rows)), p,
                                   bytes, held, false);
             })
        .def("close",
             [](Prefix &self) {
                 std::shared_ptr<const sac_prefix> last;
                 last.swap(self.held);
                 self.ns.reset();
             })
        .def_prop_ro("closed", [](const Prefix &self) { return !self.held; });
}

}  // namespace

void bind_pages(nb::module_ &m) {
    bind_prefix(m);
    m.def("pin", pin);
    m.def("put", put, nb::arg("ns"), nb::arg("keys"), nb::arg("parents").none(),
          nb::arg("tokens").none(), nb::arg("deadline_ms"), nb::arg("timeout_ms"),
          nb::arg("first_tail"));
    nb::class_<Put>(m, "Put")
        .def("missing", put_missing)
        .def("write", put_write, nb::arg("plane"), nb::arg("layer"), nb::arg("rows").none(),
             nb::arg("first"), nb::arg("threads"))
        .def("view",
             [](const Put &self, std::uint64_t missing, std::uint32_t plane,
                std::uint32_t layer) {
                 const auto p = self.get("put");
                 const auto ns = self.ns;
                 void *rows = nullptr;
                 std::uint64_t bytes = 0;
                 call([&] {
                     return sac_put_view(p.get(), missing, plane, layer, &rows, &bytes);
                 });
                 const sac_plane pl = plane_of(ns.get(), plane);
                 return page_array(static_cast<std::uint8_t *>(rows), pl, bytes, p, true);
             })
        .def("commit",
             [](const Put &self) {
                 const auto p = self.get("put");
                 std::uint64_t n = 0;
                 call([&] { return sac_put_commit(p.get(), &n); });
                 return n;
             })
        .def("close", &Put::end)
        .def_prop_ro("closed", &Put::closed);

    m.def("sequence",
          [](const Namespace &self, const TokenArray &tokens, const nb::bytes &salt) {
              const auto ns = self.get("namespace");
              sac_seq *s = nullptr;
              call([&] {
                  return sac_seq_open(ns.get(), tokens.data(), tokens.size(), salt.c_str(),
                                      salt.size(), &s);
              });
              return std::make_shared<Sequence>(s, ns);
          });
    nb::class_<Sequence>(m, "Sequence")
        .def("prefix",
             [](const Sequence &self) {
                 const auto seq = self.get("sequence");
                 return std::make_shared<Prefix>(Prefix{
                     std::shared_ptr<const sac_prefix>(seq, sac_seq_view(seq.get())), self.ns});
             })
        .def("extend",
             [](const Sequence &self, const TokenArray &tokens, std::uint64_t timeout_ms) {
                 const auto seq = self.get("sequence");
                 call([&] {
                     return sac_seq_extend(seq.get(), tokens.data(), tokens.size(), timeout_ms);
                 });
             })
        .def("write", seq_write, nb::arg("plane"), nb::arg("layer"), nb::arg("rows").none(),
             nb::arg("first"), nb::arg("threads"))
        .def("flush",
             [](const Sequence &self) {
                 const auto seq = self.get("sequence");
                 std::uint64_t n = 0;
                 call([&] { return sac_seq_flush(seq.get(), &n); });
                 return n;
             })
        .def("close", &Sequence::end)
        .def_prop_ro("closed", &Sequence::closed);
}

}  // namespace sac_py
