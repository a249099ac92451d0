// SPDX-License-Identifier: Apache-2.0
// Pinned pages in the order of a sequence: what a gather reads from.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "fair_mutex.hpp"
#include "namespace.hpp"

namespace sac {

class Prefix {
public:
    explicit Prefix(std::shared_ptr<Namespace> ns);
    virtual ~Prefix();
    Prefix(const Prefix &) = delete;
    Prefix &operator=(const Prefix &) = delete;

    // Pins the longest prefix of keys that has all planes. Called once, before sharing.
    void pin(const std::uint8_t *keys, std::uint64_t count);
    virtual void close();

    // A reader that no close may take the pages from: a GPU, whose work ends later than the
    // calls that asked for it. close() then closes, and what it would have ended stays until
    // the last reader has given back. Throws as lock().
    void borrow();
    void give_back() noexcept;

    Namespace &ns() const noexcept { return *ns_; }
    const std::shared_ptr<Namespace> &owner() const noexcept { return ns_; }

    // Keeps the prefix from being closed. Throws where it is, or is a forked parent's.
    std::shared_lock<FairMutex> lock() const;

    // The rest needs lock() held.
    std::uint64_t pages() const noexcept { return at_[kBodyPart].size(); }
    virtual std::uint64_t tokens() const noexcept;
    // Rows of a plane and layer that can be read: 0 .. rows-1 (window planes: less those
    // whose pages have no tail).
    virtual std::uint64_t rows(std::uint32_t plane, std::uint32_t layer) const noexcept;
    // Address of each page's part; nullptr where the tail is not held.
    std::uint8_t *const *addresses(std::uint32_t part) const noexcept {
        return at_[part].data();
    }
    // How many pages can be viewed in place: their bytes stay where and what they are.
    virtual std::uint64_t settled() const noexcept { return pages(); }
    // Told of each view, so that the part stays pinned until close.
    virtual void viewed(std::uint64_t page, std::uint32_t part) const noexcept {
        (void)page, (void)part;
    }
    sac_handle handle(std::uint64_t page) const noexcept;
    // Throws Error(SAC_E_STALE) if a page was forced out since it was pinned,
    // Error(SAC_E_MEDIA) if that was for its memory. Cheap where nothing was.
    void check_current() const;
    // Whether the body of a page is not to be read any more: its memory died, or it was forced
    // out. What a thrown error of check_current() says of all, page by page.
    bool gone(std::uint64_t page) const noexcept;
    // Changes whenever gone() may have changed for any page.
    std::uint64_t losses() const noexcept;
    // What the pages are pinned in.
    const View &view() const noexcept { return *view_; }

protected:
    struct Held {
        std::uint32_t slot;  // kNoSlot: not pinned
        std::uint64_t generation;
    };
    void add(std::uint32_t part, std::uint8_t *at, Held held);
    void unpin_all() noexcept;
    // What a close ends, with the mutex held.
    virtual void end() noexcept { unpin_all(); }
    std::unique_lock<FairMutex> lock_alone() const;
    void check_open() const;

    std::shared_ptr<Namespace> ns_;
    std::shared_ptr<View> view_;
    mutable FairMutex mutex_;
    std::array<std::vector<std::uint8_t *>, 2> at_;
    std::array<std::vector<Held>, 2> held_;
    bool closed_ = false;
    std::uint32_t borrowed_ = 0;

private:
    bool try_pin(const std::uint8_t *keys, std::uint64_t count);

    // The index's count of forced-out pages when all pages were last known to be there.
    mutable std::atomic<std::uint64_t> checked_{0};
};

// How many of the first n pages form a prefix whose last pages have their tails;
// tail[i] != 0: page i has one.
std::uint64_t with_tails(const std::uint8_t *tail, std::uint64_t n,
                         std::uint64_t needed) noexcept;

// Pages of the longest prefix of keys that has all planes. Pins nothing.
std::uint64_t longest(Namespace &ns, const std::uint8_t *keys, std::uint64_t count);

}  // namespace sac
