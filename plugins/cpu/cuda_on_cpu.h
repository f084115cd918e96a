// CUDA C++ on the CPU: kernels run as ordinary C++, to be tested and debugged where there is no GPU.
//
// A block's threads are fibers of one host thread, so a barrier is a switch to the next fiber; blocks run one after
// another, in order, so results are deterministic. The header replaces the runtime API that host code here uses: no
// CUDA library is linked, `device memory` is host memory and streams are ignored (a call is done when it returns).
//
// Covered: __syncthreads, __syncwarp, shuffles, ballots, votes, static and dynamic shared memory, atomics, copies to
// shared memory that land only when waited for, NVIDIA's own host code of half and bfloat16. A barrier that not all
// threads reach, or that lanes reach through different calls, ends the program with a message; dynamic shared memory
// starts as NaN in every block. Not covered: races between threads, memory ordering, anything that needs real warps.
//
// All lanes of a warp must take part in a warp-wide call (masks are not interpreted), so a block has a multiple of 32
// threads. Launches from several host threads take turns.
#ifndef FASTOCR_CPU_CUDA_ON_CPU_H
#define FASTOCR_CPU_CUDA_ON_CPU_H

#ifdef __CUDACC__
#error "cuda_on_cpu.h stands in for a CUDA compiler; include cuda_compat.cuh, which chooses"
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "fibers.h"

namespace cuda_on_cpu {

// ---- what kernels call ---------------------------------------------------------------------------------------------

// Shows `mine` to the warp and returns the slots of its lanes. Two sets of slots take turns: a lane can be one exchange
// ahead of another, never two.
template <class T>
unsigned char (*exchange(T const& mine, Wait where))[kSlotBytes] {
    static_assert(sizeof(T) <= kSlotBytes, "a lane shows at most 64 bytes at a time");
    Machine& m = machine();
    Fiber& fiber = self();
    auto* slots = m.slots[fiber.parity];
    fiber.parity ^= 1;
    std::memcpy(slots[fiber.linear], &mine, sizeof(T));
    wait_at(where);
    return slots + fiber.linear / kWarp * kWarp;
}

template <class T>
T shuffle(T const& mine, unsigned source) {
    T result;
    std::memcpy(&result, exchange(mine, Wait::kShuffle)[source % kWarp], sizeof(T));
    return result;
}

// all[lane] is what each lane of the warp passed as `mine`: what warp-wide instructions such as mma are built from.
template <class T>
void warp_gather(T const& mine, T (&all)[kWarp]) {
    auto* slots = exchange(mine, Wait::kGather);
    for (unsigned lane = 0; lane < kWarp; ++lane) std::memcpy(&all[lane], slots[lane], sizeof(T));
}

inline unsigned lane_of_self() { return self().linear % kWarp; }

// cp.async may land at any time from its start to the wait for its group. So even threads copy at once and odd ones at
// the wait: a buffer that is filled too early and a missing wait both show.
inline void copy_async(void* shared, void const* global, size_t bytes) {
    Fiber& fiber = self();
    if (reinterpret_cast<uintptr_t>(shared) % bytes != 0 || reinterpret_cast<uintptr_t>(global) % bytes != 0)
        fail("an asynchronous copy between addresses that are not aligned to its size");
    if (fiber.linear % 2 == 0)
        std::memcpy(shared, global, bytes);
    else
        fiber.pending.push_back({shared, global, bytes, fiber.group});
}

inline void copy_async_commit() { ++self().group; }

inline void copy_async_wait(unsigned groups_left) {
    Fiber& fiber = self();
    auto const lands = [&](PendingCopy const& copy) { return copy.group + groups_left < fiber.group; };
    for (PendingCopy const& copy : fiber.pending)
        if (lands(copy)) std::memcpy(copy.destination, copy.source, copy.bytes);
    fiber.pending.erase(std::remove_if(fiber.pending.begin(), fiber.pending.end(), lands), fiber.pending.end());
}

// ---- what host code calls ------------------------------------------------------------------------------------------

inline cudaError_t memcpy_async(void* to, void const* from, size_t bytes, cudaMemcpyKind, cudaStream_t = nullptr) {
    if (bytes != 0) std::memmove(to, from, bytes);
    return cudaSuccess;
}

inline cudaError_t memset_async(void* to, int value, size_t bytes, cudaStream_t = nullptr) {
    if (bytes != 0) std::memset(to, value, bytes);
    return cudaSuccess;
}

inline cudaError_t last_error() { return std::exchange(machine().error, cudaSuccess); }

template <class Kernel>
cudaError_t set_function_attribute(Kernel, cudaFuncAttribute, int) {
    return cudaSuccess;
}

inline cudaError_t get_device(int* device) {
    *device = 0;
    return cudaSuccess;
}

inline cudaError_t get_attribute(int* value, cudaDeviceAttr attribute, int) {
    *value = attribute == cudaDevAttrMultiProcessorCount ? kMultiprocessors : 0;
    return cudaSuccess;
}

} // namespace cuda_on_cpu

// ---- CUDA's names --------------------------------------------------------------------------------------------------

#undef __shared__
#define __shared__ static /* one block runs at a time, so what is static is the block's */
#undef __launch_bounds__
#define __launch_bounds__(...)
#ifndef __restrict__
#define __restrict__ __restrict
#endif
#define threadIdx (::cuda_on_cpu::self().thread)
#define blockIdx (::cuda_on_cpu::machine().block)
#define blockDim (::cuda_on_cpu::machine().block_dim)
#define gridDim (::cuda_on_cpu::machine().grid_dim)

#define cudaMemcpyAsync ::cuda_on_cpu::memcpy_async
#define cudaMemsetAsync ::cuda_on_cpu::memset_async
#define cudaGetLastError ::cuda_on_cpu::last_error
#define cudaFuncSetAttribute ::cuda_on_cpu::set_function_attribute
#define cudaGetDevice ::cuda_on_cpu::get_device
#define cudaDeviceGetAttribute ::cuda_on_cpu::get_attribute

inline void __syncthreads() { ::cuda_on_cpu::wait_at(::cuda_on_cpu::Wait::kBlock); }
inline void __syncwarp(unsigned = ~0u) { ::cuda_on_cpu::wait_at(::cuda_on_cpu::Wait::kSyncWarp); }

template <class T>
T __shfl_sync(unsigned, T value, int source, int = 32) {
    return ::cuda_on_cpu::shuffle(value, static_cast<unsigned>(source));
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
    return ::cuda_on_cpu::shuffle(value, ::cuda_on_cpu::lane_of_self() ^ static_cast<unsigned>(mask));
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta, int = 32) {
    unsigned const lane = ::cuda_on_cpu::lane_of_self();
    return ::cuda_on_cpu::shuffle(value, lane + delta < ::cuda_on_cpu::kWarp ? lane + delta : lane);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta, int = 32) {
    unsigned const lane = ::cuda_on_cpu::lane_of_self();
    return ::cuda_on_cpu::shuffle(value, delta <= lane ? lane - delta : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
    auto* slots = ::cuda_on_cpu::exchange(predicate != 0, ::cuda_on_cpu::Wait::kBallot);
    unsigned bits = 0;
    for (unsigned lane = 0; lane < ::cuda_on_cpu::kWarp; ++lane) bits |= unsigned{slots[lane][0]} << lane;
    return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == ~0u; }

// Only one thread runs at a time, so a plain read and write is atomic.
template <class T>
T atomicAdd(T* address, T value) {
    T const old = *address;
    *address = old + value;
    return old;
}
template <class T>
T atomicOr(T* address, T value) {
    T const old = *address;
    *address = old | value;
    return old;
}
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T>
T __ldg(T const* address) {
    return *address;
}

#endif
