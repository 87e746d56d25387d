// Filters, where they end, and a search for that by passes over a row's share in shared memory.
//
// Masses are whole units of 2^-43, as in device/boundary.py, so their sums are exact and the same for any cluster.
#pragma once
#include "row.cuh"

struct Filters {
    float temperature, min_score;
    int k;
    double top_p;
};

struct Bound {
    float z;
    u64 units;
    u32 holder, place;  // place: 0 where all tokens of that logit are kept
};

struct Passed {
    u32 count;
    u64 units;
};

struct Cut {  // where top-k ends
    float z;
    u64 units;
};

struct Shares {  // of a cluster's programs
    u32 counts[2][CLUSTER];
    u64 units[2][CLUSTER];
    u32 zeros, ends;  // tokens in slot 0, and negative ones in the last slot
    Cut cut;
    Bound last;
    u32 tiny[2][CLUSTER];
    u32 passed_counts[2][CLUSTER];
    u64 passed_units[2][CLUSTER];
};

struct Room {  // of one program
    u32 warp_counts[2][WARPS];
    u64 warp_units[2][WARPS];
    int id;
};

__device__ __forceinline__ bool passes_min_p(float z, float largest, const Filters& filters) {
    return __fdiv_rn(z - largest, filters.temperature) >= filters.min_score;
}

// A 16-bit logit as an integer in the order of logits; -0 is 0.
__device__ __forceinline__ int key_of(u32 bits) {
    const int value = static_cast<int>(bits & 0x7FFFu);
    return bits & 0x8000u ? -value : value;
}

__device__ __forceinline__ float value_of_key(int key) {
    return __uint_as_float(static_cast<u32>(key < 0 ? 0x8000 - key : key) << 16);
}

__device__ __forceinline__ int key_of_value(float z) { return key_of(__float_as_uint(z) >> 16); }

constexpr int LOWEST_KEY = -0x7F7F;  // finite

// The lowest logit that min-p keeps.
__device__ __forceinline__ float least_of(float largest, const Filters& filters) {
    int low = LOWEST_KEY, high = key_of_value(largest);
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (passes_min_p(value_of_key(middle), largest, filters)) high = middle;
        else low = middle + 1;
    }
    return value_of_key(low);
}

// (count, units) of all tokens of the row whose keys are `least` or more, by one pass. Alternates between two places,
// so that one barrier a pass is enough.
__device__ __noinline__ Passed passed(const uint4* row, u32 rank, int least, float scale, float level, Shares& shares,
                                     Room& room, u32 turn) {
    const u32 mine = vectors_of(rank, VECTORS), warp = threadIdx.x / 32;
    u32 count = 0;
    u64 units = 0;
    for (u32 at = threadIdx.x; at < mine; at += THREADS) {
        const uint4 logits = row[at];
        const u32* pair = &logits.x;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 bits = i % 2 ? pair[i / 2] >> 16 : pair[i / 2] & 0xFFFFu;
            const int key = key_of(bits);
            if (key >= least && key >= LOWEST_KEY) {
                count++;
                units += units_of(weight_of(value_of_key(key), scale, level));
            }
        }
    }
    count = sum_of_warp(count);
    units = sum_of_warp(units);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        room.warp_counts[0][warp] = count;
        room.warp_units[0][warp] = units;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        count = 0;
        units = 0;
        for (u32 i = 0; i < WARPS; i++) {
            count += room.warp_counts[0][i];
            units += room.warp_units[0][i];
        }
        tell_all(&shares.passed_counts[turn % 2][rank], count);
        tell_all(&shares.passed_units[turn % 2][rank], units);
    }
    cluster_sync();
    Passed found = {0, 0};
    for (u32 i = 0; i < CLUSTER; i++) {
        found.count += shares.passed_counts[turn % 2][i];
        found.units += shares.passed_units[turn % 2][i];
    }
    return found;
}

__device__ __forceinline__ u64 goal_of(u64 kept, double top_p) {
    const u64 goal = static_cast<u64>(ceil(top_p * (static_cast<double>(kept) * UNIT) * static_cast<double>(WHOLE)));
    return min(max(goal, 1ull), kept);
}

// Where the last of `count` equal tokens that is kept stands: (the program, which of its own it is), (0, 0) for the
// last.
template <typename CountOf>
__device__ __forceinline__ void place_last(Bound& bound, u64 goal, u64 before, u64 unit, u32 count, CountOf count_of) {
    const u64 one = max(unit, 1ull);
    const u64 wanted = min(max((goal - before + one - 1) / one, 1ull), static_cast<u64>(count));
    bound.units = before + wanted * one;
    bound.holder = bound.place = 0;
    if (wanted == count) return;
    u32 counts[CLUSTER], left = static_cast<u32>(wanted);
#pragma unroll
    for (u32 other = 0; other < CLUSTER; other++) counts[other] = count_of(other);
#pragma unroll
    for (u32 other = 0; other < CLUSTER; other++) {
        if (left - 1 < counts[other]) bound.holder = other, bound.place = left;
        left -= counts[other];
        if (bound.place) break;
    }
}

// Rows with logits that no slot has of its own: searched by passes over shared memory, some microseconds each.
__device__ __noinline__ Bound search_by_passes(const uint4* row, u32 rank, float largest, float scale, float level,
                                               const Filters& filters, Shares& shares, Room& room) {
    u32 turn = 0;
    int lowest = LOWEST_KEY;
    if (filters.min_score > LOWEST) lowest = key_of_value(least_of(largest, filters));
    const int highest = key_of_value(largest);
    if (filters.k > 0) {
        int low = lowest, high = highest;
        while (low < high) {
            const int middle = high - (high - low) / 2;
            if (passed(row, rank, middle, scale, level, shares, room, turn++).count >= static_cast<u32>(filters.k)) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        lowest = low;
    }
    const u64 kept = passed(row, rank, lowest, scale, level, shares, room, turn++).units;
    Bound bound = {value_of_key(lowest), kept, 0, 0};
    if (filters.top_p < 1.0) {
        const u64 goal = goal_of(kept, filters.top_p);
        int low = lowest, high = highest;
        while (low < high) {
            const int middle = high - (high - low) / 2;
            if (passed(row, rank, middle, scale, level, shares, room, turn++).units >= goal) low = middle;
            else high = middle - 1;
        }
        const Passed with = passed(row, rank, low, scale, level, shares, room, turn++);
        const Passed without = passed(row, rank, low + 1, scale, level, shares, room, turn);
        bound.z = value_of_key(low);
        place_last(bound, goal, without.units, units_of(weight_of(bound.z, scale, level)), with.count - without.count,
                   [&](u32 other) {
                       return shares.passed_counts[(turn - 1) % 2][other] - shares.passed_counts[turn % 2][other];
                   });
    }
    return bound;
}
