// SPDX-License-Identifier: Apache-2.0
// Huge pages behind memory that others map as well: a kernel that gives none by itself is asked
// for each piece.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "mapping.hpp"
#include "worker.hpp"

namespace sac {

class HugePages {
public:
    explicit HugePages(const Mapping &data) : data_(data), epoch_(fork_epoch()) {}
    // Waits for what is being done.
    ~HugePages();
    HugePages(const HugePages &) = delete;
    HugePages &operator=(const HugePages &) = delete;

    // Slabs of an extent, of so many in all, are about to be given out: they, and those around
    // them, before anybody has touched them; later it takes ten times as long, and fails where
    // somebody writes. Takes a millisecond or some. The caller serialises all calls.
    void prepare(std::size_t extent, std::uint64_t slabs, std::uint64_t first,
                 std::uint64_t count);
    // What can wait, in a thread of its own. Does not wait, does not fail.
    void later(std::function<void()> job) noexcept;

private:
    const Mapping &data_;
    std::uint64_t epoch_;
    std::vector<std::vector<bool>> asked_;  // by extent and group of slabs
    std::mutex mutex_;                      // of the worker
    std::unique_ptr<Worker> worker_;        // none as long as there is nothing to do
};

}  // namespace sac
