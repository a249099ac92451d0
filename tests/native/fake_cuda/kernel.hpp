// SPDX-License-Identifier: Apache-2.0
// How the fake driver runs a kernel: by a function of the same name, on the CPU, at once.
//   FAKE_KERNEL(sac_name, ArgumentStruct) { ... args, build, grid ... }
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>

namespace fake {

// What the module was compiled with.
struct Build {
    std::map<std::string, std::string> macros;
    // Aborts where the macro is missing or no number, as a compiler would stop.
    std::int64_t number(const std::string &macro) const;
};

struct Grid {
    unsigned x, y, z, threads;
};

struct Kernel {
    const char *name;
    void (*run)(void **arguments, const Build &build, const Grid &grid);
};
// Null where there is none.
const Kernel *find_kernel(const std::string &name);
bool add_kernel(const Kernel &kernel);

// A kernel touched memory that the GPU cannot reach.
struct IllegalAddress : std::exception {};

// Memory of the GPU, or of a test that stands for it.
template <class T> T *at(std::uint64_t address) { return reinterpret_cast<T *>(address); }
// Memory of the host: registered or pinned, all of it; else throws IllegalAddress.
std::uint8_t *pool(std::uint64_t address, std::uint64_t bytes, bool writing = false);

}  // namespace fake

#define FAKE_KERNEL(name, Arguments)                                                           \
    static void run_##name(const Arguments &args, const fake::Build &build,                    \
                           const fake::Grid &grid);                                            \
    [[maybe_unused]] static const bool added_##name = fake::add_kernel(                        \
        {#name, [](void **arguments, const fake::Build &build, const fake::Grid &grid) {       \
             run_##name(*static_cast<const Arguments *>(arguments[0]), build, grid);           \
         }});                                                                                  \
    static void run_##name([[maybe_unused]] const Arguments &args,                             \
                           [[maybe_unused]] const fake::Build &build,                          \
                           [[maybe_unused]] const fake::Grid &grid)
