// SPDX-License-Identifier: Apache-2.0
// A batch of pages on their way into a namespace: reserve, write, commit.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "namespace.hpp"

namespace sac {

// Rows of a put that a GPU is writing.
class PutFence {
public:
    PutFence() = default;
    virtual ~PutFence() = default;
    PutFence(const PutFence &) = delete;
    PutFence &operator=(const PutFence &) = delete;
    // Whether it has ended; does not wait.
    virtual bool done() = 0;
    // Waits for its end. Throws Error where the rows are not right.
    virtual void wait() = 0;
};

class Put {
public:
    // Pins the pages that are there, reserves the missing ones. Throws Error.
    Put(std::shared_ptr<Namespace> ns, const std::uint8_t *keys, std::uint64_t count,
        const sac_put_options &options);
    ~Put();
    Put(const Put &) = delete;
    Put &operator=(const Put &) = delete;

    std::vector<std::uint64_t> missing(std::uint32_t part) const;
    void write(std::span<const sac_scatter_req> reqs, std::uint32_t threads);
    std::uint8_t *view(std::uint64_t missing, std::uint32_t plane, std::uint32_t layer,
                       std::uint64_t &bytes);
    // Missing pages [first, first + count) of the plane's part are to be written, in all of
    // these layers, by work that launch() starts. It gets the pages' parts, and gives what the
    // work ends with. Pages of a put that ends before that stay its own until then. Throws what
    // launch() throws; nothing counts as written then.
    void write_by(
        std::uint32_t plane, std::span<const std::uint32_t> layers, std::uint64_t first,
        std::uint64_t count,
        const std::function<std::shared_ptr<PutFence>(std::span<std::uint8_t *const> pages)>
            &launch);
    // Whether a commit would not wait for a GPU.
    bool quiet() const;
    const Namespace &ns() const noexcept { return *ns_; }
    // What the pages are reserved in.
    const View &view() const noexcept { return *view_; }
    // Waits for what GPUs write, and for nothing else of theirs. Returns how many bodies this
    // put made visible.
    std::uint64_t commit();
    // Gives up at once what nobody may be writing to; close() the rest.
    void abort();
    void close();

private:
    struct Page {
        std::uint64_t position;  // in the keys
        Reservation reservation;
        bool viewed = false;  // its address was given out
    };

    std::unique_lock<std::mutex> lock() const;
    std::unique_lock<std::mutex> lock_open() const;  // throws if the put has ended
    void check_written() const;
    void give_up(bool viewed_too) noexcept;
    // False, and nothing is pinned, where the view was revoked meanwhile.
    bool pin_present(std::uint64_t first_tail,
                     std::array<std::vector<std::uint64_t>, 2> &missing);
    std::vector<Reservation> begin(std::uint64_t first_tail, const sac_put_options &options,
                                   std::array<std::vector<std::uint64_t>, 2> &missing);
    void unpin() noexcept;

    std::shared_ptr<Namespace> ns_;
    std::shared_ptr<View> view_;
    const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
    mutable std::mutex mutex_;
    std::vector<Key> keys_, parents_;
    std::vector<std::uint32_t> tokens_;
    std::array<std::vector<Page>, 2> pages_;
    std::array<std::vector<std::uint8_t>, 2> written_;  // page x (plane, layer) pair
    std::vector<std::shared_ptr<PutFence>> fences_;     // of what GPUs write
    std::vector<std::uint32_t> pinned_;
    std::vector<std::uint32_t> chain_;  // body slot of each key, as far as known
    bool open_ = true;
};

}  // namespace sac
