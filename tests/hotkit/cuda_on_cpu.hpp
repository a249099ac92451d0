// SPDX-License-Identifier: Apache-2.0
// Enough of CUDA C++ to run the hot buffer's kernels on a CPU, one block at a time: every
// thread of a block is a fiber. Between two points where threads wait for one another they run
// one after another in an order drawn from a seed, so that a missing barrier shows as a wrong
// result in some of the orders. Threads that wait for others that never come end the process.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <ucontext.h>
#include <vector>

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __shared__ thread_local
#define __align__(n) __attribute__((aligned(n)))

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct Index3 {
    unsigned x, y, z;
};
inline Index3 threadIdx, blockIdx, gridDim;

namespace on_cpu {

enum class Wait { no, barrier, warp, done };
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Wait wait;
    std::uint64_t value, result;
};
constexpr std::size_t kStack = 128 << 10;

class Block {
public:
    Block(unsigned threads, std::uint64_t seed) : random_(seed), fibers_(threads) {
        for (auto &f : fibers_)
            f.stack = std::make_unique<char[]>(kStack);
    }
    void run(const std::function<void()> &kernel) {
        kernel_ = &kernel;
        self() = this;
        for (auto &f : fibers_) {
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack.get();
            f.context.uc_stack.ss_size = kStack;
            f.context.uc_link = &main_;
            f.wait = Wait::no;
            makecontext(&f.context, &Block::enter, 0);
        }
        std::vector<unsigned> order(fibers_.size());
        for (unsigned i = 0; i < order.size(); ++i)
            order[i] = i;
        while (true) {
            std::shuffle(order.begin(), order.end(), random_);
            bool ran = false;
            for (unsigned i : order)
                if (fibers_[i].wait == Wait::no) {
                    ran = true;
                    now_ = i;
                    threadIdx = {i, 0, 0};
                    swapcontext(&main_, &fibers_[i].context);
                }
            if (!ran && !release())
                return;
        }
    }
    // What `how` makes of the values of the waiting threads, one result each.
    std::uint64_t meet(Wait wait, std::uint64_t value) {
        Fiber &f = fibers_[now_];
        f.wait = wait;
        f.value = value;
        const unsigned me = now_;
        swapcontext(&f.context, &main_);
        (void)me;
        return fibers_[now_].result;
    }
    const Fiber &lane(unsigned i) const { return fibers_[now_ / 32 * 32 + i]; }
    unsigned now() const { return now_; }
    static Block *&self() {
        static Block *block;
        return block;
    }

private:
    static void enter() {
        (*self()->kernel_)();
        self()->fibers_[self()->now_].wait = Wait::done;
    }
    // Lets go whole warps that met, or the whole block at a barrier. False: all are done.
    bool release() {
        bool any = false;
        for (unsigned w = 0; w < fibers_.size(); w += 32) {
            bool all = true;
            for (unsigned i = w; i < w + 32; ++i)
                all &= fibers_[i].wait == Wait::warp;
            if (!all)
                continue;
            any = true;
            for (unsigned i = w; i < w + 32; ++i) {
                fibers_[i].wait = Wait::no;
                fibers_[i].result = 0;
            }
        }
        if (any)
            return true;
        unsigned barrier = 0, done = 0;
        std::uint64_t either = 0;
        for (auto &f : fibers_) {
            barrier += f.wait == Wait::barrier;
            done += f.wait == Wait::done;
            either |= f.value;
        }
        if (done == fibers_.size())
            return false;
        if (barrier != fibers_.size()) {
            std::fprintf(
                stderr,
                "threads wait for others that never come: %u of %zu at a barrier, %u done\n",
                barrier, fibers_.size(), done);
            std::abort();
        }
        for (auto &f : fibers_) {
            f.wait = Wait::no;
            f.result = either;
        }
        return true;
    }
    std::mt19937_64 random_;
    std::vector<Fiber> fibers_;
    const std::function<void()> *kernel_ = nullptr;
    ucontext_t main_{};
    unsigned now_ = 0;
};

// The values of a warp's threads, in each of them. A second meeting keeps a thread from
// leaving its next value before all have read this one.
template <class F> auto among(std::uint64_t value, const F &combine) {
    Block &block = *Block::self();
    block.meet(Wait::warp, value);
    const auto result = combine(block);
    block.meet(Wait::warp, value);
    return result;
}

}  // namespace on_cpu

inline void __syncthreads() { on_cpu::Block::self()->meet(on_cpu::Wait::barrier, 0); }
inline int __syncthreads_or(int p) {
    return on_cpu::Block::self()->meet(on_cpu::Wait::barrier, p != 0) != 0;
}
inline unsigned __shfl_up_sync(unsigned, unsigned value, unsigned by) {
    return on_cpu::among(value, [by](on_cpu::Block &b) {
        const unsigned lane = b.now() % 32;
        return static_cast<unsigned>(b.lane(lane >= by ? lane - by : lane).value);
    });
}
inline unsigned long long __shfl_xor_sync(unsigned, unsigned long long value, unsigned with) {
    return on_cpu::among(value, [with](on_cpu::Block &b) {
        return static_cast<unsigned long long>(b.lane((b.now() % 32) ^ with).value);
    });
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
    return on_cpu::among(value, [](on_cpu::Block &b) {
        unsigned sum = 0;
        for (unsigned i = 0; i < 32; ++i)
            sum += static_cast<unsigned>(b.lane(i).value);
        return sum;
    });
}
inline unsigned __ballot_sync(unsigned, bool value) {
    return on_cpu::among(value, [](on_cpu::Block &b) {
        unsigned bits = 0;
        for (unsigned i = 0; i < 32; ++i)
            bits |= static_cast<unsigned>(b.lane(i).value != 0) << i;
        return bits;
    });
}
template <class T, class V> T atomicAdd(T *at, V value) {
    const T old = *at;
    *at = static_cast<T>(old + static_cast<T>(value));
    return old;
}
template <class T, class V> T atomicOr(T *at, V value) {
    const T old = *at;
    *at = old | static_cast<T>(value);
    return old;
}
template <class T> T atomicMax(T *at, T value) {
    const T old = *at;
    if (value > old)
        *at = value;
    return old;
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned __float_as_uint(float v) {
    unsigned bits;
    std::memcpy(&bits, &v, sizeof bits);
    return bits;
}
