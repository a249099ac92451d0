// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's names: memory of the GPU (the process's own), and registered memory.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>

#include "calls.hpp"

namespace {

using namespace sac::gpu;
using fake::state;

// How far from `at` the process has memory mapped, to read or also to write.
std::uintptr_t mapped_until(std::uintptr_t at, bool writing) {
    std::FILE *const maps = std::fopen("/proc/self/maps", "re");
    if (!maps)
        return 0;
    char line[512], rights[8];
    std::uintptr_t from = 0, to = 0;
    while (std::fgets(line, sizeof line, maps))
        if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &from, &to, rights) == 3 &&
            from <= at && at < to && rights[0] == 'r' && (!writing || rights[1] == 'w'))
            at = to;
    std::fclose(maps);
    return at;
}

bool inside(std::uintptr_t at) {
    auto it = state().host.upper_bound(at);
    return it != state().host.begin() &&
           at < std::prev(it)->first + std::prev(it)->second.bytes;
}

}  // namespace

FAKE_API Result cuMemAlloc_v2(Address *address, std::size_t bytes) {
    if (const Result result = fake::entry(true))
        return result;
    const std::lock_guard lock(state().mutex);
    long &held = state().knobs["allocated_bytes"];
    if (bytes == 0)
        return cuda::kInvalidValue;
    if (held + static_cast<long>(bytes) > state().knobs["device_bytes"])
        return cuda::kOutOfMemory;
    void *const p = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    std::memset(p, 0xa5, bytes);  // whoever counts on zeros finds none
    state().device[reinterpret_cast<std::uintptr_t>(p)] = bytes;
    held += static_cast<long>(bytes);
    *address = reinterpret_cast<std::uintptr_t>(p);
    return 0;
}
FAKE_API Result cuMemFree_v2(Address address) {
    const Result result = fake::entry(true);
    if (!fake::ends(result))
        return result;
    const std::lock_guard lock(state().mutex);
    const auto it = state().device.find(address);
    if (it == state().device.end())
        return cuda::kInvalidValue;
    state().knobs["allocated_bytes"] -= static_cast<long>(it->second);
    state().device.erase(it);
    std::free(reinterpret_cast<void *>(address));
    return result;
}
FAKE_API Result cuMemGetInfo_v2(std::size_t *free, std::size_t *total) {
    if (const Result result = fake::entry(true))
        return result;
    const std::lock_guard lock(state().mutex);
    *total = static_cast<std::size_t>(state().knobs["device_bytes"]);
    *free = *total - static_cast<std::size_t>(state().knobs["allocated_bytes"]);
    return 0;
}

FAKE_API Result cuMemHostRegister_v2(void *memory, std::size_t bytes, unsigned flags) {
    if (const Result result = fake::entry(true))
        return result;
    if (const long ms = fake::get("slow_ms"))
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    const std::lock_guard lock(state().mutex);
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    const bool read_only = (flags & cuda::kRegisterReadOnly) != 0;
    const auto next = state().host.lower_bound(at);
    if ((next != state().host.end() && next->first < at + bytes) || inside(at))
        return cuda::kAlreadyRegistered;
    if (bytes == 0 || mapped_until(at, !read_only) < at + bytes)
        return cuda::kInvalidValue;
    auto &knobs = state().knobs;
    if (knobs["refuse_after"] >= 0 &&
        knobs["registered_bytes"] + static_cast<long>(bytes) > knobs["refuse_after"])
        return static_cast<Result>(knobs["refuse_result"]);
    state().host[at] = {bytes, read_only};
    knobs["registered_bytes"] += static_cast<long>(bytes);
    ++knobs["registrations"];
    knobs["most_at_once"] = std::max(knobs["most_at_once"], static_cast<long>(bytes));
    return 0;
}
FAKE_API Result cuMemHostUnregister(void *memory) {
    if (const Result result = fake::entry(true))
        return result;
    if (const long ms = fake::get("slow_end_ms"))
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    const std::lock_guard lock(state().mutex);
    const auto it = state().host.find(reinterpret_cast<std::uintptr_t>(memory));
    if (it == state().host.end())
        return cuda::kNotRegistered;
    state().knobs["registered_bytes"] -= static_cast<long>(it->second.bytes);
    ++state().knobs["unregistrations"];
    // Whether it was done before the memory went.
    if (mapped_until(it->first, false) < it->first + it->second.bytes)
        ++state().knobs["unregistered_late"];
    state().host.erase(it);
    return 0;
}
FAKE_API Result cuMemHostAlloc(void **memory, std::size_t bytes, unsigned) {
    if (const Result result = fake::entry(true))
        return result;
    const std::size_t room = (bytes + 4095) / 4096 * 4096;
    *memory = std::aligned_alloc(4096, room);
    std::memset(*memory, 0xa5, room);
    const std::lock_guard lock(state().mutex);
    state().host[reinterpret_cast<std::uintptr_t>(*memory)] = {bytes, false};
    return 0;
}
FAKE_API Result cuMemFreeHost(void *memory) {
    const Result result = fake::entry(true);
    if (!fake::ends(result))
        return result;
    const std::lock_guard lock(state().mutex);
    if (state().host.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0)
        return cuda::kInvalidValue;
    std::free(memory);
    return result;
}
FAKE_API Result cuMemHostGetDevicePointer_v2(Address *address, void *memory, unsigned) {
    if (const Result result = fake::entry(true))
        return result;
    const std::lock_guard lock(state().mutex);
    if (!inside(reinterpret_cast<std::uintptr_t>(memory)))
        return cuda::kInvalidValue;
    *address = reinterpret_cast<std::uintptr_t>(memory);
    return 0;
}
FAKE_API Result cuPointerGetAttribute(void *value, int attribute, Address address) {
    if (const Result result = fake::entry(false))
        return result;
    const std::lock_guard lock(state().mutex);
    if (attribute != cuda::kPointerDevice || !inside(address))
        return cuda::kInvalidValue;
    std::memcpy(value, &address, sizeof address);
    return 0;
}

FAKE_API Result cuMemcpyHtoDAsync_v2(Address to, const void *from, std::size_t bytes,
                                     StreamHandle) {
    const Result result = fake::entry(true);
    const std::lock_guard lock(state().working);
    if (result == cuda::kSuccess)
        std::memcpy(reinterpret_cast<void *>(to), from, bytes);
    return result;
}
FAKE_API Result cuMemcpyDtoHAsync_v2(void *to, Address from, std::size_t bytes, StreamHandle) {
    const Result result = fake::entry(true);
    const std::lock_guard lock(state().working);
    if (result == cuda::kSuccess)
        std::memcpy(to, reinterpret_cast<const void *>(from), bytes);
    return result;
}
FAKE_API Result cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes,
                                     StreamHandle) {
    const Result result = fake::entry(true);
    const std::lock_guard lock(state().working);
    if (result == cuda::kSuccess)
        std::memmove(reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from), bytes);
    return result;
}
FAKE_API Result cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes,
                                StreamHandle) {
    const Result result = fake::entry(true);
    const std::lock_guard lock(state().working);
    if (result == cuda::kSuccess)
        std::memset(reinterpret_cast<void *>(to), value, bytes);
    return result;
}
FAKE_API Result cuMemsetD32Async(Address to, unsigned value, std::size_t count, StreamHandle) {
    const Result result = fake::entry(true);
    const std::lock_guard lock(state().working);
    if (result == cuda::kSuccess)
        for (std::size_t i = 0; i < count; ++i)
            reinterpret_cast<unsigned *>(to)[i] = value;
    return result;
}
