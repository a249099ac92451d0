// SPDX-License-Identifier: Apache-2.0
// A sequence that grows: a pinned prefix, then pages being written. A gather sees both.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "prefix.hpp"

namespace sac {

class Sequence final : public Prefix {
public:
    // Pins the longest stored prefix of the tokens' full pages. Throws Error.
    Sequence(std::shared_ptr<Namespace> ns, const std::uint32_t *tokens, std::uint64_t count,
             const void *salt, std::uint64_t salt_bytes);
    ~Sequence() override;

    void extend(const std::uint32_t *tokens, std::uint64_t count, std::uint64_t timeout_ms);
    void write(std::span<const sac_scatter_req> reqs, std::uint32_t threads);
    std::uint64_t flush();
    void close() override;

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
        std::shared_ptr<View> view;  // that the reservations are held in
    };

    std::uint64_t words(std::uint32_t plane) const noexcept;  // of a pair's bits
    std::uint64_t first_word(std::uint32_t plane, std::uint32_t layer) const noexcept;
    std::uint64_t rows_exist(std::uint32_t plane) const noexcept;  // for the tokens so far
    bool written(const Open &page, std::uint32_t plane, std::uint32_t layer) const noexcept;
    template <class Fn> void each_missing(const Open &page, Fn &&fn) const;
    bool complete(const Open &page) const noexcept;
    [[noreturn]] void throw_incomplete(std::size_t open) const;
    std::uint64_t flush_locked();
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
    Key last_{};                             // key of the last committed page, or the root
    std::vector<Open> open_;                 // pages committed_ ..
    std::vector<std::uint32_t> ids_;         // token ids of the open pages
    std::array<std::uint64_t, 2> bits_{};    // words of one page's written bits, by part
    std::vector<std::uint64_t> plane_word_;  // of each plane's first pair
    // By page: a view of its tail was given out. Under the shared lock, so atomically.
    mutable std::vector<std::uint8_t> viewed_tails_;
};

}  // namespace sac
