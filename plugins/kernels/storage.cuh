// How elements are stored, and how they become the floats that are computed with.
#ifndef FASTOCR_KERNELS_STORAGE_CUH
#define FASTOCR_KERNELS_STORAGE_CUH

#include <string.h>

#include "cuda_compat.cuh"

namespace fastocr {

// Elements 0 to 7 at `from`, which is aligned to 16 bytes.
__device__ inline void load_8(float (&to)[8], float const* from)
{
    float4 const low = reinterpret_cast<float4 const*>(from)[0];
    float4 const high = reinterpret_cast<float4 const*>(from)[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}

__device__ inline float2 to_float2(__half2 pair)
{
    return __half22float2(pair);
}

__device__ inline float2 to_float2(__nv_bfloat162 pair)
{
    return __bfloat1622float2(pair);
}

// Both 16-bit types, one 16-byte access.
template <class Pair>
__device__ inline void load_8_pairs(float (&to)[8], void const* from)
{
    union {
        uint4 bits;
        unsigned words[4];
    };
    bits = *static_cast<uint4 const*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        Pair pair;
        memcpy(static_cast<void*>(&pair), &words[i], sizeof pair);
        float2 const both = to_float2(pair);
        to[2 * i] = both.x;
        to[2 * i + 1] = both.y;
    }
}

__device__ inline void load_8(float (&to)[8], __half const* from)
{
    load_8_pairs<__half2>(to, from);
}

__device__ inline void load_8(float (&to)[8], __nv_bfloat16 const* from)
{
    load_8_pairs<__nv_bfloat162>(to, from);
}

__device__ inline float to_float(float value)
{
    return value;
}
__device__ inline float to_float(__half value)
{
    return __half2float(value);
}
__device__ inline float to_float(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}

// Rounded to nearest.
template <class T>
__device__ inline T from_float(float value);

template <>
__device__ inline float from_float<float>(float value)
{
    return value;
}
template <>
__device__ inline __half from_float<__half>(float value)
{
    return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value)
{
    return __float2bfloat16_rn(value);
}

// What the device says of a count, cut to what the bank holds. The status bit is set by append_rows.
__device__ inline int cut(int64_t count, int capacity)
{
    return count < 0 ? 0 : count > capacity ? capacity : static_cast<int>(count);
}

} // namespace fastocr
#endif
