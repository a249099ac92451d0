// SPDX-License-Identifier: Apache-2.0
// The C interface: arguments looked at, exceptions turned into a status.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <new>

#include "error.hpp"
#include "gather.hpp"
#include "handles.hpp"

namespace {

thread_local sac_error last_error{};

void copy_text(char *to, std::size_t room, const std::string &text) noexcept {
    const std::size_t n = std::min(room - 1, text.size());
    std::memcpy(to, text.data(), n);
    to[n] = 0;
}

int fail(sac_status status, const std::string &object, const std::string &message, int sys_errno,
         std::uint64_t offset) noexcept {
    last_error = {};
    last_error.status = status;
    last_error.sys_errno = sys_errno;
    last_error.offset = offset;
    copy_text(last_error.object, sizeof last_error.object, object);
    copy_text(last_error.message, sizeof last_error.message, message);
    return status;
}

template <class Fn> int guarded(Fn &&fn) noexcept {
    try {
        fn();
        return SAC_OK;
    } catch (const sac::Error &e) {
        return fail(e.status, e.object, e.message, e.sys_errno, e.offset);
    } catch (const std::bad_alloc &) {
        return fail(SAC_E_NO_MEMORY, "memory", "the process is out of memory", 0, 0);
    } catch (const std::exception &e) {
        return fail(SAC_E_SYSTEM, "libsac", e.what(), 0, 0);
    }
}

void need(const void *p, const char *what) {
    if (!p) throw sac::Error(SAC_E_ARG, what, std::string(what) + " is NULL");
}

template <class T> void need_struct(const T *p, const char *what) {
    need(p, what);
    if (p->struct_size != sizeof(T))
        throw sac::Error(SAC_E_ARG, what,
                         sac::format("%s: struct_size is %u, this library has %zu; header and library "
                                     "are of different versions",
                                     what, p->struct_size, sizeof(T)));
}

// Ends whatever is behind a handle; the handle is gone even if that fails.
template <class H, class Fn> int end(H *handle, Fn &&fn) noexcept {
    if (!handle) return SAC_OK;
    const int status = guarded([&] { fn(*handle->it); });
    delete handle;
    return status;
}

}  // namespace

extern "C" {

const char *sac_version(void) { return SAC_VERSION; }

const sac_error *sac_last_error(void) { return &last_error; }

const char *sac_status_name(int status) {
    static const char *const names[] = {
        "SAC_OK",          "SAC_E_ARG",        "SAC_E_RANGE",   "SAC_E_NOT_FOUND",   "SAC_E_EXISTS",
        "SAC_E_LAYOUT",    "SAC_E_NO_SPACE",   "SAC_E_BUSY",    "SAC_E_STALE",       "SAC_E_RESERVATION",
        "SAC_E_INCOMPLETE", "SAC_E_CORRUPT",   "SAC_E_VERSION", "SAC_E_MEDIA",       "SAC_E_FORKED",
        "SAC_E_CLOSED",    "SAC_E_SYSTEM",     "SAC_E_NO_MEMORY"};
    const auto n = static_cast<std::size_t>(status);
    return status >= 0 && n < std::size(names) ? names[n] : "SAC_E_?";
}

int sac_layout_check(const sac_layout *layout, sac_geometry *out) {
    return guarded([&] {
        need_struct(layout, "layout");
        need(out, "out");
        const sac::Geometry g(*layout);
        out->body_bytes = g.part_bytes[sac::kBodyPart];
        out->tail_bytes = g.part_bytes[sac::kTailPart];
        out->tail_pages = g.tail_pages;
        std::copy(g.hash.begin(), g.hash.end(), out->hash);
    });
}

int sac_pool_embedded(const sac_pool_options *options, sac_pool **out) {
    return guarded([&] {
        need_struct(options, "options");
        need(out, "out");
        *out = new sac_pool{sac::Pool::embedded(*options)};
    });
}

int sac_pool_get_info(sac_pool *pool, sac_pool_info *out) {
    return guarded([&] {
        need(pool, "pool"), need(out, "out");
        pool->it->info(*out);
    });
}

int sac_pool_list(sac_pool *pool, char *names, uint64_t *count) {
    return guarded([&] {
        need(pool, "pool"), need(count, "count");
        const auto all = pool->it->names();
        if (names)
            for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), *count); ++i)
                copy_text(names + i * SAC_NAME_BYTES, SAC_NAME_BYTES, all[i]);
        *count = all.size();
    });
}

int sac_pool_drop(sac_pool *pool, const char *name) {
    return guarded([&] {
        need(pool, "pool"), need(name, "name");
        pool->it->drop(name);
    });
}

int sac_pool_close(sac_pool *pool) {
    return end(pool, [](sac::Pool &p) { p.close(); });
}

int sac_ns_open(sac_pool *pool, const char *name, const sac_ns_options *options, sac_ns **out) {
    return guarded([&] {
        need(pool, "pool"), need(name, "name"), need_struct(options, "options"), need(out, "out");
        *out = new sac_ns{pool->it->open_namespace(name, *options)};
    });
}

int sac_ns_get_info(sac_ns *ns, sac_ns_info *out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        ns->it->check();
        ns->it->info(*out);
    });
}

int sac_ns_plane(sac_ns *ns, uint32_t i, sac_plane *out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        const auto &planes = ns->it->geometry().planes;
        if (i >= planes.size())
            throw sac::Error(SAC_E_RANGE, "plane", sac::format("there is no plane %u; the layout has %zu", i, planes.size()));
        *out = planes[i];
    });
}

int sac_ns_get_stats(sac_ns *ns, sac_ns_stats *out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        ns->it->check();
        ns->it->stats(*out);
    });
}

int sac_ns_close(sac_ns *ns) {
    return end(ns, [](sac::Namespace &) {});
}

int sac_keys(sac_ns *ns, const uint32_t *tokens, uint64_t count, const void *salt,
             uint64_t salt_bytes, const uint8_t *parent, uint8_t *out) {
    return guarded([&] {
        need(ns, "ns");
        const sac::Namespace &n = *ns->it;
        n.check();
        const std::uint32_t per_page = n.block().page_tokens;
        sac::Key key = n.root(salt, salt_bytes);  // also refuses engine keys
        if (parent) key = sac::Key::load(parent);
        if (count < per_page) return;
        need(tokens, "tokens"), need(out, "out");
        for (std::uint64_t i = 0; i < count / per_page; ++i) {
            key = sac::Namespace::page_key(key, tokens + i * per_page, per_page);
            std::memcpy(out + i * SAC_KEY_BYTES, key.w, SAC_KEY_BYTES);
        }
    });
}

int sac_root(sac_ns *ns, const void *salt, uint64_t salt_bytes, uint8_t *out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        ns->it->check();
        const sac::Key key = ns->it->root(salt, salt_bytes);
        std::memcpy(out, key.w, SAC_KEY_BYTES);
    });
}

int sac_lookup(sac_ns *ns, const uint8_t *keys, uint64_t count, sac_handle *handles, uint64_t *hits) {
    return guarded([&] {
        need(ns, "ns");
        if (count != 0) need(keys, "keys");
        ns->it->check();
        const std::uint64_t n = ns->it->lookup(keys, count, sac::kBodyPart, handles);
        if (hits) *hits = n;
    });
}

int sac_longest(sac_ns *ns, const uint8_t *keys, uint64_t count, uint64_t *pages) {
    return guarded([&] {
        need(ns, "ns"), need(pages, "pages");
        if (count != 0) need(keys, "keys");
        ns->it->check();
        *pages = sac::longest(*ns->it, keys, count);
    });
}

int sac_pin(sac_ns *ns, const uint8_t *keys, uint64_t count, sac_prefix **out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        if (count != 0) need(keys, "keys");
        ns->it->check();
        auto prefix = std::make_shared<sac::Prefix>(ns->it);
        prefix->pin(keys, count);
        *out = new sac_prefix{std::move(prefix)};
    });
}

int sac_prefix_pages(const sac_prefix *prefix, uint64_t *pages) {
    return guarded([&] {
        need(prefix, "prefix"), need(pages, "pages");
        const std::shared_lock lock(prefix->it->mutex());
        prefix->it->check_open();
        *pages = prefix->it->pages();
    });
}

int sac_prefix_tokens(const sac_prefix *prefix, uint64_t *tokens) {
    return guarded([&] {
        need(prefix, "prefix"), need(tokens, "tokens");
        const std::shared_lock lock(prefix->it->mutex());
        prefix->it->check_open();
        *tokens = prefix->it->tokens();
    });
}

int sac_prefix_handles(const sac_prefix *prefix, sac_handle *out) {
    return guarded([&] {
        need(prefix, "prefix"), need(out, "out");
        const std::shared_lock lock(prefix->it->mutex());
        prefix->it->check_open();
        for (std::uint64_t i = 0; i < prefix->it->pages(); ++i) out[i] = prefix->it->handle(i);
    });
}

int sac_prefix_rows(const sac_prefix *prefix, uint32_t plane, uint32_t layer, uint64_t *rows) {
    return guarded([&] {
        need(prefix, "prefix"), need(rows, "rows");
        const std::shared_lock lock(prefix->it->mutex());
        prefix->it->check_open();
        (void)prefix->it->ns().geometry().offset(plane, layer);
        *rows = prefix->it->rows(plane, layer);
    });
}

int sac_prefix_view(const sac_prefix *prefix, uint64_t page, uint32_t plane, uint32_t layer,
                    const void **rows, uint64_t *bytes) {
    return guarded([&] {
        need(prefix, "prefix"), need(rows, "rows"), need(bytes, "bytes");
        const sac::Prefix &p = *prefix->it;
        const std::shared_lock lock(p.mutex());
        p.check_open();
        p.check_current();
        const sac::Geometry &g = p.ns().geometry();
        const std::uint64_t offset = g.offset(plane, layer);
        const sac::PlaneGeometry &at = g.at[plane];
        const std::uint8_t *const base =
            (page + 1) * at.rows <= p.rows(plane, layer) ? p.addresses(at.part)[page] : nullptr;
        if (!base)
            throw sac::Error(SAC_E_RANGE, g.planes[plane].name,
                             sac::format("page %" PRIu64 " of plane '%s' cannot be viewed: the prefix has %" PRIu64
                                         " pages, window and state planes their last ones only",
                                         page, g.planes[plane].name, p.pages()));
        *bytes = at.layer_stride;
        *rows = base + offset;
        p.ns().media().data().check_alive(
            static_cast<std::uint64_t>(base + offset - p.ns().media().data().data()), *bytes);
    });
}

int sac_prefix_close(sac_prefix *prefix) {
    return end(prefix, [](sac::Prefix &p) { p.close(); });
}

int sac_gather(sac_ns *ns, const sac_gather_req *reqs, uint64_t count, uint32_t flags,
               uint32_t threads, uint64_t *failed) {
    std::uint64_t hit = count;
    const int status = guarded([&] {
        need(ns, "ns");
        if (count != 0) need(reqs, "reqs");
        sac::gather(*ns->it, {reqs, count}, flags, threads, hit);
    });
    if (failed) *failed = hit;
    return status;
}

int sac_put_begin(sac_ns *ns, const uint8_t *keys, uint64_t count, const sac_put_options *options,
                  sac_put **out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        if (count != 0) need(keys, "keys");
        sac_put_options defaults{};
        defaults.struct_size = sizeof defaults;
        defaults.first_tail = UINT64_MAX;
        if (options) need_struct(options, "options");
        *out = new sac_put{std::make_shared<sac::Put>(ns->it, keys, count, options ? *options : defaults)};
    });
}

int sac_put_missing(sac_put *put, uint32_t part, uint64_t *indices, uint64_t *count) {
    return guarded([&] {
        need(put, "put"), need(count, "count");
        if (part > sac::kTailPart) throw sac::Error(SAC_E_ARG, "part", "part must be 0 or 1");
        const auto all = put->it->missing(part);
        if (indices) std::copy_n(all.begin(), std::min<std::uint64_t>(all.size(), *count), indices);
        *count = all.size();
    });
}

int sac_put_write(sac_put *put, const sac_scatter_req *reqs, uint64_t count, uint32_t threads) {
    return guarded([&] {
        need(put, "put");
        if (count != 0) need(reqs, "reqs");
        put->it->write({reqs, count}, threads);
    });
}

int sac_put_view(sac_put *put, uint64_t missing, uint32_t plane, uint32_t layer, void **rows,
                 uint64_t *bytes) {
    return guarded([&] {
        need(put, "put"), need(rows, "rows"), need(bytes, "bytes");
        *rows = put->it->view(missing, plane, layer, *bytes);
    });
}

int sac_put_commit(sac_put *put, uint64_t *committed) {
    return guarded([&] {
        need(put, "put");
        const std::uint64_t n = put->it->commit();
        if (committed) *committed = n;
    });
}

int sac_put_close(sac_put *put) {
    return end(put, [](sac::Put &p) { p.close(); });
}

int sac_seq_open(sac_ns *ns, const uint32_t *tokens, uint64_t count, const void *salt,
                 uint64_t salt_bytes, sac_seq **out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        if (count != 0) need(tokens, "tokens");
        auto seq = std::make_shared<sac::Sequence>(ns->it, tokens, count, salt, salt_bytes);
        *out = new sac_seq{seq, {seq}};
    });
}

int sac_seq_extend(sac_seq *seq, const uint32_t *tokens, uint64_t count, uint64_t timeout_ms) {
    return guarded([&] {
        need(seq, "seq");
        if (count != 0) need(tokens, "tokens");
        seq->it->extend(tokens, count, timeout_ms);
    });
}

int sac_seq_write(sac_seq *seq, const sac_scatter_req *reqs, uint64_t count, uint32_t threads) {
    return guarded([&] {
        need(seq, "seq");
        if (count != 0) need(reqs, "reqs");
        seq->it->write({reqs, count}, threads);
    });
}

int sac_seq_flush(sac_seq *seq, uint64_t *committed) {
    return guarded([&] {
        need(seq, "seq");
        const std::uint64_t n = seq->it->flush();
        if (committed) *committed = n;
    });
}

const sac_prefix *sac_seq_view(sac_seq *seq) { return seq ? &seq->view : nullptr; }

int sac_seq_close(sac_seq *seq) {
    return end(seq, [](sac::Sequence &s) { s.close(); });
}

int sac_events(sac_ns *ns, uint64_t *next, sac_event *out, uint64_t *count, uint64_t *lost) {
    return guarded([&] {
        need(ns, "ns"), need(next, "next"), need(count, "count");
        if (*count != 0) need(out, "out");
        ns->it->check();
        std::uint64_t missed = 0;
        ns->it->control().events(*next, out, *count, missed);
        if (lost) *lost = missed;
    });
}

int sac_evict(sac_ns *ns, uint64_t count, uint64_t *evicted) {
    return guarded([&] {
        need(ns, "ns");
        ns->it->check();
        const std::uint64_t n = ns->it->control().evict(count);
        if (evicted) *evicted = n;
    });
}

int sac_verify(sac_ns *ns, uint64_t *checked, uint64_t *dropped) {
    return guarded([&] {
        need(ns, "ns");
        ns->it->check();
        std::uint64_t looked = 0, gone = 0;
        ns->it->control().verify(looked, gone);
        if (checked) *checked = looked;
        if (dropped) *dropped = gone;
    });
}

}  // extern "C"
