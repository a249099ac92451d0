// SPDX-License-Identifier: Apache-2.0
// A job is published in one 64-bit word: a number that grows (high half), how many workers are
// at it, and how many may still join (seats). A worker joins by taking a seat with
// compare-and-swap, so one that wakes late finds the job that is running now, or no seat.
#include "staging_team.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <mutex>

#include "fork.hpp"

namespace sac::gpu {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);
constexpr unsigned kDefaultThreads = 8;
constexpr std::uint64_t kSeat = 1, kActive = std::uint64_t{1} << 16;
constexpr std::uint64_t kSeats = 0xffff, kActives = 0xffff0000;
constexpr std::uint64_t kNumber = std::uint64_t{1} << 32;

inline void pause_cpu() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Yields in between: where cores are scarce, the thread waited for may be queued behind this.
template <class Ready> bool spin(Ready &&ready) noexcept {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 64; ++i) {
            if (ready())
                return true;
            pause_cpu();
        }
        sched_yield();
    } while (std::chrono::steady_clock::now() < end);
    return ready();
}

}  // namespace

struct Team::State {
    alignas(64) std::atomic<std::uint64_t> job{0};
    alignas(64) std::atomic<std::size_t> next{0};
    alignas(64) std::atomic<unsigned> asleep{0};
    std::atomic<bool> caller_asleep{false}, stopping{false}, busy{false};
    // Written between jobs by the holder of busy, read by workers that took a seat.
    const std::function<void(std::size_t)> *fn = nullptr;
    std::size_t parts = 0;
    std::mutex mutex;  // only for those who sleep
    std::condition_variable bell, gone;

    void run_parts() noexcept {
        const auto &call = *fn;
        const std::size_t end = parts;
        for (std::size_t p; (p = next.fetch_add(1, std::memory_order_relaxed)) < end;)
            call(p);
    }
    bool take_seat() noexcept {
        std::uint64_t now = job.load(std::memory_order_relaxed);
        while ((now & kSeats) != 0)
            if (job.compare_exchange_weak(now, now - kSeat + kActive, std::memory_order_acquire,
                                          std::memory_order_relaxed))
                return true;
        return false;
    }
};

std::vector<unsigned> parse_cpu_list(const std::string &text) {
    std::vector<unsigned> out;
    const char *p = text.c_str();
    while (*p >= '0' && *p <= '9') {
        unsigned first = 0, last = 0;
        int read = 0;
        if (std::sscanf(p, "%u-%u%n", &first, &last, &read) < 2 || read == 0) {
            if (std::sscanf(p, "%u%n", &first, &read) != 1)
                break;
            last = first;
        }
        if (last < first || last - first > 65535)
            return {};
        for (unsigned i = first; i <= last; ++i)
            out.push_back(i);
        p += read;
        if (*p == ',')
            ++p;
    }
    return out;
}

std::vector<unsigned> cores_near(int numa_node) {
    // Larger than cpu_set_t, so that the call does not fail on machines of over 1024 cores.
    std::vector<cpu_set_t> set(8);
    const std::size_t bytes = set.size() * sizeof(cpu_set_t);
    std::vector<unsigned> mine;
    if (sched_getaffinity(0, bytes, set.data()) == 0)
        for (unsigned i = 0; i < bytes * 8; ++i)
            if (CPU_ISSET_S(i, bytes, set.data()))
                mine.push_back(i);
    if (numa_node < 0)
        return mine;
    std::ifstream file("/sys/devices/system/node/node" + std::to_string(numa_node) +
                       "/cpulist");
    std::string text;
    std::getline(file, text);
    std::vector<unsigned> near;
    for (const unsigned core : parse_cpu_list(text))
        if (std::binary_search(mine.begin(), mine.end(), core))
            near.push_back(core);
    return near.empty() ? mine : near;
}

unsigned team_size(unsigned asked, std::size_t cores) noexcept {
    const auto most = static_cast<unsigned>(std::max<std::size_t>(cores, 2) - 1);
    return std::clamp(asked == 0 ? kDefaultThreads : asked, 1u, most);
}

Team::Team(unsigned threads, std::vector<unsigned> cores)
    : state_(std::make_unique<State>()), cores_(std::move(cores)), epoch_(fork_epoch()) {
    std::vector<cpu_set_t> set(8);
    const std::size_t bytes = set.size() * sizeof(cpu_set_t);
    CPU_ZERO_S(bytes, set.data());
    for (const unsigned core : cores_)
        if (core < bytes * 8)
            CPU_SET_S(core, bytes, set.data());
    // The application's signals are not for these threads, but faults of their own are.
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
        sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    for (unsigned i = 1; i < threads; ++i) {
        pthread_t worker;
        if (pthread_create(&worker, nullptr, work, state_.get()) != 0)
            break;
        if (!cores_.empty())
            (void)pthread_setaffinity_np(worker, bytes, set.data());
        workers_.push_back(worker);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Team::~Team() {
    if (epoch_ != fork_epoch()) {
        (void)state_.release();  // its threads are in the parent process
        return;
    }
    state_->stopping = true;
    {
        const std::lock_guard lock(state_->mutex);
    }
    state_->bell.notify_all();
    for (const pthread_t worker : workers_)
        pthread_join(worker, nullptr);
}

void *Team::work(void *state) noexcept {
    State &s = *static_cast<State *>(state);
    const auto wanted = [&s] { return (s.job.load() & kSeats) != 0 || s.stopping.load(); };
    for (;;) {
        if (!spin(wanted)) {
            std::unique_lock lock(s.mutex);
            // Either this thread sees the new job below, or its caller sees it asleep.
            s.asleep.fetch_add(1);
            s.bell.wait(lock, wanted);
            s.asleep.fetch_sub(1);
        }
        if (s.stopping.load())
            return nullptr;
        if (!s.take_seat())
            continue;
        s.run_parts();
        if ((s.job.fetch_sub(kActive) & kActives) == kActive && s.caller_asleep.load()) {
            const std::lock_guard lock(s.mutex);
            s.gone.notify_all();
        }
    }
}

void Team::run(std::size_t parts, const std::function<void(std::size_t)> &fn) noexcept {
    State &s = *state_;
    const std::size_t helpers =
        parts < 2 ? 0 : std::min<std::size_t>({workers_.size(), parts - 1, kSeats});
    if (helpers == 0 || s.busy.exchange(true, std::memory_order_acquire)) {
        for (std::size_t p = 0; p < parts; ++p)
            fn(p);
        return;
    }
    s.fn = &fn, s.parts = parts;
    s.next.store(0, std::memory_order_relaxed);
    // No seat is open and nobody is at it here, so a plain store loses no change.
    s.job.store((s.job.load(std::memory_order_relaxed) & ~(kNumber - 1)) + kNumber + helpers);
    if (s.asleep.load() != 0) {
        {
            const std::lock_guard lock(s.mutex);
        }
        s.bell.notify_all();
    }
    s.run_parts();
    s.job.fetch_and(~kSeats);
    const auto done = [&s] { return (s.job.load() & kActives) == 0; };
    if (!spin(done)) {
        std::unique_lock lock(s.mutex);
        s.caller_asleep = true;
        s.gone.wait(lock, done);
        s.caller_asleep = false;
    }
    s.busy.store(false, std::memory_order_release);
}

}  // namespace sac::gpu
