// SPDX-License-Identifier: Apache-2.0
// The C interface: hot buffers.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "abi.hpp"
#include "gpu/gpu_handles.hpp"
#include "gpu/hot_buffer.hpp"
#include "sac_gpu.h"

struct sac_hot {
    std::shared_ptr<sac::gpu::HotBuffer> it;
};

using namespace sac::abi;

namespace {

namespace gpu = sac::gpu;

static_assert(SAC_HOT_LRU_SCORE == int{HOT_LRU_SCORE} && SAC_HOT_CLOCK == int{HOT_CLOCK});
static_assert(SAC_HOT_E_TWICE == int{HOT_E_TWICE} && SAC_HOT_E_PAGE == int{HOT_E_PAGE});
static_assert(SAC_HOT_APPEND_MAX == int{HOT_APPEND_MAX});

constexpr std::uint64_t kMaxTokens = 131072, kTimeoutMs = 600000;

gpu::HotBuffer &of(sac_hot *hot) {
    need(hot, "hot");
    return *hot->it;
}

void check_flags(std::uint32_t flags, std::uint32_t known, const char *what) {
    if ((flags & ~known) != 0)
        throw sac::Error(SAC_E_ARG, what,
                         sac::format("%s: flags 0x%x; 0x%x are known", what, flags, known));
}

gpu::HotOptions options_of(const sac_hot_options &o) {
    check_flags(o.flags, SAC_HOT_PADDED | SAC_HOT_CPU, "options");
    if (o.group_count != 0)
        need(o.groups, "options.groups");
    if (o.share_count != 0)
        need(o.share, "options.share");
    gpu::HotOptions h;
    h.requests = o.requests, h.slots = o.slots, h.top_k = o.top_k;
    h.block = o.block ? o.block : 1, h.policy = o.policy, h.threads = o.threads;
    h.padded = (o.flags & SAC_HOT_PADDED) != 0, h.cpu = (o.flags & SAC_HOT_CPU) != 0;
    h.max_tokens = o.max_tokens ? o.max_tokens : kMaxTokens;
    h.groups.assign(o.groups, o.groups + o.group_count);
    for (std::uint32_t i = 0; i < o.share_count; ++i)
        h.share.emplace_back(o.share[i].layer, o.share[i].leader);
    return h;
}

gpu::HotCall call_of(const sac_hot_call *c) {
    need_struct(c, "call");
    check_flags(c->flags, SAC_HOT_PLAN_ONLY, "call");
    gpu::HotCall call;
    call.group = c->group, call.layer = c->layer, call.batch = c->batch;
    call.top_k = c->top_k, call.blocks = c->blocks;
    call.plan_only = (c->flags & SAC_HOT_PLAN_ONLY) != 0;
    call.requests = c->requests, call.selection = c->selection;
    call.scores = c->scores, call.out = c->out, call.stream = c->stream;
    return call;
}

std::span<const std::uint32_t> list(const std::uint32_t *requests, std::uint32_t count) {
    if (count != 0)
        need(requests, "requests");
    return {requests, count};
}

}  // namespace

extern "C" {

int sac_hot_open(sac_gpu *gpu, sac_ns *ns, const sac_hot_options *options, sac_hot **out) {
    return guarded([&] {
        need(gpu, "gpu"), need(ns, "ns"), need_struct(options, "options"), need(out, "out");
        *out = new sac_hot{std::make_shared<gpu::HotBuffer>(
            gpu->it, ns->it, options_of(*options),
            options->timeout_ms ? options->timeout_ms : kTimeoutMs)};
    });
}

int sac_hot_check(sac_ns *ns, const sac_hot_options *options) {
    return guarded([&] {
        need(ns, "ns"), need_struct(options, "options");
        ns->it->check();
        // How much shared memory there is only a GPU says.
        (void)gpu::HotGeometry(ns->it->geometry(), options_of(*options), UINT32_MAX);
    });
}

int sac_hot_get_info(sac_hot *hot, sac_hot_info *out) {
    return guarded([&] {
        const gpu::HotBuffer &h = of(hot);
        need(out, "out");
        const gpu::HotGeometry &g = h.geometry();
        *out = {};
        out->rows_bytes = g.rows_bytes, out->state_bytes = g.state_bytes;
        out->table_bytes =
            g.tables_bytes - g.state_bytes + (g.options.cpu ? 0 : g.shared_bytes);
        out->memory_bytes = out->rows_bytes + out->state_bytes + out->table_bytes;
        out->max_tokens = g.options.max_tokens;
        out->requests = g.options.requests, out->slots = g.options.slots;
        out->top_k = g.options.top_k, out->block = g.options.block;
        out->threads = g.threads;
        out->flags = (g.options.padded ? std::uint32_t{SAC_HOT_PADDED} : 0) |
                     (g.options.cpu ? std::uint32_t{SAC_HOT_CPU} : 0);
    });
}

int sac_hot_get_plane(sac_hot *hot, uint32_t plane, uint32_t layer, sac_hot_plane *out) {
    return guarded([&] {
        const gpu::HotBuffer &h = of(hot);
        need(out, "out");
        const gpu::HotPlaneShape *shape = nullptr;
        const gpu::HotGroup &any = h.geometry().of_plane(plane, shape);
        const gpu::HotGroup &g = h.geometry().group(any.number, layer);
        *out = {h.rows_address(g, *shape, layer),
                g.number,
                g.heads,
                g.lanes,
                shape->slot_pitch,
                shape->row_pitch,
                shape->row_bytes};
    });
}

int sac_hot_bind(sac_hot *hot, uint32_t request, const sac_prefix *prefix, uint32_t flags,
                 uintptr_t stream) {
    return guarded([&] {
        gpu::HotBuffer &h = of(hot);
        need(prefix, "prefix");
        check_flags(flags, SAC_HOT_NO_BYPASS, "bind");
        h.bind(request, prefix->it, (flags & SAC_HOT_NO_BYPASS) == 0, stream);
    });
}

int sac_hot_extend(sac_hot *hot, const uint32_t *requests, uint32_t count, uintptr_t stream) {
    return guarded([&] { of(hot).extend(list(requests, count), stream); });
}

int sac_hot_truncate(sac_hot *hot, uint32_t request, uint64_t tokens, uintptr_t stream) {
    return guarded([&] { of(hot).truncate(request, tokens, stream); });
}

int sac_hot_written(sac_hot *hot, const uint32_t *requests, uint32_t count, uintptr_t stream) {
    return guarded([&] { of(hot).written(list(requests, count), stream); });
}

int sac_hot_release(sac_hot *hot, uint32_t request, uintptr_t stream) {
    return guarded([&] { of(hot).release(request, stream); });
}

int sac_hot_refresh(sac_hot *hot, uintptr_t stream, uint64_t *dead) {
    return guarded([&] {
        const std::uint64_t n = of(hot).refresh(stream);
        if (dead)
            *dead = n;
    });
}

int sac_hot_resolve(sac_hot *hot, const sac_hot_call *call) {
    return guarded([&] { of(hot).resolve(call_of(call)); });
}

int sac_hot_prefetch(sac_hot *hot, const sac_hot_call *call) {
    return guarded([&] { of(hot).prefetch(call_of(call)); });
}

int sac_hot_replay(sac_hot *hot, const sac_hot_call *call) {
    return guarded([&] { of(hot).replay(call_of(call)); });
}

int sac_hot_append(sac_hot *hot, const sac_hot_call *call, uint64_t first, uint32_t count,
                   const sac_hot_rows *planes, uint32_t plane_count) {
    return guarded([&] {
        gpu::HotBuffer &h = of(hot);
        const gpu::HotCall how = call_of(call);
        if (plane_count > SAC_GROUP_PLANES)
            throw sac::Error(SAC_E_ARG, "planes",
                             sac::format("append: %u planes; a group has %d at most",
                                         plane_count, SAC_GROUP_PLANES));
        if (plane_count != 0)
            need(planes, "planes");
        std::array<gpu::HotRows, SAC_GROUP_PLANES> rows{};  // nothing is allocated in a step
        for (std::uint32_t i = 0; i < plane_count; ++i)
            rows[i] = {planes[i].plane,
                       {planes[i].rows, planes[i].request_stride, planes[i].token_stride,
                        planes[i].head_stride}};
        h.append(how, first, count, {rows.data(), plane_count});
    });
}

int sac_hot_get_stats(sac_hot *hot, sac_hot_stats *out, uint32_t *errors) {
    return guarded([&] {
        gpu::HotBuffer &h = of(hot);
        need(out, "out");
        const gpu::HotStats now = h.stats();
        const auto &c = now.counters;
        *out = {c[HOT_HITS], c[HOT_MISSES],     c[HOT_BYTES],    c[HOT_EVICTIONS],
                c[HOT_KEPT], c[HOT_PREFETCHED], c[HOT_APPENDED], 0};
        if (errors)
            std::copy(now.errors.begin(), now.errors.end(), errors);
    });
}

int sac_hot_close(sac_hot *hot) {
    return end(hot, [](gpu::HotBuffer &h) { h.close(); });
}

}  // extern "C"
