// A row's law by one cluster of programs: read once, counted while it comes, and bounded by its counts. A row of the
// draft's logits may be read beside it.
#pragma once
#include "filters.cuh"

constexpr int NOT_FINITE = 1, ALL_MASKED = 2;  // of device/draw.py

struct Shared {
    u64 barriers[ROUNDS];
    float largest[2][CLUSTER];  // of the target's law, of the draft's
    float masses[CLUSTER];      // of the draft's law
    int first_id[2][CLUSTER];   // where the largest stands
    int keys[ROUNDS][WARPS];
    int warp_keys[2][WARPS];
    float warp_masses[WARPS];
    int warp_ids[2][WARPS];
    Shares shares;
    Room room;
};

struct Parameters {  // of requests
    const float* temperature;
    const int* top_k;
    const double* top_p;
    const float* min_score;
};

struct Given {  // one row, and this program's part of it
    const uint4* share;
    u32 rank;
    int request;
    Parameters parameters;
};

struct GivenDraft {  // the draft's row beside it; `num_vectors` 0 where there is none
    const uint4* share;
    u32 num_vectors;
    const float* temperature;
};

struct RowLaw {
    float largest, scale, level;
    int fault;
    Bound bound;
    int id_bound;  // the last token of the bound's logit that is kept; known to the programs of bound.holder alone
    double mass;   // of what is kept
};

struct DrawnLaw {  // the draft's
    float largest, scale, level;
    double total;
    int argmax;
};

__device__ __forceinline__ int health_of(float largest) {
    if (largest != largest || largest == -LOWEST) return NOT_FINITE;
    return largest == LOWEST ? ALL_MASKED : 0;
}

// The lowest id of eight logits that equal `largest`, if it is below `found`.
__device__ __forceinline__ int first_of(const uint4& logits, float largest, u32 vector, int found) {
    const u32* pair = &logits.x;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        const float z = i % 2 ? high_of(pair[i / 2]) : low_of(pair[i / 2]);
        if (z == largest) found = min(found, static_cast<int>(8 * vector + i));
    }
    return found;
}

// The lowest id of the cluster, of each thread's; at the same place of two rows' questions.
__device__ __noinline__ int lowest_of_cluster(int found, u32 rank, u32 place, Shared& shared) {
    found = __reduce_min_sync(0xFFFFFFFFu, found);
    if (threadIdx.x % 32 == 0) shared.warp_ids[place][threadIdx.x / 32] = found;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < WARPS; i++) found = min(found, shared.warp_ids[place][i]);
        tell_all(&shared.first_id[place][rank], found);
    }
    cluster_sync();
    for (u32 i = 0; i < CLUSTER; i++) found = min(found, shared.first_id[place][i]);
    return found;
}

// Begins to read: by all threads, before anything else of a row is asked for. memory: the share's logits, then counts.
__device__ __forceinline__ void begin(const uint4* share, u32 rank, unsigned char* memory, Shared& shared) {
    uint4* row = reinterpret_cast<uint4*>(memory);
    uint4* counts = row + SHARE;
    cluster_arrive();
    if (threadIdx.x == 0) {
        for (u32 round = 0; round < ROUNDS; round++) barrier_init(shared.barriers + round);
        barrier_ready();
        for (u32 round = 0; round < min(AHEAD, ROUNDS); round++) {
            copy_round(row, share, vectors_of(rank, VECTORS), round, shared.barriers);
        }
    }
    for (u32 at = threadIdx.x; at < SLOTS / 2; at += THREADS) counts[at] = {0, 0, 0, 0};
    __syncthreads();
}

// The law of the row that `begin` has begun to read, and of the draft's; tile_max: [TILES] of the row, null for none.
__device__ __forceinline__ RowLaw law_of(const Given& given, const GivenDraft& given_draft, unsigned char* memory,
                                         float* tile_max, Shared& shared, DrawnLaw& drawn) {
    uint4* row = reinterpret_cast<uint4*>(memory);
    u32* counts = reinterpret_cast<u32*>(row + SHARE);
    const u32 rank = given.rank, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Measured measured = measure_row(row, counts, rank, shared.barriers, shared.keys[0], given.share,
                                          given_draft.share, given_draft.num_vectors, given_draft.temperature);
    const int request = given.request;
    const Parameters& of = given.parameters;
    const Filters filters = {of.temperature[request], of.min_score[request], of.top_k[request], of.top_p[request]};
    const float temperature = filters.temperature, scale = scale_of(temperature);
    const float draft_temperature = LAW == 1 ? *given_draft.temperature : 1.0f;
    const float draft_scale = scale_of(draft_temperature);

    // Each law's largest logit, and the draft's mass, first of each program's share.
    int key = ordered(LOWEST), draft_key = key;
    if (LAW == 1) {
        draft_key = highest_of_warp(key_of_pair(measured.largest));
        if (lane == 0) shared.warp_keys[1][warp] = draft_key;
    }
    __syncthreads();
    constexpr u32 WARPS_OF_TILE = TILE / 32;
    for (u32 tile = threadIdx.x; tile < SHARE / TILE; tile += THREADS) {
        int found = ordered(LOWEST);
#pragma unroll
        for (u32 i = 0; i < WARPS_OF_TILE; i++) found = max(found, shared.keys[0][tile * WARPS_OF_TILE + i]);
        key = max(key, found);
        const u32 at = rank * (SHARE / TILE) + tile;
        if (tile_max != nullptr && at < (VECTORS + TILE - 1) / TILE) tile_max[at] = unordered(found);
    }
    key = highest_of_warp(key);
    if (lane == 0) shared.warp_keys[0][warp] = key;
    if (LAW == 1) {
        draft_key = highest_of_warp(lane < WARPS ? shared.warp_keys[1][lane] : ordered(LOWEST));
        const float level = level_of(unordered(draft_key), draft_scale);
        float mass = 0.0f;
        if (measured.reference > LOWEST) {
            mass = measured.mass * exp2_of(level_of(measured.reference, draft_scale) - level);
        }
        mass = sum_of_warp(mass);
        if (lane == 0) shared.warp_masses[warp] = mass;
    }
    __syncthreads();
    cluster_wait();
    if (warp == 0) {
        key = highest_of_warp(lane < WARPS ? shared.warp_keys[0][lane] : ordered(LOWEST));
        if (lane < CLUSTER) store_at(at_rank(shared_address(&shared.largest[0][rank]), lane), unordered(key));
    } else if (LAW == 1 && warp == 1) {
        const float mass = sum_of_warp(lane < WARPS ? shared.warp_masses[lane] : 0.0f);
        if (lane < CLUSTER) {
            store_at(at_rank(shared_address(&shared.largest[1][rank]), lane), unordered(draft_key));
            store_at(at_rank(shared_address(&shared.masses[rank]), lane), mass);
        }
    }
    cluster_sync();

    key = ordered(LOWEST);
    draft_key = key;
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        key = max(key, ordered(shared.largest[0][i]));
        if (LAW == 1) draft_key = max(draft_key, ordered(shared.largest[1][i]));
    }
    RowLaw law;
    law.largest = unordered(key);
    law.scale = scale;
    law.level = level_of(law.largest, scale);
    law.fault = health_of(law.largest);
    law.bound = {LOWEST, 0, 0, 0};
    law.id_bound = V;
    law.mass = 0.0;
    drawn = {unordered(draft_key), draft_scale, level_of(unordered(draft_key), draft_scale), 0.0, V};
    const bool greedy = temperature == 0.0f;
    if (greedy) {
        int argmax = V;
        for (u32 at = threadIdx.x; at < vectors_of(rank, VECTORS); at += THREADS) {
            argmax = first_of(row[at], law.largest, rank * SHARE + at, argmax);
        }
        law.id_bound = lowest_of_cluster(argmax, rank, 0, shared);
    }
    if (LAW == 1 && draft_temperature == 0.0f) {
        int argmax = V;
        for (u32 at = threadIdx.x; at < given_draft.num_vectors; at += THREADS) {
            const uint4 logits = clipped<DRAFT_V>(__ldg(given_draft.share + at), rank * SHARE + at);
            argmax = first_of(logits, drawn.largest, rank * SHARE + at, argmax);
        }
        drawn.argmax = lowest_of_cluster(argmax, rank, 1, shared);
    }
    if (greedy) {
        law.bound.z = law.largest;
        law.mass = static_cast<double>(weight_of(law.largest, scale, law.level));
    } else if (law.fault == 0) {
        law.bound = bound_of(row, counts, rank, law.largest, scale, law.level, filters, shared.shares, shared.room);
        law.mass = static_cast<double>(law.bound.units) * UNIT;
        if (law.bound.place && rank == law.bound.holder) {
            law.id_bound = tied_token(row, rank, law.bound.z, law.bound.place, shared.room);
        }
    }
    if (LAW == 1) {
#pragma unroll
        for (u32 i = 0; i < CLUSTER; i++) {
            const float largest = shared.largest[1][i];
            const float share = exp2_of(level_of(largest, draft_scale) - drawn.level);
            if (largest > LOWEST) drawn.total += static_cast<double>(shared.masses[i]) * share;
        }
    }
    return law;
}
