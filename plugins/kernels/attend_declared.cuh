// `attend` as the C interface calls it; attention_float32.cu and its siblings compile it.
#ifndef FASTOCR_KERNELS_ATTEND_DECLARED_CUH
#define FASTOCR_KERNELS_ATTEND_DECLARED_CUH

#include "attention.h"
#include "cuda_compat.cuh"

namespace fastocr {

// Where a decode step leaves what the selection needs; null where nothing is selected.
struct SelectionBuffers {
    float* scores; // [B,H,VCAP]
    float* lse; // [B,H]
};

// Queues the attention of an op whose new rows are in the present banks. T is float, __half or __nv_bfloat16.
// parts [B,H,num_splits,D], part_lse [B,H,num_splits]: workspace.
template <class T>
cudaError_t attend(FastocrShape const& shape, FastocrTensors const& tensors, int num_splits, float* parts,
    float* part_lse, SelectionBuffers const& selection, cudaStream_t stream);

} // namespace fastocr
#endif
