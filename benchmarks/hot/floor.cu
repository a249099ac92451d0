// SPDX-License-Identifier: Apache-2.0
// The floor of a fetch: rows named in a list, one warp a row, all loads of a row issued
// before its first store. ROW_BYTES, PITCH: of a row, and from row to row in the target;
// ACCESS: bytes of a load, 16, 8 or 4, dividing both and the addresses.
using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;

template <int N> struct Word;
template <> struct Word<16> {
    using type = uint4;
};
template <> struct Word<8> {
    using type = uint2;
};
template <> struct Word<4> {
    using type = u32;
};

extern "C" __global__ void __launch_bounds__(1024)
    floor_copy(const u64 *__restrict__ from, u8 *to, int rows) {
    using T = Word<ACCESS>::type;
    constexpr int PIECES = ROW_BYTES / ACCESS, EACH = (PIECES + 31) / 32;
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
    for (int row = blockIdx.x * warps + threadIdx.x / 32; row < rows;
         row += gridDim.x * warps) {
        const T *source = reinterpret_cast<const T *>(from[row]);
        T *target = reinterpret_cast<T *>(to + u64(row) * PITCH);
        T held[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (lane + i * 32 < PIECES)
                held[i] = __ldcs(source + lane + i * 32);
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (lane + i * 32 < PIECES)
                target[lane + i * 32] = held[i];
    }
}
