// SPDX-License-Identifier: Apache-2.0
// hot.cu and gather.cu on a CPU, as a library that tests load. Compiled with the macros of
// args.h.
#include "cuda_on_cpu.hpp"

#include <algorithm>
#include <string_view>

// The dynamic shared memory, which the kernels declare by these names.
alignas(16) thread_local unsigned char memory[256 << 10];
alignas(16) thread_local unsigned char append_memory[256 << 10];

#ifdef SAC_GATHER
#include "gather.cu"
#else
#include "hot.cu"
#endif

namespace {
template <class Args>
void launch(void (*kernel)(Args), unsigned threads, Index3 grid, const void *args,
            std::uint64_t seed) {
    Args a;
    std::memcpy(&a, args, sizeof a);
    gridDim = grid;
    std::mt19937_64 random(seed);
    std::vector<Index3> blocks;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x)
                blocks.push_back({x, y, z});
    std::shuffle(blocks.begin(), blocks.end(), random);
    on_cpu::Block block(threads, seed + 1);
    for (const Index3 &b : blocks) {
        // What a block finds in shared memory means nothing.
        std::memset(memory, 0xa5, sizeof memory);
        std::memset(append_memory, 0xa5, sizeof append_memory);
        blockIdx = b;
        block.run([&] { kernel(a); });
    }
}
}  // namespace

// 0, or 1 for a name that is not known.
extern "C" int sac_on_cpu(const char *name, unsigned x, unsigned y, unsigned z,
                          const void *args, std::uint64_t seed) {
    const std::string_view is = name;
    const Index3 grid{x, y, z};
#ifdef SAC_GATHER
    if (is == "sac_gather")
        return launch(sac_gather, SAC_THREADS, grid, args, seed), 0;
#else
    if (is == "sac_resolve")
        return launch(sac_resolve, SAC_THREADS, grid, args, seed), 0;
    if (is == "sac_prefetch")
        return launch(sac_prefetch, SAC_THREADS, grid, args, seed), 0;
    if (is == "sac_replay")
        return launch(sac_replay, SAC_THREADS, grid, args, seed), 0;
    if (is == "sac_append")
        return launch(sac_append, SAC_THREADS, grid, args, seed), 0;
    if (is == "sac_load")
        return launch(sac_load, SAC_THREADS, grid, args, seed), 0;
    if (is == "sac_reset")
        return launch(sac_reset, SAC_THREADS, grid, args, seed), 0;
    if (is == "sac_scatter")
        return launch(sac_scatter, SAC_THREADS, grid, args, seed), 0;
#endif
    return 1;
}

#define SIZE(type) extern "C" const unsigned size_of_##type = sizeof(type);
SIZE(HotArgs)
SIZE(HotAppend)
SIZE(HotLoad)
SIZE(HotReset)
SIZE(HotScatter)
SIZE(HotGather)
extern "C" unsigned sac_shared_bytes(unsigned top_k) {
    return hot_shared_bytes(SAC_SLOTS, top_k, SAC_THREADS, SAC_UNITS_MAX, SAC_POLICY);
}
extern "C" unsigned sac_early_bytes() {
    return hot_early_bytes(SAC_TOP_K, SAC_THREADS, SAC_UNITS_MAX);
}
extern "C" unsigned sac_plan_bytes() { return hot_plan_bytes(SAC_TOP_K, SAC_THREADS); }
extern "C" unsigned sac_threads() { return hot_threads(SAC_SLOTS, SAC_TOP_K); }
