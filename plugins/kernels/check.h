// Host only: whether the kernels can run a shape, and what to say where they cannot.
#ifndef FASTOCR_KERNELS_CHECK_H
#define FASTOCR_KERNELS_CHECK_H

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "attention.h"
#include "decode_problem.cuh"

namespace fastocr {

constexpr int kMostHeadDim = 256;
constexpr int kMostGridBlocks = 65535; // of a grid's second and third dimension
constexpr int64_t kMostRows = int64_t{1} << 30; // of both banks together, and of B * H * n: an int holds twice as many

// True where the kernels can run `shape`; otherwise one sentence in `message`.
inline bool check_shape(FastocrShape const* shape, char* message, size_t size)
{
    if (shape == nullptr) {
        snprintf(message, size, "the shape is null");
        return false;
    }
    struct Limit {
        char const* name;
        int64_t value, least, most;
    } const limits[] = {
        {"op", shape->op, FASTOCR_DENSE, FASTOCR_GATHERED},
        {"dtype", shape->dtype, FASTOCR_FLOAT32, FASTOCR_BFLOAT16},
        {"batch", shape->batch, 1, kMostGridBlocks},
        {"num_attention_heads", shape->num_attention_heads, 1, kMostGridBlocks},
        {"num_key_value_heads", shape->num_key_value_heads, 1, kMostGridBlocks},
        {"rows", shape->rows, 1, INT32_MAX},
        {"head_dim", shape->head_dim, 8, kMostHeadDim},
        {"visual_capacity", shape->visual_capacity, 1, kMostRows},
        {"text_capacity", shape->text_capacity, 1, kMostRows},
        {"visual_capacity + text_capacity", int64_t{shape->visual_capacity} + shape->text_capacity, 2, kMostRows},
        {"fixation_size", shape->fixation_size, 0, shape->op == FASTOCR_DENSE ? 0 : shape->visual_capacity},
        {"num_splits", shape->num_splits, 0, decode::kMostSplits},
    };
    for (Limit const& limit : limits)
        if (limit.value < limit.least || limit.value > limit.most) {
            snprintf(message, size, "%s is %lld; it must be from %lld to %lld", limit.name,
                static_cast<long long>(limit.value), static_cast<long long>(limit.least),
                static_cast<long long>(limit.most));
            return false;
        }
    if (shape->head_dim % 8 != 0) {
        snprintf(message, size, "head_dim is %d; it must be a multiple of 8", shape->head_dim);
        return false;
    }
    if (shape->num_attention_heads % shape->num_key_value_heads != 0) {
        snprintf(message, size, "num_attention_heads is %d; it must be a multiple of num_key_value_heads, which is %d",
            shape->num_attention_heads, shape->num_key_value_heads);
        return false;
    }
    if (int64_t{shape->batch} * shape->num_attention_heads > kMostRows / shape->rows) {
        snprintf(message, size, "batch %d x num_attention_heads %d x rows %d is more than %lld; feed fewer rows at once",
            shape->batch, shape->num_attention_heads, shape->rows, static_cast<long long>(kMostRows));
        return false;
    }
    if (!isfinite(shape->scale)) {
        snprintf(message, size, "scale is %g; it must be finite", static_cast<double>(shape->scale));
        return false;
    }
    return true;
}

} // namespace fastocr
#endif
