// SPDX-License-Identifier: Apache-2.0
// A namespace as its users see it: layout, keys, lookup; the way to its pages. What this
// process may do with it goes through its Authority.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "authority.hpp"
#include "backing.hpp"
#include "format.hpp"
#include "layout.hpp"

namespace sac {

class Namespace {
public:
    Namespace(std::shared_ptr<Backing> backing, const fmt::NamespaceBlock &block,
              Geometry geometry);
    virtual ~Namespace() = default;
    Namespace(const Namespace &) = delete;
    Namespace &operator=(const Namespace &) = delete;

    // Throws where a call must not go on: forked, closed, dropped.
    void check() const;
    // Throws where what is reserved in the view does not count any more.
    void check_known(const View &view) const;

    const fmt::NamespaceBlock &block() const noexcept { return block_; }
    const Geometry &geometry() const noexcept { return geometry_; }
    // As it was when the namespace was opened. A view's pages lie where the view says.
    Backing &backing() const noexcept { return *backing_; }
    Authority &authority() const noexcept { return *authority_; }
    std::shared_ptr<View> view() const { return authority_->view(); }

    std::uint8_t *address(const View &view, std::uint32_t slot,
                          std::uint32_t part) const noexcept {
        std::uint32_t within = 0;
        const std::uint64_t chunk = view.index().chunk(slot, within);
        return view.data().data() + chunk + within * geometry_.part_bytes[part];
    }

    static std::uint64_t lookup(const View &view, const std::uint8_t *keys, std::uint64_t count,
                                std::uint32_t part, sac_handle *out) noexcept;

    // docs/keys.md. Throws Error(SAC_E_ARG) for a namespace of engine keys.
    Key root(const void *salt, std::uint64_t bytes) const;
    static Key page_key(const Key &parent, const std::uint32_t *tokens,
                        std::uint32_t count) noexcept;

    // As the authority's, waiting up to timeout_ms for pins to end.
    std::vector<Reservation> reserve(const std::shared_ptr<View> &view, std::uint64_t bodies,
                                     std::uint64_t tails, std::uint64_t deadline_ms,
                                     std::uint64_t timeout_ms);

    void info(sac_ns_info &out) const;

protected:
    std::shared_ptr<Backing> backing_;
    fmt::NamespaceBlock block_;
    Geometry geometry_;
    std::unique_ptr<Authority> authority_;
    std::atomic<bool> dropped_{false};
};

}  // namespace sac
