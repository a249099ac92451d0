// SPDX-License-Identifier: Apache-2.0
// Requests of a hot buffer that grow and shrink between steps, as their sequences do.
#include <algorithm>

#include "error.hpp"
#include "hot_apart.hpp"
#include "hot_buffer.hpp"

namespace sac::gpu {

// A direct request that has outgrown its slots goes on with a cache, whose slots hold what they
// held.
void HotBuffer::leave_direct(HotRequestState &state) const {
    for (std::size_t i = 0; i < geometry_.groups.size(); ++i) {
        const HotGroup &g = geometry_.groups[i];
        const std::uint64_t rows = state.tokens / g.tokens_per_row;
        if (g.units(rows, geometry_.options.block) > geometry_.options.slots)
            state.direct[i] = false;
    }
}

// Rows that were cut off leave the slots, whoever cut them.
void HotBuffer::drop_cut(std::uint32_t request, std::uintptr_t stream) {
    HotRequestState &state = *bound_[request];
    if (state.cut == UINT64_MAX)
        return;
    const std::uint32_t block = geometry_.options.block;
    state.written = std::min(state.written, state.cut);
    for (std::size_t i = 0; i < geometry_.groups.size(); ++i) {
        const HotGroup &g = geometry_.groups[i];
        const std::uint64_t rows = state.cut / g.tokens_per_row;
        state.loaded[i] = std::min(state.loaded[i], rows);
        // A unit that was cut through: direct, it has no other place, and its new rows will
        // come there. Otherwise it goes, for a step fetches it when it is whole.
        reset(g, request, HOT_RESET_TRUNCATE,
              state.direct[i] ? g.units(rows, block) : rows / block, stream);
    }
    state.cut = UINT64_MAX;
}

std::vector<std::uint32_t> HotBuffer::planes() const {
    std::vector<std::uint32_t> all;
    for (const HotGroup &g : geometry_.groups)
        for (const std::uint32_t p : g.numbers())
            all.push_back(p);
    return all;
}

// What the CPU wrote since the slots were told last: direct slots get it, and a unit that had
// fewer rows leaves the others.
void HotBuffer::take_written(std::uint32_t request, std::uintptr_t stream) {
    HotRequestState &state = *bound_[request];
    const std::uint32_t block = geometry_.options.block;
    for (std::size_t i = 0; i < geometry_.groups.size(); ++i) {
        const HotGroup &g = geometry_.groups[i];
        const std::uint64_t there =
            std::min(state.tokens / g.tokens_per_row, state.rows_written(g.numbers()));
        if (there <= state.loaded[i])
            continue;
        const std::uint64_t first = state.loaded[i] / block;
        if (state.direct[i])
            load(g, request, first, g.units(there, block), stream);
        else if (state.loaded[i] % block != 0)
            reset(g, request, HOT_RESET_TRUNCATE, first, stream);
        state.loaded[i] = there;
    }
}

void HotBuffer::extend(std::span<const std::uint32_t> requests, std::uintptr_t stream) {
    const Apart apart(*device_);
    const auto held = lock();
    check_stream(stream, "extend");
    const auto all = distinct(requests);
    if (all.empty())
        return;
    poll();
    const std::vector<std::uint32_t> of = planes();
    std::size_t done = 0;
    // In one copy; then what is loaded by them.
    const auto send = [&] {
        if (done == 0)
            return;
        send_entries(all.front(), all[done - 1], stream);
        for (std::size_t i = 0; i < done; ++i) {
            drop_cut(all[i], stream);
            take_written(all[i], stream);
            bound_[all[i]]->seal(device_, bound_[all[i]]->sealed, stream);
        }
    };
    try {
        for (; done < all.size(); ++done) {
            const std::uint32_t r = all[done];
            HotRequestState &state = *bound_[r];
            const std::uint64_t tokens = state.tokens_now();
            check_length(tokens);
            update_pages(r, kRegisterMs, stream);
            state.tokens = tokens;
            leave_direct(state);
            state.sealed = state.full_pages(of);
            set_entry(r);
        }
    } catch (...) {
        send();
        throw;
    }
    send();
}

void HotBuffer::truncate(std::uint32_t request, std::uint64_t tokens, std::uintptr_t stream) {
    const Apart apart(*device_);
    const auto held = lock();
    check_stream(stream, "truncate");
    HotRequestState &state = bound(request);
    if (!state.sequence())
        throw Error(SAC_E_ARG, "hot buffer",
                    format("hot buffer: request %u is a prefix, which does not shrink; bind a "
                           "sequence",
                           request));
    state.sequence()->truncate(tokens);
    (void)state.tokens_now();
    if (state.cut >= state.tokens)
        return;  // the GPU was not told of those
    state.tokens = std::min(state.tokens, tokens);
    state.sealed = state.full_pages(planes());
    set_entry(request);
    send_entries(request, request, stream);
    drop_cut(request, stream);
    take_written(request, stream);
    state.seal(device_, state.sealed, stream);
}

void HotBuffer::written(std::span<const std::uint32_t> requests, std::uintptr_t stream) {
    const Apart apart(*device_);
    const auto held = lock();
    check_stream(stream, "written");
    const auto all = distinct(requests);
    for (const std::uint32_t r : all)
        if (!bound_[r]->sequence())
            throw Error(SAC_E_ARG, "hot buffer",
                        format("hot buffer: request %u is a prefix, which takes no new rows; "
                               "bind a sequence",
                               r));
    const std::vector<std::uint32_t> of = planes();
    const auto fence = std::make_shared<HotFence>(device_, stream);
    for (const std::uint32_t r : all) {
        HotRequestState &state = *bound_[r];
        state.sequence()->written_by(of, state.written, state.tokens, fence);
        state.written = state.tokens;
        for (std::size_t i = 0; i < geometry_.groups.size(); ++i)
            state.loaded[i] =
                std::max(state.loaded[i], state.tokens / geometry_.groups[i].tokens_per_row);
    }
    // Full pages may be committed from here on: nothing writes to them behind it.
    std::vector<std::uint32_t> fuller;
    for (const std::uint32_t r : all) {
        HotRequestState &state = *bound_[r];
        if (const std::uint64_t pages = state.full_pages(of); pages != state.sealed) {
            state.sealed = pages;
            set_entry(r);
            fuller.push_back(r);
        }
    }
    if (fuller.empty())
        return;
    send_entries(fuller.front(), fuller.back(), stream);
    for (const std::uint32_t r : fuller)
        bound_[r]->seal(device_, bound_[r]->sealed, stream);
}

}  // namespace sac::gpu
