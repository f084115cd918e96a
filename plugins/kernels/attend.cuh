// The typed part of an op: launches of attention for one storage type, compiled in a source file each.
#ifndef FASTOCR_KERNELS_ATTEND_CUH
#define FASTOCR_KERNELS_ATTEND_CUH

#include "attend_declared.cuh"
#include "decode_attention.cuh"
#include "dense_prefill.cuh"
#include "merge_splits.cuh"
#include "plan.h"

namespace fastocr {

// Queues the attention of query row `row` over the present banks; fixation and attend_all as the tensors say.
template <class T>
cudaError_t launch_decode(FastocrShape const& shape, FastocrTensors const& tensors, int row, int num_splits,
    float* parts, float* part_lse, SelectionBuffers const& selection, cudaStream_t stream)
{
    bool const gathered = shape.op == FASTOCR_GATHERED;
    DecodeProblem<T> problem{};
    problem.query = static_cast<T const*>(tensors.query);
    problem.visual_key = static_cast<T const*>(tensors.present_visual_key);
    problem.visual_value = static_cast<T const*>(tensors.present_visual_value);
    problem.text_key = static_cast<T const*>(tensors.present_text_key);
    problem.text_value = static_cast<T const*>(tensors.present_text_value);
    problem.visual_valid = tensors.visual_valid;
    problem.text_valid = tensors.text_valid;
    problem.fixation = gathered ? tensors.fixation_in : nullptr;
    problem.attend_all = gathered ? tensors.attend_all : nullptr;
    problem.status = tensors.status_out;
    problem.output = static_cast<T*>(tensors.output);
    problem.parts = parts;
    // With one split its sum is that of the whole row.
    problem.part_lse = num_splits == 1 ? selection.lse : part_lse;
    problem.scores = selection.scores;
    problem.scores_stride = shape.visual_capacity;
    problem.num_key_value_heads = shape.num_key_value_heads;
    problem.group = shape.num_attention_heads / shape.num_key_value_heads;
    problem.rows = shape.rows;
    problem.row = row;
    problem.head_dim = shape.head_dim;
    problem.visual_capacity = shape.visual_capacity;
    problem.text_capacity = shape.text_capacity;
    problem.fixation_size = shape.fixation_size;
    problem.num_splits = num_splits;
    problem.scale = static_cast<float>(shape.scale * 1.4426950408889634); // exponentials are powers of two

    // The head_dims of real models are compiled for; the others, and float32, which is for tests, share one kernel.
    void (*kernel)(DecodeProblem<T> const) = &decode_attention<T, 0>;
    if constexpr (sizeof(T) == 2) {
        if (shape.head_dim == 64)
            kernel = &decode_attention<T, 64>;
        else if (shape.head_dim == 80)
            kernel = &decode_attention<T, 80>;
        else if (shape.head_dim == 96)
            kernel = &decode_attention<T, 96>;
        else if (shape.head_dim == 128)
            kernel = &decode_attention<T, 128>;
    }
    int const head_blocks = (problem.group + decode::kHeadsPerBlock - 1) / decode::kHeadsPerBlock;
    size_t const shared_bytes
        = decode::SharedLayout<T>(shape.head_dim, std::min(problem.group, decode::kHeadsPerBlock)).bytes;
    cudaError_t const refused = allow_shared_bytes(kernel, shared_bytes);
    if (refused != cudaSuccess)
        return refused;
    dim3 const grid(num_splits, shape.num_key_value_heads * head_blocks, shape.batch);
    FASTOCR_LAUNCH(kernel, grid, decode::kThreads, shared_bytes, stream, problem);
    cudaError_t const error = cudaGetLastError();
    if (error != cudaSuccess || num_splits == 1)
        return error;
    auto const merge = &merge_splits<T>;
    unsigned const heads = static_cast<unsigned>(shape.batch * shape.num_attention_heads);
    FASTOCR_LAUNCH(merge, heads, decode::kThreads, 0, stream, problem, selection.lse);
    return cudaGetLastError();
}

template <class T>
cudaError_t attend(FastocrShape const& shape, FastocrTensors const& tensors, int num_splits, float* parts,
    float* part_lse, SelectionBuffers const& selection, cudaStream_t stream)
{
    if (shape.rows > 1) {
        cudaError_t const error = launch_dense_prefill<T>(shape, tensors, stream);
        if (error != cudaSuccess || selection.scores == nullptr)
            return error;
    }
    // In prefill a selection needs the scores of the last row: one decode step, which writes that row's output again.
    return launch_decode<T>(shape, tensors, shape.rows - 1, num_splits, parts, part_lse, selection, stream);
}

} // namespace fastocr
#endif
