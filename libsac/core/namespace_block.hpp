// SPDX-License-Identifier: Apache-2.0
// A namespace's superblock: made, read, checked, written.
#pragma once

#include <string>

#include "layout.hpp"
#include "media.hpp"

namespace sac {

// A new one, complete but for its place on memory. Throws Error where the options ask for
// what cannot be.
fmt::NamespaceBlock new_block(const Media &media, std::uint32_t id, const std::string &name,
                              const sac_ns_options &options, std::uint32_t uid,
                              std::uint32_t gid);
// The newest copy whose checksum is right; false: there is none.
bool read_block(const Media &media, const Owned &owned, fmt::NamespaceBlock &out);
// The geometry of a block that was read. Throws Error(SAC_E_CORRUPT) or
// Error(SAC_E_VERSION) where it does not hold together.
Geometry check_block(const fmt::NamespaceBlock &block, std::uint32_t id, const Media &media);
// Raises the sequence number and the checksum; which copy it is to be written to.
std::uint64_t seal_block(fmt::NamespaceBlock &block) noexcept;

// Slabs it may hold, and slot numbers it may come to use.
std::uint64_t slab_limit(const fmt::NamespaceBlock &block, const Media &media);
std::uint64_t slot_capacity(const fmt::NamespaceBlock &block, std::uint64_t slabs);
std::uint64_t slot_capacity(const fmt::NamespaceBlock &block, const Media &media);
// At least so many that the chunks it has fit: a quota may have been larger once.
std::uint64_t slot_capacity(const fmt::NamespaceBlock &block, const Media &media,
                            const Owned &owned);

// Pages that fit under its quota into the pool's living memory, were that its alone, beside one
// chunk of tails.
std::uint64_t page_capacity(const fmt::NamespaceBlock &block, const Mapping &data);

}  // namespace sac
