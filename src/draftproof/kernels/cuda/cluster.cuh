// A cluster of programs shares one row: barriers, and each other's shared memory.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// The address of the same place in another program's shared memory.
__device__ __forceinline__ u32 at_rank(u32 address, u32 rank) {
    u32 found;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(rank));
    return found;
}

__device__ __forceinline__ void store_at(u32 address, u32 value) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void store_at(u32 address, int value) { store_at(address, static_cast<u32>(value)); }

__device__ __forceinline__ void store_at(u32 address, float value) { store_at(address, __float_as_uint(value)); }

__device__ __forceinline__ void store_at(u32 address, u64 value) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}

__device__ __forceinline__ void store_at(u32 address, double value) {
    store_at(address, static_cast<u64>(__double_as_longlong(value)));
}

__device__ __forceinline__ void load_at(u32 address, uint2& found) {
    asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];" : "=r"(found.x), "=r"(found.y) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_at(u32 address, uint4& found) {
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "r"(address)
                 : "memory");
}

// Writes `value` to the same place of every program of the cluster; by one thread.
template <typename Value>
__device__ __forceinline__ void tell_all(Value* place, Value value) {
    const u32 address = shared_address(place);
#pragma unroll
    for (u32 rank = 0; rank < CLUSTER; rank++) store_at(at_rank(address, rank), value);
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// All threads of all programs of the cluster; what they wrote before it can be read after it.
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// Copies into shared memory that a barrier counts.
__device__ __forceinline__ void barrier_init(u64* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void copy_async(void* to, const void* from, u32 num_bytes, u64* barrier) {
    const u32 counted = shared_address(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(counted), "r"(num_bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(num_bytes), "r"(counted)
                 : "memory");
}

__device__ __forceinline__ void wait_for_copy(u64* barrier, u32 phase) {
    const u32 counted = shared_address(barrier);
    u32 done = 0;
    while (!done) {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(counted), "r"(phase)
            : "memory");
    }
}

// The kernel launched next may begin once every program has come here.
__device__ __forceinline__ void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

// Brings into the cache what will be loaded later.
__device__ __forceinline__ void prefetch(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
