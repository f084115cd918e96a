// The softmax mass on each visual row, summed over query heads, from the scores that decode_attention left.
#ifndef FASTOCR_KERNELS_VISUAL_MASS_CUH
#define FASTOCR_KERNELS_VISUAL_MASS_CUH

#include <math.h>

#include "storage.cuh"

namespace fastocr {

struct MassProblem {
    float const* scores; // [B,H,stride], in units of log2
    float const* lse; // [B,H]: log2 of the sum of powers over all rows of both banks
    float* mass; // [B,sets,stride]; rows from visual_valid on are not written
    int64_t const* visual_valid; // [B,n], of which the last row counts
    int64_t stride;
    int batch;
    int sets; // KV, or 1 for one fixation for all heads
    int heads_per_set; // H / sets
    int rows; // n
    int visual_capacity;
};

constexpr int kMassThreads = 256;

// Grid: rows / kMassThreads x sets x pages. Scores of a head lie side by side, as neighbouring threads read them.
__global__ void __launch_bounds__(kMassThreads) visual_mass(MassProblem const problem)
{
    int64_t const page = blockIdx.z;
    int const row = blockIdx.x * kMassThreads + threadIdx.x;
    if (row >= cut(problem.visual_valid[page * problem.rows + problem.rows - 1], problem.visual_capacity))
        return;
    int64_t const set = page * problem.sets + blockIdx.y;
    float mass = 0;
#pragma unroll 4
    for (int h = 0; h < problem.heads_per_set; ++h) {
        int64_t const head = set * problem.heads_per_set + h;
        mass += exp2f(problem.scores[head * problem.stride + row] - problem.lse[head]);
    }
    problem.mass[set * problem.stride + row] = mass;
}

inline cudaError_t launch_visual_mass(MassProblem const& problem, cudaStream_t stream)
{
    dim3 const grid((problem.visual_capacity + kMassThreads - 1) / kMassThreads, problem.sets, problem.batch);
    FASTOCR_LAUNCH(visual_mass, grid, kMassThreads, 0, stream, problem);
    return cudaGetLastError();
}

} // namespace fastocr
#endif
