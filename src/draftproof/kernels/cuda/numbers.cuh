// Logits in bfloat16, weights, and the integers of noise; as device/rows.py, device/passes.py and device/noise.py have
// them.
#pragma once
#include "cluster.cuh"

constexpr u32 FORBIDDEN = 0xFF80FF80u;  // two logits of -inf
constexpr float WHOLE = 8796093022208.0f;  // 2^43, in which weights are whole numbers
constexpr double UNIT = 1.1368683772161603e-13;
#define LOWEST __int_as_float(0xFF800000)

__device__ __forceinline__ float low_of(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(u32 pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ __forceinline__ u32 larger_pair(u32 a, u32 b) {
    u32 found;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
    return found;
}

__device__ __forceinline__ float exp2_of(float value) {
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(value));
    return found;
}

// Integers in the order of floats, NaN the largest.
__device__ __forceinline__ int ordered(float value) {
    const int bits = __float_as_int(value);
    return value != value ? 0x7FFFFFFF : bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

__device__ __forceinline__ float unordered(int key) { return __int_as_float(key ^ ((key >> 31) & 0x7FFFFFFF)); }

__device__ __forceinline__ float scale_of(float temperature) {
    float found;
    asm("div.full.f32 %0, %1, %2;" : "=f"(found) : "f"(1.4426950408889634f), "f"(temperature));
    return temperature > 0 ? found : 1.0f;
}

// What weights are relative to.
__device__ __forceinline__ float level_of(float largest, float scale) {
    return largest == LOWEST ? 0.0f : __fmul_rn(largest, scale);
}

__device__ __forceinline__ float weight_of(float z, float scale, float level) {
    return exp2_of(fmaf(z, scale, -level));
}

__device__ __forceinline__ u64 units_of(float weight) { return static_cast<u64>(weight * WHOLE); }

struct Noise {
    u32 position, sample_index, key_low, key_high;
};

__device__ __forceinline__ uint4 philox(u32 block, u32 word, const Noise& noise) {
    u32 c0 = block, c1 = noise.position, c2 = noise.sample_index, c3 = word, k0 = noise.key_low, k1 = noise.key_high;
#pragma unroll
    for (int round = 0; round < 7; round++) {
        const u64 product0 = static_cast<u64>(c0) * 0xD2511F53u, product2 = static_cast<u64>(c2) * 0xCD9E8D57u;
        c0 = static_cast<u32>(product2 >> 32) ^ (c1 ^ k0);
        c2 = static_cast<u32>(product0 >> 32) ^ (c3 ^ k1);
        c1 = static_cast<u32>(product2);
        c3 = static_cast<u32>(product0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
}

// A coin in float64.
__device__ __forceinline__ double uniform_of(u32 word, const Noise& noise) {
    const uint4 words = philox(0, word, noise);
    const u64 k = (static_cast<u64>(words.x) << 20) | (words.y >> 12);
    return (static_cast<double>(k) + 0.5) * 2.220446049250313e-16;
}

__device__ __forceinline__ int highest_of_warp(int key) { return __reduce_max_sync(0xFFFFFFFFu, key); }
__device__ __forceinline__ u32 sum_of_warp(u32 value) { return __reduce_add_sync(0xFFFFFFFFu, value); }

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
    for (int step = 16; step; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    return value;
}

// Of values below 2^62.
__device__ __forceinline__ u64 sum_of_warp(u64 value) {
    const u32 mask = (1u << 21) - 1;
    const u64 low = sum_of_warp(static_cast<u32>(value) & mask);
    const u64 middle = sum_of_warp(static_cast<u32>(value >> 21) & mask);
    const u64 high = sum_of_warp(static_cast<u32>(value >> 42));
    return low + (middle << 21) + (high << 42);
}
