// SPDX-License-Identifier: Apache-2.0
#include "state.hpp"

#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "kernel.hpp"

namespace fake {
namespace {

std::map<std::string, Kernel> &kernels() {
    static auto *const all = new std::map<std::string, Kernel>;
    return *all;
}

}  // namespace

State &state() {
    static auto *const it = [] {
        auto *const s = new State;
        s->knobs = {{"devices", 1},
                    {"same_address", 1},
                    {"read_only", 1},
                    {"can_register", 1},
                    {"refuse_after", -1},
                    {"refuse_result", 1},
                    {"device_bytes", 1L << 30}};
        return s;
    }();
    return *it;
}

long get(const char *knob) {
    const std::lock_guard lock(state().mutex);
    return state().knobs[knob];
}

void set(const char *knob, long value) {
    {
        const std::lock_guard lock(state().mutex);
        state().knobs[knob] = value;
    }
    state().changed.notify_all();
}

void add(const char *knob, long value) {
    const std::lock_guard lock(state().mutex);
    state().knobs[knob] += value;
}

bool add_kernel(const Kernel &kernel) {
    kernels()[kernel.name] = kernel;
    return true;
}

const Kernel *find_kernel(const std::string &name) {
    const auto it = kernels().find(name);
    return it == kernels().end() ? nullptr : &it->second;
}

std::int64_t Build::number(const std::string &macro) const {
    const auto it = macros.find(macro);
    char *end = nullptr;
    const long long value = it == macros.end() ? 0 : std::strtoll(it->second.c_str(), &end, 0);
    if (it == macros.end() || end == it->second.c_str() || *end != '\0') {
        std::fprintf(stderr, "fake CUDA: the kernels were compiled without a number %s\n",
                     macro.c_str());
        std::abort();
    }
    return value;
}

std::uint8_t *pool(std::uint64_t address, std::uint64_t bytes, bool writing) {
    const std::lock_guard lock(state().mutex);
    std::uint64_t at = address;
    const std::uint64_t end = address + bytes;
    auto it = state().host.upper_bound(at);
    if (it == state().host.begin())
        throw IllegalAddress{};
    for (--it; it != state().host.end() && it->first <= at; ++it) {
        if (writing && it->second.read_only)
            throw IllegalAddress{};
        if (at < it->first + it->second.bytes)
            at = it->first + it->second.bytes;
        if (at >= end)
            return reinterpret_cast<std::uint8_t *>(address);
    }
    throw IllegalAddress{};
}

}  // namespace fake

FAKE_API long fake_cuda_get(const char *knob) { return fake::get(knob); }
FAKE_API void fake_cuda_set(const char *knob, long value) { fake::set(knob, value); }
