// What the kernels need beyond CUDA C++ itself, so that one source serves nvcc and the emulation on the CPU:
// a launch, dynamic shared memory, asynchronous copies to shared memory.
#ifndef FASTOCR_KERNELS_CUDA_COMPAT_CUH
#define FASTOCR_KERNELS_CUDA_COMPAT_CUH

// FASTOCR_LAUNCH queues kernel<<<grid, block, shared_bytes, stream>>>(arguments...); its error is cudaGetLastError().
// `kernel` is a function pointer or a name without a comma in it.
// FASTOCR_DYNAMIC_SHARED(T, name) declares `T* name`, 16-byte aligned: the dynamic shared memory of the launch.
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define FASTOCR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
#define FASTOCR_DYNAMIC_SHARED(T, name) \
    extern __shared__ __align__(16) unsigned char fastocr_dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(fastocr_dynamic_shared)
#else
#include "../cpu/cuda_on_cpu.h"
#define FASTOCR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    (static_cast<void>(stream), \
        ::cuda_on_cpu::launch(dim3(grid), dim3(block), shared_bytes, [=] { kernel(__VA_ARGS__); }))
#define FASTOCR_DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(::cuda_on_cpu::machine().shared)
#endif

#include <stddef.h>
#include <stdint.h>

namespace fastocr {

// Lets `kernel` be launched with so much dynamic shared memory; above 48 KiB it must be told.
template <class Kernel>
cudaError_t allow_shared_bytes(Kernel kernel, size_t shared_bytes)
{
    if (shared_bytes <= 48 * 1024)
        return cudaSuccess;
    return cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
}

// Starts a copy of 16 bytes, both ends 16-byte aligned, past L1 (each byte is read once) and without registers. It
// belongs to the group that the next commit closes.
__device__ inline void copy_async_16(void* shared, void const* global)
{
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(__cvta_generic_to_global(global))
                 : "memory");
#else
    ::cuda_on_cpu::copy_async(shared, global, 16);
#endif
}

__device__ inline void copy_async_commit()
{
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" : : : "memory");
#else
    ::cuda_on_cpu::copy_async_commit();
#endif
}

// Waits until at most kGroupsLeft of this thread's groups are under way. A barrier must follow before other threads
// read what arrived.
template <int kGroupsLeft>
__device__ inline void copy_async_wait()
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" : : "n"(kGroupsLeft) : "memory");
#else
    ::cuda_on_cpu::copy_async_wait(kGroupsLeft);
#endif
}

} // namespace fastocr
#endif
