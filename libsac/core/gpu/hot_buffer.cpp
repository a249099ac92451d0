// SPDX-License-Identifier: Apache-2.0
// A hot buffer's beginning and end.
#include "hot_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>

#include "error.hpp"
#include "hot_apart.hpp"

namespace sac::gpu {
namespace {

// All entry points of a group, in one module.
constexpr const char *kSource = "hot.cu";
constexpr std::uint32_t kGridMost = 65535;  // of y and z

// One request's page addresses, or the table's entries of all requests.
std::uint64_t piece_bytes(const HotGeometry &g) {
    return std::max<std::uint64_t>(g.pages_max * sizeof(std::uint64_t),
                                   g.groups.size() * g.options.requests * sizeof(HotRequest));
}

}  // namespace

HotBuffer::HotBuffer(std::shared_ptr<Device> device, std::shared_ptr<Namespace> ns,
                     const HotOptions &options, std::uint64_t timeout_ms)
    : device_(std::move(device)), ns_(std::move(ns)),
      data_((ns_->check(), &ns_->view()->data())),
      geometry_(ns_->geometry(), options, device_->info().shared_bytes) {
    const Apart apart(*device_);
    if (!geometry_.options.cpu) {
        registration_ = Registration::start(device_, *data_);
        registration_->require(timeout_ms);
    }
    load_kernels();
    rows_ = DeviceBuffer(device_, geometry_.rows_bytes, "rows of a hot buffer");
    tables_ = DeviceBuffer(device_, geometry_.tables_bytes, "tables of a hot buffer");
    if (geometry_.options.cpu)
        pinned_ = PinnedBuffer(device_, geometry_.shared_bytes, device_->info().numa_node,
                               "tables of a hot buffer");
    else
        shared_ = DeviceBuffer(device_, geometry_.shared_bytes, "tables of a hot buffer");
    side_ = Stream(device_);
    read_ = PinnedBuffer(device_, geometry_.tables_bytes - geometry_.counters, -1,
                         "counters of a hot buffer");
    staging_ = std::make_unique<HotStaging>(device_, piece_bytes(geometry_));
    table_.resize(geometry_.groups.size() * geometry_.options.requests);
    bound_.resize(geometry_.options.requests);
    if (geometry_.options.cpu)
        make_staging();
    set_up();
    if (registration_)
        registration_->add(*this);
}

HotBuffer::~HotBuffer() {
    try {
        close();
    } catch (...) {
        // A GPU that failed: nothing of it runs any more.
    }
}

void HotBuffer::load_kernels() {
    for (const HotGroup &g : geometry_.groups) {
        const auto module = device_->module(geometry_.spec(g, kSource));
        Kernels k{module->function("sac_resolve"),
                  module->function("sac_prefetch"),
                  module->function("sac_replay"),
                  module->function("sac_append"),
                  module->function("sac_load"),
                  module->function("sac_reset"),
                  module->function("sac_scatter"),
                  geometry_.resolve_bytes(g),
                  geometry_.block_bytes(g, geometry_.options.top_k),
                  geometry_.block_bytes(g, HOT_APPEND_MAX),
                  nullptr,
                  nullptr};
        k.resolve.allow_shared(k.resolve_shared);
        k.prefetch.allow_shared(k.prefetch_shared);
        k.append.allow_shared(k.append_shared);
        kernels_.push_back(std::move(k));
    }
}

void HotBuffer::make_staging() {
    for (const HotGroup &g : geometry_.groups) {
        PlanShape shape;
        shape.lanes = g.lanes, shape.top_k = geometry_.options.top_k;
        shape.threads = geometry_.threads, shape.page_units = g.page_units;
        for (const HotPlaneShape &p : g.planes)
            shape.planes.push_back({p.unit_bytes, p.pool_pitch, p.slot_pitch});
        Kernels &k = kernels_[static_cast<std::size_t>(&g - geometry_.groups.data())];
        for (auto *const each : {&k.now, &k.ahead})
            *each = std::make_unique<PlanStaging>(device_, shape, geometry_.options.threads);
    }
}

// Everything unbound, every lane without rows.
void HotBuffer::set_up() {
    const HotGeometry &g = geometry_;
    const std::uintptr_t stream = side_.number();
    tables_.fill8(0, 0, g.tables_bytes, stream);
    if (!g.options.cpu)
        shared_.fill8(0, 0, g.shared_bytes, stream);  // pinned memory is zeros
    for (const HotGroup &group : g.groups) {
        for (std::uint32_t first = 0; first < group.lanes; first += kGridMost)
            reset(group, first, std::min(kGridMost, group.lanes - first), HOT_RESET_FREE, 0,
                  true, stream);
    }
    auto &piece = staging_->take();
    for (std::uint32_t i = 0; i < g.options.requests; ++i)
        std::memcpy(piece.data + i * sizeof i, &i, sizeof i);
    staging_->send(piece, tables_.address() + g.numbers,
                   g.options.requests * sizeof(std::uint32_t), stream);
    tables_.fill8(g.counters, 0, g.tables_bytes - g.counters, stream);
    synchronize(*device_, stream);
}

std::unique_lock<std::mutex> HotBuffer::lock() const {
    device_->check_usable();
    std::unique_lock held(mutex_);
    if (closed_)
        throw Error(SAC_E_CLOSED, "hot buffer", "the hot buffer was closed");
    return held;
}

const HotBuffer::Kernels &HotBuffer::kernels(const HotGroup &g) const noexcept {
    return kernels_[static_cast<std::size_t>(&g - geometry_.groups.data())];
}

std::uint64_t HotBuffer::rows_address(const HotGroup &g, const HotPlaneShape &p,
                                      std::uint32_t layer) const noexcept {
    return rows_.address() + p.rows +
           static_cast<std::uint64_t>(g.ordinal[layer]) * p.layer_bytes;
}

HotStats HotBuffer::stats() {
    const Apart apart(*device_);
    const std::lock_guard reading(reading_);
    {
        const auto held = lock();
        poll();
    }
    const std::uint64_t bytes = geometry_.tables_bytes - geometry_.counters;
    tables_.copy_out(read_.data(), geometry_.counters, bytes, side_.number());
    synchronize(*device_, side_.number());
    HotStats out;
    std::memcpy(out.counters.data(), read_.data(), sizeof out.counters);
    out.errors.resize(geometry_.options.requests + 1);
    std::memcpy(out.errors.data(), read_.data() + (geometry_.errors - geometry_.counters),
                out.errors.size() * sizeof(std::uint32_t));
    return out;
}

// The extent that holds the memory is going. Copies that streams still have before them would
// bring its addresses back: they end first. What runs after the second wait sees dead pages.
void HotBuffer::going(const std::uint8_t *memory, std::uint64_t bytes) noexcept {
    if (device_->driver().forked())
        return;
    const std::lock_guard held(pages_mutex_);
    ++goings_;
    try {
        const Apart apart(*device_);
        const Driver &driver = device_->driver();
        // Refused while some stream is being captured: then what can be done is done.
        (void)driver.context_synchronize();
        for (std::uint32_t r = 0; r < bound_.size(); ++r)
            if (bound_[r])
                bound_[r]->drop(memory, bytes, [&](std::uint64_t first, std::uint64_t end) {
                    shared_.fill8(page_entry(r, first), 0,
                                  (end - first) * sizeof(std::uint64_t), side_.number());
                });
        synchronize(*device_, side_.number());
        (void)driver.context_synchronize();
    } catch (...) {
        // The context failed: no kernel of it runs any more.
    }
}

// In three steps: going(), which is told until remove() returns, needs what is freed at last. A
// GPU that failed runs nothing any more, and all is given back like ever.
void HotBuffer::close() {
    const Driver &driver = device_->driver();
    if (driver.forked())
        return;
    std::exception_ptr failed;
    {
        const std::lock_guard held(mutex_);
        if (closed_)
            return;
        closed_ = true;
        try {
            const Apart apart(*device_);
            driver.check(driver.context_synchronize(), "hot buffer", "wait for the GPU");
        } catch (const Error &) {
            failed = std::current_exception();
        }
    }
    if (registration_)
        registration_->remove(*this);
    const std::lock_guard reading(reading_);
    const std::lock_guard held(mutex_);
    std::optional<Apart> apart;
    if (!failed)
        apart.emplace(*device_);
    for (auto &request : bound_)
        request.reset();
    retired_.clear();
    kernels_.clear();
    staging_.reset();
    rows_ = {}, tables_ = {}, shared_ = {}, pinned_ = {}, read_ = {}, side_ = {};
    if (failed)
        std::rethrow_exception(failed);
}

}  // namespace sac::gpu
