// SPDX-License-Identifier: Apache-2.0
#include "hot_staging.hpp"

#include <utility>

namespace sac::gpu {
namespace {

constexpr std::uint64_t kPieces = 16;  // taken at once

}  // namespace

HotStaging::HotStaging(std::shared_ptr<Device> device, std::uint64_t piece_bytes)
    : device_(std::move(device)), piece_bytes_((piece_bytes + 4095) / 4096 * 4096) {
    grow();
}

void HotStaging::grow() {
    PinnedBuffer more(device_, kPieces * piece_bytes_, device_->info().numa_node,
                      "staging of a hot buffer");
    for (std::uint64_t i = 0; i < kPieces; ++i)
        pieces_.push_back({more.data() + i * piece_bytes_, Event(device_)});
    memory_.push_back(std::move(more));
}

HotStaging::Piece &HotStaging::take() {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
        Piece &p = pieces_[next_];
        next_ = (next_ + 1) % pieces_.size();
        if (p.event.done())
            return p;
    }
    next_ = pieces_.size();
    grow();
    return pieces_[next_++];
}

void HotStaging::copy(const std::uint8_t *from, Address to, std::uint64_t bytes,
                      std::uintptr_t stream) const {
    const Driver &driver = device_->driver();
    driver.check(driver.copy_in(to, from, bytes, stream_handle(stream)), "hot buffer",
                 "copy to the GPU");
}

void HotStaging::send(Piece &piece, Address to, std::uint64_t bytes,
                      std::uintptr_t stream) const {
    copy(piece.data, to, bytes, stream);
    piece.event.record(stream);
}

}  // namespace sac::gpu
