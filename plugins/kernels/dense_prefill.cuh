// Dense attention of several query rows over both banks, as prefill needs it.
//
// Flash attention: a block keeps a tile of query rows and goes through the keys in tiles, with one softmax over both
// banks that is rescaled as it goes. Each key and value is read once for the whole group of query heads that share it.
// 16-bit tensors go through tensor cores (dense_prefill_mma.cuh), float32 through ordinary multipliers
// (dense_prefill_fma.cuh). All sums are float32.
#ifndef FASTOCR_KERNELS_DENSE_PREFILL_CUH
#define FASTOCR_KERNELS_DENSE_PREFILL_CUH

#include <limits.h>
#include <stddef.h>

#include "attention.h"
#include "dense_prefill_fma.cuh"
#include "dense_prefill_mma.cuh"

namespace fastocr {
namespace dense_prefill {

// The kernel of a storage type and its layout, for a head_dim of up to kHeadDim.
template <class T, int kHeadDim>
struct Kernel {
    using Layout = MmaLayout<T, kHeadDim>;
    static constexpr auto function = &dense_prefill_mma<T, kHeadDim>;
};

template <int kHeadDim>
struct Kernel<float, kHeadDim> {
    using Layout = FmaLayout<kHeadDim>;
    static constexpr auto function = &dense_prefill_fma<kHeadDim>;
};

// What every device from sm_80 to sm_120 gives a block that asks for it.
constexpr int kMostSharedBytes = 99 * 1024;

template <class T, int kHeadDim>
cudaError_t launch(Problem<T> problem, int64_t pages_and_heads, cudaStream_t stream)
{
    using Layout = typename Kernel<T, kHeadDim>::Layout;
    static_assert(Layout::kSharedBytes <= kMostSharedBytes, "the tiles do not fit in shared memory");
    auto const kernel = Kernel<T, kHeadDim>::function;
    int64_t const entries = static_cast<int64_t>(problem.rows) * problem.group;
    int64_t const tiles = (entries + Layout::kQueries - 1) / Layout::kQueries;
    if (entries > INT_MAX - Layout::kQueries || tiles * pages_and_heads > INT_MAX)
        return cudaErrorInvalidValue;
    problem.tiles = static_cast<int>(tiles);
    cudaError_t const refused = allow_shared_bytes(kernel, Layout::kSharedBytes);
    if (refused != cudaSuccess)
        return refused;
    unsigned const blocks = static_cast<unsigned>(tiles * pages_and_heads);
    FASTOCR_LAUNCH(kernel, blocks, Layout::kThreads, Layout::kSharedBytes, stream, problem);
    return cudaGetLastError();
}

} // namespace dense_prefill

// Queues output [B,H,n,D] = softmax(scale query keys^T) values over the `present_*` banks, which the new rows are
// already in: row i of page b sees visual rows below visual_valid[b,i] and text rows below text_valid[b,i] (a count out
// of range is cut to the bank), and is zero where it sees none. Any n from 1; head_dim up to 256, a multiple of 8; T is
// float, __half or __nv_bfloat16. Pointers are aligned to 16 bytes. Returns cudaErrorInvalidValue for a shape that it
// cannot run, or the launch's error.
template <class T>
cudaError_t launch_dense_prefill(FastocrShape const& shape, FastocrTensors const& tensors, cudaStream_t stream)
{
    using namespace dense_prefill;
    constexpr double kLog2OfE = 1.4426950408889634;
    Problem<T> problem{};
    problem.query = static_cast<T const*>(tensors.query);
    problem.key[kVisual] = static_cast<T const*>(tensors.present_visual_key);
    problem.key[kText] = static_cast<T const*>(tensors.present_text_key);
    problem.value[kVisual] = static_cast<T const*>(tensors.present_visual_value);
    problem.value[kText] = static_cast<T const*>(tensors.present_text_value);
    problem.valid[kVisual] = tensors.visual_valid;
    problem.valid[kText] = tensors.text_valid;
    problem.output = static_cast<T*>(tensors.output);
    problem.capacity[kVisual] = shape.visual_capacity;
    problem.capacity[kText] = shape.text_capacity;
    problem.num_key_value_heads = shape.num_key_value_heads;
    problem.group = shape.num_attention_heads / shape.num_key_value_heads;
    problem.rows = shape.rows;
    problem.head_dim = shape.head_dim;
    problem.scale = static_cast<float>(shape.scale * kLog2OfE);
    int64_t const pages_and_heads = static_cast<int64_t>(shape.batch) * shape.num_key_value_heads;

    // A head_dim between two of these runs as the next with columns of zeros, which cost a little and are never stored.
    if (shape.head_dim < 1 || shape.head_dim % 8 != 0)
        return cudaErrorInvalidValue;
    if (shape.head_dim <= 32)
        return launch<T, 32>(problem, pages_and_heads, stream);
    if (shape.head_dim <= 64)
        return launch<T, 64>(problem, pages_and_heads, stream);
    if (shape.head_dim <= 96)
        return launch<T, 96>(problem, pages_and_heads, stream);
    if (shape.head_dim <= 128)
        return launch<T, 128>(problem, pages_and_heads, stream);
    if (shape.head_dim <= 256)
        return launch<T, 256>(problem, pages_and_heads, stream);
    return cudaErrorInvalidValue;
}

} // namespace fastocr

#endif
