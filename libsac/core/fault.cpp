// SPDX-License-Identifier: Apache-2.0
// The handler reads a table of atomics. Each entry carries a version that is odd while the
// entry changes; the handler passes over an entry that changed under its eyes, for the
// range that faults may not be destroyed meanwhile and so is in an entry at rest.
#include "fault.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <mutex>

#include "error.hpp"
#include "fork.hpp"

namespace sac {

struct FaultGuard::Range {
    std::uintptr_t base = 0;
    std::size_t bytes = 0;
    std::size_t blocks = 0;
    std::size_t entry = 0;
    std::uint64_t epoch = 0;
    std::atomic<std::uint64_t> faults{0};
    std::unique_ptr<std::atomic<std::uint64_t>[]> dead;  // one bit a block
    struct Unit {
        std::uint64_t begin, end, bytes;
    };
    std::array<Unit, 64> units{};
    std::atomic<std::size_t> unit_count{0};

    // The bits come before whatever the caller does to the memory. Returns how many are new.
    std::uint64_t set_dead(std::uint64_t first, std::uint64_t count) noexcept {
        std::uint64_t fresh = 0;
        for (std::uint64_t at = first; at < first + count;) {
            const std::uint64_t n = std::min<std::uint64_t>(first + count - at, 64 - at % 64);
            const std::uint64_t bits =
                (n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1) << (at % 64);
            const std::uint64_t had = dead[at / 64].fetch_or(bits);
            fresh += static_cast<std::uint64_t>(std::popcount(bits & ~had));
            at += n;
        }
        if (fresh != 0) {
            faults.fetch_add(fresh);
        }
        return fresh;
    }
    // What has to be replaced at once with the block of this offset.
    Unit unit_of(std::uint64_t offset) const noexcept {
        Unit own{offset / kBlockBytes * kBlockBytes, 0, kBlockBytes};
        const std::size_t n = unit_count.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < n; ++i) {
            if (offset >= units[i].begin && offset < units[i].end) {
                own.bytes = units[i].bytes;
                own.begin = offset - (offset - units[i].begin) % own.bytes;
            }
        }
        own.end = own.begin + own.bytes;
        return own;
    }
    // The bare system call: libc's mmap() is not promised to be async-signal-safe, and a
    // sanitizer's would count as a write to the memory.
    bool map_zeros(std::uint64_t offset, std::uint64_t length) const noexcept {
        const long at = static_cast<long>(base + offset);
        return syscall(SYS_mmap, at, std::min<std::uint64_t>(length, bytes - offset),
                       PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0L) == at;
    }
};

namespace {

constexpr std::size_t kRanges = std::size_t{1} << 16;

struct Entry {
    std::atomic<std::uint32_t> version{0};
    std::atomic<std::uintptr_t> begin{0}, end{0};  // end 0: free
    std::atomic<std::uint64_t> epoch{0};           // entries of a parent process do not count
    std::atomic<FaultGuard::Range *> range{nullptr};
};

constinit std::array<Entry, kRanges> entries{};
constinit std::atomic<std::size_t> entries_used{0};  // all entries from here on are free
constinit std::atomic<std::size_t> entries_hint{0};  // where a free one is likely
constinit struct sigaction previous{};               // set before the handler is installed

// The faulting load, or the one that found the zero page, comes before what follows. Loads
// are in order on x86; the compiler must keep to it as well.
inline void after_loads() noexcept {
#if defined(__aarch64__)
    asm volatile("dmb ishld" ::: "memory");
#else
    asm volatile("" ::: "memory");
#endif
}

FaultGuard::Range *find(std::uintptr_t address) noexcept {
    const std::uint64_t here = fork_epoch();
    const std::size_t used = entries_used.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < used; ++i) {
        const Entry &entry = entries[i];
        const std::uint32_t version = entry.version.load(std::memory_order_acquire);
        const std::uintptr_t begin = entry.begin.load(std::memory_order_acquire);
        const std::uintptr_t end = entry.end.load(std::memory_order_acquire);
        const std::uint64_t epoch = entry.epoch.load(std::memory_order_acquire);
        FaultGuard::Range *range = entry.range.load(std::memory_order_acquire);
        if (address >= begin && address < end && epoch == here && (version & 1) == 0 &&
            entry.version.load(std::memory_order_relaxed) == version) {
            return range;
        }
    }
    return nullptr;
}

// Marks the block first and maps the zeros then: a thread that reads zeros there without
// a fault of its own already finds faults() raised.
bool replace(FaultGuard::Range &range, std::uintptr_t address) noexcept {
    const FaultGuard::Range::Unit unit = range.unit_of(address - range.base);
    range.set_dead(unit.begin / kBlockBytes,
                   std::min<std::uint64_t>(unit.bytes / kBlockBytes,
                                           range.blocks - unit.begin / kBlockBytes));
    return range.map_zeros(unit.begin, unit.bytes);
}

void pass_on(int number, siginfo_t *info, void *context) noexcept {
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(number, info, context);
        return;
    }
    // A signal that was sent, or came from the kernel's scrubbing, does not come again.
    const bool comes_again = info->si_code > 0 && info->si_code != BUS_MCEERR_AO;
    if (previous.sa_handler == SIG_IGN && !comes_again) {
        return;
    }
    if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
        return;
    }
    // A fault cannot be ignored: the kernel kills the process then, too.
    struct sigaction fatal{};
    fatal.sa_handler = SIG_DFL;
    sigaction(number, &fatal, nullptr);
    if (!comes_again) {
        raise(number);  // blocked here, so it strikes on return
    }
}

void on_sigbus(int number, siginfo_t *info, void *context) {
    const int before = errno;
    const int code = info->si_code;
    FaultGuard::Range *range = nullptr;
    // Others (a sent signal, a misaligned access) carry no address of dead memory.
    if (code == BUS_ADRERR || code == BUS_OBJERR || code == BUS_MCEERR_AR ||
        code == BUS_MCEERR_AO) {
        range = find(reinterpret_cast<std::uintptr_t>(info->si_addr));
    }
    if (range == nullptr || !replace(*range, reinterpret_cast<std::uintptr_t>(info->si_addr))) {
        pass_on(number, info, context);
    }
    errno = before;
}

void install() {
    static std::once_flag once;
    std::call_once(once, [] {
        // The old action is read first: a fault may come as soon as ours is in place.
        struct sigaction action{};
        if (sigaction(SIGBUS, nullptr, &previous) == 0) {
            action.sa_sigaction = on_sigbus;
            action.sa_mask = previous.sa_mask;
            action.sa_flags =
                SA_SIGINFO | SA_ONSTACK | (previous.sa_flags & (SA_NODEFER | SA_RESTART));
            if (sigaction(SIGBUS, &action, nullptr) == 0) {
                return;
            }
        }
        throw_errno("SIGBUS", "Cannot install the handler that guards memory");
    });
}

}  // namespace

FaultGuard::FaultGuard(void *base, std::size_t bytes) : range_(std::make_unique<Range>()) {
    const auto begin = reinterpret_cast<std::uintptr_t>(base);
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    if (begin == 0 || begin % page != 0 || bytes == 0 || begin + bytes < begin) {
        throw Error(
            SAC_E_ARG, format("range %p", base),
            format("A guarded range starts on a page and has bytes; this one has %zu.", bytes));
    }
    install();
    Range &range = *range_;
    range.base = begin;
    range.bytes = bytes;
    range.blocks = (bytes - 1) / kBlockBytes + 1;
    range.dead = std::make_unique<std::atomic<std::uint64_t>[]>((range.blocks + 63) / 64);
    range.epoch = fork_epoch();
    const std::size_t hint = entries_hint.load(std::memory_order_relaxed);
    for (std::size_t n = 0; n < kRanges; ++n) {
        const std::size_t i = (hint + n) % kRanges;
        Entry &entry = entries[i];
        std::uint32_t version = entry.version.load(std::memory_order_acquire);
        // An entry inherited over fork is as good as free.
        const auto taken = [&] {
            return entry.end.load(std::memory_order_acquire) != 0 &&
                   entry.epoch.load(std::memory_order_acquire) == range.epoch;
        };
        if ((version & 1) != 0 || taken() ||
            !entry.version.compare_exchange_strong(version, version + 1,
                                                   std::memory_order_acq_rel)) {
            continue;
        }
        range.entry = i;
        entry.begin.store(begin, std::memory_order_release);
        entry.end.store(begin + bytes, std::memory_order_release);
        entry.epoch.store(range.epoch, std::memory_order_release);
        entry.range.store(&range, std::memory_order_release);
        entry.version.store(version + 2, std::memory_order_release);
        entries_hint.store(i + 1, std::memory_order_relaxed);
        std::size_t used = entries_used.load(std::memory_order_relaxed);
        while (used < i + 1 &&
               !entries_used.compare_exchange_weak(used, i + 1, std::memory_order_acq_rel)) {
        }
        return;
    }
    throw Error(SAC_E_NO_MEMORY, format("range %p", base),
                format("%zu ranges of memory are guarded already. Close pools that are not "
                       "needed.",
                       kRanges));
}

FaultGuard::~FaultGuard() {
    Entry &entry = entries[range_->entry];
    if (range_->epoch != fork_epoch()) {
        return;  // a copy in a forked child: the entry may be another guard's by now
    }
    const std::uint32_t version = entry.version.load(std::memory_order_acquire);
    entry.version.exchange(version + 1, std::memory_order_acq_rel);
    entry.begin.store(0, std::memory_order_release);
    entry.end.store(0, std::memory_order_release);
    entry.range.store(nullptr, std::memory_order_release);
    entry.version.store(version + 2, std::memory_order_release);
    entries_hint.store(range_->entry, std::memory_order_relaxed);
}

std::uint64_t FaultGuard::faults() const noexcept {
    after_loads();
    return range_->faults.load(std::memory_order_acquire);
}

bool FaultGuard::dead(std::uint64_t offset) const noexcept {
    const std::uint64_t block = offset / kBlockBytes;
    return block < range_->blocks &&
           (range_->dead[block / 64].load(std::memory_order_acquire) >> (block % 64) & 1) != 0;
}

std::uint64_t FaultGuard::next_dead(std::uint64_t offset) const noexcept {
    std::uint64_t block = offset / kBlockBytes;
    while (block < range_->blocks) {
        const std::uint64_t word =
            range_->dead[block / 64].load(std::memory_order_acquire) >> (block % 64);
        if (word != 0) {
            return (block + static_cast<std::uint64_t>(std::countr_zero(word))) * kBlockBytes;
        }
        block = (block / 64 + 1) * 64;
    }
    return UINT64_MAX;
}

bool FaultGuard::any_dead(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    for (std::uint64_t at = offset / kBlockBytes * kBlockBytes; at < offset + bytes;
         at += kBlockBytes) {
        if (dead(at)) {
            return true;
        }
    }
    return false;
}

void FaultGuard::set_unit(std::uint64_t offset, std::uint64_t bytes,
                          std::uint64_t unit) noexcept {
    const std::size_t n = range_->unit_count.load(std::memory_order_relaxed);
    if (n == range_->units.size()) {
        return;
    }
    range_->units[n] = {offset, offset + bytes, unit};
    range_->unit_count.store(n + 1, std::memory_order_release);
}

std::uint64_t FaultGuard::mark(std::uint64_t offset, std::uint64_t bytes) noexcept {
    const std::uint64_t first = offset / kBlockBytes;
    const std::uint64_t end =
        std::min<std::uint64_t>(range_->blocks, (offset + bytes - 1) / kBlockBytes + 1);
    return bytes == 0 || first >= end ? 0 : range_->set_dead(first, end - first);
}

std::uint64_t FaultGuard::bury(std::uint64_t offset, std::uint64_t bytes) noexcept {
    const std::uint64_t fresh = mark(offset, bytes);
    (void)range_->map_zeros(offset, bytes);  // else each touch does it
    return fresh;
}

}  // namespace sac
