// SPDX-License-Identifier: Apache-2.0
#include "put_rows.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>
#include <vector>

#include "../../hotbuffer/kernels/put.h"
#include "error.hpp"
#include "hot_apart.hpp"

namespace sac::gpu {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWordsEach = 4;           // as put.cu
constexpr std::uint32_t kBlocksPerProcessor = 4;  // more bring nothing: the bus is the limit
constexpr std::uint64_t kRowsMost = 1u << 30;
constexpr std::uint64_t kFirstMost = std::uint64_t{1} << 40;

[[noreturn]] void refuse(const sac_plane &plane, sac_status status, const std::string &why) {
    throw Error(status, plane.name, format("put of plane '%s': %s", plane.name, why.c_str()));
}

std::uint64_t magnitude(std::int64_t stride) noexcept {
    return stride < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(stride)
                      : static_cast<std::uint64_t>(stride);
}

}  // namespace

void PutFlight::launched(std::shared_ptr<Event> event, std::shared_ptr<Table> table,
                         std::uint64_t wrong) {
    const std::lock_guard lock(mutex_);
    event_ = std::move(event), table_ = std::move(table), wrong_ = wrong;
}

bool PutFlight::wrong() const noexcept {
    return *static_cast<volatile std::uint32_t *>(table_->host<std::uint32_t>(wrong_)) != 0;
}

bool PutFlight::done() noexcept {
    const std::lock_guard lock(mutex_);
    try {
        const Apart apart(*device_);
        return event_ && event_->done() && !wrong();
    } catch (const Error &) {
        return false;  // a GPU that failed has written nobody knows what
    }
}

void PutFlight::wait() {
    const std::lock_guard lock(mutex_);
    if (!event_)
        throw Error(SAC_E_GPU, plane_, "put: the launch for this plane failed");
    {
        const Apart apart(*device_);
        event_->synchronize();
    }
    if (wrong())
        throw Error(SAC_E_RANGE, plane_,
                    format("put of plane '%s': a slot was not in the source: below 0, or at or "
                           "past its end. Nothing was committed",
                           plane_.c_str()));
}

PutRows::PutRows(std::shared_ptr<Device> device, PoolAddresses &addresses, TablePool &tables,
                 Flights &flights)
    : device_(std::move(device)), addresses_(addresses), tables_(tables), flights_(flights) {}

void PutRows::check(const Geometry &g, const sac_gpu_rows &r, std::uintptr_t stream) const {
    if (r.plane >= g.planes.size())
        throw Error(SAC_E_RANGE, "plane", format("put: there is no plane %u", r.plane));
    const sac_plane &plane = g.planes[r.plane];
    if (r.layer_count == 0 || !r.layers || !r.sources)
        refuse(plane, SAC_E_ARG, "layers and their sources must be given");
    if (r.layer_count > g.at[r.plane].layer_count)
        refuse(plane, SAC_E_ARG,
               format("%u layers were given; it has %u, each of which may be named once",
                      r.layer_count, g.at[r.plane].layer_count));
    for (std::uint32_t i = 0; i < r.layer_count; ++i) {
        (void)g.offset(r.plane, r.layers[i]);
        if (r.sources[i] == 0)
            refuse(plane, SAC_E_ARG, format("the source of layer %u is NULL", r.layers[i]));
    }
    if (r.count > kRowsMost)
        refuse(plane, SAC_E_ARG, "more than 2^30 pages or rows in one call");
    if (r.first > kFirstMost)
        refuse(plane, SAC_E_RANGE, format("there is no page or row %" PRIu64, r.first));
    if (r.source_rows == 0 || r.source_rows > static_cast<std::uint64_t>(INT64_MAX))
        refuse(plane, SAC_E_ARG, "source_rows must say how many rows a source has");
    if (r.row_stride == 0 && r.block_rows != 1 && r.source_rows > 1)
        refuse(plane, SAC_E_ARG, "row_stride is 0: rows must not share memory");
    if (r.block_rows != 0 && r.block_stride == 0 && r.source_rows > r.block_rows)
        refuse(plane, SAC_E_ARG, "block_stride is 0: blocks must not share memory");
    if (plane.heads > 1 && r.head_stride == 0)
        refuse(plane, SAC_E_ARG,
               format("it has %u heads; head_stride must say where each begins", plane.heads));
    if (capturing(*device_, stream))
        refuse(plane, SAC_E_ARG,
               "the stream is being captured into a graph; a put names pages that are its own "
               "once, and cannot be replayed");
}

Function PutRows::kernel(std::uint32_t row_bytes, std::uint32_t access) {
    const std::lock_guard lock(mutex_);
    const auto key = std::make_pair(row_bytes, access);
    if (const auto it = kernels_.find(key); it != kernels_.end())
        return it->second;
    KernelSpec spec{"put.cu", {}, {}};
    spec.define("SAC_PUT_BYTES", row_bytes).define("SAC_PUT_ACCESS", access);
    const Function f = device_->module(spec)->function("sac_put");
    kernels_.emplace(key, f);
    return f;
}

void PutRows::launch(const Target &to, const sac_gpu_rows &r, std::uintptr_t stream,
                     const std::shared_ptr<PutFlight> &flight, std::function<void()> landed) {
    const Geometry &g = to.geometry;
    const sac_plane &plane = g.planes[r.plane];
    const PlaneGeometry &at = g.at[r.plane];
    const bool own_slots = r.slots && !r.slots_on_gpu;
    const std::uint64_t layers_bytes = r.layer_count * sizeof(PutLayer),
                        pages_bytes = to.pages.size() * 8,
                        slots_bytes = own_slots ? to.rows * 8 : 0;
    const std::shared_ptr<Table> table =
        tables_.take(Table::padded(4) + Table::padded(layers_bytes) +
                     Table::padded(pages_bytes) + Table::padded(slots_bytes));
    const std::uint64_t wrong = table->add(4), layers = table->add(layers_bytes),
                        pages = table->add(pages_bytes), slots = table->add(slots_bytes);
    *table->host<std::uint32_t>(wrong) = 0;
    // Every address and stride that the kernel adds up, for the widest access that fits.
    std::uint64_t all =
        plane.row_bytes | plane.row_pitch | at.head_stride | magnitude(r.row_stride) | 16;
    if (r.block_rows != 0)
        all |= magnitude(r.block_stride);
    if (plane.heads > 1)
        all |= magnitude(r.head_stride);
    auto *const layer = table->host<PutLayer>(layers);
    for (std::uint32_t i = 0; i < r.layer_count; ++i) {
        layer[i] = {r.sources[i], g.offset(r.plane, r.layers[i])};
        all |= layer[i].source | layer[i].offset;
    }
    const auto leaving = addresses_.lock();
    const std::uint64_t bytes = g.part_bytes[at.part];
    auto *const page = table->host<std::uint64_t>(pages);
    all |= addresses_.list(to.pages, bytes, to.data, page);
    for (std::size_t i = 0; i < to.pages.size(); ++i)
        if (to.pages[i] && page[i] == 0)
            refuse(plane, SAC_E_GPU,
                   "the memory of a page is dead, or not registered with CUDA (any more)");
    if (own_slots)
        std::memcpy(table->host<std::int64_t>(slots), r.slots, to.rows * 8);
    const auto access = static_cast<std::uint32_t>(all & (~all + 1));

    PutArgs a{};
    a.layers = table->gpu(layers), a.pages = table->gpu(pages);
    if (r.slots)
        a.slots = own_slots ? table->gpu(slots) : reinterpret_cast<std::uintptr_t>(r.slots);
    a.wrong = table->host_address(wrong);
    a.source_rows = r.source_rows;
    a.block_rows = std::max(r.block_rows, 1u);
    a.row_stride = r.row_stride;
    a.block_stride = r.block_rows == 0 ? r.row_stride : r.block_stride;
    a.head_stride = plane.heads > 1 ? r.head_stride : 0;
    a.page_head = at.head_stride;
    a.page_rows = at.rows, a.page_row_pitch = plane.row_pitch;
    a.first = static_cast<std::uint32_t>(to.first);
    a.rows = static_cast<std::uint32_t>(to.rows);

    const std::uint64_t words = to.rows * (plane.row_bytes / access);
    const std::uint64_t most =
        std::max<std::uint64_t>(1, std::uint64_t{kBlocksPerProcessor} *
                                       static_cast<unsigned>(device_->info().multiprocessors) /
                                       (std::uint64_t{r.layer_count} * plane.heads));
    Launch how;
    how.grid_x = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
        (words + kThreads * kWordsEach - 1) / (kThreads * kWordsEach), 1, most));
    how.grid_y = r.layer_count, how.grid_z = plane.heads;
    how.threads = kThreads, how.stream = stream;
    const Function f = kernel(plane.row_bytes, access);
    const auto event = std::make_shared<Event>(device_);
    table->send(stream);
    f.launch_with(how, a);
    event->record(stream);
    flight->launched(event, table, wrong);
    flights_.add(event, [flight, landed = std::move(landed)](bool) { landed(); });
}

void PutRows::put(Put &put, const sac_gpu_rows &r, std::uintptr_t stream) {
    const Geometry &g = put.ns().geometry();
    check(g, r, stream);
    const sac_plane &plane = g.planes[r.plane];
    const std::uint64_t rows = r.count * g.at[r.plane].rows;
    if (rows > kRowsMost)
        refuse(plane, SAC_E_ARG, "more than 2^30 rows in one call");
    if (!r.slots && rows > r.source_rows)
        refuse(plane, SAC_E_RANGE,
               format("%" PRIu64 " pages have %" PRIu64 " rows, the source has %" PRIu64,
                      r.count, rows, r.source_rows));
    if (r.count == 0)
        return;
    addresses_.require();
    put.write_by(r.plane, {r.layers, r.layer_count}, r.first, r.count,
                 [&](std::span<std::uint8_t *const> pages) {
                     const auto flight = std::make_shared<PutFlight>(device_, plane.name);
                     launch({g, put.view().data(), pages, 0, rows}, r, stream, flight, [] {});
                     return flight;
                 });
}

void PutRows::put(const std::shared_ptr<Sequence> &sequence, const sac_gpu_rows &r,
                  std::uintptr_t stream) {
    const Geometry &g = sequence->ns().geometry();
    check(g, r, stream);
    const sac_plane &plane = g.planes[r.plane];
    const PlaneGeometry &at = g.at[r.plane];
    if (plane.kind == SAC_PLANE_STATE)
        refuse(plane, SAC_E_ARG, "states of a sequence are written by the CPU");
    std::vector<bool> given(SAC_MAX_LAYERS);
    for (std::uint32_t i = 0; i < r.layer_count; ++i)
        given[r.layers[i]] = true;
    for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l)
        if (at.ordinal[l] >= 0 && !given[l])
            refuse(plane, SAC_E_ARG,
                   format("layer %u is missing: rows of a sequence are "
                          "written in all layers of the plane at once",
                          l));
    if (!r.slots && r.count > r.source_rows)
        refuse(plane, SAC_E_RANGE,
               format("%" PRIu64 " rows are to be written, the source has "
                      "%" PRIu64,
                      r.count, r.source_rows));
    if (r.count == 0)
        return;
    addresses_.require();
    const auto check_open = [&] {
        const auto held = sequence->lock();
        const std::uint64_t open = sequence->settled() * at.rows;
        if (r.first < open)
            refuse(plane, SAC_E_RANGE,
                   format("row %" PRIu64 " is committed; rows from %" PRIu64 " on are open",
                          r.first, open));
    };
    check_open();
    // Behind the event a thread of ours gives it back: closed or not, its pages stay till then.
    sequence->borrow();
    const std::shared_ptr<Sequence> kept(sequence.get(),
                                         [sequence](Sequence *s) { s->give_back(); });
    const auto flight = std::make_shared<PutFlight>(device_, plane.name);
    const std::uint32_t planes[] = {r.plane};
    const std::uint64_t end = r.first + r.count;
    // Before the launch: pages that count as being written are not committed by others.
    sequence->written_by(planes, r.first * plane.tokens_per_row, end * plane.tokens_per_row,
                         flight);
    check_open();
    std::vector<std::uint8_t *> pages;
    {
        const auto held = sequence->lock();
        for (std::uint64_t p = r.first / at.rows; p <= (end - 1) / at.rows; ++p)
            pages.push_back(sequence->addresses(at.part)[p]);
    }
    launch({g, sequence->view().data(), pages, r.first % at.rows, r.count}, r, stream, flight,
           [kept] {});
}

}  // namespace sac::gpu
