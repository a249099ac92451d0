// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): page keys and the layout hash.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sac {

class Sha256 {
public:
    using Digest = std::array<std::uint8_t, 32>;

    Sha256() noexcept;
    void update(const void *data, std::size_t bytes) noexcept;
    Digest finish() noexcept;  // the object is used up

private:
    void block(const std::uint8_t *data) noexcept;

    std::array<std::uint32_t, 8> state_;
    std::array<std::uint8_t, 64> buffer_;
    std::uint64_t total_ = 0;
};

}  // namespace sac
