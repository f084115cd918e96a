// Prefill attention of 16-bit tensors on tensor cores.
#ifndef FASTOCR_KERNELS_DENSE_PREFILL_MMA_CUH
#define FASTOCR_KERNELS_DENSE_PREFILL_MMA_CUH

#include <math.h>

#include "dense_prefill_tile.cuh"

namespace fastocr {
namespace dense_prefill {

// Sizes for a head_dim of up to kHeadDim. A warp has 16 query rows, the height of the instruction; four make a team.
template <class T, int kHeadDim>
struct MmaLayout {
    // Two teams have the same queries and take every other tile of keys, each in buffers of its own; at the end they
    // add up. The chunk of a single page makes fewer blocks than a large GPU has multiprocessors, and one team alone
    // leaves a multiprocessor waiting. Wide heads have no room for a second.
    static constexpr int kTeams = kHeadDim <= 128 ? 2 : 1;
    static constexpr int kTeamThreads = 128;
    static constexpr int kThreads = kTeams * kTeamThreads;
    static constexpr int kQueries = 16 * kTeamThreads / 32;
    // Half as many keys for wide heads: the output alone is kHeadDim / 2 registers a thread there.
    static constexpr int kKeys = kHeadDim <= 128 ? 64 : 32;
    // Narrow heads leave room for two blocks on a multiprocessor, if a thread keeps to 128 registers.
    static constexpr int kResidentBlocks = kHeadDim <= 64 || kTeams == 1 ? 2 : 1;
    // The query's fragments are kHeadDim / 4 registers. Where those are wanted for something else, each key tile reads
    // them again from shared memory.
    static constexpr bool kQueryInRegisters = kHeadDim > 64 && kHeadDim <= 128;

    using Queries = SharedTile<T, kQueries, kHeadDim>;
    using Keys = SharedTile<T, kKeys, kHeadDim>;
    // A query that goes to registers passes through the tiles that keys and values use afterwards.
    static constexpr int kQueryBytes = kQueryInRegisters ? 0 : Queries::kBytes;
    static constexpr int kTeamBytes = 2 * Keys::kBytes;
    static constexpr int kSharedBytes = kQueryBytes + kTeams * kTeamBytes;
    static_assert(!kQueryInRegisters || Queries::kBytes <= kSharedBytes, "the query would not fit");
    // What a team leaves for the other: output and softmax of its threads.
    static constexpr int kLeftBytes = (kHeadDim / 2 + 4) * kTeamThreads * static_cast<int>(sizeof(float));
    static_assert(kTeams == 1 || kLeftBytes <= kSharedBytes, "a team's result would not fit");
};

// This lane's two rows of the running softmax: `largest` score so far, and this lane's part of the `sum` of powers.
struct SoftmaxRows {
    float largest[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0.0f, 0.0f};
};

// The largest, or the sum, over the four lanes that hold a row of a matrix fragment.
__device__ __forceinline__ float largest_of_row(float value)
{
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float sum_of_row(float value)
{
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// scores = query keys^T for the warp's 16 rows. The matrices of a 16x16 part of the query are loaded as the
// instruction's `a`; two 8x8 blocks of keys, which lie as the transposes that its `b` wants, come with one load.
template <class T, int kHeadDim, class Layout>
__device__ __forceinline__ void multiply_by_keys(float (&scores)[Layout::kKeys / 8][4],
    uint32_t const (&query)[kHeadDim / 16][4], typename Layout::Queries const& queries,
    typename Layout::Keys const& keys)
{
    int const lane = threadIdx.x % 32;
    int const warp = threadIdx.x % Layout::kTeamThreads / 32;
#pragma unroll
    for (int j = 0; j < Layout::kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            scores[j][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
        uint32_t a[4];
        if constexpr (Layout::kQueryInRegisters) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                a[e] = query[step][e];
        } else {
            load_matrices(a, queries.at(16 * warp + lane % 16, 16 * step + lane / 16 * 8));
        }
#pragma unroll
        for (int j = 0; j < Layout::kKeys / 16; ++j) {
            uint32_t b[4];
            load_matrices(b, keys.at(16 * j + lane % 8 + lane / 16 * 8, 16 * step + lane / 8 % 2 * 8));
            multiply_add<T>(scores[2 * j], a, b[0], b[1]);
            multiply_add<T>(scores[2 * j + 1], a, b[2], b[3]);
        }
    }
}

// Scores to powers of two in place, and what came before scaled down to the new largest score.
template <int kScores, int kOutputs>
__device__ __forceinline__ void update_softmax(
    SoftmaxRows& rows, float (&scores)[kScores][4], float (&output)[kOutputs][4])
{
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float largest = rows.largest[r];
#pragma unroll
        for (int j = 0; j < kScores; ++j)
            largest = fmaxf(largest, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
        largest = largest_of_row(largest);
        // A row that has seen no key yet has no largest score: 0 in its place makes its powers 0 and not NaN.
        float const reference = largest == -INFINITY ? 0.0f : largest;
        float const shrink = exp2f(rows.largest[r] - reference);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kScores; ++j) {
            scores[j][2 * r] = exp2f(scores[j][2 * r] - reference);
            scores[j][2 * r + 1] = exp2f(scores[j][2 * r + 1] - reference);
            sum += scores[j][2 * r] + scores[j][2 * r + 1];
        }
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) {
            output[j][2 * r] *= shrink;
            output[j][2 * r + 1] *= shrink;
        }
        rows.sum[r] = rows.sum[r] * shrink + sum;
        rows.largest[r] = largest;
    }
}

// output += powers values. The powers lie as a sum of the instruction does, which is the layout of its `a` once pairs
// are packed: they never leave the lane. Values lie row by row, so their blocks are transposed by the load.
template <class T, int kHeadDim, class Layout>
__device__ __forceinline__ void multiply_by_values(float (&output)[kHeadDim / 8][4],
    float const (&powers)[Layout::kKeys / 8][4], typename Layout::Keys const& values)
{
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < Layout::kKeys / 16; ++step) {
        uint32_t a[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            a[e] = pack_pair<T>(powers[2 * step + e / 2][e % 2 * 2], powers[2 * step + e / 2][e % 2 * 2 + 1]);
#pragma unroll
        for (int j = 0; j < kHeadDim / 16; ++j) {
            uint32_t b[4];
            load_matrices_transposed(b, values.at(16 * step + lane % 16, 16 * j + lane / 16 * 8));
            multiply_add<T>(output[2 * j], a, b[0], b[1]);
            multiply_add<T>(output[2 * j + 1], a, b[2], b[3]);
        }
    }
}

// Adds the second team's rows to the first's, thread by thread: both hold the same rows and columns.
template <int kTeamThreads, int kOutputs>
__device__ __forceinline__ void add_up_teams(
    SoftmaxRows& rows, float (&output)[kOutputs][4], float* shared, int team, int thread)
{
    auto const place = [&](int number) -> float& { return shared[number * kTeamThreads + thread]; };
    __syncthreads(); // the tiles are read
    if (team == 1) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                place(4 * j + e) = output[j][e];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            place(4 * kOutputs + r) = rows.largest[r];
            place(4 * kOutputs + 2 + r) = rows.sum[r];
        }
    }
    __syncthreads();
    if (team == 1)
        return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float const other_largest = place(4 * kOutputs + r);
        float const largest = fmaxf(rows.largest[r], other_largest);
        float const reference = largest == -INFINITY ? 0.0f : largest;
        float const shrink = exp2f(rows.largest[r] - reference);
        float const other_shrink = exp2f(other_largest - reference);
        rows.sum[r] = rows.sum[r] * shrink + place(4 * kOutputs + 2 + r) * other_shrink;
#pragma unroll
        for (int j = 0; j < kOutputs; ++j)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; ++e)
                output[j][e] = output[j][e] * shrink + place(4 * j + e) * other_shrink;
    }
}

// One block a tile of queries. The values of a tile travel while its scores are computed, and the next tile's keys
// while the powers and the output are: with one buffer each for keys and values every copy has work to hide behind.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(MmaLayout<T, kHeadDim>::kThreads, MmaLayout<T, kHeadDim>::kResidentBlocks)
    dense_prefill_mma(Problem<T> const problem)
{
    using Layout = MmaLayout<T, kHeadDim>;
    int const team = threadIdx.x / Layout::kTeamThreads;
    int const thread = threadIdx.x % Layout::kTeamThreads; // of the team
    int const lane = thread % 32;
    int const warp = thread / 32;
    int const entry[2] = {16 * warp + lane / 4, 16 * warp + lane / 4 + 8}; // the query rows of this lane

    FASTOCR_DYNAMIC_SHARED(unsigned char, shared);
    unsigned char* const of_team = shared + Layout::kQueryBytes + team * Layout::kTeamBytes;
    typename Layout::Queries const queries{reinterpret_cast<T*>(shared)};
    typename Layout::Keys const keys{reinterpret_cast<T*>(of_team)};
    typename Layout::Keys const values{reinterpret_cast<T*>(of_team + Layout::Keys::kBytes)};

    QueryTile<T, Layout::kQueries> const tile(problem);
    int const head_dim = problem.head_dim;
    queries.template start_copy<Layout::kThreads>(
        threadIdx.x,
        [&](int e) { return tile.holds(e) ? problem.query + tile.offset(e) : static_cast<T const*>(nullptr); },
        head_dim);
    Reach const reach(tile, Layout::kQueries);
    KeyTiles<Layout::kKeys> const tiles(reach);
    int const seen[2][kBanks] = {{tile.valid_of_entry(kVisual, entry[0]), tile.valid_of_entry(kText, entry[0])},
        {tile.valid_of_entry(kVisual, entry[1]), tile.valid_of_entry(kText, entry[1])}};
    copy_async_wait<0>();
    __syncthreads();
    uint32_t query[kHeadDim / 16][4];
    if constexpr (Layout::kQueryInRegisters) {
#pragma unroll
        for (int step = 0; step < kHeadDim / 16; ++step)
            load_matrices(query[step], queries.at(16 * warp + lane % 16, 16 * step + lane / 16 * 8));
        __syncthreads();
    }

    auto const start_copy = [&](typename Layout::Keys const& to, T const* const(&banks)[kBanks], int t) {
        if (t >= tiles.count)
            return;
        int const bank = tiles.bank(t);
        to.template start_copy_of_keys<Layout::kTeamThreads>(thread, of_bank(banks, bank) + tile.bank_offset(bank),
            tiles.first_key(t), of_bank(reach.largest, bank), head_dim);
    };
    float output[kHeadDim / 8][4] = {};
    SoftmaxRows rows;
    start_copy(keys, problem.key, team);
    // Both teams go through the loop equally often, to meet at its barriers; the second may have no tile the last time.
    for (int first_tile = 0; first_tile < tiles.count; first_tile += Layout::kTeams) {
        int const t = first_tile + team;
        bool const at_work = t < tiles.count;
        float scores[Layout::kKeys / 8][4];
        copy_async_wait<0>();
        __syncthreads(); // the keys are there, and the values before them read
        start_copy(values, problem.value, t);
        if (at_work)
            multiply_by_keys<T, kHeadDim, Layout>(scores, query, queries, keys);
        copy_async_wait<0>();
        __syncthreads(); // the values are there, and the keys read
        start_copy(keys, problem.key, t + Layout::kTeams);
        if (!at_work)
            continue;

        int const bank = tiles.bank(t);
        int const first = tiles.first_key(t);
        // A key of this lane is seen where its column, less the lane's own part of it, is below this.
        int const left[2]
            = {of_bank(seen[0], bank) - first - lane % 4 * 2, of_bank(seen[1], bank) - first - lane % 4 * 2};
#pragma unroll
        for (int j = 0; j < Layout::kKeys / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                bool const hidden = 8 * j + e % 2 >= left[e / 2];
                scores[j][e] = hidden ? -INFINITY : scores[j][e] * problem.scale;
            }
        update_softmax(rows, scores, output);
        multiply_by_values<T, kHeadDim, Layout>(output, scores, values);
    }
    if constexpr (Layout::kTeams == 2) {
        add_up_teams<Layout::kTeamThreads>(rows, output, reinterpret_cast<float*>(shared), team, thread);
        if (team == 1)
            return;
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float const sum = sum_of_row(rows.sum[r]);
        float const weight = sum > 0.0f ? 1.0f / sum : 0.0f; // a row that saw nothing gives zeros
        if (!tile.holds(entry[r]))
            continue;
        T* const to = problem.output + tile.offset(entry[r]) + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < kHeadDim / 8; ++j)
            if (8 * j < head_dim)
                *reinterpret_cast<uint32_t*>(to + 8 * j)
                    = pack_pair<T>(output[j][2 * r] * weight, output[j][2 * r + 1] * weight);
    }
}

} // namespace dense_prefill
} // namespace fastocr

#endif
