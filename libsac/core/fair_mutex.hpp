// SPDX-License-Identifier: Apache-2.0
// A shared mutex that does not starve writers: std::shared_mutex lets readers in for ever
// while a writer waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <shared_mutex>

namespace sac {

// Who locks several takes them in the order of their addresses.
class FairMutex {
public:
    void lock() {
        waiting_.fetch_add(1, std::memory_order_relaxed);
        gate_.lock();
        mutex_.lock();
        gate_.unlock();
        waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    void unlock() { mutex_.unlock(); }
    void lock_shared() {
        if (waiting_.load(std::memory_order_relaxed) != 0) {
            // Behind the writer, who holds the gate until it is in.
            gate_.lock();
            gate_.unlock();
        }
        mutex_.lock_shared();
    }
    void unlock_shared() { mutex_.unlock_shared(); }

private:
    std::mutex gate_;
    std::shared_mutex mutex_;
    std::atomic<std::uint32_t> waiting_{0};
};

}  // namespace sac
