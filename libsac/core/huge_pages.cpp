// SPDX-License-Identifier: Apache-2.0
#include "huge_pages.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "format.hpp"

namespace sac {
namespace {

// What a call to the kernel costs by itself is as much as eight slabs take.
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

void HugePages::used(std::size_t extent, std::uint64_t slabs, std::uint64_t first,
                     std::uint64_t count) noexcept {
    try {
        std::vector<std::uint64_t> groups;
        {
            const std::lock_guard lock(mutex_);
            asked_.resize(std::max(asked_.size(), extent + 1));
            std::vector<bool> &asked = asked_[extent];
            if (asked.empty())
                asked.resize((slabs + kGroup - 1) / kGroup,
                             !data_.on_tmpfs(data_.extents()[extent]));
            const std::uint64_t last = (first + count - 1) / kGroup + 1;
            for (std::uint64_t g = first / kGroup; g <= last && g < asked.size(); ++g)
                if (!asked[g]) {
                    asked[g] = true;
                    groups.push_back(g);
                }
        }
        for (const std::uint64_t g : groups)
            later([this, extent, slabs, g] {
                const std::uint64_t n = std::min(kGroup, slabs - g * kGroup);
                const std::uint64_t at =
                    data_.extents()[extent].offset + g * kGroup * fmt::kDataSlab;
                if (data_.make_huge(at, n * fmt::kDataSlab))
                    return;
                const std::lock_guard lock(mutex_);  // never here
                asked_[extent].assign(asked_[extent].size(), true);
            });
    } catch (...) {
    }
}

}  // namespace sac
