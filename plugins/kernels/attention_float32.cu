// Attention of tensors stored as float32.
#include "attend.cuh"

namespace fastocr {

template cudaError_t attend<float>(FastocrShape const&, FastocrTensors const&, int, float*, float*,
    SelectionBuffers const&, cudaStream_t);

} // namespace fastocr
