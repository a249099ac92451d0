// SPDX-License-Identifier: Apache-2.0
#include "staging_plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "copy.hpp"
#include "error.hpp"
#include "hot_apart.hpp"
#include "stream.hpp"

namespace sac::gpu {
namespace {

constexpr std::uint32_t kUnitsAPiece = 64;  // that a thread takes at a time
constexpr std::uint64_t kCallsASlab = 64;   // whose numbers are pinned together

template <class T> const T *host(std::uint64_t address) noexcept {
    return reinterpret_cast<const T *>(static_cast<std::uintptr_t>(address));
}

std::uint64_t rounded(std::uint64_t bytes) noexcept { return (bytes + 255) / 256 * 256; }

}  // namespace

struct PlanStaging::Job {
    PlanStaging *all;
    HotArgs args;
    std::size_t numbers;
    const std::int32_t *requests;  // [batch], copied from the GPU just before
    std::uint32_t *starts;         // [batch][heads]
    bool again;                    // a graph may run it again: it stays
};

PlanStaging::PlanStaging(std::shared_ptr<Device> device, const PlanShape &shape,
                         unsigned cpu_threads)
    : device_(std::move(device)), shape_(shape),
      plan_bytes_(hot_plan_bytes(shape.top_k, shape.threads)),
      team_(team_size(cpu_threads, cores_near(device_->info().numa_node).size()),
            cores_near(device_->info().numa_node)) {
    const std::uint64_t units = std::uint64_t{shape_.lanes} * shape_.top_k;
    std::uint64_t bytes = 0;
    for (const PlanPlane &p : shape_.planes) {
        offsets_.push_back(bytes);
        bytes += rounded(units * p.slot_pitch);
    }
    rows_ = PinnedBuffer(device_, bytes, device_->info().numa_node,
                         "staging of a hot buffer's CPU path");
    pieces_.reserve(units / kUnitsAPiece + shape_.lanes + 1);
    add_slab();
}

PlanStaging::~PlanStaging() = default;

// Memory is taken without the mutex: CUDA may wait for the host function that wants it. Nor
// does it end a capture: a graph keeps the numbers of each of its calls.
void PlanStaging::add_slab() {
    const std::uint64_t each = rounded(std::uint64_t{shape_.lanes} * 8);
    PinnedBuffer slab = [&] {
        const Apart apart(*device_);
        return PinnedBuffer(device_, each * kCallsASlab, device_->info().numa_node,
                            "numbers of a hot buffer");
    }();
    const std::lock_guard lock(mutex_);
    for (std::uint64_t i = 0; i < kCallsASlab; ++i)
        numbers_.push_back({slab.data() + i * each, slab.address() + i * each, false});
    numbers_bytes_ += slab.bytes();
    slabs_.push_back(std::move(slab));
}

std::size_t PlanStaging::take_numbers(Numbers &out) {
    for (;;) {
        {
            const std::lock_guard lock(mutex_);
            const auto it = std::find_if(numbers_.begin(), numbers_.end(),
                                         [](const Numbers &n) { return !n.busy; });
            if (it != numbers_.end()) {
                it->busy = true;
                out = *it;
                return static_cast<std::size_t>(it - numbers_.begin());
            }
        }
        add_slab();
    }
}

HotScatter PlanStaging::gather(const HotArgs &args, std::uintptr_t stream) {
    const std::uint64_t lanes = std::uint64_t{args.batch} * args.heads;
    if (lanes > shape_.lanes)
        throw Error(SAC_E_ARG, "batch", "more requests in a call than the hot buffer has");
    const Current current(*device_);
    const Driver &driver = device_->driver();
    Numbers numbers{};
    const std::size_t n = take_numbers(numbers);
    std::uint8_t *const memory = numbers.data;
    const bool again = capturing(*device_, stream);
    auto job = std::make_unique<Job>(Job{
        this, args, n, reinterpret_cast<std::int32_t *>(memory),
        reinterpret_cast<std::uint32_t *>(memory + std::uint64_t{shape_.lanes} * 4), again});
    HotScatter out{};
    out.hot = args;
    for (std::size_t p = 0; p < shape_.planes.size(); ++p)
        out.staging[p] = rows_.address() + offsets_[p];
    out.starts = numbers.address + std::uint64_t{shape_.lanes} * 4;
    try {
        driver.check(driver.copy_out(memory, args.requests, std::uint64_t{args.batch} * 4,
                                     stream_handle(stream)),
                     "hot buffer", "cannot copy the requests' numbers from the GPU");
        driver.check(driver.launch_host(stream_handle(stream), run, job.get()), "hot buffer",
                     "cannot put a host function into the stream");
    } catch (...) {
        const std::lock_guard lock(mutex_);
        numbers_[n].busy = false;
        throw;
    }
    // From here on a job that no graph keeps may have ended: run() ends it.
    if (again) {
        const std::lock_guard lock(mutex_);
        captured_.push_back(std::move(job));
    } else {
        (void)job.release();
    }
    return out;
}

// The starts are read by the sac_scatter behind this, so the numbers of a call outside a graph
// are handed on only after the next host function of the stream: by then it has ended.
void PlanStaging::run(void *data) noexcept {
    Job *const job = static_cast<Job *>(data);
    PlanStaging &all = *job->all;
    all.copy(*job);
    if (job->again)
        return;
    const std::lock_guard lock(all.mutex_);
    if (all.used_last_ != kNone)
        all.numbers_[all.used_last_].busy = false;
    all.used_last_ = job->numbers;
    delete job;
}

void PlanStaging::copy(const Job &job) noexcept {
    const HotArgs &a = job.args;
    pieces_.clear();
    std::uint64_t at = 0;
    for (std::uint32_t b = 0; b < a.batch; ++b) {
        const std::int32_t r = job.requests[b];
        std::uint32_t *const starts = job.starts + std::uint64_t{b} * a.heads;
        std::fill_n(starts, a.heads, 0u);
        if (r < 0 || static_cast<std::uint32_t>(r) >= a.table_size)
            continue;
        const HotRequest &request = host<HotRequest>(a.table)[r];
        if (!(request.flags & HOT_BOUND))
            continue;
        // Named twice: the lanes have one plan.
        const std::int32_t *const before = std::find(job.requests, job.requests + b, r);
        if (before != job.requests + b) {
            std::copy_n(job.starts + (before - job.requests) * a.heads, a.heads, starts);
            continue;
        }
        for (std::uint32_t h = 0; h < a.heads; ++h) {
            const std::uint64_t lane = static_cast<std::uint64_t>(r) * a.heads + h;
            const auto *const plan = host<HotPlan>(a.plan + lane * plan_bytes_);
            const auto *const moves = reinterpret_cast<const HotMove *>(plan + 1);
            const std::uint32_t count = std::min(plan->count, shape_.top_k);
            starts[h] = static_cast<std::uint32_t>(at);
            for (std::uint32_t i = 0; i < count; i += kUnitsAPiece)
                pieces_.push_back(
                    {moves, &request, h, i, std::min(count, i + kUnitsAPiece), at});
            at += count;
        }
    }
    team_.run(pieces_.size(), [&](std::size_t i) { copy_piece(a, pieces_[i]); });
}

void PlanStaging::copy_piece(const HotArgs &a, const Piece &piece) const noexcept {
    const auto *const pages = host<std::uint64_t>(piece.request->pages);
    std::array<const std::uint8_t *, kUnitsAPiece> from;
    const std::uint32_t n = piece.end - piece.begin;
    for (std::size_t p = 0; p < shape_.planes.size(); ++p) {
        const PlanPlane &shape = shape_.planes[p];
        const std::uint64_t inside = a.planes[p].offset + piece.head * a.planes[p].head_stride;
        for (std::uint32_t i = 0; i < n; ++i) {
            const auto unit = static_cast<std::uint32_t>(piece.moves[piece.begin + i].unit);
            const std::uint64_t page = pages[unit / shape_.page_units];
            from[i] = page == 0
                          ? nullptr
                          : host<std::uint8_t>(page) + inside +
                                std::uint64_t{unit % shape_.page_units} * shape.pool_pitch;
        }
        copy_rows({from.data(), n, shape.unit_bytes,
                   rows_.data() + offsets_[p] + (piece.at + piece.begin) * shape.slot_pitch,
                   shape.slot_pitch, true});
    }
}

}  // namespace sac::gpu
