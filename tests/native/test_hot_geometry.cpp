// SPDX-License-Identifier: Apache-2.0
// What a hot buffer takes of memory, where things lie in it, and what is refused.
#include "gpu/hot_geometry.hpp"

#include <algorithm>

#include "check.hpp"
#include "kit.hpp"

namespace {

using sac::gpu::HotGeometry;
using sac::gpu::HotOptions;

constexpr std::uint32_t kShared = 227 * 1024;  // of a block, sm_90

HotOptions options(std::uint32_t requests = 1, std::uint32_t slots = 4096,
                   std::uint32_t top_k = 2048) {
    HotOptions o;
    o.requests = requests, o.slots = slots, o.top_k = top_k, o.max_tokens = 131072;
    return o;
}

sac::Geometry layout_of(const std::vector<sac_plane> &planes, std::uint32_t page_tokens) {
    sac_layout l{};
    l.struct_size = sizeof l;
    l.page_tokens = page_tokens;
    l.plane_count = static_cast<std::uint32_t>(planes.size());
    l.planes = planes.data();
    return sac::Geometry(l);
}

sac_plane rows(const char *name, std::uint32_t bytes, std::uint32_t group,
               std::uint32_t pitch = 0, std::uint32_t heads = 1) {
    sac_plane p = kit::plane(name, 0x7, bytes);
    p.group = group, p.row_pitch = pitch, p.heads = heads;
    return p;
}

const sac::gpu::HotPlaneShape &shape(const HotGeometry &g) { return g.groups[0].planes[0]; }

}  // namespace

TEST(a_long_context_takes_little_beside_its_rows) {
    sac_plane p = kit::plane("latent", (std::uint64_t{1} << 61) - 1, 1152);
    const auto layout = layout_of({p}, 64);
    HotOptions o = options();
    HotGeometry g(layout, o, kShared);
    CHECK(g.rows_bytes >= std::uint64_t{61} * 4096 * 1152);
    CHECK(g.rows_bytes + g.tables_bytes + g.shared_bytes < 310000000u);
    o.max_tokens = 1 << 20;
    g = HotGeometry(layout, o, kShared);
    CHECK(g.rows_bytes + g.tables_bytes + g.shared_bytes < 350000000u);
}

TEST(rows_are_copied_by_the_widest_access_that_fits) {
    const struct {
        std::uint32_t bytes, pitch, block, access, unit, slot;
    } cases[] = {
        {1152, 0, 1, 16, 1152, 1152}, {656, 0, 1, 16, 656, 656}, {584, 0, 1, 8, 584, 592},
        {528, 0, 1, 16, 528, 528},    {132, 0, 1, 4, 132, 144},  {352, 0, 1, 16, 352, 352},
        {33, 0, 1, 1, 33, 48},        {33, 48, 1, 16, 48, 48},  // padding goes along
        {584, 0, 2, 16, 1168, 1168},  {132, 0, 4, 16, 528, 528},
    };
    for (const auto &c : cases) {
        HotOptions o = options(2, 64, 32);
        o.block = c.block;
        const HotGeometry g(layout_of({rows("a", c.bytes, 0, c.pitch)}, 64), o, kShared);
        CHECK_EQ(shape(g).access, c.access);
        CHECK_EQ(shape(g).unit_bytes, c.unit);
        CHECK_EQ(shape(g).slot_pitch, c.slot);
        CHECK_EQ(shape(g).pool_pitch, c.block * std::max(c.bytes, c.pitch));
        o.padded = true;
        const HotGeometry wide(layout_of({rows("a", c.bytes, 0, c.pitch)}, 64), o, kShared);
        CHECK_EQ(shape(wide).slot_pitch % 128, 0u);
    }
}

TEST(nothing_overlaps) {
    std::vector<sac_plane> planes{rows("k", 130, 3, 0, 4), rows("v", 258, 3, 0, 4),
                                  rows("x", 64, 5)};
    HotOptions o = options(3, 100, 50);
    o.groups = {5, 3};
    o.share = {{2, 0}};
    for (const bool cpu : {false, true}) {
        o.cpu = cpu;
        const HotGeometry g(layout_of(planes, 16), o, kShared);
        std::vector<std::pair<std::uint64_t, std::uint64_t>> tables, shared, all;
        for (const auto &group : g.groups) {
            CHECK_EQ(group.states, 2u);
            CHECK_EQ(group.plans, 2u);
            CHECK(group.follows[2] && group.state[2] == group.state[0]);
            const std::uint64_t lanes = std::uint64_t{group.lanes} * group.states;
            tables.push_back({group.slot_token, lanes * g.slots_pitch * 4});
            tables.push_back({group.order, lanes * g.slots_pitch * 4});
            tables.push_back({group.lane_state, lanes * sizeof(HotState)});
            shared.push_back(
                {group.plan_at, std::uint64_t{group.plans} * group.lanes * g.plan_bytes});
            shared.push_back({g.table(group), 3 * sizeof(HotRequest)});
            for (const auto &p : group.planes)
                for (std::uint64_t l = 0; l < 3; ++l)
                    all.push_back({p.rows + l * p.layer_bytes,
                                   std::uint64_t{group.lanes} * 100 * p.slot_pitch});
        }
        tables.push_back({g.numbers, 12});
        tables.push_back({g.counters, 8 * HOT_COUNTERS});
        tables.push_back({g.errors, 16});
        shared.push_back({g.pages, 3 * g.pages_max * 8});
        const struct {
            std::vector<std::pair<std::uint64_t, std::uint64_t>> *of;
            std::uint64_t bytes;
        } lists[] = {
            {&tables, g.tables_bytes}, {&shared, g.shared_bytes}, {&all, g.rows_bytes}};
        for (const auto &list : lists) {
            std::sort(list.of->begin(), list.of->end());
            std::uint64_t end = 0;
            for (const auto &[at, bytes] : *list.of) {
                CHECK(at >= end);
                CHECK_EQ(at % 16, 0u);
                end = at + bytes;
            }
            CHECK(end <= list.bytes);
        }
    }
}

TEST(rows_are_fetched_early_where_a_block_has_room_for_it) {
    const auto layout = layout_of({rows("latent", 1152, 0)}, 64);
    const HotGeometry roomy(layout, options(), kShared);
    const sac::gpu::HotGroup &g = roomy.groups[0];
    CHECK(g.early);
    const std::uint32_t least = roomy.block_bytes(g, 2048), most = roomy.resolve_bytes(g);
    CHECK(most > least);
    for (const std::uint32_t most_of_block : {least + 1024, most + 1023}) {
        const HotGeometry tight(layout, options(), most_of_block);
        CHECK(!tight.groups[0].early);
        CHECK_EQ(tight.resolve_bytes(tight.groups[0]), least);
        CHECK(tight.spec(tight.groups[0], "hot.cu").text().find("SAC_EARLY=0") !=
              std::string::npos);
    }
    CHECK(HotGeometry(layout, options(), most + 1024).groups[0].early);
    CHECK_THROWS(SAC_E_ARG, HotGeometry(layout, options(), least + 1023));
}

TEST(what_does_not_go_is_refused) {
    std::vector<sac_plane> planes{rows("a", 64, 0), rows("b", 64, 1, 0, 2), rows("w", 64, 2),
                                  rows("s", 64, 3)};
    planes[2].kind = SAC_PLANE_WINDOW, planes[2].window_tokens = 20;
    planes[3].kind = SAC_PLANE_STATE;
    for (int i = 0; i < 5; ++i)
        planes.push_back(rows(sac::format("m%d", i).c_str(), 64, 4));
    planes.push_back(rows("heads", 64, 5, 0, 5));
    planes.push_back(rows("wide", 1 << 24, 6, 1 << 25));
    const auto layout = layout_of(planes, 16);
    const auto refused = [&](HotOptions o) {
        CHECK_THROWS(SAC_E_ARG, HotGeometry(layout, o, kShared));
    };
    const HotOptions good = options(4, 64, 32);
    CHECK_EQ(HotGeometry(layout, good, kShared).groups[0].number, 0u);
    for (const std::uint32_t top_k : {0u, 65u}) {
        HotOptions o = good;
        o.top_k = top_k;
        refused(o);
    }
    for (const std::uint32_t block : {0u, 3u, 32u, 129u}) {
        HotOptions o = good;
        o.block = block;
        refused(o);
    }
    for (const std::uint32_t group : {2u, 3u, 4u}) {  // window, state, five planes
        HotOptions o = good;
        o.groups = {group};
        refused(o);
    }
    for (const std::uint32_t slots : {0u, std::uint32_t{HOT_SLOTS_MAX} + 1, 20000u}) {
        HotOptions o = good;
        o.slots = slots;
        refused(o);
    }
    for (const std::uint32_t requests : {0u, 65536u}) {
        HotOptions o = good;
        o.requests = requests;
        refused(o);
    }
    HotOptions o = good;
    o.requests = 65535, o.slots = HOT_SLOTS_MAX, o.groups = {5};
    refused(o);  // 2^31 slots and more
    o.groups = {1};
    CHECK(HotGeometry(layout, o, kShared).rows_bytes >
          std::uint64_t{65535} * HOT_SLOTS_MAX * 2 * 64 * 3 - 1);  // above 2^32
    o.groups = {6};
    refused(o);  // its slots have more bytes than there are
    o = good, o.groups = {6}, o.block = 8;
    CHECK_EQ(HotGeometry(layout, o, kShared).groups[0].planes[0].pool_pitch, 1u << 28);
    o.block = 16;
    refused(o);  // more pieces of a step's units than 32 bits number
    o = good, o.groups = {9};
    CHECK_THROWS(SAC_E_NOT_FOUND, HotGeometry(layout, o, kShared));
    o = good, o.policy = 9;
    refused(o);
    o = good, o.max_tokens = std::uint64_t{1} << 31;
    refused(o);
    o.max_tokens = 0;
    refused(o);
    CHECK_THROWS(SAC_E_ARG, HotGeometry(layout, options(1, 8192, 8192), 48 * 1024));
    // What is dynamic must leave room for what is static.
    const std::uint32_t needs =
        HotGeometry(layout, good, kShared)
            .block_bytes(HotGeometry(layout, good, kShared).groups[0], good.top_k);
    CHECK_THROWS(SAC_E_ARG, HotGeometry(layout, good, needs));
    CHECK_EQ(HotGeometry(layout, good, needs + 1024).groups.size(), 1u);
    o = good, o.share = {{1, 0}, {2, 1}};
    refused(o);
    const HotGeometry g(layout, good, kShared);
    CHECK_THROWS(SAC_E_RANGE, g.group(1));
    CHECK_THROWS(SAC_E_RANGE, g.group(0, 3));
}
