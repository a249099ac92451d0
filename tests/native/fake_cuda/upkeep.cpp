// SPDX-License-Identifier: Apache-2.0
// sac_append, sac_load, sac_reset, sac_gather on the CPU.
#include <algorithm>
#include <cstring>

#include "lane.hpp"

namespace {

using fake::Lane;
using fake::Policy;
using fake::Shape;

constexpr std::uint32_t kNone = UINT32_MAX;

struct NewRow {
    std::uint32_t entry;  // of the call's rows
    std::int32_t unit;
    std::uint32_t row;  // in the unit
    std::uint32_t slot = kNone;
};

// The rows that may be written.
std::vector<NewRow> new_rows(const HotAppend &a, const Lane &lane) {
    std::vector<NewRow> out;
    const bool last_ones = a.first == 0;
    const std::int64_t first = last_ones
                                   ? static_cast<std::int64_t>(lane.rows) - a.count
                                   : std::int64_t{fake::at<std::int32_t>(a.first)[lane.row]};
    for (std::uint32_t i = 0; i < a.count; ++i) {
        const std::int64_t number = first + i;
        if (last_ones ? number < 0 : first == -1)
            continue;
        const auto n = static_cast<std::uint64_t>(number);
        const std::uint64_t unit = n / lane.shape.block;
        if ((first < 0 && !last_ones) || n < lane.open || n >= lane.rows ||
            unit >= lane.units) {
            lane.report(HOT_E_RANGE);
        } else if (lane.page(unit) == 0) {
            lane.report(HOT_E_PAGE);
        } else {
            out.push_back({i, static_cast<std::int32_t>(unit),
                           static_cast<std::uint32_t>(n % lane.shape.block)});
        }
    }
    return out;
}

void place_direct(const Lane &lane, std::vector<NewRow> &rows, bool follower) {
    std::int32_t *const held = lane.slot_token();
    const std::vector<std::int32_t> before(held, held + lane.shape.slots);
    for (NewRow &r : rows) {
        const auto slot = static_cast<std::uint32_t>(r.unit);
        if (r.row <= r.entry || before[slot] == r.unit)
            r.slot = slot;
        if (r.row != 0)
            continue;
        if (!follower) {
            lane.count(HOT_KEPT, before[slot] < 0);
            held[slot] = r.unit;
        }
        for (std::uint32_t p = 0; lane.shape.block > 1 && p < lane.shape.planes.size(); ++p)
            std::memset(lane.in_slot(p, slot), 0, lane.shape.planes[p].unit_bytes);
    }
}

void place(const Lane &lane, std::vector<NewRow> &rows, bool follower) {
    std::int32_t *const held = lane.slot_token();
    const std::uint32_t slots = lane.shape.slots;
    std::vector<bool> hit(slots);
    std::vector<NewRow *> missing;
    for (NewRow &r : rows) {
        const auto *const found = std::find(held, held + slots, r.unit);
        if (found != held + slots) {
            r.slot = static_cast<std::uint32_t>(found - held);
            hit[r.slot] = true;
        } else if (lane.shape.block == 1 && !follower) {
            missing.push_back(&r);
        }
    }
    if (missing.empty())
        return;
    const auto taken = Policy(lane).step(hit, missing.size(), Policy::append);
    std::uint64_t evicted = 0;
    for (std::size_t k = 0; k < taken.size(); ++k) {
        evicted += held[taken[k]] >= 0;
        held[taken[k]] = missing[k]->unit;
        missing[k]->slot = taken[k];
    }
    lane.count(HOT_EVICTIONS, evicted);
    lane.count(HOT_KEPT, taken.size() - evicted);
}

void write_rows(const HotAppend &a, const Lane &lane, const std::vector<NewRow> &rows) {
    for (const NewRow &r : rows)
        for (std::uint32_t p = 0; p < lane.shape.planes.size(); ++p) {
            const fake::PlaneShape &shape = lane.shape.planes[p];
            const HotSource &s = a.sources[p];
            const auto from = static_cast<std::int64_t>(s.rows) +
                              std::int64_t{lane.row} * s.request_stride +
                              std::int64_t{r.entry} * s.token_stride +
                              std::int64_t{lane.head} * s.head_stride;
            const auto *const bytes =
                fake::at<const std::uint8_t>(static_cast<std::uint64_t>(from));
            const std::uint64_t offset = r.row * (shape.pool_pitch / lane.shape.block);
            std::memcpy(lane.in_pool(p, static_cast<std::uint64_t>(r.unit), shape.row_bytes,
                                     offset, true),
                        bytes, shape.row_bytes);
            if (r.slot != kNone)
                std::memcpy(lane.in_slot(p, r.slot) + offset, bytes, shape.row_bytes);
        }
}

}  // namespace

FAKE_KERNEL(sac_append, HotAppend) {
    const Shape shape(build);
    const bool follower = (args.hot.flags & HOT_FOLLOWER) != 0;
    for (unsigned b = 0; b < grid.y; ++b)
        for (unsigned h = 0; h < grid.z; ++h) {
            const Lane lane(args.hot, shape, b, h);
            if (lane.refused())
                continue;
            std::vector<NewRow> rows = new_rows(args, lane);
            if (lane.direct())
                place_direct(lane, rows, follower);
            else
                place(lane, rows, follower);
            write_rows(args, lane, rows);
            lane.count(HOT_APPENDED, rows.size() * shape.planes.size());
        }
}

FAKE_KERNEL(sac_load, HotLoad) {
    const Shape shape(build);
    for (unsigned b = 0; b < grid.y; ++b)
        for (unsigned h = 0; h < grid.z; ++h) {
            const Lane lane(args.hot, shape, b, h);
            if (!lane.bound()) {
                (void)lane.refused();
                continue;
            }
            const std::uint64_t end =
                std::min<std::uint64_t>({lane.units, shape.slots, args.end});
            for (std::uint64_t u = args.first; lane.direct() && u < end; ++u) {
                if (lane.page(u) == 0)
                    continue;
                lane.fetch(u, static_cast<std::uint32_t>(u));
                lane.count(HOT_BYTES, shape.group_bytes);
                if ((args.hot.flags & HOT_FOLLOWER) != 0)
                    continue;
                lane.count(HOT_KEPT, lane.slot_token()[u] < 0);
                lane.slot_token()[u] = static_cast<std::int32_t>(u);
            }
        }
}

FAKE_KERNEL(sac_reset, HotReset) {
    const Shape shape(build);
    const bool all = args.mode == HOT_RESET_FREE;
    const std::uint64_t pitch = shape.slots_pitch();
    const bool listed = shape.policy != HOT_RANDOM && shape.policy != HOT_CLOCK;
    for (unsigned x = 0; x < grid.x; ++x)
        for (unsigned y = 0; y < grid.y; ++y) {
            const std::uint64_t lane = std::uint64_t{x} * args.lanes + args.first + y;
            auto *const held = fake::at<std::int32_t>(args.slot_token) + lane * pitch;
            auto *const order = fake::at<std::uint16_t>(args.order) + lane * 2 * pitch;
            std::uint64_t freed = 0;
            for (std::uint64_t i = 0; i < pitch; ++i) {
                const std::int32_t unit = args.is_new != 0 ? -1 : held[i];
                const bool leaves = unit >= 0 && static_cast<std::uint32_t>(unit) >= args.units;
                freed += unit >= 0 && (all || leaves);
                if (all || leaves)
                    held[i] = -1;
                if (all)
                    order[i] = order[pitch + i] = static_cast<std::uint16_t>(listed ? i : 0);
            }
            if (all) {
                fake::at<HotState>(args.state)[lane] = {};
                if (args.plan != 0)
                    fake::at<HotPlan>(args.plan +
                                      lane * hot_plan_bytes(shape.top_k, shape.threads))
                        ->count = 0;
            }
            fake::at<std::uint64_t>(args.counters)[HOT_KEPT] -= freed;
        }
}

FAKE_KERNEL(sac_gather, HotGather) {
    const std::int64_t page_units = build.number("SAC_PAGE_UNITS");
    const auto bytes = static_cast<std::uint64_t>(build.number("SAC_UNIT_BYTES_0"));
    const auto pitch = static_cast<std::uint64_t>(build.number("SAC_POOL_PITCH_0"));
    for (unsigned b = 0; b < grid.y; ++b)
        for (unsigned h = 0; h < grid.z; ++h)
            for (std::uint64_t i = 0; i < args.count; ++i) {
                const std::uint64_t entry = (std::uint64_t{b} * grid.z + h) * args.count + i;
                const std::int32_t unit = args.units == 0
                                              ? static_cast<std::int32_t>(i)
                                              : fake::at<std::int32_t>(args.units)[entry];
                auto *const to = fake::at<std::uint8_t>(args.out + entry * args.out_pitch);
                std::memset(to, 0, bytes);
                if (unit == -1)
                    continue;
                const std::uint32_t number =
                    args.requests == 0 ? b : fake::at<std::uint32_t>(args.requests)[b];
                const bool known = number < args.table_size;
                std::uint32_t error = HOT_E_UNBOUND;
                if (known && (fake::at<HotRequest>(args.table)[number].flags & HOT_BOUND)) {
                    const HotRequest &r = fake::at<HotRequest>(args.table)[number];
                    const auto u = static_cast<std::uint32_t>(unit);
                    const std::uint64_t page =
                        u < r.units ? fake::at<std::uint64_t>(r.pages)[u / page_units] : 0;
                    error = u >= r.units ? HOT_E_RANGE : page == 0 ? HOT_E_PAGE : 0u;
                    if (error == 0)
                        std::memcpy(
                            to,
                            fake::pool(page + args.offset + h * args.head_stride +
                                           static_cast<std::uint64_t>(u % page_units) * pitch,
                                       bytes),
                            bytes);
                }
                if (error != 0)
                    fake::at<std::uint32_t>(args.errors)[known ? number : args.table_size] |=
                        error;
            }
}
