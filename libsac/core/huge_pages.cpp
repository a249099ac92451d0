// SPDX-License-Identifier: Apache-2.0
#include "huge_pages.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "format.hpp"

namespace sac {
namespace {

// A call to the kernel takes a millisecond, and some more where cores are busy, for one slab
// as for eight.
constexpr std::uint64_t kGroup = 8;

}  // namespace

HugePages::~HugePages() {
    if (epoch_ != fork_epoch())
        (void)worker_.release();  // its thread does not exist in a forked child
}

void HugePages::later(std::function<void()> job) noexcept {
    try {
        const std::lock_guard lock(mutex_);
        if (!worker_) {
            auto worker = std::make_unique<Worker>();
            // Signals are for the program's own threads.
            sigset_t all, before;
            sigfillset(&all);
            for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL})
                sigdelset(&all, fault);
            pthread_sigmask(SIG_SETMASK, &all, &before);
            try {
                worker->start();
            } catch (...) {
                pthread_sigmask(SIG_SETMASK, &before, nullptr);
                throw;
            }
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            worker_ = std::move(worker);
        }
        worker_->add(std::move(job));
    } catch (...) {
        // No thread, or no memory: small pages do as well.
    }
}

void HugePages::prepare(std::size_t extent, std::uint64_t slabs, std::uint64_t first,
                        std::uint64_t count) {
    asked_.resize(std::max(asked_.size(), extent + 1));
    std::vector<bool> &asked = asked_[extent];
    if (asked.empty())
        asked.resize((slabs + kGroup - 1) / kGroup, !data_.on_tmpfs(data_.extents()[extent]));
    for (std::uint64_t g = first / kGroup; g <= (first + count - 1) / kGroup; ++g) {
        if (asked[g])
            continue;
        asked[g] = true;
        const std::uint64_t n = std::min(kGroup, slabs - g * kGroup);
        const std::uint64_t at = data_.extents()[extent].offset + g * kGroup * fmt::kDataSlab;
        if (!data_.make_huge(at, n * fmt::kDataSlab))
            asked.assign(asked.size(), true);  // never here
    }
}

}  // namespace sac
