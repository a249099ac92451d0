// SPDX-License-Identifier: Apache-2.0
// The planes of the group that this module is compiled for, and the copy of units from the
// pool to slots.
#ifndef SAC_HOTBUFFER_KERNELS_PLANES_CUH
#define SAC_HOTBUFFER_KERNELS_PLANES_CUH

#include "access.cuh"
#include "common.cuh"

constexpr u32 PIECE = 2048;  // bytes of a unit that one warp copies at a time

template <u32 P> struct Plane;
#define SAC_PLANE(N)                                                                           \
    template <> struct Plane<N> {                                                              \
        static constexpr u32 ROW_BYTES = SAC_ROW_BYTES_##N, UNIT_BYTES = SAC_UNIT_BYTES_##N,   \
                             POOL_PITCH = SAC_POOL_PITCH_##N, SLOT_PITCH = SAC_SLOT_PITCH_##N, \
                             ACCESS = SAC_ACCESS_##N;                                          \
        static constexpr u32 ROW_PITCH = POOL_PITCH / SAC_BLOCK;                               \
        static constexpr u32 ROW_ACCESS = access_of(ACCESS, ROW_BYTES, ROW_PITCH, 0);          \
        static constexpr u32 PIECES = (UNIT_BYTES + PIECE - 1) / PIECE;                        \
        static_assert((UNIT_BYTES | POOL_PITCH | SLOT_PITCH) % ACCESS == 0, "access");         \
        static_assert(POOL_PITCH % SAC_BLOCK == 0 && ROW_BYTES <= ROW_PITCH, "row pitch");     \
        static_assert(UNIT_BYTES <= POOL_PITCH && UNIT_BYTES <= SLOT_PITCH, "unit bytes");     \
    };
#if SAC_PLANES < 1 || SAC_PLANES > SAC_GROUP_PLANES
#error "SAC_PLANES is 1 to 4"
#endif
SAC_PLANE(0)
#if SAC_PLANES > 1
SAC_PLANE(1)
#endif
#if SAC_PLANES > 2
SAC_PLANE(2)
#endif
#if SAC_PLANES > 3
SAC_PLANE(3)
#endif
#undef SAC_PLANE

// Sums over the planes, and the most accesses that a piece of one takes.
template <u32 P> struct Planes {
    static constexpr u32 PIECES = Planes<P - 1>::PIECES + Plane<P - 1>::PIECES;
    static constexpr u32 BYTES = Planes<P - 1>::BYTES + Plane<P - 1>::UNIT_BYTES;
    static constexpr u32 OWN = smaller(PIECE, Plane<P - 1>::UNIT_BYTES) / Plane<P - 1>::ACCESS;
    static constexpr u32 WORDS = OWN > Planes<P - 1>::WORDS ? OWN : Planes<P - 1>::WORDS;
};
template <> struct Planes<0> {
    static constexpr u32 PIECES = 0, BYTES = 0, WORDS = 0;
};
constexpr u32 GROUP_PIECES = Planes<SAC_PLANES>::PIECES,
              GROUP_BYTES = Planes<SAC_PLANES>::BYTES;
// Threads of a warp that copy a piece together: the others take the next one.
constexpr u32 COPY_LANES = Planes<SAC_PLANES>::WORDS > 16  ? 32
                           : Planes<SAC_PLANES>::WORDS > 8 ? 16
                           : Planes<SAC_PLANES>::WORDS > 4 ? 8
                                                           : 4;

// Where a unit lies in the pool, given its page, and a slot in GPU memory.
template <u32 P>
__device__ __forceinline__ u8 *unit_in_pool(const HotPlane &plane, u64 page, u32 head,
                                            u32 unit) {
    return reinterpret_cast<u8 *>(page + plane.offset + head * plane.head_stride +
                                  u64(unit % PAGE_UNITS) * Plane<P>::POOL_PITCH);
}
template <u32 P>
__device__ __forceinline__ u8 *slot_of_lane(const HotPlane &plane, u64 lane, u32 slot) {
    return reinterpret_cast<u8 *>(plane.rows + (lane * SLOTS + slot) * Plane<P>::SLOT_PITCH);
}

// Copies piece number `piece` of a unit, counted over all planes.
template <u32 P>
__device__ __forceinline__ void copy_piece(const HotPlane *planes, u64 page, u32 head, u64 lane,
                                           u32 unit, u32 slot, u32 piece, u32 thread) {
    using Here = Plane<P>;
    if (piece < Here::PIECES) {
        constexpr u32 LONGEST = Here::PIECES > 1 ? PIECE : Here::UNIT_BYTES;
        const u32 at = piece * PIECE;
        copy_span<LONGEST, Here::ACCESS, COPY_LANES>(
            unit_in_pool<P>(planes[P], page, head, unit) + at,
            slot_of_lane<P>(planes[P], lane, slot) + at,
            smaller(LONGEST, Here::UNIT_BYTES - at), thread);
    } else if constexpr (P + 1 < SAC_PLANES) {
        copy_piece<P + 1>(planes, page, head, lane, unit, slot, piece - Here::PIECES, thread);
    }
}

// Writes row `row` of a unit to its place in the pool and, if there is one, to its slot.
template <u32 P>
__device__ __forceinline__ void write_row(const HotAppend &a, u64 page, u64 lane, u32 entry,
                                          u32 unit, u32 row, u32 slot) {
    using Here = Plane<P>;
    const HotSource &source = a.sources[P];
    const u32 head = blockIdx.z;
    const u8 *from =
        reinterpret_cast<const u8 *>(source.rows + blockIdx.y * source.request_stride +
                                     entry * source.token_stride + head * source.head_stride);
    copy_span<Here::ROW_BYTES, Here::ROW_ACCESS, 32>(
        from, unit_in_pool<P>(a.hot.planes[P], page, head, unit) + u64(row) * Here::ROW_PITCH,
        Here::ROW_BYTES, lane_id());
    if (slot != NONE)
        copy_span<Here::ROW_BYTES, Here::ROW_ACCESS, 32>(
            from, slot_of_lane<P>(a.hot.planes[P], lane, slot) + u64(row) * Here::ROW_PITCH,
            Here::ROW_BYTES, lane_id());
}
template <u32 P>
__device__ __forceinline__ void write_row_of(u32 plane, const HotAppend &a, u64 page, u64 lane,
                                             u32 entry, u32 unit, u32 row, u32 slot) {
    if (plane == P)
        write_row<P>(a, page, lane, entry, unit, row, slot);
    else if constexpr (P + 1 < SAC_PLANES)
        write_row_of<P + 1>(plane, a, page, lane, entry, unit, row, slot);
}
template <u32 P>
__device__ __forceinline__ void zero_unit(const HotAppend &a, u64 lane, u32 slot) {
    zero_span<Plane<P>::ACCESS, 32>(slot_of_lane<P>(a.hot.planes[P], lane, slot),
                                    Plane<P>::UNIT_BYTES, lane_id());
    if constexpr (P + 1 < SAC_PLANES)
        zero_unit<P + 1>(a, lane, slot);
}

// As copy_piece, but from staging memory, where unit number `from` lies like in a slot.
template <u32 P>
__device__ __forceinline__ void scatter_piece(const HotScatter &a, u64 lane, u32 from, u32 slot,
                                              u32 piece, u32 thread) {
    using Here = Plane<P>;
    if (piece < Here::PIECES) {
        constexpr u32 LONGEST = Here::PIECES > 1 ? PIECE : Here::UNIT_BYTES;
        const u32 at = piece * PIECE;
        copy_span<LONGEST, Here::ACCESS, COPY_LANES>(
            reinterpret_cast<const u8 *>(a.staging[P] + u64(from) * Here::SLOT_PITCH) + at,
            slot_of_lane<P>(a.hot.planes[P], lane, slot) + at,
            smaller(LONGEST, Here::UNIT_BYTES - at), thread);
    } else if constexpr (P + 1 < SAC_PLANES) {
        scatter_piece<P + 1>(a, lane, from, slot, piece - Here::PIECES, thread);
    }
}
__device__ __forceinline__ void scatter_units(const HotScatter &a, u64 lane, u32 from,
                                              u32 count, const HotMove *moves) {
    constexpr u32 GROUPS = 32 / COPY_LANES;
    const u32 first = (warp_id() * gridDim.x + blockIdx.x) * GROUPS + lane_id() / COPY_LANES;
    for (u32 i = first; i < count * GROUP_PIECES; i += WARPS * gridDim.x * GROUPS)
        scatter_piece<0>(a, lane, from + i / GROUP_PIECES, moves[i / GROUP_PIECES].slot,
                         i % GROUP_PIECES, lane_id() % COPY_LANES);
}

// Copies `count` units to their slots; the warps of `blocks` blocks share the pieces, so that
// neighbouring units are on their way from different blocks. move(m, unit, slot) says which;
// a unit whose page is dead is left out.
template <class Move>
__device__ __forceinline__ void copy_units(const HotPlane *planes, const u64 *pages, u32 head,
                                           u64 lane, u32 count, u32 block, u32 blocks,
                                           const Move &move) {
    constexpr u32 GROUPS = 32 / COPY_LANES;
    const u32 thread = lane_id() % COPY_LANES;
    const u32 first = (warp_id() * blocks + block) * GROUPS + lane_id() / COPY_LANES;
    for (u32 i = first; i < count * GROUP_PIECES; i += WARPS * blocks * GROUPS) {
        u32 unit, slot;
        move(i / GROUP_PIECES, unit, slot);
        const u64 page = pages[unit / PAGE_UNITS];
        if (page != 0)
            copy_piece<0>(planes, page, head, lane, unit, slot, i % GROUP_PIECES, thread);
    }
}

#endif
