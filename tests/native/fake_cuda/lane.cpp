// SPDX-License-Identifier: Apache-2.0
#include "lane.hpp"

#include <algorithm>
#include <cstring>

namespace fake {

Shape::Shape(const Build &build) {
    const auto number = [&](const std::string &name) {
        return static_cast<std::uint32_t>(build.number(name));
    };
    slots = number("SAC_SLOTS"), top_k = number("SAC_TOP_K");
    threads = number("SAC_THREADS"), policy = number("SAC_POLICY");
    block = number("SAC_BLOCK"), page_units = number("SAC_PAGE_UNITS");
    units_max = static_cast<std::uint64_t>(build.number("SAC_UNITS_MAX"));
    for (std::uint32_t p = 0; p < number("SAC_PLANES"); ++p) {
        const std::string n = '_' + std::to_string(p);
        planes.push_back({number("SAC_ROW_BYTES" + n), number("SAC_UNIT_BYTES" + n),
                          number("SAC_POOL_PITCH" + n), number("SAC_SLOT_PITCH" + n)});
        group_bytes += planes.back().unit_bytes;
    }
}

Lane::Lane(const HotArgs &a, const Shape &s, unsigned in_row, unsigned of_head)
    : args(a), shape(s), row(in_row), head(of_head) {
    const auto *const requests = at<std::uint32_t>(a.requests);
    known = requests[row] < a.table_size;
    twice = std::find(requests, requests + row, requests[row]) != requests + row;
    if (!known)
        return;
    request = requests[row];
    const HotRequest &entry = at<HotRequest>(a.table)[request];
    pages = at<std::uint64_t>(entry.pages);
    units = std::min<std::uint64_t>(entry.units, s.units_max);
    rows = entry.rows, open = entry.open, flags = entry.flags;
    lane = std::uint64_t{request} * a.heads + head;
}

bool Lane::refused() const {
    if (bound() && !twice)
        return false;
    report(bound() ? HOT_E_TWICE : HOT_E_UNBOUND);
    if (known && !bound() && plan())
        plan()->count = 0;
    return true;
}

void Lane::report(std::uint32_t bits) const {
    at<std::uint32_t>(args.errors)[known ? request : args.table_size] |= bits;
}

void Lane::count(HotCounter which, std::uint64_t n) const {
    at<std::uint64_t>(args.counters)[which] += n;
}

HotPlan *Lane::plan() const {
    return args.plan == 0
               ? nullptr
               : at<HotPlan>(args.plan + lane * hot_plan_bytes(shape.top_k, shape.threads));
}

std::int32_t *Lane::slot_token() const {
    return at<std::int32_t>(args.slot_token) + lane * shape.slots_pitch();
}

std::uint64_t Lane::page(std::uint64_t unit) const { return pages[unit / shape.page_units]; }

std::uint8_t *Lane::in_pool(std::uint32_t plane, std::uint64_t unit, std::uint64_t bytes,
                            std::uint64_t offset, bool writing) const {
    const HotPlane &p = args.planes[plane];
    return pool(page(unit) + p.offset + head * p.head_stride +
                    unit % shape.page_units * shape.planes[plane].pool_pitch + offset,
                bytes, writing);
}

std::uint8_t *Lane::in_slot(std::uint32_t plane, std::uint32_t slot) const {
    return at<std::uint8_t>(args.planes[plane].rows +
                            (lane * shape.slots + slot) * shape.planes[plane].slot_pitch);
}

void Lane::fetch(std::uint64_t unit, std::uint32_t slot) const {
    for (std::uint32_t p = 0; p < shape.planes.size() && page(unit) != 0; ++p) {
        const std::uint64_t bytes = shape.planes[p].unit_bytes;
        std::memcpy(in_slot(p, slot), in_pool(p, unit, bytes), bytes);
    }
}

}  // namespace fake
