// SPDX-License-Identifier: Apache-2.0
// One step of a lane: which selected units are there, which are fetched, and into which slots.
//
// All blocks of a lane plan alike, each for itself: no block waits for another. Block 0 writes
// the outcome; the next one, or block 0 where there are less than three, writes the next order
// into that half of `order` that is not in use; the others (early.cuh), or a block that is
// alone, copy. The block that read the state last, known by a count of arrivals, writes
// slot_token and turns the halves.
#ifndef SAC_HOTBUFFER_KERNELS_PLAN_CUH
#define SAC_HOTBUFFER_KERNELS_PLAN_CUH

#include "lane.cuh"
#include "numbers.cuh"
#include "planes.cuh"
#include "policy.cuh"
#include "scores.cuh"
#include "shared.cuh"

constexpr i32 GONE = i32(0x80000000);  // in unit_of: the unit's page is dead

template <Mode MODE> struct Step {
    const HotArgs &a;
    const Lane &lane;
    Shared<KP> s;
    Numbers numbers;
    u32 (*sums)[32];
    u32 &last;        // in shared memory: this block was the last to read the state
    HotState &state;  // in shared memory
    HotState read;    // thread 0

    static constexpr bool BOTH = NS <= 6;  // registers suffice for both halves of order
    static constexpr bool EARLY = !BOTH && MODE == RESOLVE;
    Vec<NS, u16> halves[2];  // of order
    u64 page[NK];            // of the entries' units
    Policy<MODE> policy;
    i32 *slot_token;
    u16 *next;          // the half of order to write
    Vec<NS, i32> held;  // units in this thread's slots
    u32 full;           // a bit a slot: it holds one
    Vec<NS, u8> hit;
    u32 errors, dead;  // dead: a bit an entry
    i32 id[NK];        // number of the unit of each entry, -1: none
    u32 found;         // distinct units selected
    u32 taken;         // units to fetch
    u32 candidates;    // as the policy counts them

    __device__ __forceinline__ Step(const HotArgs &args, const Lane &of, u8 *memory,
                                    u32 (*for_sums)[32], u32 &for_last, HotState &for_state)
        : a(args), lane(of), s(memory, Numbers::BYTES), numbers(s.numbers), sums(for_sums),
          last(for_last), state(for_state) {}
    __device__ __forceinline__ static bool writes_out() { return blockIdx.x == 0; }
    __device__ __forceinline__ static bool writes_order() {
        return blockIdx.x == (gridDim.x < 3 ? 0 : 1);
    }
    // Only loads: nothing waits for them here. Which half of order is valid is not known yet,
    // so both are loaded where there are registers for it; another block of this lane may be
    // writing the one that is thrown away.
    __device__ __forceinline__ void load_lane() {
        const u16 *order = reinterpret_cast<const u16 *>(a.order) + lane.lane * 2 * SP;
        slot_token = reinterpret_cast<i32 *>(a.slot_token) + lane.lane * SP;
        held = load<NS>(slot_token, threadIdx.x);
        if constexpr (BOTH) {
            halves[0] = load<NS>(order, threadIdx.x);
            halves[1] = load<NS>(order + SP, threadIdx.x);
        }
        // By one thread for all: this load bypasses L1, and those of all warps of all blocks
        // would queue for the same word.
        if (threadIdx.x == 0)
            read = load_state(reinterpret_cast<HotState *>(a.state) + lane.lane);
    }
    // Behind a barrier all threads have it.
    __device__ __forceinline__ void share_state() {
        if (threadIdx.x == 0)
            state = read;
    }
    // The pages of the entries' units: looked at late, to see whether they are dead, where
    // there are registers to keep them. The copy finds their addresses in L1.
    __device__ __forceinline__ void load_pages(const i32 (&unit)[NK]) {
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            page[j] = unit[j] >= 0 ? lane.pages[u32(unit[j]) / PAGE_UNITS] : 1;
        if (!BOTH)
            look_at_pages();
    }
    __device__ __forceinline__ void look_at_pages() {
        dead = 0;
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            dead |= u32(page[j] == 0) << j;
    }
    __device__ __forceinline__ void choose_half() {
        u16 *order = reinterpret_cast<u16 *>(a.order) + lane.lane * 2 * SP;
        const bool second = state.turn >> 16;
        if constexpr (BOTH) {
#pragma unroll
            for (u32 j = 0; j < NS; ++j)
                policy.words.v[j] = second ? halves[1].v[j] : halves[0].v[j];
        } else {
            policy.words = load<NS>(order + (second ? SP : 0), threadIdx.x);
        }
        next = order + (second ? 0 : SP);
        policy.counter = state.counter;
    }
    __device__ __forceinline__ Vec<NS, u8> find_hits() const {
        Vec<NS, u8> found_here;
#pragma unroll
        for (u32 j = 0; j < NS; ++j)
            found_here.v[j] = held.v[j] >= 0 && numbers.has(held.v[j]) ? HIT : 0;
        return found_here;
    }
    // Every thread of the block has its part of slot_token in registers: it may change.
    __device__ __forceinline__ void arrive() {
        if (threadIdx.x != 0)
            return;
        HotState *at = reinterpret_cast<HotState *>(a.state) + lane.lane;
        last = (atomicAdd(&at->turn, 1) & 0xffff) == gridDim.x - 1;
    }
    __device__ __forceinline__ void plan(const Entries &entries) {
        const u32 thread = threadIdx.x;
        errors = entries.errors;
        full = 0;
        numbers.mark(entries.unit, sums[0]);

        Scan scan;
        scan.begin(numbers.units.count(), sums[1]);
#pragma unroll
        for (u32 j = 0; j < NS; ++j)
            full |= u32(held.v[j] >= 0) << j;
        hit = find_hits();
        store<NS>(s.touched, thread, hit);
        __syncthreads();

        arrive();
        numbers.units.number_from(scan.end(sums[1], found));
        if (!EARLY)
            choose_half();
        const u32 waiting = policy.weigh(s.touched, sums[3]);
        __syncthreads();

        number_units(entries.unit);
        __syncthreads();

        // One scan for both: units to fetch among the numbers, candidates among the words.
        u32 missing = 0;
        const Vec<NK, u16> slots = load<NK>(s.slot_of, thread);
        const Vec<NK, i32> units = load<NK>(s.unit_of, thread);
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            missing |= u32(thread * NK + j < found && slots.v[j] == NONE && units.v[j] >= 0)
                       << j;
        const u32 both = __popc(missing) | waiting << 16;
        scan.begin(both, sums[2]);
        __syncthreads();
        u32 total;
        const u32 before = scan.end(sums[2], total);
        candidates = total >> 16;
        const u32 room = policy.room(candidates, sums[3]);
        taken = MODE == PREFETCH && room < (total & 0xffff) ? room : total & 0xffff;
        u32 rank = before & 0xffff;
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            if (missing >> j & 1) {
                s.missed[rank] = units.v[j];
                s.rank_of[thread * NK + j] = u16(rank++);
            }
        policy.choose(before >> 16, candidates, taken, s.victim,
                      writes_order() ? next : nullptr, s.list, s.touched);
        __syncthreads();
    }
    __device__ __forceinline__ void number_units(const i32 (&unit)[NK]) {
        if (BOTH)
            look_at_pages();
#pragma unroll
        for (u32 j = 0; j < NK; ++j) {
            id[j] = -1;
            if (unit[j] >= 0) {
                id[j] = i32(numbers.number(unit[j]));
                s.unit_of[id[j]] = dead >> j & 1 ? GONE : unit[j];
            }
        }
#pragma unroll
        for (u32 j = 0; j < NS; ++j)
            if (hit.v[j])
                s.slot_of[numbers.number(held.v[j])] = u16(threadIdx.x * NS + j);
    }
    // The slot of each entry: NONE for padding, and for units that have none.
    __device__ __forceinline__ u32 slot_of_entry(u32 j) const {
        if (id[j] < 0)
            return NONE;
        const u32 slot = s.slot_of[id[j]];
        if (slot != NONE || dead >> j & 1)
            return slot;
        const u32 rank = s.rank_of[id[j]];
        return rank < taken ? s.victim[rank] : NONE;
    }
    // Units to fetch from number `from` on, as far as they are this block's.
    __device__ __forceinline__ void copy(const Copier &copier, u32 from) const {
        if (from < taken)
            copy_units(a.planes, lane.pages, blockIdx.z, lane.lane, taken - from, copier.number,
                       copier.all, [&](u32 m, u32 &unit, u32 &slot) {
                           unit = s.missed[from + m];
                           slot = s.victim[from + m];
                       });
    }
    __device__ __forceinline__ void write_out() {
        Vec<NK, i32> where;
#pragma unroll
        for (u32 j = 0; j < NK; ++j) {
            const u32 slot = slot_of_entry(j);
            where.v[j] = slot == NONE ? -1 : i32(lane.lane * SLOTS + slot);
            if (id[j] >= 0 && slot == NONE)
                errors |= HOT_E_PAGE;
        }
        Entries::write(a, lane, where);
    }
    __device__ __forceinline__ void write_plan() {
        HotPlan *plan = lane.plan(a);
        if (plan == nullptr)
            return;
        HotMove *moves = reinterpret_cast<HotMove *>(plan + 1);
        if (threadIdx.x == 0)
            plan->count = taken;
        for (u32 m = threadIdx.x; m < taken; m += THREADS)
            moves[m] = HotMove{s.missed[m], s.victim[m]};
    }
    // The rest of the next order, and the counters.
    __device__ __forceinline__ void write_order() {
        policy.advance(candidates, taken, s.victim);
        for (u32 m = threadIdx.x; m < taken; m += THREADS)
            s.touched[s.victim[m]] |= TAKEN;
        __syncthreads();
        const Vec<NS, u8> touched = load<NS>(s.touched, threadIdx.x);
        u32 to_end = 0, evicted = 0;
#pragma unroll
        for (u32 j = 0; j < NS; ++j) {
            to_end += (touched.v[j] & policy.to_end()) != 0;
            evicted += touched.v[j] & TAKEN && full >> j & 1;
        }
        Scan scan;
        scan.begin(to_end | evicted << 16, sums[4]);
        __syncthreads();
        u32 total;
        const u32 rank = scan.end(sums[4], total) & 0xffff;
        if (POLICY == HOT_LRU_SCORE && MODE != APPEND)
            write_by_score(next + SLOTS - (total & 0xffff), total & 0xffff);
        else
            policy.finish(touched, rank, total & 0xffff, next);
        if (threadIdx.x == 0)
            count_step(total >> 16);
    }
    __device__ __forceinline__ void count_step(u32 evicted) {
        if (MODE == RESOLVE) {
            count(a, HOT_HITS, SLOTS - candidates - policy.other_total);
            count(a, HOT_MISSES, taken);
        } else {
            count(a, HOT_PREFETCHED, taken);
        }
        count(a, HOT_BYTES, u64(taken) * GROUP_BYTES);
        count(a, HOT_EVICTIONS, evicted);
        count(a, HOT_KEPT, taken - evicted);
    }
    // The units hit and taken, lowest score first, then lowest slot, to the list's end.
    __device__ __forceinline__ void write_by_score(u16 *end, u32 total) {
        const float *scores = reinterpret_cast<const float *>(a.scores);
        for (u32 i = threadIdx.x; i < s.KEYS; i += THREADS)
            s.keys[i] = 0;
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            if (id[j] >= 0 && scores != nullptr)
                atomicMax(&s.keys[id[j]],
                          u64(ordered(scores[lane.row(a) + threadIdx.x * NK + j])) << 16);
#pragma unroll
        for (u32 j = 0; j < NK; ++j)
            if (id[j] >= 0) {
                const u32 slot = slot_of_entry(j);
                // Duplicates write the same.
                if (slot != NONE)
                    s.unit_of[id[j]] = i32(slot);
                else
                    s.unit_of[id[j]] = GONE;
            }
        __syncthreads();
        for (u32 i = threadIdx.x; i < s.KEYS; i += THREADS)
            s.keys[i] =
                i < found && s.unit_of[i] != GONE ? s.keys[i] | u32(s.unit_of[i]) : ~0ull;
        __syncthreads();
        Sort<Shared<KP>::KEYS> sort;
        sort.run(s.keys);
        __syncthreads();
        for (u32 i = threadIdx.x; i < total; i += THREADS) {
            const u32 slot = u32(s.keys[i]) & SLOT;
            const u8 t = s.touched[slot];
            next[SLOTS - total + i] =
                u16(slot | (MODE == RESOLVE || t & WAS_USED ? u32(USED) : 0u));
        }
    }
    // The last block that read the state.
    __device__ __forceinline__ void write_state() {
        for (u32 m = threadIdx.x; m < taken; m += THREADS)
            slot_token[s.victim[m]] = s.missed[m];
        if (threadIdx.x == 0) {
            HotState *at = reinterpret_cast<HotState *>(a.state) + lane.lane;
            at->counter = policy.counter;
            at->turn = (state.turn & 0x10000) ^ 0x10000;
        }
    }
};

#endif
