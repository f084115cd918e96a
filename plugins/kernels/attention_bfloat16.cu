// Attention of tensors stored as bfloat16.
#include "attend.cuh"

namespace fastocr {

template cudaError_t attend<__nv_bfloat16>(FastocrShape const&, FastocrTensors const&, int, float*, float*,
    SelectionBuffers const&, cudaStream_t);

} // namespace fastocr
