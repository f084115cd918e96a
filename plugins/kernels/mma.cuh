// Warp-wide matrix instructions of sm_80 and later, one function each.
//
// nvcc gets the PTX instruction; without it `cpu/mma_on_cpu.h` does the same exchange between the emulated lanes. All
// lanes of a warp call each function together. Fragments are those of the PTX ISA: of an 8x8 matrix of 16-bit elements,
// lane l holds columns 2 * (l % 4) and the next of row l / 4, in one register, the lower column in the lower half.
#ifndef FASTOCR_KERNELS_MMA_CUH
#define FASTOCR_KERNELS_MMA_CUH

#include <stdint.h>
#include <string.h>

#include "cuda_compat.cuh"

#ifndef __CUDACC__
#include "../cpu/mma_on_cpu.h"
#endif

namespace fastocr {

// Two floats rounded to nearest in one register, `low` in its lower half.
template <class T>
__device__ uint32_t pack_pair(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack_pair<__half>(float low, float high)
{
    __half2 const pair = __floats2half2_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

template <>
__device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float low, float high)
{
    __nv_bfloat162 const pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

// Four 8x8 matrices from shared memory: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned to
// 16); fragment[j] is this lane's part of matrix j.
__device__ __forceinline__ void load_matrices(uint32_t (&fragment)[4], void const* row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
#else
    ::cuda_on_cpu::load_matrices(fragment, row);
#endif
}

// The same, each matrix transposed: this lane's part is rows 2 * (l % 4) and the next of column l / 4.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&fragment)[4], void const* row)
{
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
#else
    ::cuda_on_cpu::load_matrices_transposed(fragment, row);
#endif
}

// sum [16,8] float32 += a [16,16] b [16,8].
// a: its 8x8 quarters in the order upper left, lower left, upper right, lower right.
// b_upper, b_lower: b's rows 0 to 7 and 8 to 15, each as the fragment of its transpose.
// sum: columns 2 * (l % 4) and the next of row l / 4, and then of row l / 4 + 8.
template <class T>
__device__ void multiply_add(float (&sum)[4], uint32_t const (&a)[4], uint32_t b_upper, uint32_t b_lower);

template <>
__device__ __forceinline__ void multiply_add<__half>(
    float (&sum)[4], uint32_t const (&a)[4], uint32_t b_upper, uint32_t b_lower)
{
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_upper), "r"(b_lower));
#else
    ::cuda_on_cpu::multiply_add<__half>(sum, a, b_upper, b_lower);
#endif
}

template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(
    float (&sum)[4], uint32_t const (&a)[4], uint32_t b_upper, uint32_t b_lower)
{
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_upper), "r"(b_lower));
#else
    ::cuda_on_cpu::multiply_add<__nv_bfloat16>(sum, a, b_upper, b_lower);
#endif
}

} // namespace fastocr

#endif
