// SPDX-License-Identifier: Apache-2.0
// The C interface: lookup, pins, gather, events, maintenance.
#include <algorithm>
#include <chrono>
#include <cinttypes>

#include "abi.hpp"
#include "gather.hpp"

using namespace sac::abi;

namespace {

// One in sixteen is timed: a lookup of one key takes no longer than the clock.
std::uint64_t timed_lookup(sac::Namespace &ns, const std::uint8_t *keys, std::uint64_t count,
                           sac_handle *handles) {
    thread_local unsigned turn = 0;
    const auto view = ns.view();
    if (turn++ % 16 != 0)
        return ns.lookup(*view, keys, count, sac::kBodyPart, handles);
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t n = ns.lookup(*view, keys, count, sac::kBodyPart, handles);
    view->pins().latency(sac::PinTable::kLookup).add(begin);
    return n;
}

}  // namespace

extern "C" {

int sac_lookup(sac_ns *ns, const uint8_t *keys, uint64_t count, sac_handle *handles,
               uint64_t *hits) {
    return guarded([&] {
        need(ns, "ns");
        if (count != 0)
            need(keys, "keys");
        ns->it->check();
        const std::uint64_t n = timed_lookup(*ns->it, keys, count, handles);
        if (hits)
            *hits = n;
    });
}

int sac_longest(sac_ns *ns, const uint8_t *keys, uint64_t count, uint64_t *pages) {
    return guarded([&] {
        need(ns, "ns"), need(pages, "pages");
        if (count != 0)
            need(keys, "keys");
        ns->it->check();
        *pages = sac::longest(*ns->it, keys, count);
    });
}

int sac_pin(sac_ns *ns, const uint8_t *keys, uint64_t count, sac_prefix **out) {
    return guarded([&] {
        need(ns, "ns"), need(out, "out");
        if (count != 0)
            need(keys, "keys");
        ns->it->check();
        auto prefix = std::make_shared<sac::Prefix>(ns->it);
        prefix->pin(keys, count);
        *out = new sac_prefix{std::move(prefix)};
    });
}

int sac_prefix_pages(const sac_prefix *prefix, uint64_t *pages) {
    return guarded([&] {
        need(prefix, "prefix"), need(pages, "pages");
        const auto held = prefix->it->lock();
        *pages = prefix->it->pages();
    });
}

int sac_prefix_tokens(const sac_prefix *prefix, uint64_t *tokens) {
    return guarded([&] {
        need(prefix, "prefix"), need(tokens, "tokens");
        const auto held = prefix->it->lock();
        *tokens = prefix->it->tokens();
    });
}

int sac_prefix_handles(const sac_prefix *prefix, sac_handle *out, uint64_t *count) {
    return guarded([&] {
        need(prefix, "prefix"), need(count, "count");
        if (*count != 0)
            need(out, "out");
        const auto held = prefix->it->lock();
        const std::uint64_t pages = prefix->it->pages();
        for (std::uint64_t i = 0; i < std::min(pages, *count); ++i)
            out[i] = prefix->it->handle(i);
        *count = pages;
    });
}

int sac_prefix_rows(const sac_prefix *prefix, uint32_t plane, uint32_t layer, uint64_t *rows) {
    return guarded([&] {
        need(prefix, "prefix"), need(rows, "rows");
        const auto held = prefix->it->lock();
        (void)prefix->it->ns().geometry().offset(plane, layer);
        *rows = prefix->it->rows(plane, layer);
    });
}

int sac_prefix_view(const sac_prefix *prefix, uint64_t page, uint32_t plane, uint32_t layer,
                    const void **rows, uint64_t *bytes) {
    return guarded([&] {
        need(prefix, "prefix"), need(rows, "rows"), need(bytes, "bytes");
        const sac::Prefix &p = *prefix->it;
        const auto held = p.lock();
        p.check_current();
        const sac::Geometry &g = p.ns().geometry();
        const std::uint64_t offset = g.offset(plane, layer);
        const sac::PlaneGeometry &at = g.at[plane];
        const std::uint8_t *const base =
            page < p.settled() ? p.addresses(at.part)[page] : nullptr;
        if (!base)
            throw sac::Error(
                SAC_E_RANGE, g.planes[plane].name,
                sac::format("page %" PRIu64
                            " of plane '%s' cannot be viewed: the prefix has %" PRIu64
                            " committed pages, window and state planes their last ones only",
                            page, g.planes[plane].name, p.settled()));
        p.viewed(page, at.part);
        *bytes = at.layer_stride;
        *rows = base + offset;
        const sac::Mapping &data = p.view().data();
        data.check_alive(static_cast<std::uint64_t>(base + offset - data.data()), *bytes);
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
        if (count != 0)
            need(reqs, "reqs");
        sac::gather(*ns->it, {reqs, count}, flags, threads, hit);
    });
    if (failed)
        *failed = hit;
    return status;
}

int sac_events(sac_ns *ns, uint64_t *next, sac_event *out, uint64_t *count, uint64_t *lost) {
    return guarded([&] {
        need(ns, "ns"), need(next, "next"), need(count, "count");
        if (*count != 0)
            need(out, "out");
        ns->it->check();
        std::uint64_t missed = 0;
        ns->it->authority().events(*next, out, *count, missed);
        if (lost)
            *lost = missed;
    });
}

int sac_evict(sac_ns *ns, uint64_t count, uint64_t *evicted) {
    return guarded([&] {
        need(ns, "ns");
        ns->it->check();
        const std::uint64_t n = ns->it->authority().evict(count);
        if (evicted)
            *evicted = n;
    });
}

int sac_verify(sac_ns *ns, uint64_t *checked, uint64_t *dropped) {
    return guarded([&] {
        need(ns, "ns");
        ns->it->check();
        std::uint64_t looked = 0, gone = 0;
        ns->it->authority().verify(looked, gone);
        if (checked)
            *checked = looked;
        if (dropped)
            *dropped = gone;
    });
}

}  // extern "C"
