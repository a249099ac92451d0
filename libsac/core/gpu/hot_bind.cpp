// SPDX-License-Identifier: Apache-2.0
// Requests of a hot buffer: they join and leave between steps, by small copies in the order of
// a stream.
#include <algorithm>
#include <cinttypes>

#include "error.hpp"
#include "hot_apart.hpp"
#include "hot_buffer.hpp"

namespace sac::gpu {

void HotBuffer::check_stream(std::uintptr_t stream, const char *what) const {
    if (capturing(*device_, stream))
        throw Error(SAC_E_ARG, "hot buffer",
                    format("hot buffer: %s while the stream is being captured: the graph would "
                           "repeat it. Call it between replays; graphs see what it changes.",
                           what));
}

void HotBuffer::check_request(std::uint32_t request) const {
    if (request >= geometry_.options.requests)
        throw Error(SAC_E_RANGE, "hot buffer",
                    format("hot buffer: request %u; there are requests 0 to %u", request,
                           geometry_.options.requests - 1));
}

HotRequestState &HotBuffer::bound(std::uint32_t request) {
    check_request(request);
    if (!bound_[request])
        throw Error(SAC_E_ARG, "hot buffer",
                    format("hot buffer: request %u is not bound", request));
    return *bound_[request];
}

std::vector<std::uint32_t> HotBuffer::distinct(std::span<const std::uint32_t> requests) {
    std::vector<std::uint32_t> all(requests.begin(), requests.end());
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    for (const std::uint32_t r : all)
        (void)bound(r);
    return all;
}

void HotBuffer::check_source(const std::shared_ptr<Prefix> &prefix) const {
    const auto held = prefix->lock();
    if (&prefix->view().data() != data_ || prefix->ns().geometry().hash != ns_->geometry().hash)
        throw Error(SAC_E_ARG, ns_->block().name,
                    format("hot buffer: the prefix is of namespace '%s', the buffer of '%s': "
                           "another pool, or another layout",
                           prefix->ns().block().name, ns_->block().name));
}

void HotBuffer::check_length(std::uint64_t tokens) const {
    if (tokens > geometry_.options.max_tokens)
        throw Error(SAC_E_RANGE, "hot buffer",
                    format("hot buffer: %" PRIu64
                           " tokens; it was made for contexts of %" PRIu64
                           " tokens at most. Make it with a larger max_tokens.",
                           tokens, geometry_.options.max_tokens));
}

// Ends requests whose last work is done.
void HotBuffer::poll() noexcept {
    std::erase_if(retired_, [](const Retired &r) {
        try {
            return r.event.done();
        } catch (const Error &) {
            return false;
        }
    });
}

void HotBuffer::bind(std::uint32_t request, std::shared_ptr<Prefix> prefix, bool direct,
                     std::uintptr_t stream) {
    const Apart apart(*device_);
    const auto held = lock();
    check_stream(stream, "bind");
    check_request(request);
    if (bound_[request])
        throw Error(SAC_E_BUSY, "hot buffer",
                    format("hot buffer: request %u is bound; release it first", request));
    check_source(prefix);
    poll();
    auto state = std::make_unique<HotRequestState>(std::move(prefix), !geometry_.options.cpu);
    state->tokens = state->written = state->tokens_now();
    check_length(state->tokens);
    state->sealed = state->full_pages(planes());
    for (const HotGroup &g : geometry_.groups) {
        const std::uint64_t rows = state->tokens / g.tokens_per_row;
        state->loaded.push_back(std::min(rows, state->rows_written(g.numbers())));
        state->written = std::min(state->written, state->loaded.back() * g.tokens_per_row);
        // The CPU's threads bring what plans name, no more.
        state->direct.push_back(direct && !geometry_.options.cpu &&
                                g.units(rows, geometry_.options.block) <=
                                    geometry_.options.slots);
    }
    {
        const std::lock_guard pages(pages_mutex_);
        bound_[request] = std::move(state);
    }
    try {
        update_pages(request, kRegisterMs, stream);
        set_entry(request);
        tables_.fill32(geometry_.errors + request * sizeof(std::uint32_t), 0, 1, stream);
        send_entries(request, request, stream);
        bound_[request]->seal(device_, bound_[request]->sealed, stream);
        for (std::size_t i = 0; i < geometry_.groups.size(); ++i) {
            const HotGroup &g = geometry_.groups[i];
            reset(g, request, HOT_RESET_FREE, 0, stream);
            if (bound_[request]->direct[i])
                load(g, request, 0,
                     g.units(bound_[request]->loaded[i], geometry_.options.block), stream);
        }
    } catch (...) {
        retire(request, stream);
        throw;
    }
}

// Unbound from here in the stream; pages stay until it got there.
void HotBuffer::retire(std::uint32_t request, std::uintptr_t stream) {
    retired_.push_back({nullptr, Event(device_)});
    {
        const std::lock_guard pages(pages_mutex_);
        retired_.back().request = std::move(bound_[request]);
    }
    set_entry(request);
    send_entries(request, request, stream);
    retired_.back().event.record(stream);
    retired_.back().request->seal(device_, UINT64_MAX, stream);
}

void HotBuffer::release(std::uint32_t request, std::uintptr_t stream) {
    const Apart apart(*device_);
    const auto held = lock();
    check_stream(stream, "release");
    (void)bound(request);
    retire(request, stream);
    poll();
}

std::uint64_t HotBuffer::refresh(std::uintptr_t stream) {
    const Apart apart(*device_);
    const auto held = lock();
    check_stream(stream, "refresh");
    poll();
    std::uint64_t dead = 0;
    for (std::uint32_t r = 0; r < bound_.size(); ++r) {
        if (!bound_[r])
            continue;
        try {
            update_pages(r, 0, stream);
        } catch (const Error &e) {
            if (e.status != SAC_E_CLOSED)
                throw;
        }
        const std::lock_guard pages(pages_mutex_);
        dead += bound_[r]->dead();
    }
    return dead;
}

}  // namespace sac::gpu
