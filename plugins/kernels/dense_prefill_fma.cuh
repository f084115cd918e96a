// Prefill attention of float32 tensors, on the ordinary multipliers: tensor cores would round the inputs.
#ifndef FASTOCR_KERNELS_DENSE_PREFILL_FMA_CUH
#define FASTOCR_KERNELS_DENSE_PREFILL_FMA_CUH

#include <math.h>

#include "dense_prefill_tile.cuh"

namespace fastocr {
namespace dense_prefill {

// A warp has eight query rows. In scores, a lane is a key; in the output, a lane is every 32nd column.
template <int kHeadDim>
struct FmaLayout {
    static constexpr int kThreads = 128;
    static constexpr int kWarpQueries = 8;
    static constexpr int kQueries = kWarpQueries * kThreads / 32;
    static constexpr int kKeys = 32;
    static constexpr int kColumns = kHeadDim / 32; // of the output, a lane

    using Queries = SharedTile<float, kQueries, kHeadDim>;
    using Keys = SharedTile<float, kKeys, kHeadDim>; // and values: they take turns, so that a second block fits
    using Powers = SharedTile<float, kQueries, kKeys>;
    static constexpr int kSharedBytes = Queries::kBytes + Keys::kBytes + Powers::kBytes;
};

__device__ __forceinline__ float4 load_four(float const* from)
{
    return *reinterpret_cast<float4 const*>(from);
}

__device__ __forceinline__ float dot(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

template <int kHeadDim>
__global__ void __launch_bounds__(FmaLayout<kHeadDim>::kThreads, 2)
    dense_prefill_fma(Problem<float> const problem)
{
    using Layout = FmaLayout<kHeadDim>;
    constexpr int kThreads = Layout::kThreads;
    constexpr int kWarpQueries = Layout::kWarpQueries;
    FASTOCR_DYNAMIC_SHARED(unsigned char, shared);
    typename Layout::Queries const queries{reinterpret_cast<float*>(shared)};
    typename Layout::Keys const keys{reinterpret_cast<float*>(shared + Layout::Queries::kBytes)};
    typename Layout::Powers const powers{
        reinterpret_cast<float*>(shared + Layout::Queries::kBytes + Layout::Keys::kBytes)};

    QueryTile<float, Layout::kQueries> const tile(problem);
    int const head_dim = problem.head_dim;
    int const thread = threadIdx.x;
    int const lane = thread % 32;
    int const first_entry = thread / 32 * kWarpQueries; // of this warp

    queries.template start_copy<kThreads>(
        thread,
        [&](int e) { return tile.holds(e) ? problem.query + tile.offset(e) : static_cast<float const*>(nullptr); },
        head_dim);
    Reach const reach(tile, Layout::kQueries);
    KeyTiles<Layout::kKeys> const tiles(reach);

    float output[kWarpQueries][Layout::kColumns] = {};
    float largest[kWarpQueries];
    float sum[kWarpQueries]; // this lane's part
#pragma unroll
    for (int r = 0; r < kWarpQueries; ++r) {
        largest[r] = -INFINITY;
        sum[r] = 0.0f;
    }
    for (int t = 0; t < tiles.count; ++t) {
        int const bank = tiles.bank(t);
        int const first = tiles.first_key(t);
        int const end = of_bank(reach.largest, bank);
        keys.template start_copy_of_keys<kThreads>(
            thread, of_bank(problem.key, bank) + tile.bank_offset(bank), first, end, head_dim);
        copy_async_wait<0>();
        __syncthreads(); // the keys are there (and, the first time, the query)
        float scores[kWarpQueries] = {};
#pragma unroll 4
        for (int column = 0; column < kHeadDim; column += 4) {
            float4 const key = load_four(keys.at(lane, column));
#pragma unroll
            for (int r = 0; r < kWarpQueries; ++r)
                scores[r] = dot(load_four(queries.at(first_entry + r, column)), key, scores[r]);
        }
        __syncthreads(); // the keys are read
        keys.template start_copy_of_keys<kThreads>(
            thread, of_bank(problem.value, bank) + tile.bank_offset(bank), first, end, head_dim);
#pragma unroll
        for (int r = 0; r < kWarpQueries; ++r) {
            int const seen = tile.valid_of_entry(bank, first_entry + r);
            float const score = first + lane < seen ? scores[r] * problem.scale : -INFINITY;
            float most = score;
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2)
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
            most = fmaxf(most, largest[r]);
            // A row that has seen no key yet has no largest score: 0 in its place makes its powers 0 and not NaN.
            float const reference = most == -INFINITY ? 0.0f : most;
            float const shrink = exp2f(largest[r] - reference);
            float const power = exp2f(score - reference);
            largest[r] = most;
            sum[r] = sum[r] * shrink + power;
#pragma unroll
            for (int c = 0; c < Layout::kColumns; ++c)
                output[r][c] *= shrink;
            *powers.at(first_entry + r, lane) = power;
        }
        copy_async_wait<0>();
        __syncthreads(); // the values and the powers are there
#pragma unroll 2
        for (int key = 0; key < Layout::kKeys; key += 4) {
            float4 value[Layout::kColumns]; // of four keys
#pragma unroll
            for (int c = 0; c < Layout::kColumns; ++c) {
                float const* from = keys.at(key, lane + 32 * c);
                value[c] = float4{from[0], from[Layout::Keys::kStride], from[2 * Layout::Keys::kStride],
                    from[3 * Layout::Keys::kStride]};
            }
#pragma unroll
            for (int r = 0; r < kWarpQueries; ++r) {
                float4 const power = load_four(powers.at(first_entry + r, key));
#pragma unroll
                for (int c = 0; c < Layout::kColumns; ++c)
                    output[r][c] = dot(power, value[c], output[r][c]);
            }
        }
        __syncthreads(); // the values are read
    }
    copy_async_wait<0>(); // the query's, where there was no key

#pragma unroll
    for (int r = 0; r < kWarpQueries; ++r) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], distance);
        float const weight = sum[r] > 0.0f ? 1.0f / sum[r] : 0.0f; // a row that saw nothing gives zeros
        int const entry = first_entry + r;
        if (!tile.holds(entry))
            continue;
#pragma unroll
        for (int c = 0; c < Layout::kColumns; ++c)
            if (lane + 32 * c < head_dim)
                problem.output[tile.offset(entry) + lane + 32 * c] = output[r][c] * weight;
    }
}

} // namespace dense_prefill
} // namespace fastocr

#endif
