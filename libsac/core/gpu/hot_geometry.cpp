// SPDX-License-Identifier: Apache-2.0
#include "hot_geometry.hpp"

#include <algorithm>
#include <cinttypes>

#include "error.hpp"

namespace sac::gpu {
namespace {

constexpr std::uint32_t kRequestsMost = 65535, kBlockMost = 128;  // of a grid's y
constexpr std::uint32_t kSlotsMost = HOT_SLOTS_MAX;
// What the kernels have of shared memory besides what is told at a launch.
constexpr std::uint32_t kStaticShared = 1024;
// They number the pieces of all units of a step with 32 bits.
constexpr std::uint64_t kUnitMost = std::uint64_t{1} << 28;
constexpr std::uint64_t kRowsMost = std::uint64_t{1} << 46;  // bytes of a plane's slots

[[noreturn]] void refuse(const std::string &text) {
    throw Error(SAC_E_ARG, "hot buffer", "hot buffer: " + text);
}

constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t to) {
    return (n + to - 1) / to * to;
}

// How a plane's units are copied: the widest access that pool and slots allow. Padding behind
// a row may be copied along where that makes it wider.
HotPlaneShape shape_of(const Geometry &layout, std::uint32_t number, std::uint32_t block,
                       bool padded) {
    const sac_plane &plane = layout.planes[number];
    const PlaneGeometry &at = layout.at[number];
    HotPlaneShape s{};
    s.plane = number, s.row_bytes = plane.row_bytes, s.row_pitch = plane.row_pitch;
    const std::uint64_t pitch = std::uint64_t{block} * plane.row_pitch;
    const std::uint64_t bytes = std::uint64_t{block - 1} * plane.row_pitch + plane.row_bytes;
    for (std::uint32_t access = 16; access != 0; access /= 2) {
        if (pitch % access != 0 || at.head_stride % access != 0 ||
            at.layer_stride % access != 0 || at.offset % access != 0 ||
            layout.part_bytes[kBodyPart] % access != 0 || round_up(bytes, access) > pitch)
            continue;
        s.access = access;
        s.unit_bytes = static_cast<std::uint32_t>(round_up(bytes, access));
        break;
    }
    s.pool_pitch = static_cast<std::uint32_t>(pitch);
    s.slot_pitch = static_cast<std::uint32_t>(round_up(s.unit_bytes, padded ? 128 : 16));
    return s;
}

}  // namespace

std::vector<std::uint32_t> HotGroup::numbers() const {
    std::vector<std::uint32_t> all;
    for (const HotPlaneShape &p : planes)
        all.push_back(p.plane);
    return all;
}

HotGeometry::HotGeometry(const Geometry &layout, const HotOptions &given,
                         std::uint32_t shared_most)
    : options(given) {
    check_options();
    if (options.groups.empty())
        for (const sac_plane &p : layout.planes)
            if (p.kind == SAC_PLANE_ROWS) {
                options.groups.push_back(p.group);
                break;
            }
    threads = hot_threads(options.slots, options.top_k);
    slots_pitch = hot_slots_pitch(options.slots, threads);
    plan_bytes = hot_plan_bytes(options.top_k, threads);
    pages_max = (options.max_tokens + layout.page_tokens - 1) / layout.page_tokens;
    for (const std::uint32_t number : options.groups)
        add_group(layout, number);
    for (const auto &[layer, leader] : options.share)
        if (std::none_of(groups.begin(), groups.end(),
                         [l = layer](const HotGroup &g) { return g.has(l); }))
            refuse(format("share: no group of the buffer has layer %u", layer));
    for (HotGroup &g : groups) {
        const std::uint32_t shared = block_bytes(g, options.top_k) + kStaticShared;
        if (shared > shared_most)
            refuse(format("%u slots, top_k %u and contexts of %" PRIu64 " tokens need %u bytes "
                          "of shared memory; the GPU has %u. Take fewer slots, or a smaller "
                          "top_k or max_tokens.",
                          options.slots, options.top_k, options.max_tokens, shared,
                          shared_most));
        g.early = true;  // as resolve_bytes() is to count it
        g.early = resolve_bytes(g) + kStaticShared <= shared_most;
    }
    place();
}

void HotGeometry::check_options() const {
    const HotOptions &o = options;
    if (o.requests == 0 || o.requests > kRequestsMost)
        refuse(format("requests is %u; 1 to %u are allowed. For more, make a second buffer.",
                      o.requests, kRequestsMost));
    if (o.slots == 0 || o.slots > kSlotsMost)
        refuse(format("slots is %u; 1 to %u are allowed: the kernels keep a lane's slots in "
                      "registers. To keep more of a context, select by larger blocks.",
                      o.slots, kSlotsMost));
    if (o.top_k == 0)
        refuse("top_k is 0; 1 up to slots are allowed");
    if (o.top_k > o.slots)
        refuse(
            format("top_k is %u, but there are %u slots: what one step selects must fit into "
                   "them. Take more slots (up to %u), or a smaller top_k.",
                   o.top_k, o.slots, kSlotsMost));
    if (o.block == 0 || o.block > kBlockMost)
        refuse(format("block is %u; 1 to %u rows are allowed", o.block, kBlockMost));
    if (o.policy > HOT_LRU_SCORE)
        refuse(format("there is no policy %u; 0 to %u are the policies", o.policy,
                      static_cast<std::uint32_t>(HOT_LRU_SCORE)));
    if (o.max_tokens == 0 || o.max_tokens >= std::uint64_t{1} << 31)
        refuse(format("max_tokens is %" PRIu64 "; 1 to 2^31-1 are allowed", o.max_tokens));
}

void HotGeometry::add_group(const Geometry &layout, std::uint32_t number) {
    HotGroup g{};
    g.number = number;
    g.ordinal.fill(-1), g.state.fill(-1), g.plan.fill(-1);
    std::uint64_t unit_bytes = 0;
    for (const HotGroup &other : groups)
        if (other.number == number)
            refuse(format("group %u is named twice", number));
    for (std::uint32_t p = 0; p < layout.planes.size(); ++p) {
        const sac_plane &plane = layout.planes[p];
        const PlaneGeometry &at = layout.at[p];
        if (plane.group != number)
            continue;
        if (plane.kind != SAC_PLANE_ROWS)
            refuse(format("plane '%s' is a %s plane, which is never in a hot buffer: only the "
                          "last pages have it. Name groups of kind rows only.",
                          plane.name, plane.kind == SAC_PLANE_WINDOW ? "window" : "state"));
        if (g.planes.size() == SAC_GROUP_PLANES)
            refuse(format("the group of plane '%s' has more than %d planes, which is what one "
                          "launch copies. Split the group in the layout.",
                          plane.name, SAC_GROUP_PLANES));
        if (g.planes.empty()) {
            g.heads = plane.heads, g.tokens_per_row = plane.tokens_per_row;
            g.rows_a_page = at.rows, g.ordinal = at.ordinal, g.layers = at.layer_count;
        } else if (plane.heads != g.heads || plane.tokens_per_row != g.tokens_per_row ||
                   at.ordinal != g.ordinal) {
            refuse(format("plane '%s' differs in heads, layers or tokens a row from the others "
                          "of its group; one selection must fit them all",
                          plane.name));
        }
        if (at.rows % options.block != 0)
            refuse(format("block is %u, which does not divide the %u rows that a page has of "
                          "plane '%s'. Take a divisor.",
                          options.block, at.rows, plane.name));
        const std::uint64_t unit = std::uint64_t{options.block} * plane.row_pitch;
        unit_bytes += unit;
        if (unit_bytes > kUnitMost)
            refuse(format("a unit of %u rows has %" PRIu64 " bytes with plane '%s'; 2^28 are "
                          "the limit, all planes of the group together. Take a smaller block.",
                          options.block, unit_bytes, plane.name));
        g.planes.push_back(shape_of(layout, p, options.block, options.padded));
    }
    if (g.planes.empty())
        throw Error(SAC_E_NOT_FOUND, "hot buffer",
                    format("hot buffer: the layout has no group %u", number));
    const std::uint64_t lanes = std::uint64_t{options.requests} * g.heads;
    if (lanes * options.slots >= std::uint64_t{1} << 31)
        refuse(format("%u requests x %u heads x %u slots are %" PRIu64
                      " slots; a slot's number "
                      "has 31 bits. Take fewer requests or slots.",
                      options.requests, g.heads, options.slots, lanes * options.slots));
    g.lanes = static_cast<std::uint32_t>(lanes);
    g.page_units = g.rows_a_page / options.block;
    g.units_max = static_cast<std::uint32_t>(pages_max * g.page_units);
    if (pages_max * g.page_units >= std::uint64_t{1} << 31)
        refuse(format("max_tokens is %" PRIu64 ", which makes 2^31 units or more. Take fewer.",
                      options.max_tokens));
    share_layers(g);
    groups.push_back(std::move(g));
}

// Which layers have a state and a plan of their own.
void HotGeometry::share_layers(HotGroup &g) {
    std::array<std::int32_t, SAC_MAX_LAYERS> leader;
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
        leader[l] = static_cast<std::int32_t>(l);
    for (const auto &[layer, of] : options.share) {
        if (layer >= SAC_MAX_LAYERS || of >= SAC_MAX_LAYERS)
            refuse(format("share: layer %u; a layout has layers 0 to %d", std::max(layer, of),
                          SAC_MAX_LAYERS - 1));
        if (!g.has(layer))
            continue;  // another group's
        if (!g.has(of))
            refuse(format("share: layer %u follows layer %u, which has no rows in its group",
                          layer, of));
        if (layer == of || leader[layer] != static_cast<std::int32_t>(layer))
            refuse(format("share: layer %u follows itself, or two layers", layer));
        leader[layer] = static_cast<std::int32_t>(of);
    }
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l) {
        if (!g.has(l) || leader[l] != static_cast<std::int32_t>(l))
            continue;
        g.state[l] = static_cast<std::int16_t>(g.states++);
        g.plan[l] = static_cast<std::int16_t>(g.plans++);
    }
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l) {
        if (!g.has(l) || leader[l] == static_cast<std::int32_t>(l))
            continue;
        const auto of = static_cast<std::uint32_t>(leader[l]);
        if (g.state[of] < 0 || leader[of] != leader[l])
            refuse(format("share: layer %u follows layer %u, which follows another itself", l,
                          of));
        g.state[l] = g.state[of], g.plan[l] = g.plan[of];
        g.follows[l] = g.followed[of] = true;
    }
}

void HotGeometry::place() {
    const auto take = [](std::uint64_t &end, std::uint64_t bytes) {
        const std::uint64_t at = end;
        end = round_up(end + bytes, 256);
        return at;
    };
    for (HotGroup &g : groups) {
        for (HotPlaneShape &p : g.planes) {
            p.layer_bytes =
                round_up(std::uint64_t{g.lanes} * options.slots * p.slot_pitch, 256);
            if (p.layer_bytes > kRowsMost / g.layers)
                refuse(format("%u requests x %u heads x %u slots of %u bytes in %u layers are "
                              "more than 2^46 bytes of GPU memory. Take fewer requests or "
                              "slots.",
                              options.requests, g.heads, options.slots, p.slot_pitch,
                              g.layers));
            p.rows = take(rows_bytes, p.layer_bytes * g.layers);
        }
        const std::uint64_t lanes = std::uint64_t{g.states} * g.lanes;
        g.slot_token = take(tables_bytes, lanes * slots_pitch * sizeof(std::int32_t));
        g.order = take(tables_bytes, lanes * slots_pitch * 2 * sizeof(std::uint16_t));
        g.lane_state = take(tables_bytes, lanes * sizeof(HotState));
        g.plan_at = take(shared_bytes, std::uint64_t{g.plans} * g.lanes * plan_bytes);
    }
    state_bytes = tables_bytes;
    pages = take(shared_bytes, options.requests * pages_max * sizeof(std::uint64_t));
    requests = take(shared_bytes, groups.size() * options.requests * sizeof(HotRequest));
    numbers = take(tables_bytes, options.requests * sizeof(std::int32_t));
    counters = take(tables_bytes, HOT_COUNTERS * sizeof(std::uint64_t));
    // Behind the counters, so that one copy reads both.
    errors = take(tables_bytes, (options.requests + 1) * sizeof(std::uint32_t));
}

const HotGroup &HotGeometry::group(std::uint32_t number) const {
    for (const HotGroup &g : groups)
        if (g.number == number)
            return g;
    throw Error(SAC_E_RANGE, "hot buffer",
                format("hot buffer: group %u of the layout is not in it", number));
}

const HotGroup &HotGeometry::group(std::uint32_t number, std::uint32_t layer) const {
    const HotGroup &g = group(number);
    if (!g.has(layer))
        throw Error(SAC_E_RANGE, "hot buffer",
                    format("hot buffer: group %u has no layer %u", number, layer));
    return g;
}

const HotGroup &HotGeometry::of_plane(std::uint32_t plane, const HotPlaneShape *&shape) const {
    for (const HotGroup &g : groups)
        for (const HotPlaneShape &p : g.planes)
            if (p.plane == plane) {
                shape = &p;
                return g;
            }
    throw Error(SAC_E_RANGE, "hot buffer",
                format("hot buffer: plane %u of the layout is not in it", plane));
}

KernelSpec HotGeometry::spec(const HotGroup &g, const std::string &source) const {
    KernelSpec s;
    s.source = source;
    s.define("SAC_SLOTS", options.slots).define("SAC_TOP_K", options.top_k);
    s.define("SAC_UNITS_MAX", g.units_max).define("SAC_THREADS", threads);
    s.define("SAC_EARLY", g.early ? 1 : 0);
    s.define("SAC_POLICY", options.policy).define("SAC_BLOCK", options.block);
    s.define("SAC_PAGE_UNITS", g.page_units);
    s.define("SAC_PLANES", static_cast<std::int64_t>(g.planes.size()));
    for (std::size_t i = 0; i < g.planes.size(); ++i) {
        const HotPlaneShape &p = g.planes[i];
        const std::string n = format("_%zu", i);  // g++ 12 warns of "_" + to_string(i)
        s.define("SAC_ROW_BYTES" + n, p.row_bytes).define("SAC_UNIT_BYTES" + n, p.unit_bytes);
        s.define("SAC_POOL_PITCH" + n, p.pool_pitch).define("SAC_SLOT_PITCH" + n, p.slot_pitch);
        s.define("SAC_ACCESS" + n, p.access);
    }
    return s;
}

}  // namespace sac::gpu
