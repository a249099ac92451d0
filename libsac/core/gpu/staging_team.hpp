// SPDX-License-Identifier: Apache-2.0
// Threads that gather rows for one GPU, on the cores of its NUMA node. They spin briefly for
// the next job, then sleep.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sac::gpu {

// Numbers of a list as the kernel writes it ("0-3,8"); empty where it is none.
std::vector<unsigned> parse_cpu_list(const std::string &text);
// Cores of the node that this thread may run on; all of its own where the node is -1, not
// known, or has none of them.
std::vector<unsigned> cores_near(int numa_node);
// How many threads copy, the caller included: as asked, 0: 8; at most all cores but one, which
// is left to what runs beside.
unsigned team_size(unsigned asked, std::size_t cores) noexcept;

class Team {
public:
    // threads: the caller of run() included. Fewer, where the system gives no more.
    Team(unsigned threads, std::vector<unsigned> cores);
    // No run() may be going on.
    ~Team();
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    unsigned threads() const noexcept { return static_cast<unsigned>(workers_.size()) + 1; }
    const std::vector<unsigned> &cores() const noexcept { return cores_; }
    // As sac::parallel_for: fn(part) for each part, the caller taking part; a second caller at
    // the same time runs its parts alone. fn must not throw.
    void run(std::size_t parts, const std::function<void(std::size_t)> &fn) noexcept;

private:
    struct State;
    static void *work(void *state) noexcept;

    std::unique_ptr<State> state_;
    std::vector<unsigned> cores_;
    std::vector<unsigned long> workers_;  // pthread_t
    unsigned long long epoch_;
};

}  // namespace sac::gpu
