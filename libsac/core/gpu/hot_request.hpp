// SPDX-License-Identifier: Apache-2.0
// A request that is bound to a hot buffer: its pages as the GPU was told of them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "registration.hpp"
#include "sequence.hpp"
#include "stream.hpp"

namespace sac::gpu {

// A point of a stream that a sequence asks about.
class HotFence final : public Fence {
public:
    HotFence(const std::shared_ptr<Device> &device, std::uintptr_t stream);
    bool done() noexcept override;

private:
    std::shared_ptr<Device> device_;
    Event event_;
};

class HotRequestState {
public:
    // Borrows the prefix: its pages stay, closed or not, until this object ends. Throws as
    // Prefix::borrow().
    // writes: kernels may write rows to a sequence's open pages.
    HotRequestState(std::shared_ptr<Prefix> prefix, bool writes);
    ~HotRequestState();
    HotRequestState(const HotRequestState &) = delete;
    HotRequestState &operator=(const HotRequestState &) = delete;

    const std::shared_ptr<Prefix> &prefix() const noexcept { return prefix_; }
    Sequence *sequence() const noexcept { return sequence_; }

    // Addresses of the pages from number `from` on, as they are now.
    struct Seen {
        std::uint64_t from = 0;
        std::vector<std::uint64_t> addresses;
        std::uint64_t settled = 0, losses = 0;
    };
    // Looks at the pages that may have moved or come, or at all where memory died since; at no
    // more than `most`, however the sequence has grown meanwhile. Dead pages have address 0.
    // Pages whose memory is not registered (yet): waits up to timeout_ms, then throws Error
    // (SAC_E_BUSY, SAC_E_GPU). registration: null where the CPU reads the pages, at its own
    // addresses.
    Seen look(const Registration *registration, std::uint64_t most,
              std::uint64_t timeout_ms) const;
    // Keeps what was seen. Returns which numbers [first, end) have another address than before.
    std::pair<std::uint64_t, std::uint64_t> take(const Seen &seen);
    // Pages that begin in the memory become address 0; dropped(first, end) is called for each
    // stretch of them.
    template <class Fn>
    void drop(const std::uint8_t *memory, std::uint64_t bytes, const Fn &dropped) {
        const auto begin = reinterpret_cast<std::uint64_t>(memory);  // as the GPU sees it, too
        for (std::uint64_t i = 0, end = 0; i < addresses_.size(); i = end + 1) {
            for (end = i; end < addresses_.size() && addresses_[end] != 0 &&
                          addresses_[end] - begin < bytes;
                 ++end)
                addresses_[end] = 0;
            if (i < end)
                dropped(i, end);
        }
    }
    const std::vector<std::uint64_t> &addresses() const noexcept { return addresses_; }
    std::uint64_t dead() const noexcept;  // pages of address 0

    // The prefix' tokens; takes where it was cut.
    std::uint64_t tokens_now();
    // How many rows of every one of the planes, all layers, are there (at most; the first row
    // that is not written counts).
    std::uint64_t rows_written(const std::vector<std::uint32_t> &planes) const;
    // Pages at the front that kernels must leave alone, as of now: all their rows of the planes
    // are written.
    std::uint64_t full_pages(const std::vector<std::uint32_t> &planes);
    // The GPU was told of them in the stream: behind this point the sequence may commit them.
    void seal(const std::shared_ptr<Device> &device, std::uint64_t pages,
              std::uintptr_t stream);

    std::uint64_t tokens = 0;           // as the GPU was told
    std::uint64_t sealed = 0;           // pages that it must not write to, told with them
    std::uint64_t cut = UINT64_MAX;     // slots may hold rows that were cut off from here on
    std::uint64_t written = 0;          // tokens whose rows the CPU wrote, or written() told of
    std::vector<bool> direct;           // by group of the buffer
    std::vector<std::uint64_t> loaded;  // by group: rows that direct slots hold

private:
    std::shared_ptr<Prefix> prefix_;
    Sequence *sequence_;
    Follower follower_;
    std::vector<std::uint64_t> addresses_;
    bool sealing_ = false;       // full_pages() found more than the sequence was told
    std::uint64_t settled_ = 0;  // pages in front that move no more
    std::uint64_t losses_ = 0;
};

}  // namespace sac::gpu
