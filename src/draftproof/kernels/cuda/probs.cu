// `target_probs` in one launch: rows' laws, written out from shared memory. Grid: rows * CLUSTER.
#include "law.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, RESIDENT)
    probs(const u16* __restrict__ logits, i64 stride, const int* __restrict__ row_request,
          const float* __restrict__ temperature, const int* __restrict__ top_k, const double* __restrict__ top_p,
          const float* __restrict__ min_score, float* out, i64 out_stride, int* row_faults, int by_fours) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Shared shared;
    __shared__ int id_of_all;
    const u32 rank = blockIdx.x % CLUSTER, row = blockIdx.x / CLUSTER;
    const uint4* share = reinterpret_cast<const uint4*>(logits + static_cast<i64>(row) * stride) + rank * SHARE;
    const int request = row_request[row];
    let_next_begin();
    begin(share, rank, memory, shared);
    const Given given = {share, rank, request, {temperature, top_k, top_p, min_score}};
    DrawnLaw drawn;
    RowLaw law = law_of(given, {nullptr, 0, nullptr}, memory, nullptr, shared, drawn);
    if (law.bound.place) {
        if (rank == law.bound.holder && threadIdx.x == 0) tell_all(&id_of_all, law.id_bound);
        cluster_sync();
        law.id_bound = id_of_all;
    }
    if (rank == 0 && threadIdx.x == 0) row_faults[row] = law.fault;

    const uint4* logits_here = reinterpret_cast<const uint4*>(memory);
    const float gain = static_cast<float>(1.0 / law.mass);
    float* to = out + static_cast<i64>(row) * out_stride;
    for (u32 at = threadIdx.x; at < vectors_of(rank, VECTORS); at += THREADS) {
        const uint4 eight = logits_here[at];
        const u32* pair = &eight.x;
        const int id = static_cast<int>(8 * (rank * SHARE + at));
        float found[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float z = i % 2 ? high_of(pair[i / 2]) : low_of(pair[i / 2]);
            const bool kept = (z > law.bound.z || (z == law.bound.z && id + i <= law.id_bound)) && z > LOWEST;
            found[i] = kept ? weight_of(z, law.scale, law.level) * gain : 0.0f;
            if (law.fault) found[i] = __int_as_float(0x7FC00000);
        }
        if (by_fours && id + 8 <= V) {
            reinterpret_cast<float4*>(to + id)[0] = {found[0], found[1], found[2], found[3]};
            reinterpret_cast<float4*>(to + id)[1] = {found[4], found[5], found[6], found[7]};
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (id + i < V) to[id + i] = found[i];
            }
        }
    }
}
