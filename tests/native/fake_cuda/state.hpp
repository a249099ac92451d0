// SPDX-License-Identifier: Apache-2.0
// What the fake driver knows, and what a test can make it do.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace fake {

struct Registered {
    std::size_t bytes;
    bool read_only;
};

struct State {
    std::mutex mutex;
    std::mutex working;  // what streams do to memory: one thing at a time, whatever the stream
    std::condition_variable changed;
    std::map<std::uintptr_t, Registered> host;     // registered, by first byte
    std::map<std::uintptr_t, std::size_t> device;  // allocated
    std::map<std::string, long> knobs;
    pid_t pid = 0;        // that initialised the driver
    bool broken = false;  // an illegal address: nothing works any more
};

State &state();

// Knobs that tests turn, and counters that they read, by name:
//   devices, same_address, read_only, can_register   what the GPU is and can
//   refuse_after  bytes that can be registered; refuse_result: with what it ends
//   slow_ms       how long a registration takes; slow_end_ms: its end
//   device_bytes  of memory
//   hold_events   1: events recorded now are not done before it is 0 again
//   capturing     what streams say
//   compiles, launches, registrations, registered_bytes, allocated_bytes, waits
long get(const char *knob);
void set(const char *knob, long value);
void add(const char *knob, long value);

}  // namespace fake
