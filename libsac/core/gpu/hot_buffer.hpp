// SPDX-License-Identifier: Apache-2.0
// The hot buffer: rows of the pool in GPU memory, an exact cache a lane and layer that one
// kernel fills. All that changes between steps lies in GPU memory and is changed by small
// copies in the order of a stream, so a captured graph stays right; no call waits for the GPU.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "hot_geometry.hpp"
#include "hot_request.hpp"
#include "hot_staging.hpp"
#include "module.hpp"
#include "staging_plan.hpp"

namespace sac::gpu {

// A launch for one group and layer. Addresses are of the GPU.
struct HotCall {
    std::uint32_t group = 0, layer = 0;
    std::uint32_t batch = 0;   // requests named
    std::uint32_t top_k = 0;   // entries of each selection
    std::uint32_t blocks = 0;  // thread blocks a lane; 0: chosen
    bool plan_only = false;
    bool plans = false;           // writes the plan, or goes by it, also where nobody follows
    std::uint64_t requests = 0;   // i32[batch]
    std::uint64_t selection = 0;  // i32[batch][heads][top_k]
    std::uint64_t scores = 0;     // f32, as selection; policy LRU_SCORE only
    std::uint64_t out = 0;        // i32, as selection
    std::uintptr_t stream = 0;
};

// Where new rows of a plane lie; strides in bytes.
struct HotRows {
    std::uint32_t plane;
    HotSource source;
};

struct HotStats {
    std::array<std::uint64_t, HOT_COUNTERS> counters;
    std::vector<std::uint32_t> errors;  // by request; the last: of no request
};

class HotBuffer final : public RegistrationUser {
public:
    // Registers the pool with CUDA, where that was not done, and waits for it up to timeout_ms;
    // compiles the kernels. Throws Error: as HotGeometry, SAC_E_GPU, SAC_E_BUSY.
    HotBuffer(std::shared_ptr<Device> device, std::shared_ptr<Namespace> ns,
              const HotOptions &options, std::uint64_t timeout_ms);
    // Waits for the GPU.
    ~HotBuffer() override;

    const HotGeometry &geometry() const noexcept { return geometry_; }
    const Device &device() const noexcept { return *device_; }
    std::uint64_t rows_address(const HotGroup &g, const HotPlaneShape &p,
                               std::uint32_t layer) const noexcept;

    // These go into the stream, which must not be capturing. Errors leave the request as it
    // was. Throw Error: SAC_E_ARG, SAC_E_RANGE, SAC_E_CLOSED, SAC_E_GPU, SAC_E_BUSY.
    void bind(std::uint32_t request, std::shared_ptr<Prefix> prefix, bool direct,
              std::uintptr_t stream);
    void extend(std::span<const std::uint32_t> requests, std::uintptr_t stream);
    void truncate(std::uint32_t request, std::uint64_t tokens, std::uintptr_t stream);
    void written(std::span<const std::uint32_t> requests, std::uintptr_t stream);
    void release(std::uint32_t request, std::uintptr_t stream);
    // Dead pages of bound requests; their addresses are 0 from here in the stream.
    std::uint64_t refresh(std::uintptr_t stream);

    // One launch each; can be captured.
    void resolve(const HotCall &call);
    void prefetch(const HotCall &call);
    void replay(const HotCall &call);
    // first: i32[batch], number of the first new row, -1: none; or 0: the last ones.
    void append(const HotCall &call, std::uint64_t first, std::uint32_t count,
                std::span<const HotRows> rows);

    // Read by a stream of its own: nothing waits for it but the caller.
    HotStats stats();
    // Waits for the GPU, ends all requests. Launches are refused from then on.
    void close();

    void going(const std::uint8_t *memory, std::uint64_t bytes) noexcept override;

private:
    // For the registration of an extent that came a moment ago.
    static constexpr std::uint64_t kRegisterMs = 60000;

    struct Kernels {
        Function resolve, prefetch, replay, append, load, reset, scatter;
        std::uint32_t resolve_shared, prefetch_shared, append_shared;
        // On the CPU's path: of resolve and replay, of prefetch.
        std::unique_ptr<PlanStaging> now, ahead;
    };
    struct Retired {
        std::unique_ptr<HotRequestState> request;
        Event event;
    };

    void load_kernels();
    void make_staging();
    void set_up();
    std::unique_lock<std::mutex> lock() const;
    void check_stream(std::uintptr_t stream, const char *what) const;
    void check_request(std::uint32_t request) const;
    HotRequestState &bound(std::uint32_t request);
    std::vector<std::uint32_t> distinct(std::span<const std::uint32_t> requests);
    void check_source(const std::shared_ptr<Prefix> &prefix) const;
    void check_length(std::uint64_t tokens) const;
    void poll() noexcept;
    void retire(std::uint32_t request, std::uintptr_t stream);

    void set_entry(std::uint32_t request);
    void update_pages(std::uint32_t request, std::uint64_t timeout_ms, std::uintptr_t stream);
    std::uint64_t page_entry(std::uint32_t request, std::uint64_t page) const noexcept;
    void send_pages(std::uint32_t request, std::uint64_t first, std::uint64_t end,
                    std::uintptr_t stream);
    void send_entries(std::uint32_t first, std::uint32_t last, std::uintptr_t stream);
    void reset(const HotGroup &g, std::uint32_t first_lane, std::uint32_t lanes,
               HotResetMode mode, std::uint64_t units, bool is_new, std::uintptr_t stream);
    void reset(const HotGroup &g, std::uint32_t request, HotResetMode mode, std::uint64_t units,
               std::uintptr_t stream) {
        reset(g, request * g.heads, g.heads, mode, units, false, stream);
    }
    void load(const HotGroup &g, std::uint32_t request, std::uint64_t first, std::uint64_t end,
              std::uintptr_t stream);
    void leave_direct(HotRequestState &state) const;
    void drop_cut(std::uint32_t request, std::uintptr_t stream);
    void take_written(std::uint32_t request, std::uintptr_t stream);
    std::vector<std::uint32_t> planes() const;  // of all groups

    HotArgs arguments(const HotGroup &g, const HotCall &call) const;
    Launch shape(const HotGroup &g, const HotCall &call) const;
    void check_call(const HotGroup &g, const HotCall &call, bool selects) const;
    void fetch(const HotGroup &g, const HotCall &call, PlanStaging &staging);
    void scatter(const HotGroup &g, const HotCall &call, PlanStaging &staging);
    const Kernels &kernels(const HotGroup &g) const noexcept;
    Address shared() const noexcept {
        return geometry_.options.cpu ? pinned_.address() : shared_.address();
    }

    std::shared_ptr<Device> device_;
    std::shared_ptr<Namespace> ns_;
    std::shared_ptr<Registration> registration_;  // none on the CPU's path
    const Mapping *data_;
    HotGeometry geometry_;
    DeviceBuffer rows_, tables_, shared_;
    PinnedBuffer pinned_;           // instead of shared_, on the CPU's path
    std::vector<Kernels> kernels_;  // by group
    Stream side_;
    PinnedBuffer read_;  // of counters and errors
    std::unique_ptr<HotStaging> staging_;

    std::mutex reading_;  // taken before the next
    mutable std::mutex mutex_;
    // The last of all, the pool's included, for going() takes it: which requests are bound, and
    // what the GPU is told of their pages.
    std::mutex pages_mutex_;
    std::atomic<std::uint64_t> goings_{0};
    std::vector<HotRequest> table_;  // [groups][requests], as in the GPU
    std::vector<std::unique_ptr<HotRequestState>> bound_;
    std::vector<Retired> retired_;
    bool closed_ = false;
};

}  // namespace sac::gpu
