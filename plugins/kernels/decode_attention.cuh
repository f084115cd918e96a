// Attention of one query row a head over the rows of both banks that it may see: all of them, or a fixation's visual
// rows and all text rows. The keys are split among blocks (flash decoding); merge_splits.cuh puts the parts together.
#ifndef FASTOCR_KERNELS_DECODE_ATTENTION_CUH
#define FASTOCR_KERNELS_DECODE_ATTENTION_CUH

#include <math.h>
#include <string.h>

#include "attention.h"
#include "decode_problem.cuh"
#include "storage.cuh"

namespace fastocr {
namespace decode {

// Where a row of the joined list "visual rows, then text rows" lies: a visual row r as r, a text row r as -1 - r, an
// unused place of a fixation as kNowhere.
constexpr int kNowhere = -2147483647 - 1;

// Blocks of a multiprocessor that there must be registers for: 4 leave 128 a thread. Where 100 KiB of shared memory hold
// no more than 2 or 3 blocks, and for float32, which is for tests, threads get more instead.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
template <class T>
constexpr int kBlocks = 3;
#else
template <class T>
constexpr int kBlocks = sizeof(T) == 2 ? 4 : 3;
#endif

// Which rows a block reads. Lengths are known on the device alone, so the number of splits is fixed and each takes its
// share of what there is: no split is shorter than kFewestRows, so that a short list is not spread over blocks that
// cost more to merge than they save.
template <class T>
struct RowList {
    int64_t const* fixation; // of this page and KV head; null: every visual row
    int visual_valid;
    int visual_rows; // places of the list that are visual
    int first; // this split's rows are first to end - 1
    int end;

    __device__ RowList(DecodeProblem<T> const& problem, int64_t page, int kv_head, int split)
    {
        int64_t const at = page * problem.rows + problem.row;
        visual_valid = cut(problem.visual_valid[at], problem.visual_capacity);
        int const text_valid = cut(problem.text_valid[at], problem.text_capacity);
        fixation = nullptr;
        visual_rows = visual_valid;
        if (problem.attend_all != nullptr && *problem.attend_all == 0) {
            fixation = problem.fixation + (page * problem.num_key_value_heads + kv_head) * problem.fixation_size;
            visual_rows = problem.fixation_size;
        }
        int const rows = visual_rows + text_valid;
        int const share = (rows + problem.num_splits - 1) / problem.num_splits;
        int const step = share > kFewestRows ? share : kFewestRows;
        first = split * step;
        end = first + step < rows ? first + step : rows;
    }

    // Sets the status bit where a fixation's entry is neither unused nor a row of the page.
    __device__ int source(int place, int64_t* status) const
    {
        if (place >= end)
            return kNowhere;
        if (place >= visual_rows)
            return -1 - (place - visual_rows);
        if (fixation == nullptr)
            return place;
        int64_t const entry = fixation[place];
        if (entry >= 0 && entry < visual_valid)
            return static_cast<int>(entry);
        if (entry != -1)
            atomicOr(reinterpret_cast<unsigned long long*>(status),
                static_cast<unsigned long long>(FASTOCR_STATUS_FIXATION_OUT_OF_RANGE));
        return kNowhere;
    }
};

// What a block keeps in shared memory. A row of keys or values is an odd number of 16-byte pieces long: eight threads
// that read the same piece of eight rows then touch all 32 banks once. The sums of the row groups take the place of the
// keys and values at the end.
template <class T>
struct SharedLayout {
    int stride; // elements of a row
    size_t values, query, powers, rescale, largest, total, sources, bytes; // offsets in bytes

    __host__ __device__ SharedLayout(int head_dim, int heads)
    {
        constexpr int kPiece = 16 / static_cast<int>(sizeof(T));
        int const tiles = (heads + kHeadTile - 1) / kHeadTile;
        stride = (head_dim / kPiece | 1) * kPiece;
        values = sizeof(T) * kTileRows<T> * stride;
        query = 2 * values;
        if (query < kThreads * kHeadTile * 8 * sizeof(float))
            query = kThreads * kHeadTile * 8 * sizeof(float);
        powers = query + sizeof(float) * tiles * kHeadTile * head_dim;
        rescale = powers + sizeof(float) * tiles * kHeadTile * kTileRows<T>;
        largest = rescale + sizeof(float) * kHeadsPerBlock;
        total = largest + sizeof(float) * kHeadsPerBlock;
        sources = total + sizeof(float) * kHeadsPerBlock;
        bytes = sources + sizeof(int) * 2 * kTileRows<T>;
    }
};

// Starts copying the rows of a tile. Neighbouring threads take neighbouring pieces: whole cache lines, and as many
// bytes under way as a tile has, which is what keeps the memory busy. An unused place becomes zeros, since 0 times
// what happens to lie there might be NaN.
template <class T>
__device__ inline void start_copy(
    T* to, int stride, T const* visual, T const* text, int const* sources, int rows, int head_dim)
{
    constexpr int kPiece = 16 / static_cast<int>(sizeof(T));
    int const pieces = head_dim / kPiece;
#pragma unroll 2 // a copy holds no register while it is under way, so there is nothing to gain from more
    for (int i = threadIdx.x; i < rows * pieces; i += kThreads) {
        int const row = i / pieces;
        int const column = i % pieces * kPiece;
        int const source = sources[row];
        T* const place = to + row * stride + column;
        if (source == kNowhere)
            *reinterpret_cast<uint4*>(place) = uint4{0, 0, 0, 0};
        else
            copy_async_16(place,
                (source >= 0 ? visual + static_cast<int64_t>(source) * head_dim
                             : text + static_cast<int64_t>(-1 - source) * head_dim)
                    + column);
    }
}

// scores of a tile: a thread takes one row for four heads at once, so each key is converted once for four heads and
// the query is read by all threads of a warp at the same address. powers[head tile][row][4] = scores in units of log2.
template <class T>
__device__ inline void multiply_by_keys(float* powers, T const* keys, int stride, float const* query, int head_tiles,
    int const* sources, int rows, int head_dim, float* scores, int64_t scores_stride, int heads)
{
    for (int i = threadIdx.x; i < kTileRows<T> * head_tiles; i += kThreads) {
        int const row = i % kTileRows<T>;
        int const head_tile = i / kTileRows<T>;
        if (row >= rows)
            continue;
        float sum[kHeadTile] = {};
        T const* const key = keys + row * stride;
        float const* const q = query + head_tile * kHeadTile * head_dim;
#pragma unroll 1 // 32 independent products a turn are enough; more would not fit the registers
        for (int d = 0; d < head_dim; d += 8) {
            float k[8];
            load_8(k, key + d);
#pragma unroll
            for (int h = 0; h < kHeadTile; ++h) {
                float part[8];
                load_8(part, q + h * head_dim + d);
#pragma unroll
                for (int e = 0; e < 8; ++e)
                    sum[h] += k[e] * part[e];
            }
        }
        int const source = sources[row];
        if (source == kNowhere)
            sum[0] = sum[1] = sum[2] = sum[3] = -INFINITY;
        else if (scores != nullptr && source >= 0)
            for (int h = 0; h < kHeadTile && head_tile * kHeadTile + h < heads; ++h)
                scores[(head_tile * kHeadTile + h) * scores_stride + source] = sum[h];
        *reinterpret_cast<float4*>(powers + i * kHeadTile) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
}

__device__ inline float warp_max(float value)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        value = fmaxf(value, __shfl_xor_sync(~0u, value, mask));
    return value;
}

__device__ inline float warp_sum(float value)
{
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        value += __shfl_xor_sync(~0u, value, mask);
    return value;
}

// Scores of a tile become powers against the largest score so far; a warp takes a head at a time. rescale[head] is
// what the sums so far must be multiplied by.
template <class T>
__device__ inline void update_softmax(
    float* powers, float* rescale, float* largest, float* total, int heads, int rows)
{
    int const lane = threadIdx.x % 32;
    for (int head = threadIdx.x / 32; head < heads; head += kThreads / 32) {
        float* const own = powers + head / kHeadTile * kTileRows<T> * kHeadTile + head % kHeadTile;
        float const before = largest[head];
        float score[kTileRows<T> / 32];
        float now = before;
#pragma unroll
        for (int j = 0; j < kTileRows<T> / 32; ++j) {
            int const row = lane + 32 * j;
            score[j] = row < rows ? own[row * kHeadTile] : -INFINITY;
            now = fmaxf(now, score[j]);
        }
        now = warp_max(now);
        float const shift = now == -INFINITY ? 0.0f : now; // nothing seen yet: all powers are 0
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kTileRows<T> / 32; ++j) {
            int const row = lane + 32 * j;
            float const power = exp2f(score[j] - shift);
            sum += power;
            if (row < rows)
                own[row * kHeadTile] = power;
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            float const factor = exp2f(before - shift);
            rescale[head] = factor;
            total[head] = total[head] * factor + sum;
            largest[head] = now;
        }
    }
}

} // namespace decode

// Grid: splits x (KV heads x blocks of kHeadsPerBlock query heads) x pages. All query heads of a block share the rows
// it reads. kHeadDim 0 takes head_dim from the problem.
//
// One buffer each for keys and values: the next keys travel while the softmax and the output are computed, the next
// values while the scores are, so there is always half a buffer a block under way, and several blocks fit a
// multiprocessor.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(decode::kThreads, decode::kBlocks<T>) decode_attention(DecodeProblem<T> const problem)
{
    using namespace decode;
    int const head_dim = kHeadDim != 0 ? kHeadDim : problem.head_dim;
    int const head_blocks = (problem.group + kHeadsPerBlock - 1) / kHeadsPerBlock;
    int const kv_head = blockIdx.y / head_blocks;
    int64_t const page = blockIdx.z;
    int const head_in_group = blockIdx.y % head_blocks * kHeadsPerBlock;
    int const heads = problem.group - head_in_group < kHeadsPerBlock ? problem.group - head_in_group : kHeadsPerBlock;
    int const head_tiles = (heads + kHeadTile - 1) / kHeadTile;
    int64_t const first_head
        = (page * problem.num_key_value_heads + kv_head) * problem.group + head_in_group; // of B * H
    int const split = blockIdx.x;
    int const thread = threadIdx.x;

    RowList<T> const list(problem, page, kv_head, split);
    if (list.first >= list.end && problem.num_splits > 1) {
        if (thread < heads)
            problem.part_lse[(first_head + thread) * problem.num_splits + split] = -INFINITY;
        return;
    }

    FASTOCR_DYNAMIC_SHARED(unsigned char, shared);
    SharedLayout<T> const layout(head_dim, heads);
    T* const keys = reinterpret_cast<T*>(shared);
    T* const values = reinterpret_cast<T*>(shared + layout.values);
    float* const query = reinterpret_cast<float*>(shared + layout.query);
    float* const powers = reinterpret_cast<float*>(shared + layout.powers);
    float* const rescale = reinterpret_cast<float*>(shared + layout.rescale);
    float* const largest = reinterpret_cast<float*>(shared + layout.largest);
    float* const total = reinterpret_cast<float*>(shared + layout.total);
    int* const sources = reinterpret_cast<int*>(shared + layout.sources);

    int64_t const kv = page * problem.num_key_value_heads + kv_head;
    int64_t const visual_offset = kv * problem.visual_capacity * head_dim;
    int64_t const text_offset = kv * problem.text_capacity * head_dim;
    auto const tile_rows = [&](int tile) {
        int const left = list.end - list.first - tile * kTileRows<T>;
        return left < kTileRows<T> ? left : kTileRows<T>;
    };
    auto const copy_keys = [&](int tile) {
        start_copy(keys, layout.stride, problem.visual_key + visual_offset, problem.text_key + text_offset,
            sources + tile % 2 * kTileRows<T>, tile_rows(tile), head_dim);
    };
    auto const copy_values = [&](int tile) {
        start_copy(values, layout.stride, problem.visual_value + visual_offset, problem.text_value + text_offset,
            sources + tile % 2 * kTileRows<T>, tile_rows(tile), head_dim);
    };
    int const tiles = list.first < list.end ? (list.end - list.first + kTileRows<T> - 1) / kTileRows<T> : 0;

    if (thread < kTileRows<T>)
        sources[thread] = list.source(list.first + thread, problem.status);
    if (thread < kHeadsPerBlock) {
        rescale[thread] = 1;
        largest[thread] = -INFINITY;
        total[thread] = 0;
    }
    __syncthreads();
    if (tiles > 0)
        copy_keys(0);
    copy_async_commit();
    if (tiles > 0)
        copy_values(0);
    copy_async_commit();
    for (int i = thread; i < head_tiles * kHeadTile * head_dim; i += kThreads) {
        int const head = i / head_dim;
        int64_t const from = ((first_head + head) * problem.rows + problem.row) * head_dim + i % head_dim;
        query[i] = head < heads ? to_float(problem.query[from]) * problem.scale : 0.0f;
    }

    // A thread's share of the output: 8 columns of 4 heads, over every row_groups-th row.
    int const columns = head_dim / 8;
    int const units = columns * head_tiles;
    int const row_groups = kThreads / units;
    int const column = thread % columns * 8;
    int const head_tile = thread / columns % head_tiles;
    int const row_group = thread / units;
    float output[kHeadTile][8] = {};

    for (int tile = 0; tile < tiles; ++tile) {
        int const rows = tile_rows(tile);
        int const* const own_sources = sources + tile % 2 * kTileRows<T>;
        // Read early and stored late: the next fixation entries are not waited for.
        int next_source = kNowhere;
        if (thread < kTileRows<T>)
            next_source = list.source(list.first + (tile + 1) * kTileRows<T> + thread, problem.status);
        copy_async_wait<1>();
        __syncthreads(); // the keys are there
        multiply_by_keys(powers, keys, layout.stride, query, head_tiles, own_sources, rows, head_dim,
            problem.scores == nullptr ? nullptr : problem.scores + first_head * problem.scores_stride,
            problem.scores_stride, heads);
        if (thread < kTileRows<T>)
            sources[(tile + 1) % 2 * kTileRows<T> + thread] = next_source;
        __syncthreads(); // the scores and the next sources are there, and the keys read
        if (tile + 1 < tiles)
            copy_keys(tile + 1);
        copy_async_commit();
        update_softmax<T>(powers, rescale, largest, total, heads, rows);
        copy_async_wait<1>();
        __syncthreads(); // the powers and the values are there
        if (row_group < row_groups) {
#pragma unroll
            for (int h = 0; h < kHeadTile; ++h) {
                float const factor = rescale[head_tile * kHeadTile + h];
#pragma unroll
                for (int e = 0; e < 8; ++e)
                    output[h][e] *= factor;
            }
#pragma unroll 2
            for (int row = row_group; row < rows; row += row_groups) {
                float value[8];
                load_8(value, values + row * layout.stride + column);
                float4 const power
                    = *reinterpret_cast<float4 const*>(powers + (head_tile * kTileRows<T> + row) * kHeadTile);
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    output[0][e] += power.x * value[e];
                    output[1][e] += power.y * value[e];
                    output[2][e] += power.z * value[e];
                    output[3][e] += power.w * value[e];
                }
            }
        }
        __syncthreads(); // the values and powers are read
        if (tile + 1 < tiles)
            copy_values(tile + 1);
        copy_async_commit();
    }

    // The row groups' sums meet in shared memory, [row group][head][head_dim].
    copy_async_wait<0>();
    __syncthreads();
    float* const parts = reinterpret_cast<float*>(shared);
    int const part_size = head_tiles * kHeadTile * head_dim;
    if (row_group < row_groups)
#pragma unroll
        for (int h = 0; h < kHeadTile; ++h) {
            float4* const to = reinterpret_cast<float4*>(
                parts + row_group * part_size + (head_tile * kHeadTile + h) * head_dim + column);
            to[0] = make_float4(output[h][0], output[h][1], output[h][2], output[h][3]);
            to[1] = make_float4(output[h][4], output[h][5], output[h][6], output[h][7]);
        }
    __syncthreads();
    for (int i = thread; i < heads * head_dim; i += kThreads) {
        int const head = i / head_dim;
        float sum = 0;
        for (int group = 0; group < row_groups; ++group)
            sum += parts[group * part_size + i];
        float const result = total[head] == 0 ? 0.0f : sum / total[head];
        if (problem.num_splits == 1)
            problem.output[((first_head + head) * problem.rows + problem.row) * head_dim + i % head_dim]
                = from_float<T>(result);
        else
            problem.parts[((first_head + head) * problem.num_splits + split) * head_dim + i % head_dim] = result;
    }
    if (thread < heads && problem.part_lse != nullptr)
        problem.part_lse[(first_head + thread) * problem.num_splits + split]
            = total[thread] == 0 ? -INFINITY : largest[thread] + log2f(total[thread]);
}

} // namespace fastocr
#endif
