// The fixation: the rows with the largest mass, exactly, ascending, ties to the lower row.
#ifndef FASTOCR_KERNELS_SELECT_TOPK_CUH
#define FASTOCR_KERNELS_SELECT_TOPK_CUH

#include "storage.cuh"

namespace fastocr {

struct SelectProblem {
    float const* mass; // [B,sets,stride], at least 0
    int64_t const* num_fixations; // [B]
    int64_t const* visual_valid; // [B,n], of which the last row counts
    int64_t* fixation; // [B,KV,k]: ascending, -1 where unused, which is at the end
    int64_t stride;
    int batch;
    int sets; // KV, or 1: then every KV head gets the same
    int num_key_value_heads;
    int rows; // n
    int visual_capacity;
    int fixation_size; // k
};

namespace select {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kDigitBits = 11; // 3 digits; the first holds the exponent and 3 more bits, which spreads close masses
constexpr int kBins = 1 << kDigitBits;
constexpr int kPerThread = 4; // bins, or rows, that a thread takes at once

// The sum of `value` over the threads before this one, and over all of them. `totals` holds a warp's sum each.
__device__ inline unsigned scan(unsigned value, unsigned* totals, unsigned* all)
{
    int const lane = threadIdx.x % 32;
    unsigned sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        unsigned const before = __shfl_up_sync(~0u, sum, step);
        if (lane >= step)
            sum += before;
    }
    if (lane == 31)
        totals[threadIdx.x / 32] = sum;
    __syncthreads();
    unsigned before = 0;
    unsigned total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
        if (warp < static_cast<int>(threadIdx.x) / 32)
            before += totals[warp];
        total += totals[warp];
    }
    __syncthreads(); // the totals are read
    *all = total;
    return before + sum - value;
}

} // namespace select

// Grid: B * sets blocks. Masses are at least 0, so their bits order as they do: a radix select finds the bits of the
// count-th largest mass, digit by digit, and one more pass picks the rows in order.
__global__ void __launch_bounds__(select::kThreads) select_topk(SelectProblem const problem)
{
    using namespace select;
    __shared__ unsigned histogram[kBins];
    __shared__ unsigned totals[kWarps];
    __shared__ unsigned chosen_digit;
    __shared__ unsigned chosen_before;
    int64_t const page = blockIdx.x / problem.sets;
    int const set = blockIdx.x % problem.sets;
    int const thread = threadIdx.x;
    float const* const mass = problem.mass + static_cast<int64_t>(blockIdx.x) * problem.stride;
    int const copies = problem.sets == 1 ? problem.num_key_value_heads : 1;
    int64_t* const fixation
        = problem.fixation + (page * problem.num_key_value_heads + set) * problem.fixation_size;
    int const valid = cut(problem.visual_valid[page * problem.rows + problem.rows - 1], problem.visual_capacity);
    int const most = valid < problem.fixation_size ? valid : problem.fixation_size;
    int const count = cut(problem.num_fixations[page], most);

    // The rows wanted are those above `pivot` and the first `wanted` of those equal to it.
    unsigned pivot = 0;
    unsigned wanted = count;
    unsigned known = 0; // bits of the pivot that are found
    for (int shift = 32 - kDigitBits; count > 0; shift = shift > kDigitBits ? shift - kDigitBits : 0) {
        for (int bin = thread; bin < kBins; bin += kThreads)
            histogram[bin] = 0;
        __syncthreads();
        for (int row = thread; row < valid; row += kThreads) {
            unsigned const bits = __float_as_uint(mass[row]);
            if ((bits & known) == pivot)
                atomicAdd(&histogram[bits >> shift & (kBins - 1)], 1u);
        }
        __syncthreads();
        int const top = kBins - 1 - thread * kPerThread; // bins from the top: larger masses first
        unsigned own = 0;
#pragma unroll
        for (int i = 0; i < kPerThread; ++i)
            own += histogram[top - i];
        unsigned all;
        unsigned before = scan(own, totals, &all);
        if (before < wanted && wanted <= before + own) { // one thread
            int bin = top;
            while (before + histogram[bin] < wanted)
                before += histogram[bin--];
            chosen_digit = bin;
            chosen_before = before;
        }
        __syncthreads();
        wanted -= chosen_before;
        pivot |= chosen_digit << shift;
        known |= static_cast<unsigned>(kBins - 1) << shift;
        __syncthreads(); // chosen_* are read
        if (shift == 0)
            break;
    }

    unsigned above_before = 0;
    unsigned equal_before = 0;
    for (int first = 0; first < valid && count > 0; first += kThreads * kPerThread) {
        int const row = first + thread * kPerThread;
        unsigned bits[kPerThread];
        unsigned counts = 0; // rows above the pivot, and in the upper half those equal to it
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            bits[i] = row + i < valid ? __float_as_uint(mass[row + i]) : 0;
            if (row + i < valid)
                counts += bits[i] > pivot ? 1u : bits[i] == pivot ? 1u << 16 : 0u;
        }
        unsigned all;
        unsigned const before = scan(counts, totals, &all);
        unsigned above = above_before + (before & 0xFFFF);
        unsigned equal = equal_before + (before >> 16);
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
            bool const is_equal = row + i < valid && bits[i] == pivot;
            bool const is_above = row + i < valid && bits[i] > pivot;
            if (is_above || (is_equal && equal < wanted)) {
                unsigned const place = above + (equal < wanted ? equal : wanted);
                for (int copy = 0; copy < copies; ++copy)
                    fixation[static_cast<int64_t>(copy) * problem.fixation_size + place] = row + i;
            }
            above += is_above;
            equal += is_equal;
        }
        above_before += all & 0xFFFF;
        equal_before += all >> 16;
    }
    for (int copy = 0; copy < copies; ++copy)
        for (int place = count + thread; place < problem.fixation_size; place += kThreads)
            fixation[static_cast<int64_t>(copy) * problem.fixation_size + place] = -1;
}

inline cudaError_t launch_select_topk(SelectProblem const& problem, cudaStream_t stream)
{
    FASTOCR_LAUNCH(
        select_topk, static_cast<unsigned>(problem.batch * problem.sets), select::kThreads, 0, stream, problem);
    return cudaGetLastError();
}

} // namespace fastocr
#endif
