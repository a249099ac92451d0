// SPDX-License-Identifier: Apache-2.0
#include "path.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "error.hpp"
#include "handles.hpp"
#include "hot_apart.hpp"

namespace sac::gpu {
namespace {

constexpr std::uint64_t kTimeoutMs = 600000;
constexpr std::uint64_t kRows = 2048;  // of the measurement: a layer's selection
constexpr int kWarm = 2, kTimes = 7;

std::uint64_t next_random(std::uint64_t &state) noexcept {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

}  // namespace

Mover::Mover(std::shared_ptr<Device> device, std::shared_ptr<Namespace> ns,
             const sac_gpu_mover_options &options)
    : device_(std::move(device)), ns_(std::move(ns)),
      cores_(cores_near(device_->info().numa_node)),
      team_(team_size(options.threads, cores_.size()), cores_), tables_(device_, true),
      flights_(device_), staged_(device_, team_, flights_, faults_,
                                 {options.staging_bytes, options.chunk_bytes,
                                  (options.flags & SAC_GPU_PLAIN_STORES) != 0}) {
    check();
    if (options.path > SAC_GPU_PATH_CPU ||
        (options.flags & ~std::uint32_t{SAC_GPU_PLAIN_STORES}) != 0)
        throw Error(SAC_E_ARG, "options", "there is no such path or flag");
    if (options.path != SAC_GPU_PATH_AUTO) {
        choice_.path = options.path, choice_.forced = true;
        choice_.why = options.path == SAC_GPU_PATH_GPU
                          ? "the path through the GPU was asked for"
                          : "the path through the CPU was asked for";
    } else {
        choice_.why = "nothing was measured yet: the first gather decides";
    }
    if (options.path == SAC_GPU_PATH_CPU)
        return;
    const std::shared_ptr<View> view = ns_->view();
    addresses_ = std::make_unique<PoolAddresses>(
        Registration::start(device_, view->data()), flights_,
        options.timeout_ms != 0 ? options.timeout_ms : kTimeoutMs);
    puts_ = std::make_unique<PutRows>(device_, *addresses_, tables_, flights_);
    rows_ = std::make_unique<GatherRows>(device_, *addresses_, tables_, flights_, faults_);
}

void Mover::check() const {
    device_->check_usable();
    ns_->check();
}

PoolAddresses &Mover::addresses() {
    if (!addresses_)
        throw Error(SAC_E_ARG, "mover",
                    "it was opened for the CPU's path alone: the pool is not registered with "
                    "CUDA, which the GPU needs to reach it");
    return *addresses_;
}

void Mover::put(Put &put, const sac_gpu_rows &rows, std::uintptr_t stream) {
    check();
    (void)addresses();
    if (&put.ns() != ns_.get())
        throw Error(SAC_E_ARG, "put", "the put belongs to another namespace");
    const Apart apart(*device_);
    puts_->put(put, rows, stream);
}

void Mover::put(const std::shared_ptr<Sequence> &sequence, const sac_gpu_rows &rows,
                std::uintptr_t stream) {
    check();
    (void)addresses();
    if (&sequence->ns() != ns_.get())
        throw Error(SAC_E_ARG, "sequence", "the sequence belongs to another namespace");
    const Apart apart(*device_);
    puts_->put(sequence, rows, stream);
}

std::uint64_t Mover::gather(const sac_gpu_gather_req &req, std::uintptr_t stream) {
    check();
    const Apart apart(*device_);
    if (capturing(*device_, stream))
        throw Error(SAC_E_ARG, "gather",
                    "the stream is being captured into a graph; this gather reads lists made "
                    "for one call. A hot buffer can be captured");
    const std::uint32_t way = req.path != SAC_GPU_PATH_AUTO ? req.path : path(req);
    if (way == SAC_GPU_PATH_GPU)
        (void)addresses();
    GatherRequest request(*ns_, req);
    const std::uint64_t number = ++calls_;
    if (request.rows() == 0)
        return number;
    if (way == SAC_GPU_PATH_GPU)
        rows_->gather(request, number, stream);
    else if (req.rows_on_gpu)
        staged_.gather_later(request, number, stream);
    else
        staged_.gather(request, stream);
    return number;
}

std::uint32_t Mover::path(const sac_gpu_gather_req &like) {
    const std::lock_guard lock(mutex_);
    if (choice_.path == SAC_GPU_PATH_AUTO)
        choice_ = measure(like);
    return choice_.path != SAC_GPU_PATH_AUTO ? choice_.path : std::uint32_t{SAC_GPU_PATH_GPU};
}

Mover::Choice Mover::measure(const sac_gpu_gather_req &like) {
    Choice c;
    try {
        addresses_->require();
    } catch (const Error &e) {
        if (e.status == SAC_E_BUSY || e.status == SAC_E_FORKED)
            throw;
        c.path = SAC_GPU_PATH_CPU, c.forced = true;
        c.why = "by the CPU: the GPU cannot read the pool's memory. " + e.message;
        return c;
    }
    std::vector<std::int32_t> rows;
    if (like.batch != 0) {
        // Wrong arguments are found here as later.
        sac_gpu_gather_req empty = like;
        empty.batch = 1, empty.rows = nullptr, empty.rows_on_gpu = 0, empty.count = 0;
        GatherRequest one(*ns_, empty);
        const GatherJob &job = one.call().jobs()[0];
        std::uint64_t state = 0x9e3779b97f4a7c15;
        for (std::uint64_t i = 0; i < 4 * kRows && job.limit != 0 && rows.size() < kRows; ++i) {
            const std::uint64_t row =
                next_random(state) % std::min<std::uint64_t>(job.limit, INT32_MAX);
            if (job.pages[row / job.rows_per_page])
                rows.push_back(static_cast<std::int32_t>(row));
        }
        c.row_bytes = one.plane().row_bytes;
    }
    if (rows.size() < kRows) {
        c.why = "nothing was measured yet: the gathers so far had no rows to measure with";
        return c;
    }
    const DeviceBuffer out(device_, rows.size() * c.row_bytes, "the measurement's rows");
    sac_gpu_gather_req req{};
    req.prefixes = like.prefixes, req.batch = 1;
    req.plane = like.plane, req.layer = like.layer;
    req.first_head = like.first_head, req.heads = 1;
    req.rows = rows.data(), req.count = rows.size(), req.out = out.address();
    c.rows = rows.size();
    c.gpu_us = time(req, true);
    c.cpu_us = time(req, false);
    c.path = c.gpu_us <= c.cpu_us ? SAC_GPU_PATH_GPU : SAC_GPU_PATH_CPU;
    c.why =
        format("by the %s: %zu rows of %u bytes took %.1f us by the GPU, %.1f us by the CPU "
               "(%u threads)",
               c.path == SAC_GPU_PATH_GPU ? "GPU" : "CPU", rows.size(), c.row_bytes, c.gpu_us,
               c.cpu_us, team_.threads());
    return c;
}

// Median, in microseconds, until the rows are there.
double Mover::time(const sac_gpu_gather_req &req, bool on_gpu) {
    if (!own_)
        own_ = Stream(device_);
    std::array<double, kTimes> us{};
    for (int i = -kWarm; i < kTimes; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        {
            GatherRequest request(*ns_, req);
            if (on_gpu)
                rows_->gather(request, 0, own_.number());
            else
                staged_.gather(request, own_.number());
        }
        synchronize(*device_, own_.number());
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - begin;
        if (i >= 0)
            us[static_cast<std::size_t>(i)] = took.count();
    }
    std::nth_element(us.begin(), us.begin() + kTimes / 2, us.end());
    return us[kTimes / 2];
}

void Mover::info(sac_gpu_mover_info &out) {
    const std::lock_guard lock(mutex_);
    out = {};
    out.path = choice_.path, out.forced = choice_.forced;
    out.threads = team_.threads();
    out.numa_node = device_->info().numa_node;
    out.cores = static_cast<std::uint32_t>(cores_.size());
    out.row_bytes = choice_.row_bytes, out.rows = choice_.rows;
    out.gpu_us = choice_.gpu_us, out.cpu_us = choice_.cpu_us;
    out.staging_bytes = staged_.pinned_bytes();
    choice_.why.copy(out.why, sizeof out.why - 1);
}

}  // namespace sac::gpu
