// What the filters keep of a row, from how many tokens each slot has: all tokens up to a last one, by logit and then
// id, and their mass. Order of the default chain: min-p, top-k with ties kept, top-p over the survivors.
#pragma once
#include "ties.cuh"

constexpr u32 EACH = SLOTS / CLUSTER / THREADS;  // slots of a thread
static_assert(EACH == 1 || EACH == 2, "one or two slots a thread");

template <u32 SIZE>
struct WordsOf {
    using Type = uint4;
};

template <>
struct WordsOf<1> {
    using Type = uint2;
};

using Words = WordsOf<EACH>::Type;  // counts of a thread's slots

struct Slots {  // of one thread
    u32 counts[2][EACH];  // positive ones, negative ones
    u64 units[2][EACH];   // of one token each
};

struct Before {  // what ranks before a warp's positive logits, and before its negative ones, and what these are
    u32 counts[2], own_counts[2];
    u64 units[2], own_units[2];
};

struct Place {  // of a slot among all
    float z;
    u32 count, sign, slot;
    u64 before, unit;
};

// Where the tokens from the largest on come to `goal`, in tokens (COUNTS) or in units. True in the one thread of the
// cluster that has the slot.
template <bool COUNTS>
__device__ __forceinline__ bool reaches(u64 goal, const Slots& slots, const Before& ahead, u32 first, Place& place) {
    const u32 lane = threadIdx.x % 32;
    bool found = false;
#pragma unroll
    for (u32 sign = 0; sign < 2; sign++) {
        const u64 start = COUNTS ? ahead.counts[sign] : ahead.units[sign];
        const u64 all = COUNTS ? ahead.own_counts[sign] : ahead.own_units[sign];
        if (goal <= start || goal > start + all) continue;
        u32 own = 0, count = 0;
        u64 own_units = 0, units = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            own += slots.counts[sign][i];
            own_units += slots.counts[sign][i] * slots.units[sign][i];
        }
        count = own;
        units = own_units;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(0xFFFFFFFFu, count, step);
            const u64 others = __shfl_up_sync(0xFFFFFFFFu, units, step);
            if (lane >= step) count += other, units += others;
        }
        // Positive slots rank from the last one down.
        count = ahead.counts[sign] + (sign ? count - own : ahead.own_counts[sign] - count);
        units = ahead.units[sign] + (sign ? units - own_units : ahead.own_units[sign] - units);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 at = sign ? i : EACH - 1 - i;
            const u32 here = slots.counts[sign][at];
            const u64 more = here * slots.units[sign][at];
            const u64 reached = COUNTS ? count : units, own_part = COUNTS ? here : more;
            if (reached < goal && goal <= reached + own_part) {
                const float size = value_of_slot(static_cast<int>(first + at));
                place = {sign ? -size : size, here, sign, first + at, units, slots.units[sign][at]};
                found = true;
            }
            count += here;
            units += more;
        }
    }
    return found;
}

// Whether slot 0 has logits that aren't 0. turn: of one row's questions.
__device__ __noinline__ bool has_tiny(const uint4* row, u32 rank, Shares& shares, u32 turn) {
    u32 tiny = 0;
    for (u32 at = threadIdx.x; at < vectors_of(rank, VECTORS); at += THREADS) {
        const uint4 logits = row[at];
        const u32* pair = &logits.x;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 size = (i % 2 ? pair[i / 2] >> 16 : pair[i / 2]) & 0x7FFFu;
            tiny |= size - 1 < static_cast<u32>(BEFORE_FIRST);
        }
    }
    tiny = __syncthreads_or(tiny);
    if (threadIdx.x == 0) tell_all(&shares.tiny[turn][rank], tiny);
    cluster_sync();
    bool found = false;
    for (u32 i = 0; i < CLUSTER; i++) found |= shares.tiny[turn][i] != 0;
    return found;
}

// What a healthy row's filters keep. counts: its programs' counts, complete.
__device__ __forceinline__ Bound bound_of(const uint4* row, u32* counts, u32 rank, float largest, float scale,
                                          float level, const Filters& filters, Shares& shares, Room& room) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 first = rank * (SLOTS / CLUSTER) + EACH * threadIdx.x;
    const u32 address = shared_address(counts + 2 * first);
    Slots slots;
    Words words[CLUSTER];
#pragma unroll
    for (u32 other = 1; other < CLUSTER; other++) load_at(at_rank(address, rank ^ other), words[other]);
    words[0] = *reinterpret_cast<const Words*>(counts + 2 * first);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        slots.counts[0][i] = slots.counts[1][i] = 0;
#pragma unroll
        for (u32 other = 0; other < CLUSTER; other++) {
            slots.counts[0][i] += (&words[other].x)[2 * i];
            slots.counts[1][i] += (&words[other].x)[2 * i + 1];
        }
    }
    if (first == 0) {
        slots.counts[0][0] += slots.counts[1][0];
        slots.counts[1][0] = 0;
        tell_all(&shares.zeros, slots.counts[0][0]);
    }
    if (first + EACH == SLOTS) tell_all(&shares.ends, slots.counts[1][EACH - 1]);
    Before ahead;
#pragma unroll
    for (u32 sign = 0; sign < 2; sign++) {
        u32 count = 0;
        u64 mass = 0;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            u32& here = slots.counts[sign][i];
            const float size = value_of_slot(static_cast<int>(first + i)), z = sign ? -size : size;
            if (filters.min_score > LOWEST && !passes_min_p(z, largest, filters)) here = 0;
            slots.units[sign][i] = here ? units_of(weight_of(z, scale, level)) : 0;
            count += here;
            mass += here * slots.units[sign][i];
        }
        ahead.own_counts[sign] = ahead.own_units[sign] = 0;
        if (__any_sync(0xFFFFFFFFu, count)) {
            ahead.own_counts[sign] = sum_of_warp(count);
            ahead.own_units[sign] = sum_of_warp(mass);
        }
        if (lane == 0) {
            room.warp_counts[sign][warp] = ahead.own_counts[sign];
            room.warp_units[sign][warp] = ahead.own_units[sign];
        }
    }
    __syncthreads();
    if (warp < 2) {
        const u32 count = sum_of_warp(lane < WARPS ? room.warp_counts[warp][lane] : 0u);
        const u64 units = sum_of_warp(lane < WARPS ? room.warp_units[warp][lane] : static_cast<u64>(0));
        if (lane < CLUSTER) {
            store_at(at_rank(shared_address(&shares.counts[warp][rank]), lane), count);
            store_at(at_rank(shared_address(&shares.units[warp][rank]), lane), units);
        }
    }
    const u32 warps_before[2] = {sum_of_warps_before(room.warp_counts[0]), sum_of_warps_before(room.warp_counts[1])};
    const u64 units_before[2] = {sum_of_warps_before(room.warp_units[0]), sum_of_warps_before(room.warp_units[1])};
    cluster_sync();
    // From the largest value down: positive ones of the last program's slots, ..., negative ones of the first's, ...
    u32 total_count = 0;
    u64 total = 0;
    ahead.counts[0] = ahead.counts[1] = 0;
    ahead.units[0] = ahead.units[1] = 0;
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        const u32 positive = shares.counts[0][i], negative = shares.counts[1][i];
        const u64 positive_units = shares.units[0][i], negative_units = shares.units[1][i];
        total_count += positive + negative;
        total += positive_units + negative_units;
        ahead.counts[0] += i >= rank ? positive : 0;
        ahead.units[0] += i >= rank ? positive_units : 0;
        ahead.counts[1] += positive + (i < rank ? negative : 0);
        ahead.units[1] += positive_units + (i < rank ? negative_units : 0);
    }
    ahead.counts[0] -= warps_before[0] + ahead.own_counts[0];
    ahead.units[0] -= units_before[0] + ahead.own_units[0];
    ahead.counts[1] += warps_before[1];
    ahead.units[1] += units_before[1];

    bool odd = largest > LAST || (shares.ends && units_of(weight_of(-LAST, scale, level)) > 0);
    // Logits of slot 0 that aren't 0 matter where they weigh anything else, or where it is them that a filter ends at.
    const float zero = weight_of(0.0f, scale, level);
    bool differ = weight_of(FIRST, scale, level) != zero || weight_of(-FIRST, scale, level) != zero;
    if (filters.min_score > LOWEST) {
        differ |= passes_min_p(FIRST, largest, filters) != passes_min_p(-FIRST, largest, filters);
    }
    if (shares.zeros && differ) odd |= has_tiny(row, rank, shares, 0);
    if (odd) return search_by_passes(row, rank, largest, scale, level, filters, shares, room);
    Bound bound = {LOWEST, total, 0, 0};
    if (filters.min_score > LOWEST) bound.z = least_of(largest, filters);
    Place place;
    if (filters.k > 0 && filters.k < total_count) {
        if (reaches<true>(filters.k, slots, ahead, first, place)) {
            tell_all(&shares.cut.z, place.z);
            tell_all(&shares.cut.units, place.before + place.count * place.unit);
        }
        cluster_sync();
        bound.z = shares.cut.z;
        bound.units = shares.cut.units;
    }
    if (filters.top_p < 1.0) {
        const u64 goal = goal_of(bound.units, filters.top_p);
        if (reaches<false>(goal, slots, ahead, first, place)) {
            Bound found = {place.z, 0, 0, 0};
            place_last(found, goal, place.before, place.unit, place.count, [&](u32 other) {
                uint2 word;
                load_at(at_rank(shared_address(counts + 2 * place.slot), other), word);
                return place.sign ? word.y : word.x + (place.z == 0.0f ? word.y : 0);
            });
            tell_all(&shares.last.z, found.z);
            tell_all(&shares.last.units, found.units);
            tell_all(&shares.last.holder, found.holder);
            tell_all(&shares.last.place, found.place);
        }
        cluster_sync();
        bound = shares.last;
    }
    if (bound.z == 0.0f && has_tiny(row, rank, shares, 1)) {
        return search_by_passes(row, rank, largest, scale, level, filters, shares, room);
    }
    return bound;
}
