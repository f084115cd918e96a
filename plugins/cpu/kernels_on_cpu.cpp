// The kernels' library compiled as C++: every kernel, run by the emulation of cuda_on_cpu.h.
#include "../kernels/attention.cu"
#include "../kernels/attention_bfloat16.cu"
#include "../kernels/attention_float16.cu"
#include "../kernels/attention_float32.cu"
