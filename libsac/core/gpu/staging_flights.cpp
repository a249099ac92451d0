// SPDX-License-Identifier: Apache-2.0
#include "staging_flights.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "error.hpp"
#include "fork.hpp"

namespace sac::gpu {
namespace {

constexpr auto kLook = std::chrono::microseconds(500);

}  // namespace

struct Flights::State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Flight> flights;  // the first is being waited for
    std::uint64_t added = 0, landed = 0;
    bool ending = false;
    std::thread thread;
};

Flights::Flights(std::shared_ptr<Device> device)
    : device_(std::move(device)), state_(std::make_unique<State>()), epoch_(fork_epoch()) {}

Flights::~Flights() {
    if (epoch_ != fork_epoch()) {
        (void)state_.release();
        return;
    }
    drain();
    {
        const std::lock_guard lock(state_->mutex);
        state_->ending = true;
    }
    state_->changed.notify_all();
    if (state_->thread.joinable())
        state_->thread.join();
}

// A GPU that failed does nothing any more.
bool Flights::over(const Event &event, bool &well) noexcept {
    try {
        well = true;
        return event.done();
    } catch (const Error &) {
        well = false;
        return true;
    }
}

void Flights::add(std::shared_ptr<Event> event, std::function<void(bool)> landed) {
    State &s = *state_;
    {
        const std::lock_guard lock(s.mutex);
        try {
            if (!s.thread.joinable())
                s.thread = std::thread([this] { run(); });
            s.flights.push_back({event, landed});
            ++s.added;
            s.changed.notify_all();
            return;
        } catch (const std::system_error &) {
        }
    }
    bool well = true;
    while (!over(*event, well))
        std::this_thread::sleep_for(kLook);
    landed(well);
}

void Flights::drain() noexcept {
    if (epoch_ != fork_epoch())
        return;
    State &s = *state_;
    std::unique_lock lock(s.mutex);
    const std::uint64_t mark = s.added;
    s.changed.wait(lock, [&] { return s.landed >= mark; });
}

void Flights::quiet() noexcept {
    if (epoch_ != fork_epoch())
        return;
    std::vector<std::shared_ptr<Event>> events;
    {
        const std::lock_guard lock(state_->mutex);
        for (const Flight &f : state_->flights)
            events.push_back(f.event);
    }
    bool well = true;
    for (const auto &event : events)
        while (!over(*event, well))
            std::this_thread::sleep_for(kLook);
}

void Flights::run() noexcept {
    int mode = cuda::kCaptureRelaxed;
    (void)device_->driver().capture_mode(&mode);
    State &s = *state_;
    std::unique_lock lock(s.mutex);
    for (;;) {
        s.changed.wait(lock, [&s] { return s.ending || !s.flights.empty(); });
        if (s.flights.empty())
            return;
        // In turn: what was added later to a faster stream waits, which is no harm.
        const std::shared_ptr<Event> event = s.flights.front().event;
        lock.unlock();
        bool well = true;
        while (!over(*event, well))
            std::this_thread::sleep_for(kLook);
        lock.lock();
        Flight flight = std::move(s.flights.front());
        s.flights.pop_front();
        lock.unlock();
        flight.landed(well);
        flight = {};
        lock.lock();
        ++s.landed;
        s.changed.notify_all();
    }
}

}  // namespace sac::gpu
