// SPDX-License-Identifier: Apache-2.0
// Workers live until the process ends. A job is published in one 64-bit word: a number
// that grows (high half), how many workers may still join (seats) and how many are at it.
// A worker joins by taking a seat with compare-and-swap, so one that wakes late finds
// either the job that is running now, whole, or no seat.
#include "threads.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "fork.hpp"

namespace sac {

namespace {

constexpr unsigned kMaxWorkers = 1023;
constexpr auto kSpin = std::chrono::microseconds(50);

constexpr std::uint64_t kSeat = 1, kActive = std::uint64_t{1} << 16;
constexpr std::uint64_t kSeats = 0xffff, kActives = 0xffff0000;
constexpr std::uint64_t kNumber = std::uint64_t{1} << 32;

// Each on cache lines of its own where different threads write. No destructors: workers
// may still look at it while the process ends.
alignas(64) constinit std::atomic<std::uint64_t> job{0};
alignas(64) constinit std::atomic<std::size_t> next_part{0};
alignas(64) constinit std::atomic<std::uint32_t> bell{0};  // futex: rung for a new job
constinit std::atomic<std::uint32_t> asleep{0};            // workers that need the bell
alignas(64) constinit std::atomic<std::uint32_t> gone{0};  // futex: the last worker left
constinit std::atomic<bool> caller_asleep{false};
alignas(64) constinit std::atomic<bool> busy{false};  // held by the caller of the job
constinit std::atomic<bool> stopping{false};
constinit std::atomic<std::uint64_t> home{0};  // the fork epoch that has the workers

// Written between jobs by the holder of busy, read by workers that took a seat.
constinit const std::function<void(std::size_t)> *job_fn = nullptr;
constinit std::size_t job_parts = 0;

constinit std::mutex starting;  // guards the next two, and stopping's change to true
constinit std::array<pthread_t, kMaxWorkers> workers{};
constinit std::atomic<unsigned> worker_count{0};

inline void pause_cpu() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void futex_wait(std::atomic<std::uint32_t> &word, std::uint32_t value) noexcept {
    static_assert(sizeof word == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t> &word, unsigned count) noexcept {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, static_cast<int>(count), nullptr, nullptr, 0);
}

// Spins until ready() or the time is over; whether it is ready. It yields in between: where
// cores are scarce, the thread that is waited for may be queued behind this one.
template <typename Ready> bool spin(Ready &&ready) noexcept {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (ready()) {
                return true;
            }
            pause_cpu();
        }
        sched_yield();
    } while (std::chrono::steady_clock::now() < end);
    return ready();
}

void run_parts(const std::function<void(std::size_t)> &fn, std::size_t parts) noexcept {
    for (;;) {
        const std::size_t part = next_part.fetch_add(1, std::memory_order_relaxed);
        if (part >= parts) {
            return;
        }
        fn(part);
    }
}

bool take_seat() noexcept {
    std::uint64_t now = job.load(std::memory_order_relaxed);
    while ((now & kSeats) != 0) {
        if (job.compare_exchange_weak(now, now - kSeat + kActive, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

void *work(void *) noexcept {
    const auto wanted = [] {
        return (job.load(std::memory_order_relaxed) & kSeats) != 0 ||
               stopping.load(std::memory_order_relaxed);
    };
    for (;;) {
        if (!spin(wanted)) {
            // seq_cst: either this thread sees the new job, or its caller sees it asleep.
            const std::uint32_t rings = bell.load();
            asleep.fetch_add(1);
            if ((job.load() & kSeats) == 0 && !stopping.load()) {
                futex_wait(bell, rings);
            }
            asleep.fetch_sub(1);
        }
        if (stopping.load(std::memory_order_acquire)) {
            return nullptr;
        }
        if (take_seat()) {
            run_parts(*job_fn, job_parts);
            const std::uint64_t before = job.fetch_sub(kActive);
            if ((before & kActives) == kActive && caller_asleep.load()) {
                gone.fetch_add(1);
                futex_wake(gone, 1);
            }
        }
    }
}

// Workers there are, after starting more up to wanted; the holder of busy calls it.
unsigned start_workers(unsigned wanted) noexcept {
    wanted = std::min(wanted, kMaxWorkers);
    unsigned count = worker_count.load(std::memory_order_relaxed);
    if (count >= wanted) {
        return wanted;
    }
    const std::lock_guard<std::mutex> lock(starting);
    if (stopping.load(std::memory_order_relaxed)) {
        return 0;
    }
    // The application's signals are not for these threads, but faults of their own are.
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
        sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    while (count < wanted && pthread_create(&workers[count], nullptr, work, nullptr) == 0) {
        ++count;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    worker_count.store(count, std::memory_order_relaxed);
    return count;
}

// Joins the workers when the process ends or the library is unloaded. A job that runs on
// another thread then loses its workers and is finished by its caller.
struct Shutdown {
    Shutdown() noexcept = default;
    Shutdown(const Shutdown &) = delete;
    Shutdown &operator=(const Shutdown &) = delete;
    ~Shutdown() {
        const std::uint64_t owner = home.load(std::memory_order_acquire);
        if (owner == 0 || owner != fork_epoch()) {
            return;  // none were started, or they are a parent process's
        }
        unsigned count;
        {
            const std::lock_guard<std::mutex> lock(starting);
            stopping.store(true);
            count = worker_count.load(std::memory_order_relaxed);
        }
        bell.fetch_add(1);
        futex_wake(bell, kMaxWorkers);
        for (unsigned i = 0; i < count; ++i) {
            pthread_join(workers[i], nullptr);
        }
    }
};
const Shutdown shutdown_at_exit;

// Whether this process is the one that has, or may start, the workers.
bool at_home() noexcept {
    const std::uint64_t here = fork_epoch();
    std::uint64_t owner = home.load(std::memory_order_acquire);
    return owner == here ||
           (owner == 0 && (home.compare_exchange_strong(owner, here) || owner == here));
}

// Runs the job with workers; the caller holds busy.
void run_job(unsigned helpers, std::size_t parts,
             const std::function<void(std::size_t)> &fn) noexcept {
    job_fn = &fn;
    job_parts = parts;
    next_part.store(0, std::memory_order_relaxed);
    // No seat is open and nobody is active here, so a plain store cannot lose a change.
    const std::uint64_t number =
        (job.load(std::memory_order_relaxed) & ~(kNumber - 1)) + kNumber;
    job.store(number | helpers);  // seq_cst, pairs with asleep
    if (asleep.load() != 0) {
        bell.fetch_add(1);
        futex_wake(bell, helpers);
    }
    run_parts(fn, parts);
    job.fetch_and(~kSeats);
    const auto done = [] { return (job.load(std::memory_order_acquire) & kActives) == 0; };
    if (spin(done)) {
        return;
    }
    caller_asleep.store(true);
    for (;;) {
        const std::uint32_t before = gone.load();
        if ((job.load() & kActives) == 0) {
            break;
        }
        futex_wait(gone, before);
    }
    caller_asleep.store(false);
}

}  // namespace

unsigned usable_cores() noexcept {
    // Larger than the 1024 of cpu_set_t, so that the call does not fail on larger machines.
    std::array<cpu_set_t, 8> set{};
    if (sched_getaffinity(0, sizeof set, set.data()) != 0) {
        return 1;
    }
    const int count = CPU_COUNT_S(sizeof set, set.data());
    return count > 0 ? static_cast<unsigned>(count) : 1;
}

unsigned copy_threads(unsigned asked, std::uint64_t bytes) noexcept {
    if (asked != 0)
        return std::min(asked, usable_cores());
    // A thread that gets under 256 KiB costs more than it brings.
    const std::uint64_t most = std::min(8u, std::max(2u, usable_cores()) - 1);
    return static_cast<unsigned>(std::clamp<std::uint64_t>(bytes >> 18, 1, most));
}

void parallel_for(unsigned threads, std::size_t parts,
                  const std::function<void(std::size_t)> &fn) noexcept {
    if (threads > parts) {
        threads = static_cast<unsigned>(parts);
    }
    if (threads > 1 && (threads = std::min(threads, usable_cores())) > 1 && at_home() &&
        !busy.exchange(true, std::memory_order_acquire)) {
        const unsigned helpers = start_workers(threads - 1);
        if (helpers > 0) {
            run_job(helpers, parts, fn);
            busy.store(false, std::memory_order_release);
            return;
        }
        busy.store(false, std::memory_order_release);
    }
    for (std::size_t part = 0; part < parts; ++part) {
        fn(part);
    }
}

}  // namespace sac
