// SPDX-License-Identifier: Apache-2.0
// Which slots give way, and what is remembered about it. libsac/hotbuffer/policies.py says
// the same in NumPy; both agree bit for bit.
//
// A lane's `order` has SP words of 16 bits, of which each thread owns NS consecutive ones.
// LRU, FIFO and LRU with scores: the slots as a list, longest waiting first. Random and CLOCK:
// a word a slot. USED marks slots that the last resolve used; prefetch does not take them.
#ifndef SAC_HOTBUFFER_KERNELS_POLICY_CUH
#define SAC_HOTBUFFER_KERNELS_POLICY_CUH

#include "common.cuh"

enum Mode { RESOLVE, PREFETCH, APPEND };

constexpr u16 USED = 0x8000, SLOT = 0x7fff, REFERENCED = 1;
// What happens to a slot in this step, in `touched`.
constexpr u8 HIT = 1, WAS_USED = 2, TAKEN = 4;

constexpr bool LISTED = POLICY == HOT_LRU || POLICY == HOT_FIFO || POLICY == HOT_LRU_SCORE;
static_assert(LISTED || POLICY == HOT_RANDOM || POLICY == HOT_CLOCK, "SAC_POLICY");

// A bijection of 32-bit words in which each bit of the input moves half of the output's.
__device__ __forceinline__ u32 mix(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}
constexpr u64 STRIDE = 2147483647;  // prime, above any number of slots: all victims differ

template <Mode MODE> struct Policy {
    // Units used again stay where they are in the list.
    static constexpr bool STAY = POLICY == HOT_FIFO || MODE == APPEND;
    // A second count is needed beside that of the candidates.
    static constexpr bool TWO_COUNTS =
        POLICY == HOT_CLOCK || (LISTED && !STAY && MODE == PREFETCH);

    Vec<NS, u16> words;
    u32 counter;     // HotState.counter
    u32 candidates;  // a bit a word; CLOCK: those not referenced
    u32 others;      // PREFETCH on LRU: all that is not hit; CLOCK: candidates referenced
    u32 other_rank;  // of `others` before this thread
    u32 other_total;
    Scan scan;

    __device__ static __forceinline__ u32 first() { return threadIdx.x * NS; }
    __device__ __forceinline__ u32 slot(u32 j) const {
        return LISTED ? u32(words.v[j] & SLOT) : first() + j;
    }
    // Finds the candidates once `touched` says what is hit. In PREFETCH remembers for slots
    // that were hit whether they were in use. Returns how many this thread has.
    __device__ __forceinline__ u32 weigh(u8 *touched, u32 *sums) {
        candidates = others = 0;
#pragma unroll
        for (u32 j = 0; j < NS; ++j) {
            if (SLOTS % THREADS != 0 && first() + j >= SLOTS)
                continue;
            const bool hit = touched[slot(j)] & HIT, used = words.v[j] & USED;
            if (LISTED && MODE == PREFETCH && hit && used)
                touched[slot(j)] = HIT | WAS_USED;
            const bool waits = !hit && !(MODE == PREFETCH && used);
            const bool second = POLICY == HOT_CLOCK && words.v[j] & REFERENCED;
            candidates |= u32(waits && !second) << j;
            others |= u32(POLICY == HOT_CLOCK ? waits && second : !hit) << j;
        }
        if (TWO_COUNTS)
            scan.begin(__popc(others), sums);
        return __popc(candidates);
    }
    // Behind a barrier. `rank`: candidates before this thread; returns how many slots can be
    // taken, given how many candidates there are.
    __device__ __forceinline__ u32 room(u32 total, const u32 *sums) {
        other_rank = other_total = 0;
        if (TWO_COUNTS)
            other_rank = scan.end(sums, other_total);
        return POLICY == HOT_CLOCK ? total + other_total : total;
    }
    // The slots of `taken` units, in the units' order, to `victim`; lists also write what is
    // left of them to `next`, if it is not null. A barrier must follow.
    __device__ __forceinline__ void choose(u32 rank, u32 total, u32 taken, u16 *victim,
                                           u16 *next, u16 *list, u8 *touched) {
        if constexpr (LISTED)
            choose_listed(rank, taken, victim, next, touched);
        else if constexpr (POLICY == HOT_RANDOM)
            choose_random(rank, total, taken, victim, list);
        else
            choose_clock(rank, total, taken, victim);
    }
    __device__ __forceinline__ void choose_listed(u32 rank, u32 taken, u16 *victim, u16 *next,
                                                  const u8 *touched) {
#pragma unroll
        for (u32 j = 0; j < NS; ++j) {
            if (SLOTS % THREADS != 0 && first() + j >= SLOTS)
                continue;
            const bool candidate = candidates >> j & 1;
            const u32 gone = rank < taken ? rank : taken;  // taken at the positions before
            if (candidate && rank < taken) {
                victim[rank] = u16(slot(j));
            } else if (next != nullptr) {
                u16 word = words.v[j];
                if (MODE == RESOLVE)
                    word &= SLOT;
                if (STAY) {
                    if (MODE == RESOLVE && !candidate)
                        word |= USED;  // hit
                    next[first() + j - gone] = word;
                } else if (TWO_COUNTS ? others >> j & 1 : candidate) {
                    next[(TWO_COUNTS ? other_rank : rank) - gone] = word;
                }
            }
            rank += candidate;
            if (TWO_COUNTS)
                other_rank += others >> j & 1;
        }
    }
    // Victim k is candidate number (h + k * STRIDE) mod candidates, in the order of slots.
    __device__ __forceinline__ void choose_random(u32 rank, u32 total, u32 taken, u16 *victim,
                                                  u16 *list) {
#pragma unroll
        for (u32 j = 0; j < NS; ++j)
            if (candidates >> j & 1)
                list[rank++] = u16(first() + j);
        __syncthreads();
        const u64 h = mix(counter);
        for (u32 k = threadIdx.x; k < taken; k += THREADS)
            victim[k] = list[(h + k * STRIDE) % total];
        counter += 1;
    }
    // From the hand on those not referenced, then the referenced ones that the hand has passed.
    __device__ __forceinline__ void choose_clock(u32 rank, u32 total, u32 taken, u16 *victim) {
        __shared__ u32 at_hand[2];  // candidates before the hand
        if (counter / NS == threadIdx.x) {
            at_hand[0] = rank + __popc(candidates & below(counter % NS));
            at_hand[1] = other_rank + __popc(others & below(counter % NS));
        }
        __syncthreads();
        u32 other = other_rank;
#pragma unroll 1
        for (u32 j = 0; j < NS; ++j) {
            const bool ahead = first() + j >= counter;
            const u32 a = rank - at_hand[0] + (ahead ? 0 : total);
            const u32 b = total + other - at_hand[1] + (ahead ? 0 : other_total);
            if (candidates >> j & 1) {
                if (a < taken)
                    victim[a] = u16(first() + j);
                ++rank;
            } else if (others >> j & 1) {
                if (b < taken)
                    victim[b] = u16(first() + j);
                ++other;
            }
        }
    }
    // Behind that barrier, before `touched` has TAKEN: what CLOCK's hand passed, and where it
    // is.
    __device__ __forceinline__ void advance(u32 total, u32 taken, const u16 *victim) {
        if constexpr (POLICY == HOT_CLOCK) {
            if (taken == 0)
                return;
            const u32 last = victim[taken - 1], turn = last + (last < counter ? SLOTS : 0);
            u32 passed = 0;
#pragma unroll 1
            for (u32 j = 0; j < NS; ++j) {
                const u32 p = first() + j, at = p + (p < counter ? SLOTS : 0);
                passed |= u32(taken > total || at < turn) << j;
            }
            passed &= others;
#pragma unroll
            for (u32 j = 0; j < NS; ++j)
                words.v[j] &= u16(~(passed >> j & 1));
            counter = (last + 1) % SLOTS;
        }
    }
    // Behind a barrier behind the writes of TAKEN. Lists: the slots that go to the list's end,
    // in slot order; `rank`: of them before this thread, `total`: all. Others: the new words.
    __device__ __forceinline__ static constexpr u8 to_end() {
        return STAY ? TAKEN : HIT | TAKEN;
    }
    __device__ __forceinline__ void finish(const Vec<NS, u8> &touched, u32 rank, u32 total,
                                           u16 *next) const {
        u32 at = SLOTS - total + rank;
#pragma unroll
        for (u32 j = 0; j < NS; ++j) {
            if (SLOTS % THREADS != 0 && first() + j >= SLOTS)
                continue;
            const u8 t = touched.v[j];
            const bool fresh = t & (MODE == APPEND ? TAKEN : HIT | TAKEN);
            if constexpr (LISTED) {
                const bool used = MODE == RESOLVE || (MODE == PREFETCH && t & WAS_USED);
                if (t & to_end())
                    next[at++] = u16(first() + j) | (used ? USED : u16(0));
            } else {
                u16 word = words.v[j];
                if (MODE == RESOLVE)
                    word = u16((word & SLOT) | (fresh ? USED : 0));
                if (MODE != RESOLVE && t & TAKEN)
                    word &= SLOT;
                if (POLICY == HOT_CLOCK && fresh)
                    word |= REFERENCED;
                next[first() + j] = word;
            }
        }
    }
};

#endif
