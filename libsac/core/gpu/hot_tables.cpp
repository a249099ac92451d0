// SPDX-License-Identifier: Apache-2.0
// What a hot buffer tells the GPU of its requests: entries, pages, lanes begun anew, rows
// loaded.
#include <cstring>

#include "hot_buffer.hpp"

namespace sac::gpu {

void HotBuffer::set_entry(std::uint32_t request) {
    const HotRequestState *const state = bound_[request].get();
    for (std::size_t i = 0; i < geometry_.groups.size(); ++i) {
        const HotGroup &g = geometry_.groups[i];
        HotRequest &entry = table_[i * geometry_.options.requests + request];
        entry = {};
        if (!state)
            continue;
        const std::uint64_t rows = state->tokens / g.tokens_per_row;
        entry.pages =
            shared() + geometry_.pages + request * geometry_.pages_max * sizeof(std::uint64_t);
        entry.units = static_cast<std::uint32_t>(g.units(rows, geometry_.options.block));
        entry.flags = HOT_BOUND | (state->direct[i] ? std::uint32_t{HOT_DIRECT} : 0);
        entry.rows = rows;
        entry.open = state->sealed * g.rows_a_page;
    }
}

// Between the look, which asks the pool, and the sending an extent may go: then it looks again.
void HotBuffer::update_pages(std::uint32_t request, std::uint64_t timeout_ms,
                             std::uintptr_t stream) {
    HotRequestState &state = *bound_[request];
    for (;;) {
        const std::uint64_t before = goings_.load();
        const HotRequestState::Seen seen =
            state.look(registration_.get(), geometry_.pages_max, timeout_ms);
        const std::lock_guard held(pages_mutex_);
        if (goings_.load() != before)
            continue;
        const auto [first, end] = state.take(seen);
        if (first < end)
            send_pages(request, first, end, stream);
        return;
    }
}

std::uint64_t HotBuffer::page_entry(std::uint32_t request, std::uint64_t page) const noexcept {
    return geometry_.pages + (request * geometry_.pages_max + page) * sizeof(std::uint64_t);
}

void HotBuffer::send_pages(std::uint32_t request, std::uint64_t first, std::uint64_t end,
                           std::uintptr_t stream) {
    const auto &from = bound_[request]->addresses();
    auto &piece = staging_->take();
    const std::uint64_t bytes = (end - first) * sizeof(std::uint64_t);
    std::memcpy(piece.data, from.data() + first, bytes);
    staging_->send(piece, shared() + page_entry(request, first), bytes, stream);
}

void HotBuffer::send_entries(std::uint32_t first, std::uint32_t last, std::uintptr_t stream) {
    auto &piece = staging_->take();
    const std::uint64_t bytes = (last - first + 1) * sizeof(HotRequest);
    const std::size_t groups = geometry_.groups.size(), all = geometry_.options.requests;
    for (std::size_t i = 0; i < groups; ++i)
        std::memcpy(piece.data + i * bytes, &table_[i * all + first], bytes);
    for (std::size_t i = 0; i < groups; ++i)
        staging_->copy(piece.data + i * bytes,
                       shared() + geometry_.requests + (i * all + first) * sizeof(HotRequest),
                       bytes, stream);
    piece.event.record(stream);
}

// Units first .. end-1 of a direct request, all layers.
void HotBuffer::load(const HotGroup &g, std::uint32_t request, std::uint64_t first,
                     std::uint64_t end, std::uintptr_t stream) {
    if (first >= end)
        return;
    HotCall call;
    call.batch = 1, call.stream = stream;
    call.requests = tables_.address() + geometry_.numbers + request * sizeof(std::int32_t);
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
        if (g.has(l)) {
            call.layer = l;
            HotLoad how{arguments(g, call), static_cast<std::uint32_t>(first),
                        static_cast<std::uint32_t>(end)};
            kernels(g).load.launch_with(shape(g, call), how);
        }
}

void HotBuffer::reset(const HotGroup &g, std::uint32_t first_lane, std::uint32_t lanes,
                      HotResetMode mode, std::uint64_t units, bool is_new,
                      std::uintptr_t stream) {
    HotReset how{};
    how.slot_token = tables_.address() + g.slot_token;
    how.order = tables_.address() + g.order;
    how.state = tables_.address() + g.lane_state;
    how.plan = shared() + g.plan_at;  // leaders have the same numbers there
    how.counters = tables_.address() + geometry_.counters;
    how.lanes = g.lanes, how.first = first_lane;
    how.mode = mode, how.units = static_cast<std::uint32_t>(units), how.is_new = is_new;
    Launch launch;
    launch.grid_x = g.states, launch.grid_y = lanes;
    launch.threads = geometry_.threads, launch.stream = stream;
    kernels(g).reset.launch_with(launch, how);
}

}  // namespace sac::gpu
