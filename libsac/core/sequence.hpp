// SPDX-License-Identifier: Apache-2.0
// A sequence that grows: a pinned prefix, then pages being written. A gather sees both.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "prefix.hpp"

namespace sac {

// Work of a GPU that writes rows; asked about without waiting for it.
class Fence {
public:
    Fence() = default;
    virtual ~Fence() = default;
    Fence(const Fence &) = delete;
    Fence &operator=(const Fence &) = delete;
    virtual bool done() noexcept = 0;
};

// What a cache of a sequence's rows, whose kernels write them as well, and the sequence tell
// each other. Under the sequence's lock.
struct Follower {
    // Pages at the front that nothing of it writes any more: the others are not committed.
    std::uint64_t sealed = 0;
    // Lowest number of tokens that the sequence was cut to since it was asked: rows from there
    // on are others now, whoever cut it.
    std::uint64_t cut = UINT64_MAX;
};

class Sequence final : public Prefix {
public:
    // Pins the longest stored prefix of the tokens' full pages. Throws Error.
    Sequence(std::shared_ptr<Namespace> ns, const std::uint32_t *tokens, std::uint64_t count,
             const void *salt, std::uint64_t salt_bytes);
    ~Sequence() override;

    void extend(const std::uint32_t *tokens, std::uint64_t count, std::uint64_t timeout_ms);
    void write(std::span<const sac_scatter_req> reqs, std::uint32_t threads);
    std::uint64_t flush();
    // Rows of these planes, all layers, of tokens first .. end-1 are written by work that ends
    // with the fence; behind it a page may be committed. Those in committed pages count for
    // nothing. Throws Error(SAC_E_RANGE) where there are not so many tokens.
    void written_by(std::span<const std::uint32_t> planes, std::uint64_t first,
                    std::uint64_t end, const std::shared_ptr<Fence> &fence);
    // Takes the tokens from number `tokens` on back, and what was written of their rows. Throws
    // Error(SAC_E_RANGE) where there are not so many, or one of them is committed.
    void truncate(std::uint64_t tokens);

    // A follower stays where it is until it leaves. Throws as lock().
    void join(Follower &follower);
    void leave(Follower &follower) noexcept;
    // How many tokens there are; `cut` becomes the lowest number since it was asked last.
    std::uint64_t follow(Follower &follower, std::uint64_t &cut);
    // Nothing writes to its first pages any more behind the fence; nothing at all: UINT64_MAX.
    void seal(Follower &follower, std::uint64_t pages, const std::shared_ptr<Fence> &fence);

    std::uint64_t tokens() const noexcept override { return tokens_; }
    std::uint64_t rows(std::uint32_t plane, std::uint32_t layer) const noexcept override;
    // An open page moves if another writer commits the same one first.
    std::uint64_t settled() const noexcept override { return committed_; }
    void viewed(std::uint64_t page, std::uint32_t part) const noexcept override;

private:
    // A page that is not committed. Which rows are written: one bit a row, for each
    // (plane, layer) pair of each part.
    struct Open {
        std::array<Reservation, 2> reservation;
        std::array<bool, 2> has;
        std::array<std::vector<std::uint64_t>, 2> written;
        std::shared_ptr<View> view;                  // that the reservations are held in
        std::vector<std::shared_ptr<Fence>> fences;  // of what writes to it
    };

    std::uint64_t words(std::uint32_t plane) const noexcept;  // of a pair's bits
    std::uint64_t first_word(std::uint32_t plane, std::uint32_t layer) const noexcept;
    std::uint64_t rows_exist(std::uint32_t plane) const noexcept;  // for the tokens so far
    bool written(const Open &page, std::uint32_t plane, std::uint32_t layer) const noexcept;
    template <class Fn> void each_missing(const Open &page, Fn &&fn) const;
    bool complete(const Open &page) const noexcept;
    [[noreturn]] void throw_incomplete(std::size_t open) const;
    std::uint64_t flush_locked();
    void mark(std::uint32_t plane, std::uint64_t first, std::uint64_t end,
              bool is_written) noexcept;
    static bool quiet(Open &page) noexcept;  // nothing writes to it any more
    std::uint64_t sealed() const noexcept;   // pages that no follower writes to
    void end() noexcept override;
    void commit_page(const Open &page, const std::uint32_t *ids);
    void drop_old_tails() noexcept;
    void move_on();
    void hold(const std::shared_ptr<View> &from, std::uint32_t part, sac_handle page);
    void renew();
    std::vector<Reservation> reserve(std::uint64_t bodies, std::uint64_t tails,
                                     std::uint64_t timeout_ms);
    void give_up() noexcept;
    void check_request(const sac_scatter_req &req) const;
    void copy_piece(const sac_scatter_req &req, std::uint64_t page, std::uint64_t in,
                    std::uint64_t count, std::uint64_t done) const noexcept;

    std::uint64_t committed_ = 0;  // pages, at the front
    std::uint64_t tokens_ = 0;
    std::chrono::steady_clock::time_point renewed_ = std::chrono::steady_clock::now();
    Key last_{};              // key of the last committed page, or the root
    std::vector<Open> open_;  // pages committed_ ..
    std::vector<Follower *> followers_;
    // Reservations of pages that another writer committed first, while a GPU may read them.
    std::vector<std::pair<std::shared_ptr<View>, Reservation>> retained_;
    std::vector<std::uint32_t> ids_;         // token ids of the open pages
    std::array<std::uint64_t, 2> bits_{};    // words of one page's written bits, by part
    std::vector<std::uint64_t> plane_word_;  // of each plane's first pair
    // By page: a view of its tail was given out. Under the shared lock, so atomically.
    mutable std::vector<std::uint8_t> viewed_tails_;
};

}  // namespace sac
