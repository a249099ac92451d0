// SPDX-License-Identifier: Apache-2.0
// sac_resolve, sac_prefetch, sac_replay, sac_scatter on the CPU.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "lane.hpp"

namespace {

using fake::Lane;
using fake::Policy;
using fake::Shape;

struct Entry {
    std::int32_t unit;    // -1: none
    std::uint64_t score;  // grows with the score
};

std::uint64_t ordered(float score) {
    if (score != score)
        return 0;
    score += 0.0f;  // both zeros are one
    std::uint32_t bits = 0;
    std::memcpy(&bits, &score, sizeof bits);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

std::uint64_t first_entry(const Lane &lane) {
    return (std::uint64_t{lane.row} * lane.args.heads + lane.head) * lane.args.top_k;
}

std::vector<Entry> read_entries(const Lane &lane, std::uint32_t &errors) {
    const HotArgs &a = lane.args;
    const auto *const units = fake::at<std::int32_t>(a.selection) + first_entry(lane);
    const auto *const scores =
        a.scores == 0 ? nullptr : fake::at<float>(a.scores) + first_entry(lane);
    std::vector<Entry> out(a.top_k);
    for (std::uint32_t i = 0; i < a.top_k; ++i) {
        const bool inside = static_cast<std::uint32_t>(units[i]) < lane.units;
        if (!inside && units[i] != -1)
            errors |= HOT_E_RANGE;
        out[i] = {inside ? units[i] : -1, scores ? ordered(scores[i]) : 0};
    }
    return out;
}

void write_row(const Lane &lane, const std::vector<std::int32_t> &where) {
    std::copy(where.begin(), where.end(),
              fake::at<std::int32_t>(lane.args.out) + first_entry(lane));
}

std::int32_t place(const Lane &lane, std::uint32_t slot) {
    return static_cast<std::int32_t>(lane.lane * lane.shape.slots + slot);
}

void resolve_direct(const Lane &lane, const std::vector<Entry> &entries, std::uint32_t errors) {
    std::vector<std::int32_t> where(entries.size(), -1);
    std::set<std::int32_t> hits;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const std::int32_t unit = entries[i].unit;
        if (unit >= 0 && lane.slot_token()[unit] == unit) {
            where[i] = place(lane, static_cast<std::uint32_t>(unit));
            hits.insert(unit);
        } else if (unit >= 0) {
            const std::uint64_t page = lane.page(static_cast<std::uint64_t>(unit));
            errors |= page == 0 ? HOT_E_PAGE : HOT_E_RANGE;
        }
    }
    write_row(lane, where);
    lane.report(errors);
    lane.count(HOT_HITS, hits.size());
}

// What a step decided.
struct Outcome {
    std::map<std::int32_t, std::uint32_t> slot_of;
    std::vector<std::int32_t> missing;  // ascending; the first ones are fetched
    std::vector<std::uint32_t> taken;
};

Outcome plan(const Lane &lane, const std::vector<Entry> &entries, Policy::Mode mode) {
    std::map<std::int32_t, std::uint64_t> selected;  // unit: best score
    for (const Entry &e : entries)
        if (e.unit >= 0) {
            std::uint64_t &best = selected[e.unit];
            best = std::max(best, e.score);
        }
    Outcome out;
    const std::uint32_t slots = lane.shape.slots;
    std::int32_t *const held = lane.slot_token();
    std::vector<bool> hit(slots);
    std::vector<std::uint64_t> keys(slots), missing_keys;
    for (std::uint32_t s = 0; s < slots; ++s)
        if (const auto it = selected.find(held[s]); held[s] >= 0 && it != selected.end()) {
            hit[s] = true;
            keys[s] = it->second;
            out.slot_of[held[s]] = s;
        }
    for (const auto &[unit, score] : selected)
        if (!out.slot_of.contains(unit) && lane.page(static_cast<std::uint64_t>(unit)) != 0) {
            out.missing.push_back(unit);
            missing_keys.push_back(score);
        }
    const std::size_t hits = out.slot_of.size();
    out.taken = Policy(lane).step(hit, out.missing.size(), mode, keys, missing_keys);
    std::uint64_t evicted = 0;
    for (std::size_t k = 0; k < out.taken.size(); ++k) {
        evicted += held[out.taken[k]] >= 0;
        held[out.taken[k]] = out.missing[k];
        out.slot_of[out.missing[k]] = out.taken[k];
    }
    const std::uint64_t n = out.taken.size();
    lane.count(HOT_HITS, mode == Policy::resolve ? hits : 0);
    lane.count(mode == Policy::resolve ? HOT_MISSES : HOT_PREFETCHED, n);
    lane.count(HOT_BYTES, n * lane.shape.group_bytes);
    lane.count(HOT_EVICTIONS, evicted);
    lane.count(HOT_KEPT, n - evicted);
    return out;
}

void write_plan(const Lane &lane, const Outcome &outcome) {
    HotPlan *const plan = lane.plan();
    if (!plan)
        return;
    auto *const moves = reinterpret_cast<HotMove *>(plan + 1);
    plan->count = static_cast<std::uint32_t>(outcome.taken.size());
    for (std::size_t k = 0; k < outcome.taken.size(); ++k)
        moves[k] = {outcome.missing[k], outcome.taken[k]};
}

void step(const Lane &lane, Policy::Mode mode) {
    if (lane.refused()) {
        if (mode == Policy::resolve)
            write_row(lane, std::vector<std::int32_t>(lane.args.top_k, -1));
        return;
    }
    std::uint32_t errors = 0;
    const std::vector<Entry> entries = read_entries(lane, errors);
    if (lane.direct()) {
        if (lane.plan())
            lane.plan()->count = 0;
        if (mode == Policy::resolve)
            resolve_direct(lane, entries, errors);
        return;
    }
    const Outcome outcome = plan(lane, entries, mode);
    const bool fetches = mode == Policy::resolve && (lane.args.flags & HOT_PLAN_ONLY) == 0;
    for (std::size_t k = 0; k < outcome.taken.size() && fetches; ++k)
        lane.fetch(static_cast<std::uint64_t>(outcome.missing[k]), outcome.taken[k]);
    if (mode == Policy::resolve) {
        std::vector<std::int32_t> where(entries.size(), -1);
        for (std::size_t i = 0; i < entries.size(); ++i) {
            const auto it = outcome.slot_of.find(entries[i].unit);
            if (entries[i].unit >= 0 && it != outcome.slot_of.end())
                where[i] = place(lane, it->second);
            else if (entries[i].unit >= 0)
                errors |= HOT_E_PAGE;
        }
        write_row(lane, where);
    }
    write_plan(lane, outcome);
    lane.report(errors);
}

template <class Fn>
void each_lane(const HotArgs &args, const fake::Build &build, const fake::Grid &grid, Fn &&fn) {
    const Shape shape(build);
    for (unsigned b = 0; b < grid.y; ++b)
        for (unsigned h = 0; h < grid.z; ++h)
            fn(Lane(args, shape, b, h));
}

}  // namespace

FAKE_KERNEL(sac_resolve, HotArgs) {
    each_lane(args, build, grid, [](const Lane &lane) { step(lane, Policy::resolve); });
}

FAKE_KERNEL(sac_prefetch, HotArgs) {
    each_lane(args, build, grid, [](const Lane &lane) { step(lane, Policy::prefetch); });
}

// The blocks of any grid share the lanes.
FAKE_KERNEL(sac_replay, HotArgs) {
    each_lane(args, build, {1, args.batch, args.heads, grid.threads}, [](const Lane &lane) {
        const HotPlan *const plan = lane.bound() ? lane.plan() : nullptr;
        if (!plan)
            return;
        const auto *const moves = reinterpret_cast<const HotMove *>(plan + 1);
        for (std::uint32_t m = 0; m < plan->count; ++m)
            lane.fetch(static_cast<std::uint64_t>(moves[m].unit), moves[m].slot);
        if ((lane.args.flags & HOT_FOLLOWER) != 0)
            lane.count(HOT_BYTES, plan->count * lane.shape.group_bytes);
    });
}

FAKE_KERNEL(sac_scatter, HotScatter) {
    each_lane(args.hot, build, grid, [&](const Lane &lane) {
        const HotPlan *const plan = lane.bound() ? lane.plan() : nullptr;
        if (!plan)
            return;
        const auto *const moves = reinterpret_cast<const HotMove *>(plan + 1);
        const std::uint32_t first =
            fake::at<std::uint32_t>(args.starts)[lane.row * args.hot.heads + lane.head];
        for (std::uint32_t m = 0; m < plan->count; ++m)
            for (std::uint32_t p = 0; p < lane.shape.planes.size(); ++p) {
                const fake::PlaneShape &shape = lane.shape.planes[p];
                const std::uint64_t from =
                    args.staging[p] + std::uint64_t{first + m} * shape.slot_pitch;
                std::memcpy(lane.in_slot(p, moves[m].slot), fake::pool(from, shape.unit_bytes),
                            shape.unit_bytes);
            }
    });
}
