// Attention of tensors stored as float16.
#include "attend.cuh"

namespace fastocr {

template cudaError_t attend<__half>(FastocrShape const&, FastocrTensors const&, int, float*, float*,
    SelectionBuffers const&, cudaStream_t);

} // namespace fastocr
