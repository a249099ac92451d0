// SPDX-License-Identifier: Apache-2.0
// What a step launches: nothing here allocates, copies or asks the GPU, so all can be captured.
#include <algorithm>
#include <cinttypes>

#include "error.hpp"
#include "hot_buffer.hpp"

namespace sac::gpu {
namespace {

// Measured on an H200 (docs/performance.md): up to eight lanes are served best by 16 blocks
// each. With more, copies by half of the processors fill the link; others would only make them
// wait. Two blocks of a lane write its outcome and copy nothing (plan.cuh).
constexpr std::uint64_t kLanesFew = 8, kWriters = 2;
constexpr std::uint32_t kBlocksMost = 16;
// A prefetch runs beside the work of the layers before, which cannot use the processors that
// it is on: so few copy. Their warps together have 256 rows on the way, more than the link can
// bring in the time that one row takes.
constexpr std::uint32_t kPrefetchBlocks = 8;
// A lane's state counts the blocks that have read it with 16 bits.
constexpr std::uint32_t kBlocksLimit = 65535;

[[noreturn]] void refuse(const std::string &text) {
    throw Error(SAC_E_ARG, "hot buffer", "hot buffer: " + text);
}

}  // namespace

HotArgs HotBuffer::arguments(const HotGroup &g, const HotCall &call) const {
    const HotGeometry &geometry = geometry_;
    const Geometry &layout = ns_->geometry();
    const std::uint32_t layer = call.layer;
    const std::uint64_t tables = tables_.address();
    const std::uint64_t first =
        static_cast<std::uint64_t>(g.state[layer]) * g.lanes;  // lane of the layer
    HotArgs a{};
    a.selection = call.selection, a.scores = call.scores, a.requests = call.requests;
    a.out = call.out;
    a.slot_token = tables + g.slot_token + first * geometry.slots_pitch * sizeof(std::int32_t);
    a.order = tables + g.order + first * geometry.slots_pitch * 2 * sizeof(std::uint16_t);
    a.state = tables + g.lane_state + first * sizeof(HotState);
    if (call.plans || g.followed[layer] || g.follows[layer] || geometry.options.cpu)
        a.plan = shared() + g.plan_at +
                 static_cast<std::uint64_t>(g.plan[layer]) * g.lanes * geometry.plan_bytes;
    a.table = shared() + geometry.table(g);
    a.counters = tables + geometry.counters;
    a.errors = tables + geometry.errors;
    for (std::size_t i = 0; i < g.planes.size(); ++i) {
        const HotPlaneShape &p = g.planes[i];
        const PlaneGeometry &at = layout.at[p.plane];
        a.planes[i].rows = rows_address(g, p, layer);
        a.planes[i].offset =
            at.offset + static_cast<std::uint64_t>(at.ordinal[layer]) * at.layer_stride;
        a.planes[i].head_stride = g.heads > 1 ? at.head_stride : 0;
    }
    a.batch = call.batch, a.table_size = geometry.options.requests, a.heads = g.heads;
    a.top_k = call.top_k;
    a.flags = (call.plan_only || geometry.options.cpu ? std::uint32_t{HOT_PLAN_ONLY} : 0) |
              (g.follows[layer] ? std::uint32_t{HOT_FOLLOWER} : 0);
    return a;
}

Launch HotBuffer::shape(const HotGroup &g, const HotCall &call) const {
    Launch launch;
    const std::uint64_t lanes = std::uint64_t{call.batch} * g.heads;
    const auto processors = static_cast<std::uint64_t>(device_->info().multiprocessors);
    std::uint64_t each = processors / lanes;
    if (lanes > kLanesFew)
        each = std::min(each, processors / 2 / lanes + kWriters);
    launch.grid_x =
        call.blocks != 0
            ? call.blocks
            : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(each, 1, kBlocksMost));
    launch.grid_y = call.batch, launch.grid_z = g.heads;
    launch.threads = geometry_.threads;
    launch.stream = call.stream;
    return launch;
}

void HotBuffer::check_call(const HotGroup &g, const HotCall &call, bool selects) const {
    if (call.batch > geometry_.options.requests)
        refuse(format("a batch of %u, but there are %u requests, each of which may be named "
                      "once. Make the buffer with more requests.",
                      call.batch, geometry_.options.requests));
    if (call.blocks > kBlocksLimit)
        refuse(format("%u thread blocks a lane; %u are the limit, 0 lets the library choose",
                      call.blocks, kBlocksLimit));
    if (call.batch != 0 && call.requests == 0)
        refuse("the batch's requests are NULL");
    if (!selects)
        return;
    if (g.follows[call.layer])
        refuse(format("layer %u follows another's selections: replay it", call.layer));
    if (call.top_k > geometry_.options.top_k)
        refuse(format("a selection of %u; the buffer was made for top_k %u. Select fewer, or "
                      "make it with a larger top_k.",
                      call.top_k, geometry_.options.top_k));
    if (call.batch != 0 && call.top_k != 0 && call.selection == 0)
        refuse("the selection is NULL");
    if ((call.scores != 0) != (geometry_.options.policy == HOT_LRU_SCORE) && call.top_k != 0)
        refuse(call.scores != 0 ? "scores are for the policy lru_score only"
                                : "the policy lru_score needs scores beside the selection");
}

void HotBuffer::resolve(const HotCall &call) {
    const auto held = lock();
    const HotGroup &g = geometry_.group(call.group, call.layer);
    check_call(g, call, true);
    if (call.batch == 0)
        return;
    // A selection of none is a step, too: the plan that followers replay becomes an empty one.
    if (call.out == 0 && call.top_k != 0)
        refuse("out is NULL");
    const Current current(*device_);
    Launch launch = shape(g, call);
    launch.shared_bytes = kernels(g).resolve_shared;
    kernels(g).resolve.launch_with(launch, arguments(g, call));
    if (geometry_.options.cpu && !call.plan_only)
        scatter(g, call, *kernels(g).now);
}

// Behind a plan: threads bring the rows it names.
void HotBuffer::scatter(const HotGroup &g, const HotCall &call, PlanStaging &staging) {
    const HotScatter how = staging.gather(arguments(g, call), call.stream);
    kernels(g).scatter.launch_with(shape(g, call), how);
}

void HotBuffer::prefetch(const HotCall &call) {
    const auto held = lock();
    const HotGroup &g = geometry_.group(call.group, call.layer);
    check_call(g, call, true);
    if (call.batch == 0 || call.top_k == 0)
        return;
    const Current current(*device_);
    // Planned by one block a lane, which is quick, and copied behind it.
    HotCall plan = call;
    plan.plans = true;
    Launch launch = shape(g, plan);
    launch.grid_x = 1;
    launch.shared_bytes = kernels(g).prefetch_shared;
    kernels(g).prefetch.launch_with(launch, arguments(g, plan));
    fetch(g, plan, *kernels(g).ahead);
    // The plan that the followers need is this one only until the layer is resolved.
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
        if (g.has(l) && g.follows[l] && g.state[l] == g.state[call.layer]) {
            plan.layer = l;
            fetch(g, plan, *kernels(g).ahead);
        }
}

// Behind the plan of a prefetch: its rows, or a follower's.
void HotBuffer::fetch(const HotGroup &g, const HotCall &call, PlanStaging &staging) {
    if (call.plan_only)
        return;
    if (geometry_.options.cpu) {
        scatter(g, call, staging);
        return;
    }
    Launch launch = shape(g, call);
    launch.grid_x = kPrefetchBlocks, launch.grid_y = launch.grid_z = 1;
    kernels(g).replay.launch_with(launch, arguments(g, call));
}

void HotBuffer::replay(const HotCall &call) {
    const auto held = lock();
    const HotGroup &g = geometry_.group(call.group, call.layer);
    check_call(g, call, false);
    if (!g.follows[call.layer])
        refuse(format("layer %u follows no other layer: resolve it, or name its leader in "
                      "share",
                      call.layer));
    if (call.batch == 0)
        return;
    const Current current(*device_);
    if (geometry_.options.cpu)
        scatter(g, call, *kernels(g).now);
    else
        kernels(g).replay.launch_with(shape(g, call), arguments(g, call));
}

void HotBuffer::append(const HotCall &call, std::uint64_t first, std::uint32_t count,
                       std::span<const HotRows> rows) {
    const auto held = lock();
    const HotGroup &g = geometry_.group(call.group, call.layer);
    check_call(g, call, false);
    if (geometry_.options.cpu)
        refuse("on the path 'cpu' the GPU does not reach the pool: write new rows with the "
               "sequence's write, then extend");
    if (count > HOT_APPEND_MAX)
        refuse(format("%u new rows a request; %u are the limit of one call. Append them in "
                      "several, or write a prefill's with Sequence.write or a put.",
                      count, static_cast<std::uint32_t>(HOT_APPEND_MAX)));
    if (call.batch == 0 || count == 0)
        return;
    HotAppend how{};
    how.hot = arguments(g, call);
    how.first = first, how.count = count;
    std::size_t given = 0;
    for (std::size_t i = 0; i < g.planes.size(); ++i) {
        const HotPlaneShape &p = g.planes[i];
        const char *const name = ns_->geometry().planes[p.plane].name;
        const auto it = std::find_if(rows.begin(), rows.end(),
                                     [&](const HotRows &r) { return r.plane == p.plane; });
        if (it == rows.end())
            refuse(format("append: rows of plane '%s' are missing; all planes of a group are "
                          "written together",
                          name));
        ++given;
        // What the kernel reads at once.
        std::uint64_t access = p.access;
        while (p.row_bytes % access != 0 || p.row_pitch % access != 0)
            access /= 2;
        const HotSource &s = it->source;
        for (const std::uint64_t n :
             {s.rows, static_cast<std::uint64_t>(s.request_stride),
              static_cast<std::uint64_t>(s.token_stride),
              static_cast<std::uint64_t>(g.heads > 1 ? s.head_stride : 0)})
            if (n % access != 0)
                refuse(format("append: rows of plane '%s' must lie at multiples of %" PRIu64
                              " bytes",
                              name, access));
        if (s.rows == 0)
            refuse(format("append: rows of plane '%s' are NULL", name));
        how.sources[i] = s;
    }
    if (given != rows.size())
        refuse(format("append: %zu planes given, of which %zu are the group's", rows.size(),
                      given));
    const Current current(*device_);
    Launch launch = shape(g, call);
    launch.grid_x = 1;
    launch.shared_bytes = kernels(g).append_shared;
    kernels(g).append.launch_with(launch, how);
}

}  // namespace sac::gpu
