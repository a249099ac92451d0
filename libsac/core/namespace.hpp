// SPDX-License-Identifier: Apache-2.0
// A namespace as its users see it: layout, keys, lookup; the way to its pages.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "control.hpp"
#include "index.hpp"
#include "layout.hpp"
#include "media.hpp"
#include "pins.hpp"

namespace sac {

class Namespace : public std::enable_shared_from_this<Namespace> {
public:
    // Writes a new namespace's superblock. Throws Error.
    static std::shared_ptr<Namespace> create(std::shared_ptr<Media> media, std::uint32_t id,
                                             const std::string &name,
                                             const sac_ns_options &options);
    // Reads one from memory and recovers its pages. Throws Error(SAC_E_CORRUPT) and others.
    static std::shared_ptr<Namespace> load(std::shared_ptr<Media> media, const Owned &owned,
                                           std::uint32_t id, bool rebooted);
    // Gives all slabs back. Interrupted, it is completed when the pool is opened again.
    static void destroy(Media &media, const Owned &owned);

    // Throws where options ask for something else than what is there.
    void check_same(const sac_ns_options &options) const;
    // Throws where a call must not go on: forked, closed, dropped.
    void check() const;
    // Marks it as being dropped, on memory too, unless pages are in use: their number.
    std::uint64_t drop();

    const fmt::NamespaceBlock &block() const noexcept { return block_; }
    const Geometry &geometry() const noexcept { return geometry_; }
    Media &media() const noexcept { return *media_; }
    CacheControl &control() noexcept { return *control_; }
    const Index &index() const noexcept { return *index_; }
    PinTable &pins() noexcept { return *pins_; }

    std::uint8_t *address(std::uint32_t slot, std::uint32_t part) const noexcept {
        std::uint32_t within = 0;
        const std::uint64_t chunk = index_->chunk(slot, within);
        return media_->data().data() + chunk + within * geometry_.part_bytes[part];
    }

    // Pins the slot if it still holds the page of this generation.
    bool pin(std::uint32_t slot, std::uint64_t generation) noexcept;
    std::uint64_t lookup(const std::uint8_t *keys, std::uint64_t count, std::uint32_t part,
                         sac_handle *out) noexcept;

    // docs/keys.md. Throws Error(SAC_E_ARG) for a namespace of engine keys.
    Key root(const void *salt, std::uint64_t bytes) const;
    static Key page_key(const Key &parent, const std::uint32_t *tokens,
                        std::uint32_t count) noexcept;

    // reserve, waiting up to timeout_ms for pins to end.
    std::vector<Reservation> reserve(std::uint64_t bodies, std::uint64_t tails,
                                     std::uint64_t deadline_ms, std::uint64_t timeout_ms);

    void info(sac_ns_info &out) const;
    void stats(sac_ns_stats &out) const;

    struct Counters {
        std::atomic<std::uint64_t> lookups{0}, hits{0}, rows_gathered{0}, bytes_gathered{0},
            bytes_written{0};
    };
    Counters counters;

private:
    Namespace(std::shared_ptr<Media> media, const fmt::NamespaceBlock &block, Geometry geometry,
              std::uint64_t block_offset);

    std::shared_ptr<Media> media_;
    fmt::NamespaceBlock block_;
    Geometry geometry_;
    std::uint64_t block_offset_;
    std::unique_ptr<Index> index_;
    std::unique_ptr<PinTable> pins_;
    std::unique_ptr<CacheControl> control_;
    std::atomic<bool> dropped_{false};
};

}  // namespace sac
