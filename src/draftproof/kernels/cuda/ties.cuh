// The last of many equal tokens that top-p keeps.
#pragma once
#include "search.cuh"

// What the counts of this warp's lanes before this one and of all warps before it add up to.
__device__ __forceinline__ u32 sum_of_warps_before(const u32* sums) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return sum_of_warp(lane < warp ? sums[lane] : 0u);
}

__device__ __forceinline__ u64 sum_of_warps_before(const u64* sums) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return sum_of_warp(lane < warp ? sums[lane] : static_cast<u64>(0));
}

// Ones, as bfloat16, where a pair's logits equal those of another; -0 equals 0.
__device__ __forceinline__ u32 equal_pair(u32 a, u32 b) {
    u32 found;
    asm("set.eq.bf16x2.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
    return found;
}

__device__ __forceinline__ u32 sum_of_pairs(u32 a, u32 b) {
    u32 found;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
    return found;
}

// How many of eight logits are equal to those of the pair `same`, as the sum of two numbers in bfloat16.
__device__ __forceinline__ u32 equal_pairs(const uint4& logits, u32 same) {
    return sum_of_pairs(sum_of_pairs(equal_pair(logits.x, same), equal_pair(logits.y, same)),
                        sum_of_pairs(equal_pair(logits.z, same), equal_pair(logits.w, same)));
}

__device__ __forceinline__ u32 hits_of_pair(u32 pair, float z) {
    return (low_of(pair) == z ? 1u : 0u) | (high_of(pair) == z ? 2u : 0u);
}

// The id of the `wanted`-th of this program's tokens, from 1 on, whose logit is z. Each thread has vectors side by
// side.
__device__ __noinline__ int tied_token(const uint4* row, u32 rank, float z, u32 wanted, Room& room) {
    constexpr u32 RUN = ROUNDS | 1;  // an odd number, so that a warp's loads fall into different banks
    static_assert(RUN <= 32, "a lane each; sums of bfloat16 are whole up to 256");
    const u32 first = threadIdx.x * RUN, lane = threadIdx.x % 32;
    const u32 mine = vectors_of(rank, VECTORS), bits = __float_as_uint(z) >> 16;
    const u32 same = bits | bits << 16;
    u32 sums = 0;
#pragma unroll
    for (u32 i = 0; i < RUN; i++) {
        if (first + i < mine) sums = sum_of_pairs(sums, equal_pairs(row[first + i], same));
    }
    const u32 here = static_cast<u32>(low_of(sums) + high_of(sums));
    u32 up_to = here;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
        if (lane >= step) up_to += other;
    }
    if (lane == 31) room.warp_counts[0][threadIdx.x / 32] = up_to;
    __syncthreads();
    up_to += sum_of_warps_before(room.warp_counts[0]);
    const u32 hit = __ballot_sync(0xFFFFFFFFu, up_to - here < wanted && wanted <= up_to);
    if (hit) {
        const int source = __ffs(hit) - 1;
        const u32 at = __shfl_sync(0xFFFFFFFFu, first, source) + lane;
        u32 left = wanted - __shfl_sync(0xFFFFFFFFu, up_to - here, source);
        u32 hits = 0;
        if (lane < RUN && at < mine) {
            const uint4 logits = row[at];
            hits = hits_of_pair(logits.x, z) | hits_of_pair(logits.y, z) << 2 | hits_of_pair(logits.z, z) << 4 |
                   hits_of_pair(logits.w, z) << 6;
        }
        const u32 own = __popc(hits);
        u32 sum = own;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
            if (lane >= step) sum += other;
        }
        if (sum - own < left && left <= sum) {
            for (left -= sum - own; left > 1; left--) hits &= hits - 1;
            room.id = static_cast<int>(8 * (rank * SHARE + at)) + __ffs(hits) - 1;
        }
    }
    __syncthreads();
    return room.id;
}
