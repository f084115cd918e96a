// Host only: how many splits the keys of a decode step are cut into, and where things lie in the workspace.
#ifndef FASTOCR_KERNELS_PLAN_H
#define FASTOCR_KERNELS_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include <algorithm>

#include "attention.h"
#include "decode_problem.cuh"

namespace fastocr {

constexpr int64_t kMostBlocks = 1024; // that the library chooses for one op, unless batch and heads alone are more
constexpr int kBlocksPerMultiprocessor = 4;

// Blocks of decode_attention with one split.
inline int64_t blocks_of_one_split(FastocrShape const& shape)
{
    int64_t const group = shape.num_attention_heads / shape.num_key_value_heads;
    int64_t const head_blocks = (group + decode::kHeadsPerBlock - 1) / decode::kHeadsPerBlock;
    return shape.batch * head_blocks * shape.num_key_value_heads;
}

// Splits beyond which some would always be empty.
inline int64_t most_useful_splits(FastocrShape const& shape)
{
    int64_t const rows = static_cast<int64_t>(shape.visual_capacity) + shape.text_capacity;
    return std::min<int64_t>(decode::kMostSplits, (rows + decode::kFewestRows - 1) / decode::kFewestRows);
}

// Enough blocks to fill the device about once, whatever the lengths turn out to be.
inline int choose_splits(FastocrShape const& shape, int multiprocessors)
{
    if (shape.num_splits > 0)
        return shape.num_splits;
    int64_t const wanted = std::min<int64_t>(kMostBlocks, kBlocksPerMultiprocessor * int64_t{multiprocessors});
    int64_t const splits = wanted / blocks_of_one_split(shape);
    return static_cast<int>(std::max<int64_t>(1, std::min(splits, most_useful_splits(shape))));
}

// Offsets in bytes, each a multiple of 256.
struct Workspace {
    size_t parts; // float [B,H,splits,D]
    size_t part_lse; // float [B,H,splits]
    size_t lse; // float [B,H]
    size_t scores; // float [B,H,VCAP], FOCAL
    size_t mass; // float [B,KV,VCAP], FOCAL
    size_t bytes;

    // Room for whatever choose_splits says: num_splits, or any number that it may choose on any device. Its choice
    // makes B * KV * splits at most the larger of kMostBlocks and the blocks of one split, which rises with the batch;
    // the number of splits alone does not.
    explicit Workspace(FastocrShape const& shape)
    {
        int64_t const pages_and_heads = int64_t{shape.batch} * shape.num_attention_heads;
        int64_t const group = shape.num_attention_heads / shape.num_key_value_heads;
        int64_t heads_and_splits = pages_and_heads * shape.num_splits;
        if (shape.num_splits == 0) {
            int64_t const one = int64_t{shape.batch} * shape.num_key_value_heads;
            int64_t const blocks = std::min(std::max(one, kMostBlocks), one * most_useful_splits(shape));
            heads_and_splits = blocks * group;
        }
        int64_t const visual = shape.op == FASTOCR_FOCAL && shape.fixation_size > 0 ? shape.visual_capacity : 0;
        bytes = 0;
        auto const place = [this](int64_t floats) {
            size_t const at = bytes;
            bytes += (static_cast<size_t>(floats) * sizeof(float) + 255) / 256 * 256;
            return at;
        };
        parts = place(heads_and_splits * shape.head_dim);
        part_lse = place(heads_and_splits);
        lse = place(pages_and_heads);
        scores = place(pages_and_heads * visual);
        mass = place(int64_t{shape.batch} * shape.num_key_value_heads * visual);
    }
};

} // namespace fastocr
#endif
