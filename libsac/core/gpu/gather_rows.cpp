// SPDX-License-Identifier: Apache-2.0
#include "gather_rows.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "../../hotbuffer/kernels/args.h"
#include "error.hpp"
#include "handles.hpp"

namespace sac::gpu {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint64_t kBlocksPerProcessor = 8;

}  // namespace

static_assert(SAC_GPU_FAULT_RANGE == static_cast<int>(HOT_E_RANGE) &&
              SAC_GPU_FAULT_PAGE == static_cast<int>(HOT_E_PAGE));

GatherRows::GatherRows(std::shared_ptr<Device> device, PoolAddresses &addresses,
                       TablePool &tables, Flights &flights, Faults &faults)
    : device_(std::move(device)), addresses_(addresses), tables_(tables), flights_(flights),
      faults_(faults) {}

Function GatherRows::kernel(std::uint32_t row_bytes, std::uint32_t pitch,
                            std::uint32_t page_rows, std::uint32_t access) {
    const std::lock_guard lock(mutex_);
    const Shape key{row_bytes, pitch, page_rows, access};
    if (const auto it = kernels_.find(key); it != kernels_.end())
        return it->second;
    KernelSpec spec{"gather.cu", {}, {}};
    spec.define("SAC_UNIT_BYTES_0", row_bytes)
        .define("SAC_POOL_PITCH_0", pitch)
        .define("SAC_PAGE_UNITS", page_rows)
        .define("SAC_ACCESS_0", access)
        .define("SAC_BLOCK", 1)
        .define("SAC_THREADS", kThreads);
    const Function f = device_->module(spec)->function("sac_gather");
    kernels_.emplace(key, f);
    return f;
}

void GatherRows::gather(GatherRequest &request, std::uint64_t number, std::uintptr_t stream) {
    const sac_gpu_gather_req &req = request.what();
    const sac_plane &plane = request.plane();
    const auto jobs = request.call().jobs();
    addresses_.require();
    std::uint64_t pages = 0;
    for (std::uint64_t b = 0; b < req.batch; ++b)
        pages += req.prefixes[b]->it->pages();
    const bool own_rows = req.rows && !req.rows_on_gpu;
    const std::uint64_t table_bytes = req.batch * sizeof(HotRequest),
                        errors_bytes = (req.batch + 1) * 4, lists_bytes = pages * 8,
                        rows_bytes = own_rows ? request.rows() * 4 : 0;
    const std::shared_ptr<Table> table =
        tables_.take(Table::padded(table_bytes) + Table::padded(errors_bytes) +
                     Table::padded(lists_bytes) + Table::padded(rows_bytes));
    const std::uint64_t at = table->add(table_bytes), errors = table->add(errors_bytes),
                        lists = table->add(lists_bytes), rows = table->add(rows_bytes);
    std::memset(table->host<std::uint8_t>(errors), 0, errors_bytes);
    if (own_rows)
        std::memcpy(table->host<std::int32_t>(rows), req.rows, rows_bytes);

    const auto leaving = addresses_.lock();
    const Geometry &g = req.prefixes[0]->it->ns().geometry();
    const PlaneGeometry &shape = g.at[req.plane];
    const std::uint64_t part_bytes = g.part_bytes[shape.part];
    std::uint64_t all =
        plane.row_bytes | plane.row_pitch | shape.head_stride | jobs[0].offset | req.out | 16;
    std::uint64_t next = lists;
    for (std::uint64_t b = 0; b < req.batch; ++b) {
        const Prefix &prefix = *req.prefixes[b]->it;
        HotRequest &entry = table->host<HotRequest>(at)[b];
        entry = {};
        entry.pages = table->gpu(next);
        entry.units = static_cast<std::uint32_t>(
            std::min<std::uint64_t>(jobs[b * req.heads].limit, UINT32_MAX));
        entry.flags = HOT_BOUND;
        entry.rows = entry.units;
        all |= addresses_.list({prefix.addresses(shape.part), prefix.pages()}, part_bytes,
                               prefix.view().data(), table->host<std::uint64_t>(next));
        next += prefix.pages() * 8;
    }
    const auto access = static_cast<std::uint32_t>(all & (~all + 1));

    HotGather a{};
    if (req.rows)
        a.units = own_rows ? table->gpu(rows) : reinterpret_cast<std::uintptr_t>(req.rows);
    a.table = table->gpu(at), a.errors = table->gpu(errors);
    a.out = req.out, a.out_pitch = plane.row_bytes;
    a.offset = jobs[0].offset;
    a.head_stride = shape.head_stride;
    a.count = static_cast<std::uint32_t>(req.count);
    a.table_size = static_cast<std::uint32_t>(req.batch);

    const std::uint64_t lanes = req.batch * req.heads;
    const std::uint64_t most = std::max<std::uint64_t>(
        1,
        kBlocksPerProcessor * static_cast<unsigned>(device_->info().multiprocessors) / lanes);
    Launch how;
    how.grid_x = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>((req.count + kThreads / 32 - 1) / (kThreads / 32), 1, most));
    how.grid_y = static_cast<std::uint32_t>(req.batch), how.grid_z = req.heads;
    how.threads = kThreads, how.stream = stream;
    const Function f = kernel(plane.row_bytes, plane.row_pitch, shape.rows, access);
    const auto event = std::make_shared<Event>(device_);
    table->send(stream);
    f.launch_with(how, a);
    table->fetch(errors, errors_bytes, stream);
    event->record(stream);
    flights_.add(event, [this, table, errors, number, batch = req.batch,
                         borrowed = request.borrowed()](bool well) {
        for (std::uint32_t b = 0; b < batch; ++b)
            if (const std::uint32_t bits = table->host<std::uint32_t>(errors)[b];
                !well || bits != 0)
                faults_.add(number, b, well ? bits : std::uint32_t{SAC_GPU_FAULT_GPU});
        borrowed->check(number, faults_);
    });
}

}  // namespace sac::gpu
