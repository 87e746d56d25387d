// A row's share of one program: its logits in shared memory, how many there are of each value, the largest.
//
// Values of bfloat16 are few, so that how many tokens have each says all that filters ask. A slot is a magnitude: slot
// 0 are those below 2^-22, zero among them, slot s the s-th from there, and the last one those above 1016 as well. A
// slot has two counts, of positive logits and of negative ones.
#pragma once
#include "numbers.cuh"

constexpr u32 WARPS = THREADS / 32;
constexpr u32 VECTORS = (V + 7) / 8;  // of eight logits each
constexpr u32 DRAFT_VECTORS = (DRAFT_V + 7) / 8;
constexpr u32 LONGEST = VECTORS > DRAFT_VECTORS ? VECTORS : DRAFT_VECTORS;
constexpr u32 TILE = 128;  // vectors whose largest logit is told to later kernels
constexpr u32 SHARE = (LONGEST + CLUSTER * TILE - 1) / (CLUSTER * TILE) * TILE;  // vectors of a program, for both laws
constexpr u32 ROUNDS = (SHARE + THREADS - 1) / THREADS;
constexpr u32 AHEAD = LAW == 1 ? 4 : ROUNDS;  // rounds whose copies are on their way

constexpr int SLOTS = 4096;
constexpr int BEFORE_FIRST = (105 << 7) - 1;  // the bits of the magnitude before slot 1's
constexpr float FIRST = 2.384185791015625e-07f;
constexpr float LAST = 1016.0f;

// How many of a program's vectors the law has: `all` vectors in the row.
__device__ __forceinline__ u32 vectors_of(u32 rank, u32 all) {
    const u32 first = rank * SHARE;
    return all <= first ? 0 : (all - first < SHARE ? all - first : SHARE);
}

__device__ __forceinline__ float value_of_slot(int slot) {
    return slot == 0 ? 0.0f : __uint_as_float(static_cast<u32>(slot + BEFORE_FIRST) << 16);
}

// Logits beyond the vocabulary are -inf.
template <u32 SIZE>
__device__ __forceinline__ uint4 clipped(uint4 logits, u32 vector) {
    if (SIZE % 8 != 0 && vector == SIZE / 8) {
        u32* pair = &logits.x;
#pragma unroll
        for (u32 at = 0; at < 4; at++) {
            if (2 * at >= SIZE % 8) pair[at] = FORBIDDEN;
            else if (2 * at + 1 >= SIZE % 8) pair[at] = (pair[at] & 0xFFFFu) | (FORBIDDEN & 0xFFFF0000u);
        }
    }
    return logits;
}

// Counts a pair of logits.
__device__ __forceinline__ void count_pair(u32* counts, u32 pair) {
    constexpr u32 LESS = static_cast<u32>(-BEFORE_FIRST) & 0xFFFFu, MOST = SLOTS - 1;
    const u32 slots = __viaddmin_s16x2_relu(pair & 0x7FFF7FFFu, LESS << 16 | LESS, MOST << 16 | MOST);
    const u32 places = 2 * slots + (pair >> 15 & 0x00010001u);
    atomicAdd(counts + (places & 0xFFFFu), 1);
    atomicAdd(counts + (places >> 16), 1);
}

// Begins the copy of a round's vectors of a share, if there are any; by one thread. logits: the share's first.
__device__ __forceinline__ void copy_round(uint4* row, const uint4* logits, u32 mine, u32 round, u64* barriers) {
    const u32 first = round * THREADS, last = min(first + THREADS, mine);
    if (first < last) copy_async(row + first, logits + first, (last - first) * 16, barriers + round);
}

// Two logits' weights relative to `level`.
__device__ __forceinline__ float mass_of_pair(u32 pair, float scale, float level) {
    return weight_of(low_of(pair), scale, level) + weight_of(high_of(pair), scale, level);
}

__device__ __forceinline__ float mass_of(const uint4& logits, float scale, float level) {
    return (mass_of_pair(logits.x, scale, level) + mass_of_pair(logits.y, scale, level)) +
           (mass_of_pair(logits.z, scale, level) + mass_of_pair(logits.w, scale, level));
}

__device__ __forceinline__ u32 largest_pair_of(const uint4& logits) {
    return larger_pair(larger_pair(logits.x, logits.y), larger_pair(logits.z, logits.w));
}

__device__ __forceinline__ int key_of_pair(u32 pair) { return max(ordered(low_of(pair)), ordered(high_of(pair))); }

struct Measured {  // of one thread's logits of the draft's law
    u32 largest;  // a pair, NaN where there is one
    float reference, mass;
};

// Counts the logits of a share as they come, and measures the draft's beside them. warp_keys: [ROUNDS][WARPS], the
// largest of each warp's logits, as `ordered` has it. logits, draft: this program's shares, the latter of `num_others`
// vectors. The copies of the first AHEAD rounds have begun.
__device__ __forceinline__ Measured measure_row(uint4* row, u32* counts, u32 rank, u64* barriers, int* warp_keys,
                                                const uint4* logits_share, const uint4* draft, u32 num_others,
                                                const float* draft_temperature) {
    const u32 mine = vectors_of(rank, VECTORS);
    const uint4 nothing = {FORBIDDEN, FORBIDDEN, FORBIDDEN, FORBIDDEN};
    Measured found = {FORBIDDEN, LOWEST, 0.0f};
    uint4 soon = nothing, later = nothing, last = nothing;
    float draft_scale = 1.0f;
    if (LAW == 1) {
        if (threadIdx.x < num_others) soon = __ldg(draft + threadIdx.x);
        if (threadIdx.x + THREADS < num_others) later = __ldg(draft + threadIdx.x + THREADS);
        if (threadIdx.x + 2 * THREADS < num_others) last = __ldg(draft + threadIdx.x + 2 * THREADS);
        draft_scale = scale_of(*draft_temperature);
    }
#pragma unroll 1
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 at = round * THREADS + threadIdx.x;
        if (LAW == 1) {
            const uint4 other = clipped<DRAFT_V>(soon, rank * SHARE + at);
            soon = later;
            later = last;
            last = nothing;
            if (at + 3 * THREADS < num_others) last = __ldg(draft + at + 3 * THREADS);
            const u32 pair = largest_pair_of(other);
            const float largest = fmaxf(low_of(pair), high_of(pair));
            found.largest = larger_pair(found.largest, pair);
            if (largest > found.reference) {
                const float change = level_of(found.reference, draft_scale) - level_of(largest, draft_scale);
                found.mass = found.reference == LOWEST ? 0.0f : found.mass * exp2_of(change);
                found.reference = largest;
            }
            found.mass += mass_of(other, draft_scale, level_of(found.reference, draft_scale));
        }
        u32 largest = FORBIDDEN;
        if (threadIdx.x == 0) copy_round(row, logits_share, mine, round + AHEAD, barriers);
        if (round * THREADS < mine) wait_for_copy(barriers + round, 0);
        if (at < mine) {
            uint4 logits = row[at];
            if (V % 8 != 0 && rank * SHARE + at == V / 8) {
                logits = clipped<V>(logits, V / 8);
                row[at] = logits;
            }
            largest = largest_pair_of(logits);
            count_pair(counts, logits.x);
            count_pair(counts, logits.y);
            count_pair(counts, logits.z);
            count_pair(counts, logits.w);
        }
        const int key = highest_of_warp(key_of_pair(largest));
        if (threadIdx.x % 32 == 0) warp_keys[round * WARPS + threadIdx.x / 32] = key;
    }
    return found;
}
