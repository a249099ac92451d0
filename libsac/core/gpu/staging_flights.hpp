// SPDX-License-Identifier: Apache-2.0
// Work that was given to a stream, and what must stay until it has ended: a thread lets go of
// it then, half a millisecond late at most. No stream waits for that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "stream.hpp"

namespace sac::gpu {

class Flights {
public:
    explicit Flights(std::shared_ptr<Device> device);
    // Waits for the GPU.
    ~Flights();
    Flights(const Flights &) = delete;
    Flights &operator=(const Flights &) = delete;

    // landed runs when the event, recorded already, is there, with whether the work went well;
    // then it and all it holds is destroyed. It must not throw. If the thread cannot be
    // started: waits here.
    void add(std::shared_ptr<Event> event, std::function<void(bool)> landed);
    // Waits until all that was added before has landed.
    void drain() noexcept;
    // Waits for the events alone: whatever locks the caller has, nothing that lands needs them.
    void quiet() noexcept;

private:
    struct Flight {
        std::shared_ptr<Event> event;
        std::function<void(bool)> landed;
    };
    struct State;  // left alone in a forked child, where its thread is not
    void run() noexcept;
    static bool over(const Event &event, bool &well) noexcept;

    std::shared_ptr<Device> device_;
    std::unique_ptr<State> state_;
    std::uint64_t epoch_;
};

}  // namespace sac::gpu
