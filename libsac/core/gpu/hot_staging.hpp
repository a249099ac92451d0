// SPDX-License-Identifier: Apache-2.0
// Pinned memory that small copies to the GPU are made from: a piece is free again when its copy
// is done, which is asked for and never waited for.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "memory.hpp"
#include "stream.hpp"

namespace sac::gpu {

class HotStaging {
public:
    struct Piece {
        std::uint8_t *data;
        Event event;
    };

    // Pieces of piece_bytes. Throws Error: SAC_E_GPU, SAC_E_NO_MEMORY.
    HotStaging(std::shared_ptr<Device> device, std::uint64_t piece_bytes);

    std::uint64_t piece_bytes() const noexcept { return piece_bytes_; }
    // A piece that nothing is copied from. More memory is taken where all are in use. Throws
    // as the constructor.
    Piece &take();
    // Copies what the caller put at the piece's begin, in the order of the stream.
    void send(Piece &piece, Address to, std::uint64_t bytes, std::uintptr_t stream) const;
    // So many of its bytes, for a piece that is recorded by itself.
    void copy(const std::uint8_t *from, Address to, std::uint64_t bytes,
              std::uintptr_t stream) const;

private:
    void grow();

    std::shared_ptr<Device> device_;
    std::uint64_t piece_bytes_;
    std::deque<PinnedBuffer> memory_;
    std::deque<Piece> pieces_;  // in turn
    std::size_t next_ = 0;
};

}  // namespace sac::gpu
