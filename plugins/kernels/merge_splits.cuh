// The splits of a head become its output row, and the log2 of its whole sum of powers.
#ifndef FASTOCR_KERNELS_MERGE_SPLITS_CUH
#define FASTOCR_KERNELS_MERGE_SPLITS_CUH

#include <math.h>

#include "decode_attention.cuh"

namespace fastocr {

// Grid: B * H blocks. A thread takes a column, so that every split's row is read as whole cache lines. A split without
// rows has weight 0, and its part, which was never written, is not read.
template <class T>
__global__ void __launch_bounds__(decode::kThreads) merge_splits(DecodeProblem<T> const problem, float* lse)
{
    using namespace decode;
    __shared__ float weights[kMostSplits];
    int64_t const head = blockIdx.x; // of B * H
    int const lane = threadIdx.x % 32;
    int const splits = problem.num_splits;
    float const* const part_lse = problem.part_lse + head * splits;
    // Every warp does the same few reads and sums, which is cheaper than to tell the others.
    float own[kMostSplits / 32];
    float largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kMostSplits / 32; ++j) {
        own[j] = lane + 32 * j < splits ? part_lse[lane + 32 * j] : -INFINITY;
        largest = fmaxf(largest, own[j]);
    }
    largest = warp_max(largest);
    float const shift = largest == -INFINITY ? 0.0f : largest;
    float total = 0;
#pragma unroll
    for (int j = 0; j < kMostSplits / 32; ++j) {
        own[j] = exp2f(own[j] - shift);
        total += own[j];
        if (threadIdx.x < 32)
            weights[lane + 32 * j] = own[j];
    }
    total = warp_sum(total);
    __syncthreads();
    float const* const parts = problem.parts + head * splits * problem.head_dim;
    for (int d = threadIdx.x; d < problem.head_dim; d += kThreads) {
        float sum = 0;
#pragma unroll 4
        for (int split = 0; split < splits; ++split)
            if (weights[split] != 0)
                sum += weights[split] * parts[static_cast<int64_t>(split) * problem.head_dim + d];
        problem.output[(head * problem.rows + problem.row) * problem.head_dim + d]
            = from_float<T>(total == 0 ? 0.0f : sum / total);
    }
    if (lse != nullptr && threadIdx.x == 0)
        lse[head] = total == 0 ? -INFINITY : largest + log2f(total);
}

} // namespace fastocr
#endif
