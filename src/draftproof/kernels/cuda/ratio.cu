// The laws of a chain's rows, and what tests of its tokens need, in one launch: the read, the tests and the bounds of
// ratio/launches.py at once. Grid: rows * CLUSTER.
//
// LAW: 0 for point masses, 1 for laws from bfloat16 logits. TILES: how many largest logits of tiles a row has room for.
#include "law.cuh"

constexpr u32 COIN = 17u << 24;  // of ratio/device/state.py
constexpr int DRAFT_FAULT = 3;   // of ratio/device/draft_law.py
constexpr int UNSURE = 2, NOT_TESTED = 3;  // of device/wanted.py

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT)
    laws(const u16* __restrict__ logits, i64 stride, const int* __restrict__ row_request,
         const float* __restrict__ temperature, const int* __restrict__ top_k, const double* __restrict__ top_p,
         const float* __restrict__ min_score, const u16* __restrict__ draft_logits, i64 draft_stride,
         const float* __restrict__ draft_temperature, const int* __restrict__ offsets,
         const u32* __restrict__ row_position, const int* __restrict__ drafted, const u32* __restrict__ seed_low,
         const u32* __restrict__ seed_high, const u32* __restrict__ sample_index, float* tile_max, int* row_faults,
         int* row_states, float* row_z, int* row_ids, float* row_largest, double* row_masses, float* node_weights,
         float* node_z, double* node_q, float* node_levels, float* node_scales, float* node_gains, int* node_faults,
         double* node_coins, i64* residual_masses, int* num_residuals, int* num_ended) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Shared shared;
    const u32 rank = blockIdx.x % CLUSTER, row = blockIdx.x / CLUSTER;
    const u16* row_logits = logits + static_cast<i64>(row) * stride;
    const uint4* share = reinterpret_cast<const uint4*>(row_logits) + rank * SHARE;
    const int request = row_request[row];
    let_next_begin();
    begin(share, rank, memory, shared);
    const bool tests = row + 1 < gridDim.x / CLUSTER && row_request[row + 1] == request;
    const u16* draft_row = LAW == 1 ? draft_logits + static_cast<i64>(row - request) * draft_stride : nullptr;
    const u32 num_drafted = LAW == 1 && tests ? vectors_of(rank, DRAFT_VECTORS) : 0;
    const GivenDraft given_draft = {reinterpret_cast<const uint4*>(draft_row) + rank * SHARE, num_drafted,
                                    draft_temperature + request};
    if (threadIdx.x == 32) {
        // What will be loaded after the row is on its way.
        prefetch(temperature + request);
        prefetch(top_k + request);
        prefetch(top_p + request);
        prefetch(min_score + request);
        prefetch(offsets + request);
        prefetch(row_position + row);
        prefetch(drafted + row);
        prefetch(seed_low + request);
        prefetch(seed_high + request);
        prefetch(sample_index + request);
    }
    const Given given = {share, rank, request, {temperature, top_k, top_p, min_score}};
    DrawnLaw drawn;
    const RowLaw law =
        law_of(given, given_draft, memory, tile_max + static_cast<i64>(row) * TILES, shared, drawn);
    if (rank != law.bound.holder || threadIdx.x != 0) return;

    const int first = offsets[request], local = static_cast<int>(row) - first;
    row_faults[row] = law.fault;
    row_states[row] = tests ? UNSURE : NOT_TESTED;
    row_z[row] = law.bound.z;
    row_ids[row] = law.id_bound;
    row_largest[row] = law.largest;
    row_masses[row] = law.mass;
    residual_masses[row] = 0;
    if (row == 0) *num_residuals = 0;
    if (local == 0) num_ended[request] = 0;
    if (!tests) return;

    const int token = drafted[row + 1];
    const float z = token >= 0 && token < V ? low_of(row_logits[token]) : LOWEST;
    const Noise noise = {row_position[first], sample_index[request], seed_low[request], seed_high[request]};
    node_weights[row] = z > LOWEST ? weight_of(z, law.scale, law.level) : 0.0f;
    node_z[row] = z;
    node_coins[row] = uniform_of(COIN + local, noise);
    double q = 1.0;
    int draft_fault = 0;
    if (LAW == 1) {
        const bool greedy = draft_temperature[request] == 0.0f;
        const float draft_z = token >= 0 && token < DRAFT_V ? low_of(draft_row[token]) : LOWEST;
        const float own = draft_z > LOWEST ? weight_of(draft_z, drawn.scale, drawn.level) : 0.0f;
        q = greedy ? static_cast<double>(drawn.argmax == token) : static_cast<double>(own) / drawn.total;
        draft_fault = health_of(drawn.largest) != 0 || !(q > 0.0) ? DRAFT_FAULT : 0;
        node_levels[row] = drawn.level;
        node_scales[row] = greedy ? 0.0f : drawn.scale;
        node_gains[row] = static_cast<float>(1.0 / drawn.total);
    }
    node_q[row] = q;
    node_faults[row] = draft_fault;
}
