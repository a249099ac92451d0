// SPDX-License-Identifier: Apache-2.0
#include "gather_staged.hpp"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "error.hpp"

namespace sac::gpu {
namespace {

constexpr std::uint64_t kStagingBytes = 64 << 20;
// Each chunk's copy costs a thread about 5 us to ask for: few, so that calls in a row are as
// fast as the gather alone, and not one, so that a single call's copy overlaps its gather.
constexpr std::uint64_t kChunkLeast = 512 << 10, kChunkMost = 4 << 20;
constexpr std::uint64_t kChunksWanted = 3;
constexpr std::uint64_t kPartBytes = 64 << 10;  // that a thread takes at a time, about

// Where a job's rows go when row `from` of all jobs goes to `begin`. Jobs that begin before it
// have their first rows below begin, where nothing is copied.
void aim(std::span<sac_gather_req> reqs, std::span<const GatherJob> jobs, std::uint64_t from,
         const std::uint8_t *begin) noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(begin);
    for (std::size_t i = 0; i < jobs.size(); ++i)
        reqs[i].dst = reinterpret_cast<void *>(at + (jobs[i].first - from) * jobs[i].row_bytes);
}

}  // namespace

std::uint64_t chunk_rows(std::uint64_t rows, std::uint64_t row_bytes,
                         std::uint64_t chunk_bytes) noexcept {
    if (chunk_bytes == 0)
        chunk_bytes = std::clamp(rows * row_bytes / kChunksWanted, kChunkLeast, kChunkMost);
    return std::clamp<std::uint64_t>(chunk_bytes / row_bytes, 1,
                                     std::max<std::uint64_t>(rows, 1));
}

GatherStaged::GatherStaged(std::shared_ptr<Device> device, Team &team, Flights &flights,
                           Faults &faults, const StagedOptions &options)
    : device_(std::move(device)), team_(team), flights_(flights), faults_(faults),
      options_(options), pieces_(device_, false) {}

std::uint64_t GatherStaged::pinned_bytes() const noexcept {
    const std::lock_guard lock(mutex_);
    return halves_[0].memory.bytes() + halves_[1].memory.bytes() + pieces_.bytes();
}

GatherStaged::Half &GatherStaged::half(std::uint64_t row_bytes) {
    Half &h = halves_[turn_++ % 2];
    const std::uint64_t total = options_.staging_bytes ? options_.staging_bytes : kStagingBytes;
    const std::uint64_t bytes = std::max(total / 2, row_bytes);
    if (!h.free)
        h.free = Event(device_);
    h.free.synchronize();
    if (h.memory.bytes() < bytes)
        h.memory = PinnedBuffer(device_, bytes, device_->info().numa_node,
                                "staging of the CPU's gather");
    return h;
}

// Parts are taken in order, so the first chunk is whole first; whoever ends a chunk sends it.
void GatherStaged::round(std::span<sac_gather_req> reqs, std::span<const GatherJob> jobs,
                         std::uint64_t from, std::uint64_t to, Address out,
                         std::uintptr_t stream) {
    const std::uint64_t row_bytes = jobs[0].row_bytes, rows = to - from;
    Half &h = half(row_bytes);
    std::uint8_t *const begin = h.memory.data();
    aim(reqs, jobs, from, begin);
    const std::uint64_t chunk = chunk_rows(rows, row_bytes, options_.chunk_bytes);
    const std::uint64_t chunks = (rows + chunk - 1) / chunk;
    const std::uint64_t parts =
        std::clamp<std::uint64_t>((chunk * row_bytes + kPartBytes - 1) / kPartBytes, 1, chunk);
    std::vector<std::atomic<std::uint64_t>> left(chunks);
    for (auto &l : left)
        l.store(parts, std::memory_order_relaxed);
    std::atomic<Result> failed{cuda::kSuccess};
    const Driver &driver = device_->driver();
    team_.run(chunks * parts, [&](std::size_t task) {
        const std::uint64_t c = task / parts, p = task % parts;
        const std::uint64_t first = c * chunk, n = std::min(chunk, rows - first);
        copy_range(jobs, from + first + n * p / parts, from + first + n * (p + 1) / parts,
                   !options_.plain_stores);
        if (left[c].fetch_sub(1, std::memory_order_acq_rel) != 1)
            return;
        Result result;
        try {
            const Current current(*device_);
            result = driver.copy_in(out + (from + first) * row_bytes, begin + first * row_bytes,
                                    n * row_bytes, stream_handle(stream));
        } catch (const Error &e) {
            result = e.sys_errno != 0 ? e.sys_errno : cuda::kInvalidValue;
        }
        if (result != cuda::kSuccess)
            failed = result;
    });
    h.free.record(stream);
    driver.check(failed, "gather", "cannot copy gathered rows to the GPU");
}

void GatherStaged::copy(std::span<sac_gather_req> reqs, std::span<const GatherJob> jobs,
                        std::uint64_t rows, Address out, std::uintptr_t stream) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t total = options_.staging_bytes ? options_.staging_bytes : kStagingBytes;
    const std::uint64_t most = std::max<std::uint64_t>(total / 2 / jobs[0].row_bytes, 1);
    for (std::uint64_t from = 0; from < rows; from += most)
        round(reqs, jobs, from, std::min(rows, from + most), out, stream);
}

void GatherStaged::gather(GatherRequest &request, std::uintptr_t stream) {
    GatherCall &call = request.call();
    copy(request.requests(), call.jobs(), call.rows(), request.what().out, stream);
    std::uint64_t failed = 0;
    call.finish(failed);
}

// What host functions of one gather_later work on; stays until the stream is past them.
struct GatherStaged::Later {
    struct Chunk {
        Later *all;
        std::uint64_t from, to;
    };
    Team &team;
    Faults &faults;
    std::uint64_t number;
    std::uint32_t heads;
    bool stream_stores;
    std::vector<std::vector<std::uint8_t *>> pages;  // by request of the batch
    std::vector<sac_gather_req> reqs;
    std::vector<GatherJob> jobs;
    std::vector<Chunk> chunks;
    std::shared_ptr<Table> piece;
    bool checked = false;

    // Wrong rows become -1, and are told of.
    void check() noexcept {
        for (std::size_t j = 0; j < jobs.size(); ++j) {
            auto *const index =
                const_cast<std::int32_t *>(static_cast<const std::int32_t *>(reqs[j].index));
            std::uint32_t bits = 0;
            for (std::uint64_t i = 0; i < reqs[j].count; ++i) {
                const std::int64_t row = index[i];
                if (row == -1)
                    continue;
                if (row < 0 || static_cast<std::uint64_t>(row) >= jobs[j].limit)
                    bits |= SAC_GPU_FAULT_RANGE;
                else if (!jobs[j]
                              .pages[static_cast<std::uint64_t>(row) / jobs[j].rows_per_page])
                    bits |= SAC_GPU_FAULT_PAGE;
                else
                    continue;
                index[i] = -1;
            }
            if (bits != 0)
                faults.add(number, static_cast<std::uint32_t>(j / heads), bits);
        }
        checked = true;
    }
    static void run(void *data) noexcept {
        const Chunk &c = *static_cast<const Chunk *>(data);
        Later &l = *c.all;
        if (!l.checked)
            l.check();
        const std::uint64_t rows = c.to - c.from;
        const std::uint64_t parts = std::clamp<std::uint64_t>(
            rows * l.jobs[0].row_bytes / kPartBytes, 1, std::max<std::uint64_t>(rows, 1));
        l.team.run(parts, [&](std::size_t p) {
            copy_range(l.jobs, c.from + rows * p / parts, c.from + rows * (p + 1) / parts,
                       l.stream_stores);
        });
    }
};

void GatherStaged::gather_later(GatherRequest &request, std::uint64_t number,
                                std::uintptr_t stream) {
    const sac_gpu_gather_req &req = request.what();
    const std::uint64_t rows = request.rows(), row_bytes = request.plane().row_bytes;
    const Driver &driver = device_->driver();
    auto later = std::make_shared<Later>(
        Later{team_, faults_, number, req.heads, !options_.plain_stores, {}, {}, {}, {}, {}});
    later->piece = pieces_.take(Table::padded(rows * 4) + rows * row_bytes);
    const std::uint64_t index = later->piece->add(rows * 4),
                        staged = later->piece->add(rows * row_bytes);
    later->reqs.assign(request.requests().begin(), request.requests().end());
    later->jobs.assign(request.call().jobs().begin(), request.call().jobs().end());
    later->pages.resize(req.batch);
    for (std::size_t j = 0; j < later->jobs.size(); ++j) {
        GatherJob &job = later->jobs[j];
        auto &pages = later->pages[j / req.heads];
        // The sequence may grow and move meanwhile; what is borrowed stays where it is.
        if (j % req.heads == 0)
            pages.assign(job.pages,
                         job.pages + (job.limit + job.rows_per_page - 1) / job.rows_per_page);
        later->reqs[j].index = later->piece->host<std::int32_t>(index) + j * req.count;
        later->reqs[j].count = req.count;
        job.pages = pages.data();
        job.first = j * req.count;
        job.req = &later->reqs[j];
    }
    std::uint8_t *const begin = later->piece->host<std::uint8_t>(staged);
    aim(later->reqs, later->jobs, 0, begin);
    const std::uint64_t chunk = chunk_rows(
        rows, row_bytes, options_.chunk_bytes ? options_.chunk_bytes : rows * row_bytes / 2);
    for (std::uint64_t from = 0; from < rows; from += chunk)
        later->chunks.push_back({later.get(), from, std::min(rows, from + chunk)});

    const Current current(*device_);
    const StreamHandle main = stream_handle(stream);
    const bool overlap = later->chunks.size() > 1;
    const auto event = std::make_shared<Event>(device_);
    std::vector<Event> ready;
    if (overlap) {
        const std::lock_guard lock(mutex_);
        if (!side_)
            side_ = Stream(device_);
    }
    const std::uintptr_t copies = overlap ? side_.number() : stream;
    for (std::size_t i = 0; overlap && i < later->chunks.size() + 1; ++i)
        ready.emplace_back(device_);
    driver.check(driver.copy_out(later->piece->host<std::int32_t>(index),
                                 reinterpret_cast<std::uintptr_t>(req.rows), rows * 4, main),
                 "gather", "cannot copy the rows' numbers from the GPU");
    // From here on the stream uses `later`: whatever fails, it stays until the stream is past.
    try {
        for (std::size_t i = 0; i < later->chunks.size(); ++i) {
            const Later::Chunk &c = later->chunks[i];
            driver.check(driver.launch_host(main, Later::run, const_cast<Later::Chunk *>(&c)),
                         "gather", "cannot put a host function into the stream");
            if (overlap) {
                ready[i].record(stream);
                ready[i].make_wait(copies);
            }
            driver.check(driver.copy_in(req.out + c.from * row_bytes,
                                        begin + c.from * row_bytes, (c.to - c.from) * row_bytes,
                                        stream_handle(copies)),
                         "gather", "cannot copy gathered rows to the GPU");
        }
        if (overlap) {
            ready.back().record(copies);
            ready.back().make_wait(stream);
        }
        event->record(stream);
    } catch (const Error &) {
        (void)driver.stream_synchronize(main);
        (void)driver.stream_synchronize(stream_handle(copies));
        throw;
    }
    flights_.add(event, [this, later, number, batch = req.batch,
                         borrowed = request.borrowed()](bool well) {
        for (std::uint32_t b = 0; !well && b < batch; ++b)
            faults_.add(number, b, SAC_GPU_FAULT_GPU);
        borrowed->check(number, faults_);
    });
}

}  // namespace sac::gpu
