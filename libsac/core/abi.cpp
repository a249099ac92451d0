// SPDX-License-Identifier: Apache-2.0
// The C interface: versions, errors, layouts, pools, namespaces, keys.
#include "abi.hpp"

#include <algorithm>
#include <cstring>

namespace {
thread_local sac_error last_error{};
}

namespace sac::abi {

void copy_text(char *to, std::size_t room, const std::string &text) noexcept {
    const std::size_t n = std::min(room - 1, text.size());
    std::memcpy(to, text.data(), n);
    to[n] = 0;
}

int fail(sac_status status, const std::string &object, const std::string &message,
         int sys_errno, std::uint64_t offset) noexcept {
    last_error = {};
    last_error.status = status;
    last_error.sys_errno = sys_errno;
    last_error.offset = offset;
    copy_text(last_error.object, sizeof last_error.object, object);
    copy_text(last_error.message, sizeof last_error.message, message);
    return status;
}

}  // namespace sac::abi

using namespace sac::abi;

extern "C" {

const char *sac_version(void) { return SAC_VERSION; }

const sac_error *sac_last_error(void) { return &last_error; }

const char *sac_status_name(int status) {
    static const char *const names[] = {
        "SAC_OK",        "SAC_E_ARG",         "SAC_E_RANGE",      "SAC_E_NOT_FOUND",
        "SAC_E_EXISTS",  "SAC_E_LAYOUT",      "SAC_E_NO_SPACE",   "SAC_E_BUSY",
        "SAC_E_STALE",   "SAC_E_RESERVATION", "SAC_E_INCOMPLETE", "SAC_E_CORRUPT",
        "SAC_E_VERSION", "SAC_E_MEDIA",       "SAC_E_FORKED",     "SAC_E_CLOSED",
        "SAC_E_SYSTEM",  "SAC_E_NO_MEMORY",   "SAC_E_NO_DAEMON",  "SAC_E_ACCESS",
        "SAC_E_GPU"};
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

int sac_pool_open_fds(const sac_open_options *options, sac_pool **out) {
    return guarded([&] {
        need_struct(options, "options");
        need(out, "out"), need(options->data, "data");
        *out = new sac_pool{sac::Pool::from_fds(*options)};
    });
}

int sac_pool_resize(sac_pool *pool, const char *name, uint64_t max_bytes) {
    return guarded([&] {
        need(pool, "pool"), need(name, "name");
        pool->it->resize(name, max_bytes);
    });
}

int sac_pool_extend(sac_pool *pool, const sac_extent_fd *extent) {
    return guarded([&] {
        need(pool, "pool"), need(extent, "extent");
        pool->it->extend(*extent);
    });
}

int sac_pool_close(sac_pool *pool) {
    return end(pool, [](sac::Pool &p) { p.close(); });
}

int sac_ns_open(sac_pool *pool, const char *name, const sac_ns_options *options, sac_ns **out) {
    return guarded([&] {
        need(pool, "pool"), need(name, "name"), need_struct(options, "options"),
            need(out, "out");
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
        ns->it->check();
        const auto &planes = ns->it->geometry().planes;
        if (i >= planes.size())
            throw sac::Error(
                SAC_E_RANGE, "plane",
                sac::format("there is no plane %u; the layout has %zu", i, planes.size()));
        *out = planes[i];
    });
}

int sac_ns_get_stats(sac_ns *ns, sac_ns_stats *out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        ns->it->check();
        std::uint64_t assigned = 0;
        ns->it->authority().stats(*out, assigned);
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
        if (parent)
            key = sac::Key::load(parent);
        if (count < per_page)
            return;
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

}  // extern "C"
